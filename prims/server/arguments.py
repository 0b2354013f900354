"""Arguments of tools as clients really send them: strict about what is meant, lenient about its spelling. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prims.errors import Refused


@dataclass(frozen=True, slots=True)
class RunCodeArguments:
    """The arguments of run_code, typed; empty ones are as if not given."""

    code: str
    requirements: tuple[str, ...]
    timeout_seconds: float | None
    session_id: str | None


def run_code_arguments(given: Mapping[str, Any] | None) -> RunCodeArguments:
    """Read the arguments of run_code.

    Raises:
        Refused: an argument is unknown, missing, or of a kind that cannot be understood.
    """
    given = dict(given or {})
    known = ("code", "requirements", "timeout_seconds", "session_id")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise Refused(f"run_code has no argument {name!r}; it takes {', '.join(known)}.{hint}")
    code = given.get("code")
    if not isinstance(code, str):
        raise Refused("run_code needs the argument code: the Python source as a string.")
    return RunCodeArguments(
        code, _texts("requirements", given.get("requirements")), _number(given.get("timeout_seconds")),
        _text("session_id", given.get("session_id")),
    )  # fmt: skip


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings; also one that came as JSON text, as null, or as an empty string."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return ()
        try:
            value = json.loads(text)
        except ValueError:
            value = None if text.lower() == "null" else text
        if isinstance(value, str):
            raise Refused(f'{name} is a list of strings, such as ["pandas", "plotly>=6"], not the text {text[:80]!r}.')
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refused(f'{name} is a list of strings, such as ["pandas", "plotly>=6"].')
    return tuple(value)


def _number(value: Any) -> float | None:
    if value is None or value == "" or (isinstance(value, str) and value.strip().lower() == "null"):
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise Refused("timeout_seconds is a number of seconds, such as 60.") from None


def _text(name: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Refused(f"{name} is a string that an earlier result gave.")
    return None if value.strip().lower() == "null" else value.strip()
