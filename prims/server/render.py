"""A run's result for its readers: text within a budget, pictures that fit, structure without base64. Pure, no `mcp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from prims.config import Settings
from prims.kernel.text import plain, share, shorten, shorten_str
from prims.model import Display, RunResult, Text

_INLINE = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MOST_LISTED = 40
_MOST_PACKAGES = 200

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}

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
            "items": {
                "type": "object",
                "properties": {
                    "mime": _TEXT,
                    "size": {**_COUNT, "description": "bytes"},
                    "name": _TEXT,
                    "relative_path": _TEXT,
                    "uri": _TEXT,
                    "width": _COUNT,
                    "height": _COUNT,
                    "text": _TEXT,
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
    images: tuple[Display, ...]
    structured: dict[str, Any]


def render(result: RunResult, session_id: str, settings: Settings) -> Rendered:
    """One result within the budgets of a reply; `structured` follows OUTPUT_SCHEMA."""
    error = result.error
    display_text = "\n".join(d.text for d in result.displays if d.text)
    wants = [
        _cost(result.story),
        _cost(result.stderr),
        _cost(result.result),
        _cost_str(error.traceback + error.value) if error else 0,
        _cost_str(display_text),
    ]
    shares = share(settings.reply_chars, wants)
    story, stderr, value = (
        _fit(text, room) for text, room in zip((result.story, result.stderr, result.result), shares, strict=False)
    )
    stdout = _fit(result.stdout, shares[0])
    per_display = max(80, shares[4] // max(1, len(result.displays)))
    attached = _attached(result.displays, settings)

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
    parts += _section("shown", _display_lines(result, attached, per_display))
    parts += _section("files", _artifact_lines(result))
    parts += _section("hints", "\n".join(f"- {plain(hint)}" for hint in result.feedback))
    took = sum(result.seconds.values())
    parts.append(f"[{result.status} in {took:.2f} s, isolation: {result.isolation}, session_id: {session_id}]")

    structured: dict[str, Any] = {
        "status": result.status,
        "stdout": stdout,
        "stderr": stderr,
        "result": value,
        "displays": [_display_fields(d, session_id, per_display) for d in result.displays[:_MOST_LISTED]],
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
    return Rendered("\n".join(parts), tuple(attached), structured)


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
    return shorten(text, room if cost <= room else room * text.chars // max(1, cost))


def _fit_str(text: str, room: int) -> str:
    cost = _cost_str(text)
    return text if cost <= room else shorten_str(text, max(200, room * len(text) // max(1, cost)))


def _attached(displays: tuple[Display, ...], settings: Settings) -> list[Display]:
    """The pictures that go with the reply, in order, while they fit."""
    chosen, used = [], 0
    for display in displays:
        size = len(display.data) if display.data is not None and display.mime in _INLINE else 0
        if 0 < size <= settings.image_bytes and used + size <= settings.images_bytes:
            chosen.append(display)
            used += size
    return chosen


def _display_lines(result: RunResult, attached: list[Display], most: int) -> str:
    lines = []
    for display in result.displays[:_MOST_LISTED]:
        pixels = f", {display.width}x{display.height} px" if display.width and display.height else ""
        where = f", stored as {display.path}" if display.path else ""
        if display.path is None and display.text:
            lines.append(f"- {_fit_str(plain(display.text), most)}")
            continue
        attach = ", attached" if any(display is a for a in attached) else ""
        if not attach and display.mime in _INLINE:
            attach = ", too large to attach"
        lines.append(f"- {display.mime}{pixels}, {count_bytes(display.size)}{where}{attach}")
        if display.text:
            lines.append(f"  {_fit_str(plain(display.text), most)}")
    left = len(result.displays) - _MOST_LISTED + result.displays_left_out
    if left > 0:
        lines.append(f"- and {left} more")
    return "\n".join(lines)


def _artifact_lines(result: RunResult) -> str:
    shown = {d.path for d in result.displays}
    files = [a for a in result.artifacts if a.relative_path not in shown]
    lines = [f"- {plain(a.relative_path)} ({a.mime}, {count_bytes(a.size)})" for a in files[:_MOST_LISTED]]
    left = max(0, len(files) - _MOST_LISTED) + result.artifacts_left_out
    if left:
        lines.append(f"- and {left} more")
    return "\n".join(lines)


def _display_fields(display: Display, session_id: str, most: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"mime": display.mime, "size": display.size, "name": display.name}
    if display.path:
        fields |= {"relative_path": display.path, "uri": file_uri(session_id, display.path)}
    if display.width and display.height:
        fields |= {"width": display.width, "height": display.height}
    if display.text:
        fields["text"] = _fit_str(plain(display.text), most)
    return fields


def count_bytes(count: int) -> str:
    if count < 10_000:
        return f"{count} bytes"
    return f"{count / 1e3:.0f} KB" if count < 1e6 else f"{count / 1e6:.1f} MB"
