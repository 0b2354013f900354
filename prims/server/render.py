"""A run's result for its readers: text within a budget, pictures that fit, structure without base64. Pure, no `mcp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from prims.config import Settings
from prims.kernel.text import plain, share, shorten, shorten_str, squeezed
from prims.model import Display, Form, Picture, RunResult, Text, stored

_MOST_LISTED = 40
_MOST_PACKAGES = 200
_TOLD_CHARS = 8000
_MOST_FORMS = 80

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}
_FORM = {
    "mime": _TEXT,
    "size": {**_COUNT, "description": "bytes"},
    "name": _TEXT,
    "relative_path": _TEXT,
    "uri": _TEXT,
}

# Written out, without references or unions, so that the validator of any client takes it.
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "enum": ["ok", "error", "timeout", "died", "out_of_memory", "limit", "cancelled", "shutdown"],
            "description": "How the run ended. Everything but ok is a failure.",
        },
        "stdout": _TEXT,
        "stderr": _TEXT,
        "result": {"type": "string", "description": "The value of the last expression, as text."},
        "error": {
            "type": "object",
            "properties": {
                "name": _TEXT,
                "value": _TEXT,
                "traceback": _TEXT,
                "line": {"type": "integer", "minimum": 1, "description": "Line of the code as it was sent."},
            },
            "required": ["name", "value", "traceback"],
        },
        "displays": {
            "type": "array",
            "description": "All that was shown, in order, each in the form that tells a person most.",
            "items": {
                "type": "object",
                "properties": {
                    **_FORM,
                    "width": _COUNT,
                    "height": _COUNT,
                    "text": {"type": "string", "description": "What is shown, in words."},
                    "attached": {"type": "boolean", "description": "Whether the next image block is of it."},
                    "result": {"type": "boolean", "description": "Whether it is the value of the last expression."},
                    "after": {**_COUNT, "description": "Characters of stdout that came before it."},
                    "alternatives": {
                        "type": "array",
                        "description": "The same in other forms.",
                        "items": {"type": "object", "properties": _FORM, "required": ["mime", "size", "name"]},
                    },
                },
                "required": ["mime", "size", "name"],
            },
        },
        "artifacts": {
            "type": "array",
            "description": "Files in output/ that the run made or changed.",
            "items": {
                "type": "object",
                "properties": {"name": _TEXT, "relative_path": _TEXT, "size": _COUNT, "mime": _TEXT, "uri": _TEXT},
                "required": ["name", "relative_path", "size", "mime"],
            },
        },
        "packages": {**_TEXTS, "description": "What was resolved, as name==version."},
        "isolation": _TEXT,
        "seconds": {
            "type": "object",
            "properties": {
                "queue": {"type": "number"},
                "environment": {"type": "number"},
                "start": {"type": "number"},
                "run": {"type": "number"},
            },
        },
        "session_id": _TEXT,
        "feedback": _TEXTS,
    },
    "required": [
        "status", "stdout", "stderr", "result", "displays", "artifacts", "packages", "isolation", "seconds",
        "session_id", "feedback",
    ],
}  # fmt: skip


def file_uri(session_id: str, path: str) -> str:
    """The resource that holds a workspace file."""
    return f"prims://{session_id}/files/{quote(path)}"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A result as it is told: `text` for models and people, `images` to go with it, `structured` for programs."""

    text: str
    images: tuple[Picture, ...]
    structured: dict[str, Any]


def render(result: RunResult, session_id: str, settings: Settings) -> Rendered:
    """One result within the budgets of a reply; `structured` follows OUTPUT_SCHEMA."""
    error = result.error
    untold = [d for d in result.displays if not d.told]
    texts = [_cost_str(d.text) for d in untold]
    wants = [
        _cost(result.story),
        _cost(result.stderr),
        _cost(result.result),
        _cost_str(error.traceback + error.value) if error else 0,
        sum(texts),
    ]
    shares = share(settings.reply_chars, wants)
    story, stderr, value = (
        _fit(text, room) for text, room in zip((result.story, result.stderr, result.result), shares, strict=False)
    )
    stdout = _fit(result.stdout, shares[0])
    rooms = {id(d): max(80, room) for d, room in zip(untold, share(shares[4], texts), strict=True)}

    parts: list[str] = []
    if result.status != "ok":
        parts.append(f"status: {result.status}" + (f" ({plain(result.cause)})" if result.cause else ""))
    parts += _section("stdout", story) + _section("stderr", stderr) + _section("result", value)
    error_fields: dict[str, Any] | None = None
    if error is not None:
        traceback = _fit_str(error.traceback, shares[3])
        error_value = _fit_str(error.value, min(shares[3], 2000))
        error_fields = {"name": plain(error.name), "value": error_value, "traceback": traceback}
        if error.line is not None and error.line > 0:
            error_fields["line"] = error.line
        shown = traceback
        if not any(error.name in line for line in shown.splitlines()):
            shown = f"{shown}\n{error.name}: {error_value}".strip("\n")
        parts += _section("error", shown)
    parts += _section("shown", _display_lines(result, untold, rooms))
    parts += _section("files", _artifact_lines(result))
    parts += _section("hints", "\n".join(f"- {plain(hint)}" for hint in result.feedback))
    took = sum(result.seconds.values())
    parts.append(f"[{result.status} in {took:.2f} s, isolation: {result.isolation}, session_id: {session_id}]")

    structured: dict[str, Any] = {
        "status": result.status,
        "stdout": stdout,
        "stderr": stderr,
        "result": value,
        "displays": _all_display_fields(result.displays, session_id, rooms),
        "artifacts": [
            {
                "name": a.name,
                "relative_path": a.relative_path,
                "size": a.size,
                "mime": a.mime,
                "uri": file_uri(session_id, a.relative_path),
            }
            for a in result.artifacts[:_MOST_LISTED]
        ],
        "packages": list(result.packages[:_MOST_PACKAGES]),
        "isolation": result.isolation,
        "seconds": {phase: round(seconds, 4) for phase, seconds in result.seconds.items()},
        "session_id": session_id,
        "feedback": [plain(hint) for hint in result.feedback],
    }
    if error_fields is not None:
        structured["error"] = error_fields
    images = tuple(d.inline for d in result.displays if d.inline is not None)
    return Rendered("\n".join(parts), images, structured)


