"""Short words for numbers, texts and ranges. None of it raises, whatever the values are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def short(value: Any, most: int = 80) -> str:
    """A value as text on one line, of at most `most` characters."""
    try:
        text = " ".join(str(value).split())
    except Exception:
        text = f"({type(value).__name__})"
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(value: Any, most: int = 80) -> str:
    """A label in quotation marks; nothing for an empty one."""
    text = short(value, most)
    return f'"{text}"' if text else ""


def number(value: Any) -> str:
    """A number in four or five digits; anything else as short text."""
    try:
        if isinstance(value, bool) or (not isinstance(value, (int, float)) and not hasattr(value, "__float__")):
            return short(value, 40)
        as_float = float(value)
        if math.isfinite(as_float) and as_float == int(as_float) and abs(as_float) < 1e7:
            return f"{int(as_float)}"
        return f"{as_float:.5g}"
    except Exception:
        return short(value, 40)


def count(number_of: int, one: str, many: str = "") -> str:
    """`1 point`, `2 points`, `12,000 points`."""
    return f"{number_of:,} {one if number_of == 1 else many or one + 's'}"


def size(number_of_bytes: int) -> str:
    """Bytes for people."""
    if number_of_bytes < 10_000:
        return f"{number_of_bytes} bytes"
    return f"{number_of_bytes / 1e3:.0f} KB" if number_of_bytes < 1e6 else f"{number_of_bytes / 1e6:.1f} MB"


def some(values: Iterable[str], most: int, total: int | None = None) -> str:
    """The first values with commas between them, and how many more there are."""
    listed = list(values)
    left = (len(listed) if total is None else total) - len(listed[:most])
    text = ", ".join(listed[:most])
    return f"{text} and {left:,} more" if left > 0 and text else text


def spread(values: Iterable[Any]) -> str:
    """`from 1 to 9` of plain values: numbers by size, texts by name when there are few, dates as they are."""
    seen: list[Any] = []
    for value in values:
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            seen.append(value)
        if len(seen) >= 100_000:
            break
    if not seen:
        return ""
    if all(isinstance(v, (int, float)) for v in seen):
        return between(min(seen), max(seen))
    if all(isinstance(v, str) for v in seen):
        first, last = min(seen), max(seen)
        if first[:1].isdigit() and last[:1].isdigit() and len(first) >= 6:  # dates in the ISO way
            return between(first, last)
        names = list(dict.fromkeys(seen))
        return some((short(name, 24) for name in names), 6) if len(names) > 1 else short(names[0], 24)
    return f"{len(seen)} values"


def between(low: Any, high: Any) -> str:
    """`1 to 9`, or `1` alone."""
    first, last = number(low), number(high)
    return first if first == last else f"{first} to {last}"


def cut(text: str, most: int) -> str:
    """A text of several lines, at most `most` characters of it."""
    return text if len(text) <= most else text[:most].rstrip() + "\n[...]"
