"""What a MIME bundle holds: its plain text, and the forms of it that are worth a file. Pure; all of it is hostile."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prims.kernel.text import plain

# What may go with a reply as a picture; clients refuse all else, and some then refuse the whole conversation.
INLINE = ("image/png", "image/jpeg", "image/gif", "image/webp")
LONGEST_TEXT = 20_000

_OBJECT_REPR = re.compile(r"\s*<(?:[\w.]+ object|[^\n<>]{1,200} at 0x[0-9a-f]+)>\s*", re.IGNORECASE)
_MIME = re.compile(r"[a-z0-9][\w.+-]{0,50}/[a-z0-9][\w.+-]{0,80}", re.IGNORECASE)
_EMBEDDED = re.compile(r"data:((?:image|audio|video)/(?!svg)[\w.+-]{2,20});base64,([\w+/=\s\\]{400,})", re.ASCII)
_MOST_FORMS = 8
_VEGA_JSON = re.compile(r"(application/vnd\.vega(?:lite)?\.v\d+)\.json")
# Only of use to a page that is alive.
_LIVE_ONLY = ("application/vnd.jupyter.widget-view+json", "application/vnd.bokehjs_exec.v0+json",
              "application/vnd.holoviews_exec.v0+json")  # fmt: skip
_LOADS = ("application/vnd.bokehjs_load.v0+json", "application/vnd.holoviews_load.v0+json")
_TEXTS = ("text/plain", "text/markdown")
# Markup that says what the text says. Of more than so many bytes the reader is told all the same.
_TOLD_BY_TEXT = ("text/html", "text/latex", "application/json", "application/javascript")
_PRINT = re.compile(rb"\xff[\xc0-\xc2]\0\x14\x08.{4}\x04", re.DOTALL)
_LARGE = 256 * 1024
_MOST_MARKERS = 1000  # of a JPEG, before the one that has its size
_SMALL = 1000


@dataclass(frozen=True, slots=True)
class Content:
    """A bundle, read. `forms` are (MIME type, bytes), the one that tells a person most first.

    `mime` is that of `text`, text/plain or text/markdown. `told` says that who has read the text misses nothing.
    """

    text: str
    mime: str
    forms: tuple[tuple[str, bytes], ...]
    told: bool

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.text) + sum(len(raw) for _, raw in self.forms)


def read(data: Mapping[str, Any], *, summary: bool) -> Content:
    """Read a bundle; `summary` says that its text only describes what is shown."""
    if _says_nothing(data):
        return Content("", "text/plain", (), told=True)
    text, mime = _text(data)
    wrong = [m for m in INLINE if m in data and sniff(_decoded(data[m])) is None]
    if wrong and (not text or _OBJECT_REPR.fullmatch(text)):
        text = f"{text} [what it gives as {' and '.join(wrong)} is no picture]".strip()
    forms = sorted((*_forms(data), *_embedded(data)), key=lambda form: _rank(form[0]))[:_MOST_FORMS]
    by_text = all(form in _TOLD_BY_TEXT and len(raw) <= _LARGE for form, raw in forms)
    real = bool(text) and not _OBJECT_REPR.fullmatch(text)
    told = not forms or (real and by_text and not summary)
    return Content(text if real or not forms else "", mime, tuple(forms), told)


def _says_nothing(data: Mapping[str, Any]) -> bool:
    """Whether a bundle only loads scripts into a page, or is empty by its own account."""
    empty = isinstance(data.get("text/plain"), str) and not data["text/plain"].strip()
    small = len(str(data.get("text/html", ""))) <= _SMALL and data.keys() <= {"text/plain", "text/html"}
    return (empty and small) or any(mime in data for mime in _LOADS)


def _text(data: Mapping[str, Any]) -> tuple[str, str]:
    """The form of a bundle that a reader of plain text gets most of, and its type."""
    value = data.get("text/plain")
    text = plain(value) if isinstance(value, str) else ""
    if text and not _OBJECT_REPR.fullmatch(text):
        return text, "text/plain"
    for mime in ("text/markdown", "text/latex"):
        if isinstance(data.get(mime), str):
            # As Markdown, whose renderers take LaTeX too.
            return _EMBEDDED.sub(r"data:\1;base64,…", plain(data[mime])), "text/markdown"
    if "application/json" in data:
        return plain(json.dumps(data["application/json"], ensure_ascii=False)), "text/plain"
    return text, "text/plain"


def _embedded(data: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The first picture, sound or film within a page or a text that has none beside it."""
    if not any(isinstance(mime, str) and mime.startswith(("image/", "audio/", "video/")) for mime in data):
        for text in (data.get("text/html"), data.get("text/markdown")):
            if isinstance(text, str) and (found := _EMBEDDED.search(text)):
                yield from _forms({found[1]: re.sub(r"[\s\\]+", "", found[2])})
                return