def _section(title: str, body: str) -> list[str]:
    return [f"{title}:\n{body.rstrip(chr(10))}\n"] if body else []


def _cost_str(text: str) -> int:
    """Characters, where those outside of ASCII count three: they are about a token each."""
    return len(text) if text.isascii() else len(text) + 2 * sum(not c.isascii() for c in text)


def _cost(text: Text) -> int:
    kept = text.head + text.tail
    if not kept:
        return 0
    return text.chars * _cost_str(kept) // len(kept)


def _fit(text: Text, room: int) -> str:
    cost = _cost(text)
    return shorten(text, room) if cost <= room else squeezed(shorten(text, room * text.chars // max(1, cost)))


def _fit_str(text: str, room: int) -> str:
    cost = _cost_str(text)
    return text if cost <= room else shorten_str(text, max(200, room * len(text) // max(1, cost)))


def _display_lines(result: RunResult, untold: list[Display], rooms: dict[int, int]) -> str:
    lines = []
    for display in untold[:_MOST_LISTED]:
        text = _fit_str(plain(display.text), rooms[id(display)])
        if display.path is None and display.text:
            lines.append(f"- {text}")
            continue
        pixels = f", {display.width}x{display.height} px" if display.width and display.height else ""
        where = f", stored as {display.path}" if display.path else ""
        lines.append(f"- {display.mime}{pixels}, {count_bytes(display.size)}{where}{_attached(display)}")
        others = [
            f"{form.path} ({form.mime}, {count_bytes(form.size)})" for form in display.alternatives[:4] if form.path
        ]
        if others:
            lines.append(f"  also as {', '.join(others)}")
        if display.text:
            lines.append("  " + text.replace("\n", "\n  "))
    left = len(untold) - len(untold[:_MOST_LISTED]) + result.displays_left_out
    if left > 0:
        lines.append(f"- and {left} more")
    return "\n".join(lines)


def _attached(display: Display) -> str:
    """Whether a picture goes with the reply, in words."""
    if not display.mime.startswith("image/") or (display.mime == "image/svg+xml" and not display.inline):
        return ""
    if display.inline is None:
        return f", not attached ({plain(display.trouble)})" if display.trouble else ", not attached"
    small = display.inline
    same = (small.width, small.height) == (display.width, display.height)
    return ", attached" if same else f", attached as {small.width}x{small.height} px"


def _artifact_lines(result: RunResult) -> str:
    shown = {form.path for d in result.displays for form in stored(d)}
    files = [a for a in result.artifacts if a.relative_path not in shown]
    lines = [f"- {plain(a.relative_path)} ({a.mime}, {count_bytes(a.size)})" for a in files[:_MOST_LISTED]]
    left = max(0, len(files) - _MOST_LISTED) + result.artifacts_left_out
    if left:
        lines.append(f"- and {left} more")
    return "\n".join(lines)


def _all_display_fields(displays: tuple[Display, ...], session_id: str, rooms: dict[int, int]) -> list[dict[str, Any]]:
    """At most 40 displays; those whose text stands in the story give way to the others, and share less room."""
    spare = max(0, _MOST_LISTED - sum(not d.told for d in displays))
    told = [d for d in displays if d.told]
    kept = {id(d) for d in told[:spare]}
    room = _TOLD_CHARS // max(1, len(kept))
    listed = [d for d in displays if not d.told or id(d) in kept][:_MOST_LISTED]
    others = max(1, _MOST_FORMS // max(1, len(listed)) - 1)
    return [_display_fields(d, session_id, rooms.get(id(d), room), others) for d in listed]


def _display_fields(display: Display, session_id: str, most: int, others: int) -> dict[str, Any]:
    fields = _form_fields(display, session_id)
    if display.width and display.height:
        fields |= {"width": display.width, "height": display.height}
    if display.inline is not None:
        fields["attached"] = True
    if display.is_result:
        fields["result"] = True
    if display.text and not (display.is_result and display.told):  # else it is the result
        fields["text"] = _fit_str(plain(display.text), most)
    if display.after:
        fields["after"] = display.after
    if display.alternatives:
        fields["alternatives"] = [_form_fields(form, session_id) for form in display.alternatives[:others]]
    return fields


def _form_fields(form: Form, session_id: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"mime": form.mime, "size": form.size, "name": form.name}
    if form.path:
        fields |= {"relative_path": form.path, "uri": file_uri(session_id, form.path)}
    return fields


def count_bytes(count: int) -> str:
    if count < 10_000:
        return f"{count} byte{'s' * (count != 1)}"
    return f"{count / 1e3:.0f} KB" if count < 1e6 else f"{count / 1e6:.1f} MB"
