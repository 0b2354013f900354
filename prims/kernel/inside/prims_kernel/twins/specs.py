"""Charts that are data: plotly's figures and Vega-Lite's specifications, told in a few lines."""

from __future__ import annotations

import array
import base64
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from prims_kernel.twins.words import between, count, cut, number, quoted, short, some, spread

_MOST_SERIES = 16
_MOST_VALUES = 100_000
_MOST_CHARS = 3000
_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}


# ------------------------------------------------------------------------------------------------------- plotly


def plotly(spec: Any) -> str:
    """A plotly figure: its titles and axes, and what each trace draws."""
    layout = _dict(spec.get("layout"))
    traces = [trace for trace in spec.get("data") or [] if isinstance(trace, dict)]
    lines = [f"Plotly figure {quoted(_title(layout))}".rstrip() + f" with {count(len(traces), 'trace')}"]
    for name in sorted(key for key in layout if key[:5] in ("xaxis", "yaxis"))[:8]:
        axis = _dict(layout[name])
        parts = [quoted(_title(axis)), "" if axis.get("type") in (None, "linear", "-") else f"({axis['type']})"]
        if isinstance(axis.get("range"), (list, tuple)) and len(axis["range"]) == 2:
            parts.append(between(*axis["range"]))
        if any(parts):
            lines.append(f"  {name.replace('axis', ' axis')}: {' '.join(filter(None, parts))}")
    for trace in traces[:_MOST_SERIES]:
        with suppress(Exception):
            lines.append(f"  - {_trace(trace)}")
    if len(traces) > _MOST_SERIES:
        lines.append(f"  - and {len(traces) - _MOST_SERIES} more")
    if frames := spec.get("frames"):
        lines.append(f"  animated: {count(len(frames), 'frame')}")
    return cut("\n".join(lines), _MOST_CHARS)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _title(holder: dict[str, Any]) -> str:
    title = holder.get("title")
    return str(title.get("text") or "") if isinstance(title, dict) else str(title or "")


def _trace(trace: dict[str, Any]) -> str:
    kind = str(trace.get("type", "scatter"))
    mode = f" ({trace['mode']})" if trace.get("mode") else ""
    what = f"{short(kind, 30)} {quoted(trace.get('name') or '', 60)}".rstrip() + mode
    if "labels" in trace and "values" in trace:
        labels, values = list(islice(_values(trace["labels"]), 20)), list(_values(trace["values"]))
        pairs = [f"{short(label, 24)}: {number(value)}" for label, value in zip(labels, values, strict=False)]
        return f"{what}: {some(pairs, 20, len(values))}"
    found = {name: list(_values(trace[name])) for name in _ARRAYS if name in trace}
    if 0 < len(found.get("x", ())) <= 12 and kind == "bar" and "y" in found:
        names, lengths = (found["y"], found["x"]) if trace.get("orientation") == "h" else (found["x"], found["y"])
        bars = [f"{_plain(name)}: {number(length)}" for name, length in zip(names, lengths, strict=False)]
        return f"{what}: {some(bars, 12)}"
    most = max((_length(trace[name]) for name in found), default=0)
    parts = [f"{name} {extent}" for name, values in found.items() if (extent := spread(values))]
    if not most:
        return what
    return f"{what}: {', '.join([count(most, 'row' if 'z' in found else 'point'), *parts])}"


_ARRAYS = ("x", "y", "z", "lat", "lon", "r", "theta", "locations", "open", "high", "low", "close", "value", "values")


def _plain(value: Any) -> str:
    return number(value) if isinstance(value, (int, float)) else short(value, 24)