def _forms(data: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for mime, value in data.items():
        if not isinstance(mime, str) or mime in _TEXTS or mime in _LIVE_ONLY or not _MIME.fullmatch(mime):
            continue
        if mime != "image/svg+xml" and mime.startswith(("image/", "audio/", "video/", "application/pdf")):
            raw = _decoded(value)
            real = sniff(raw)
            if real is None and mime in INLINE:
                continue  # no picture, whatever its label says
            if raw:
                yield real or mime, raw
        else:
            # Altair 6 names a type that nobody else has.
            yield _VEGA_JSON.sub(r"\1+json", mime), _as_bytes(value)


def _rank(mime: str) -> int:
    """The lower, the more a form tells a person at once."""
    order = (*INLINE, "image/", "application/pdf", "audio/", "video/", "text/html", "application/vnd.", "text/latex")
    return next((i for i, start in enumerate(order) if mime.startswith(start)), len(order))


def _as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _decoded(value: object) -> bytes:
    """Base64 as Jupyter sends binary data; empty when it is none."""
    if not isinstance(value, str):
        return b""
    try:
        return base64.b64decode(value.encode("ascii", "ignore"), validate=False)
    except (binascii.Error, ValueError):
        return b""


def sniff(raw: bytes) -> str | None:
    """The type of picture that the bytes are, whatever their label says."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    if raw.startswith(b"BM") and raw[6:10] == b"\0\0\0\0":
        return "image/bmp"
    if raw.startswith((b"II*\0", b"MM\0*")):
        return "image/tiff"
    return None


def pixels(raw: bytes, mime: str) -> tuple[int | None, int | None]:
    """Width and height from fixed places of the header; nothing is decoded."""
    if mime == "image/png" and len(raw) >= 24:
        return struct.unpack(">II", raw[16:24])
    if mime == "image/gif" and len(raw) >= 10:
        return struct.unpack("<HH", raw[6:10])
    if mime == "image/jpeg":
        at = 2
        for _ in range(_MOST_MARKERS):
            if at + 9 >= len(raw) or raw[at] != 0xFF:
                break
            marker, length = raw[at + 1], struct.unpack(">H", raw[at + 2 : at + 4])[0]
            if marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
                height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
                return width, height
            at += 2 + length
    if mime == "image/webp" and len(raw) >= 30:
        if raw[12:16] == b"VP8X":
            return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
        if raw[12:16] == b"VP8L":
            bits = int.from_bytes(raw[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        if raw[12:16] == b"VP8 ":
            width, height = struct.unpack("<HH", raw[26:30])
            return width & 0x3FFF, height & 0x3FFF
    return None, None


def whole(raw: bytes, mime: str) -> bool:
    """Whether a picture of one of the INLINE types came whole and can be shown, by cheap signs: nothing is decoded."""
    match mime:
        case "image/png":
            return _whole_png(raw)
        case "image/jpeg":
            # Four colours for print are drawn anew: not every client can show them.
            return not _PRINT.search(raw, 0, 1 << 20) and raw.rstrip(b"\0").endswith(b"\xff\xd9")
        case "image/gif":
            return raw.rstrip(b"\0").endswith(b";")
        case _:
            return len(raw) >= int.from_bytes(raw[4:8], "little") + 8


def _whole_png(raw: bytes) -> bool:
    """Whether all chunks up to the last are there, with their checksums."""
    at = 8
    while at + 12 <= len(raw):
        end = at + 12 + int.from_bytes(raw[at : at + 4], "big")
        if end > len(raw) or zlib.crc32(raw[at + 4 : end - 4]) != int.from_bytes(raw[end - 4 : end], "big"):
            return False
        if raw[at + 4 : at + 8] == b"IEND":
            return True
        at = end
    return False
