"""Arguments of tools as clients really send them: strict about what is meant, lenient about its spelling. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prims.errors import Refused

Kind = Literal["text", "texts", "number", "count", "flag", "files", "headers"]

_LARGEST = 1e300  # of numbers; infinity is none
_TEXT = {"type": "string"}
_SCHEMAS: dict[Kind, dict[str, Any]] = {
    "text": _TEXT,
    "texts": {"type": "array", "items": _TEXT},
    "number": {"type": "number"},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
    "files": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"url": _TEXT, "mountPath": _TEXT},
            "required": ["url", "mountPath"],
        },
    },
    "headers": {"type": "object", "additionalProperties": _TEXT},
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: Kind
    description: str
    required: bool = False


def input_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, in the plain form that every client takes: no unions, no references."""
    return {
        "type": "object",
        "properties": {p.name: {**_SCHEMAS[p.kind], "description": p.description} for p in parameters},
        "required": [p.name for p in parameters if p.required],
    }


def read(tool: str, parameters: Sequence[Parameter], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of one call by name, each of its kind; what is not given (or null, or empty) is left out.

    Raises:
        Refused: one is unknown, missing, or cannot be understood.
    """
    known = {p.name: p for p in parameters}
    found: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise Refused(f"{tool} has no argument {name!r}; it takes {', '.join(known)}.{hint}")
        value = _read(known[name], value)
        if value is not None:
            found[name] = value
    for parameter in parameters:
        if parameter.required and parameter.name not in found:
            raise Refused(f"{tool} needs the argument {parameter.name}: {parameter.description}")
    return found


def _read(parameter: Parameter, value: Any) -> Any:
    """One value, or None when it is as good as not given."""
    name = parameter.name
    if value is None:
        return None
    if parameter.kind == "text":
        if not isinstance(value, str):
            raise Refused(f"{name} is a string, not {type(value).__name__}.")
        return value or None
    if isinstance(value, str):
        # Some clients send everything that is not text as text.
        if value.strip().lower() in ("", "null", "none"):
            return None
        value = _parsed(name, parameter.kind, value)
    match parameter.kind:
        case "number":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
                raise Refused(f"{name} is a number, such as 60.")
            return float(value)
        case "count":
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 <= value <= _LARGEST or value != int(value):
                raise Refused(f"{name} is a whole number from 0 up.")
            return int(value)
        case "flag":
            if not isinstance(value, bool):
                raise Refused(f"{name} is true or false.")
            return value
        case "texts":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise Refused(f'{name} is a list of strings, such as ["pandas", "plotly>=6"].')
            return tuple(value) or None
        case "headers":
            if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
                raise Refused(f'{name} is an object of strings, such as {{"Content-Type": "text/csv"}}.')
            return value or None
        case _:
            return tuple(_file(name, item) for item in _list(name, value)) or None


def _parsed(name: str, kind: Kind, text: str) -> Any:
    try:
        value = json.loads(text)
        # Some clients encode a list twice.
        return json.loads(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    except (ValueError, RecursionError):
        if kind in ("number", "count"):
            raise Refused(f"{name} is a number, such as 60, not the text {text[:80]!r}.") from None
        if kind == "flag":
            return {"true": True, "yes": True, "false": False, "no": False}.get(text.strip().lower())
        example = {
            "texts": '["pandas", "plotly>=6"]',
            "files": '[{"url": "https://…/data.csv", "mountPath": "data.csv"}]',
        }.get(kind, '{"Content-Type": "text/csv"}')
        raise Refused(f"{name} is JSON such as {example}, not the text {text[:80]!r}.") from None


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise Refused(f'{name} is a list of objects such as {{"url": "https://…/data.csv", "mountPath": "data.csv"}}.')
    return value


def _file(name: str, item: Any) -> tuple[str, str]:
    if isinstance(item, dict):
        url, path = item.get("url"), item.get("mountPath", item.get("mount_path"))
        extra = set(item) - {"url", "mountPath", "mount_path"}
        if isinstance(url, str) and isinstance(path, str) and url and path and not extra:
            return url, path
    raise Refused(f'each of {name} is an object such as {{"url": "https://…/data.csv", "mountPath": "data.csv"}}.')