def _length(values: Any) -> int:
    if isinstance(values, dict) and "shape" in values:
        return int(str(values["shape"]).partition(",")[0])
    if isinstance(values, dict) and "bdata" in values:
        width = array.array(_CODES[str(values.get("dtype")).lstrip("<>|=")]).itemsize
        packed = values["bdata"]
        return int(len(packed) * 3 // 4 - packed[-2:].count("=")) // width
    return len(values) if hasattr(values, "__len__") else 1


def _values(values: Any) -> Iterator[Any]:
    """The values of an array as plotly writes it: a list, lists of lists, or packed numbers."""
    if isinstance(values, dict) and "bdata" in values:
        packed = array.array(_CODES[str(values.get("dtype")).lstrip("<>|=")])
        width = packed.itemsize
        raw = base64.b64decode(values["bdata"][: (_MOST_VALUES * width // 3 + 1) * 4])
        packed.frombytes(raw[: len(raw) // width * width])
        yield from packed[:_MOST_VALUES]
    elif isinstance(values, (str, int, float)):
        yield values
    elif hasattr(values, "__iter__"):
        for value in islice(values, _MOST_VALUES):
            if isinstance(value, (list, tuple)):
                yield from islice(value, 1000)
            else:
                yield value


# --------------------------------------------------------------------------------------------------------- vega


def vega(spec: Any) -> str:
    """A Vega-Lite chart: marks, what is encoded how, and the ranges of the fields that are."""
    lines: list[str] = []
    data = {name: rows for name, rows in _dict(spec.get("datasets")).items() if isinstance(rows, list)}
    _view(spec, data, _dict(spec.get("data")), lines, "Vega-Lite chart" if "marks" not in spec else "Vega chart", "")
    return cut("\n".join(lines[:40]), _MOST_CHARS)


def _view(
    spec: dict[str, Any], datasets: dict[str, Any], outer: dict[str, Any], lines: list[str], what: str, indent: str
) -> None:
    if len(lines) > 40 or len(indent) > 12:
        return
    data = _dict(spec.get("data")) or outer
    mark = spec.get("mark") or ""
    mark = mark.get("type", "") if isinstance(mark, dict) else mark
    head = f"{indent}{what} {quoted(_title(spec))}".rstrip() + (f": {short(mark, 30)}" if mark else "")
    encoding = {name: channel for name, channel in _dict(spec.get("encoding")).items() if isinstance(channel, dict)}
    told = [f"{name} {text}" for name, channel in encoding.items() if (text := _channel(channel))]
    lines.append("; ".join([head, *told]))
    if mark:
        lines += _rows(data, datasets, encoding, indent + "  ")
    for name in ("layer", "hconcat", "vconcat", "concat"):
        for part in (spec.get(name) or [])[:8]:
            _view(_dict(part), datasets, data, lines, f"- {name}", indent + "  ")
    if isinstance(spec.get("spec"), dict):
        by = _dict(spec.get("facet") or spec.get("repeat"))
        around = some((f"{key} {_channel(_dict(value)) or short(value)}" for key, value in by.items()), 4)
        _view(spec["spec"], datasets, data, lines, f"- for each {around}".rstrip(), indent + "  ")


def _channel(channel: dict[str, Any]) -> str:
    field = channel.get("field") or channel.get("shorthand")
    by = channel.get("aggregate") or channel.get("timeUnit") or ("bin" if channel.get("bin") else "")
    if not field and not by:
        return ""
    text = f"{short(by, 30)}({short(field or '', 40)})" if by else short(field, 40)
    title = channel.get("title") or _dict(channel.get("axis")).get("title")
    kind = f" ({channel['type']})" if channel.get("type") else ""
    scale = _dict(channel.get("scale")).get("type")
    return f"{text}{kind}" + (f" {quoted(title)}" if title else "") + (f" {short(scale, 20)} scale" if scale else "")


def _rows(data: dict[str, Any], datasets: dict[str, Any], encoding: dict[str, Any], indent: str) -> list[str]:
    if data.get("url"):
        return [f"{indent}data from {short(data['url'], 200)}"]
    rows = data.get("values") or datasets.get(str(data.get("name")))
    if not isinstance(rows, list):
        return []
    fields = dict.fromkeys(str(channel["field"]) for channel in encoding.values() if channel.get("field"))
    told = []
    for field in list(fields)[:8]:
        extent = spread(row.get(field) for row in islice(rows, _MOST_VALUES) if isinstance(row, dict))
        if extent:
            told.append(f"{short(field, 40)}: {extent}")
    return [f"{indent}{count(len(rows), 'row')}" + (f"; {'; '.join(told)}" if told else "")]
