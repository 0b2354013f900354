"""What a kernel publishes, turned into a result under budgets. Everything that comes in is hostile.

Text comes as bytes from the kernel's descriptors (`text`), the rest as Jupyter messages (`message`). Files that must
not lie in memory are written to a private spool; nothing here touches the folder that the code can write to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import mimetypes
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiofiles

from prims.kernel.text import Cleaner, TextSink, plain
from prims.model import CodeError, Display, DisplayEvent, Emit, Text, TextEvent

Stream = Literal["stdout", "stderr"]

# What may be sent as an image, by its first bytes; a label that lies is corrected, anything else is a file.
_INLINE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_OBJECT_REPR = re.compile(r"\s*<[\w.]+ object(?: at 0x[0-9a-f]+)?>\s*", re.IGNORECASE)
_ORDERED = ("display_data", "execute_result", "update_display_data", "error", "clear_output")
_MOST_DISPLAYS = 200
_MOST_TEXT_OF_DISPLAY = 20_000
_SUFFIXES = {"image/svg+xml": ".svg", "text/html": ".html", "application/json": ".json", "text/latex": ".tex",
             "image/jpeg": ".jpg", "text/markdown": ".md", "application/javascript": ".js"}  # fmt: skip


@dataclass(slots=True)
class _Shown:
    """A display as it is kept during a run; `id` allows later updates."""

    display: Display
    id: str | None = None
    spool: Path | None = None


@dataclass(slots=True)
class _Spill:
    """A text whose whole goes to a file once it no longer fits. `early` is what was not written yet."""

    sink: TextSink
    path: Path
    early: list[str] = field(default_factory=list)
    file: Any = None


class Relay:
    """One run's output. Memory stays bounded whatever comes; bytes are counted for the run's limit.

    Args:
        spool: a private folder for this run.
        emit: told of text and displays as they come; must not block.
        keep: characters kept of the head and of the tail of each text.
        inline: largest image in bytes whose data is kept in memory.
    """

    def __init__(self, spool: Path, emit: Emit, *, keep: int, inline: int) -> None:
        self._spool = spool
        self._emit = emit
        self._inline = inline
        self._cleaners: dict[Stream, Cleaner] = {"stdout": Cleaner(), "stderr": Cleaner()}
        self._stdout = TextSink(keep)
        # Standard output with what was displayed as text in its place: what a reader wants to see.
        self._story = _Spill(TextSink(keep), spool / "output.txt")
        self._stderr = _Spill(TextSink(keep), spool / "stderr.txt")
        self._result = _Spill(TextSink(keep), spool / "result.txt")
        self._shown: list[_Shown] = []
        self._images: dict[bytes, _Shown] = {}
        self._clear_next = False
        self._number = 0
        self.error: CodeError | None = None
        self.bytes = 0
        self.dropped_displays = 0
        self.malformed = 0

    # ------------------------------------------------------------------------------------------ in

    async def text(self, stream: Stream, data: bytes) -> None:
        """Bytes that were written to descriptor 1 or 2."""
        self.bytes += len(data)
        text = self._cleaners[stream].feed(data)
        if text:
            await self._text(stream, text)

    async def _flush(self) -> None:
        """Unfinished lines, before something that comes after them."""
        for stream, cleaner in self._cleaners.items():
            if text := cleaner.flush():
                await self._text(stream, text)

    async def message(self, message: dict[str, Any]) -> None:
        """One iopub message of this run, signature checked, everything else not."""
        kind = message.get("msg_type")
        content = message.get("content")
        if not isinstance(content, dict):
            self.malformed += 1
            return
        if kind in _ORDERED:
            await self._flush()
        match kind:
            case "stream":
                name: Stream = "stderr" if content.get("name") == "stderr" else "stdout"
                await self.text(name, str(content.get("text", "")).encode("utf-8", "replace"))
            case "display_data" | "execute_result":
                await self._display(content, result=kind == "execute_result")
            case "update_display_data":
                await self._update(content)
            case "error":
                await self._cleared()
                self.error = _code_error(content)
            case "clear_output":
                if content.get("wait"):
                    self._clear_next = True
                else:
                    await self._clear()
            case _:
                pass

    async def finish(self) -> None:
        """No more comes: pass on what was held back, write the files to their end."""
        await self._flush()
        for spill in (self._story, self._stderr, self._result):
            if spill.sink.overflowed and spill.file is None:
                await self._write(spill, "")
            if spill.file is not None:
                await spill.file.close()

    # ------------------------------------------------------------------------------------------ out

    # Texts and displays name the file in the spool that holds them whole, if there is one.

    @property
    def stdout(self) -> Text:
        """Standard output alone."""
        return self._stdout.text(_spooled(self._story))

    @property
    def story(self) -> Text:
        """Standard output with what was displayed as text in its place."""
        return self._story.sink.text(_spooled(self._story))

    @property
    def stderr(self) -> Text:
        """Standard error alone."""
        return self._stderr.sink.text(_spooled(self._stderr))

    @property
    def result(self) -> Text:
        """The plain form of the last expression."""
        return self._result.sink.text(_spooled(self._result))

    @property
    def displays(self) -> tuple[Display, ...]:
        """What was shown, in order."""
        return tuple(s.display for s in self._shown)

    # ------------------------------------------------------------------------------------------ parts

    async def _text(self, stream: Stream, text: str) -> None:
        await self._cleared()
        self._emit(TextEvent(stream, text))
        if stream == "stderr":
            await self._feed(self._stderr, text)
        else:
            self._stdout.feed(text)
            await self._feed(self._story, text)

    async def _feed(self, spill: _Spill, text: str) -> None:
        spill.sink.feed(text)
        if spill.file is None and not spill.sink.overflowed:
            spill.early.append(text)
            if len(spill.early) > 1000:
                spill.early = ["".join(spill.early)]
        else:
            await self._write(spill, text)

    async def _write(self, spill: _Spill, text: str) -> None:
        if spill.file is None:
            spill.file = await aiofiles.open(spill.path, "w", encoding="utf-8", newline="")
            text = "".join(spill.early) + text
            spill.early = []
        await spill.file.write(text)

    async def _cleared(self) -> None:
        if self._clear_next:
            await self._clear()

    async def _clear(self) -> None:
        self._clear_next = False
        self._stdout.clear()
        for stream in self._cleaners:
            self._cleaners[stream] = Cleaner()
        for spill in (self._story, self._stderr, self._result):
            spill.sink.clear()
            spill.early = []
            if spill.file is not None:
                await spill.file.close()
                spill.file = None
        for shown in self._shown:
            _remove(shown.spool)
        self._shown.clear()
        self._images.clear()

    async def _display(self, content: dict[str, Any], *, result: bool) -> None:
        await self._cleared()
        data = content.get("data")
        if not isinstance(data, dict):
            self.malformed += 1
            return
        transient = content.get("transient")
        display_id = transient.get("display_id") if isinstance(transient, dict) else None
        shown = await self._make(data, display_id if isinstance(display_id, str) else None)
        text = shown.display.text
        if result:
            self._result.sink.clear()
            self._result.early = []
            await self._feed(self._result, _all_text(data) or text)
        if shown.display.mime.startswith("text/plain") and shown.id is None:
            if not result:
                await self._feed(self._story, text + "\n")
                self._emit(DisplayEvent(text))
            return
        if result and shown.display.mime.startswith("text/plain"):
            return
        self._emit(DisplayEvent(text))
        self._keep_display(shown)

    def _keep_display(self, shown: _Shown) -> None:
        if shown.spool is not None and shown.display.data is not None:
            digest = hashlib.sha256(shown.display.data).digest()
            if digest in self._images and shown.id is None:
                _remove(shown.spool)  # the same picture again: a figure both shown and left as last value
                return
            self._images[digest] = shown
        if len(self._shown) >= _MOST_DISPLAYS:
            self.dropped_displays += 1
            _remove(self._shown.pop(_MOST_DISPLAYS // 2).spool)
        self._shown.append(shown)

    async def _update(self, content: dict[str, Any]) -> None:
        transient, data = content.get("transient"), content.get("data")
        display_id = transient.get("display_id") if isinstance(transient, dict) else None
        if not isinstance(data, dict) or not isinstance(display_id, str):
            self.malformed += 1
            return
        await self._cleared()
        for index, old in enumerate(self._shown):
            if old.id == display_id:
                self._shown[index] = await self._make(data, display_id)
                _remove(old.spool)
                self._emit(DisplayEvent(self._shown[index].display.text))

    async def _make(self, data: dict[str, Any], display_id: str | None) -> _Shown:
        """The one form of a bundle that is kept: a picture, a stored file, or plain text."""
        text = _text_of(data)
        for mime in _INLINE_MIMES:
            raw = _decoded(data.get(mime))
            self.bytes += len(raw or b"")
            if raw and (real := _sniff(raw)):
                return await self._stored(raw, real, "figure", text, display_id)
        for mime, value in data.items():
            if (mime.startswith("text/") and mime != "text/html") or not isinstance(mime, str):
                continue
            if mime == "text/html" and text and not _OBJECT_REPR.fullmatch(text):
                continue  # a table or the like, whose plain form says the same
            raw = (
                _decoded(value) if mime.startswith(("image/", "application/pdf")) and mime != "image/svg+xml" else None
            )
            raw = raw or _as_bytes(value)
            self.bytes += len(raw)
            if mime == "application/json":
                return _Shown(Display("text/plain", len(raw), "json", text=_cut(text)), display_id)
            return await self._stored(raw, plain(mime)[:100], "display", text, display_id)
        self.bytes += len(text)
        return _Shown(Display("text/plain", len(text.encode()), "text", text=_cut(text)), display_id)

    async def _stored(self, raw: bytes, mime: str, kind: str, text: str, display_id: str | None) -> _Shown:
        self._number += 1
        suffix = _SUFFIXES.get(mime) or mimetypes.guess_extension(mime) or ".bin"
        name = f"{kind}-{self._number}{suffix}"
        spool = self._spool / name
        async with aiofiles.open(spool, "wb") as file:
            await file.write(raw)
        width, height = _pixels(raw, mime)
        inline = raw if kind == "figure" and len(raw) <= self._inline else None
        text = "" if _OBJECT_REPR.fullmatch(text) else _cut(text)
        return _Shown(
            Display(mime, len(raw), name, path=name, text=text, data=inline, width=width, height=height),
            display_id,
            spool,
        )


def _remove(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT_OF_DISPLAY else text[:_MOST_TEXT_OF_DISPLAY] + " [...]"


def _as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _decoded(value: object) -> bytes | None:
    """Base64 as Jupyter sends binary data, or None."""
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value.encode("ascii", "ignore"), validate=False)
    except (binascii.Error, ValueError):
        return None


def _all_text(data: dict[str, Any]) -> str:
    value = data.get("text/plain")
    text = plain(value) if isinstance(value, str) else ""
    return "" if _OBJECT_REPR.fullmatch(text) and len(data) > 1 else text


def _text_of(data: dict[str, Any]) -> str:
    """The form of a bundle that a reader of plain text gets most of."""
    text = data.get("text/plain")
    text = plain(text) if isinstance(text, str) else ""
    if text and not _OBJECT_REPR.fullmatch(text):
        return text
    for mime in ("text/markdown", "text/latex"):
        if isinstance(data.get(mime), str):
            return plain(data[mime])
    if "application/json" in data:
        return plain(json.dumps(data["application/json"], ensure_ascii=False))
    return text


def _code_error(content: dict[str, Any]) -> CodeError:
    lines = content.get("traceback")
    traceback = plain("\n".join(str(line) for line in lines[:1000])) if isinstance(lines, list) else ""
    found = re.findall(r'File "[^"\n]*/main\.py", line (\d{1,9})', traceback)
    return CodeError(
        name=plain(content.get("ename", "Error"))[:200],
        value=plain(content.get("evalue", ""))[:20_000],
        traceback=traceback,
        line=int(found[-1]) if found else None,
    )


def _sniff(raw: bytes) -> str | None:
    """The image type that the bytes are, whatever their label says."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return None


def _pixels(raw: bytes, mime: str) -> tuple[int | None, int | None]:
    """Width and height from fixed places of the header; nothing is decoded."""
    if mime == "image/png" and len(raw) >= 24:
        return struct.unpack(">II", raw[16:24])
    if mime == "image/gif" and len(raw) >= 10:
        return struct.unpack("<HH", raw[6:10])
    if mime == "image/jpeg":
        at = 2
        while at + 9 < len(raw) and raw[at] == 0xFF:
            marker, length = raw[at + 1], struct.unpack(">H", raw[at + 2 : at + 4])[0]
            if marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
                height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
                return width, height
            at += 2 + length
    return None, None


def _spooled(spill: _Spill) -> str | None:
    return spill.path.name if spill.file is not None and spill.sink.overflowed else None
