"""What a kernel publishes, turned into a result under budgets. Everything that comes in is hostile.

Text comes as bytes from the kernel's descriptors (`text`), the rest as Jupyter messages (`message`). Files that must
not lie in memory are written to a private spool; nothing here touches the folder that the code can write to.
"""

from __future__ import annotations

import hashlib
import itertools
import mimetypes
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread

from prims.kernel import bundles
from prims.kernel.bundles import INLINE, LONGEST_TEXT, Content
from prims.kernel.record import Recorder, display_id_of
from prims.kernel.text import CODE_FILE, Cleaner, TextSink, plain
from prims.model import CellEvent, CodeError, Display, DisplayEvent, Emit, Form, Text, TextEvent

Stream = Literal["stdout", "stderr"]

_ORDERED = ("display_data", "execute_result", "update_display_data", "error", "clear_output")
_MOST_DISPLAYS = 200
_MOST_TYPES, _MOST_LINES = 50, 500
_LARGE_CHARS = 256 * 1024
_WRITE_CHARS = 1 << 20  # each write to a file costs a thread's turn
_SUFFIXES = {"image/svg+xml": ".svg", "text/html": ".html", "text/latex": ".tex", "image/jpeg": ".jpg",
             "application/javascript": ".js", "audio/wav": ".wav", "audio/x-wav": ".wav"}  # fmt: skip


@dataclass(slots=True)
class _Shown:
    """A display as it is kept during a run: `id` allows later updates, `digest` tells the same picture again."""

    display: Display
    id: str | None = None
    spooled: tuple[Path, ...] = ()
    digest: bytes = b""


@dataclass(slots=True)
class _Spill:
    """A text whose whole goes to a file once it no longer fits. `early` is what was not written yet."""

    sink: TextSink
    path: Path
    early: list[str] = field(default_factory=list)
    early_chars: int = 0
    written: bool = False

    def forget(self) -> None:
        """What was not written is written, or need not be."""
        self.early, self.early_chars = [], 0


class Relay:
    """One run's output. Memory stays bounded whatever comes; bytes are counted for the run's limit.

    Args:
        spool: a private folder for this run.
        emit: told of text and displays as they come; must not block.
        keep: characters kept of the head and of the tail of each text.
        record: bytes of outputs that are kept for a notebook.
    """

    def __init__(self, spool: Path, emit: Emit, *, keep: int, record: int = 0) -> None:
        self._spool = spool
        self._emit = emit
        self._cleaners: dict[Stream, Cleaner] = {"stdout": Cleaner(), "stderr": Cleaner()}
        self._stdout = TextSink(keep)
        # Standard output with what was displayed as text in its place: what a reader wants to see.
        self._story = _Spill(TextSink(keep), spool / "output.txt")
        self._stderr = _Spill(TextSink(keep), spool / "stderr.txt")
        self._result = _Spill(TextSink(keep), spool / "result.txt")
        self.recorder = Recorder(record, {"stdout": self._story.path.name, "stderr": self._stderr.path.name})
        self._shown: list[_Shown] = []
        self._clear_next = False
        self._number = 0
        self.error: CodeError | None = None
        self.bytes = 0
        self.dropped_displays = 0

    # ------------------------------------------------------------------------------------------ in

    async def text(self, stream: Stream, data: bytes) -> None:
        """Bytes that were written to descriptor 1 or 2."""
        self.bytes += len(data)
        text = self._cleaners[stream].feed(data)
        if text:
            await self._text(stream, text)

    async def begin(self, number: int) -> None:
        """What follows is of the cell of that number, counted from 0. May be told again, which changes nothing."""
        if number == self.recorder.begun:
            await self._flush()
            self._clear_next = False
        if (ended := self.recorder.begin(number)) is not None:
            self._emit(CellEvent(number - 1, ended))

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
            return
        content = _bounded(content)
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
                self.recorder.error(content)
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
            if spill.sink.overflowed:
                await self._write(spill)

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
        return tuple(s.display for s in self._shown if s.display.path or s.display.text)

    # ------------------------------------------------------------------------------------------ parts

    async def _text(self, stream: Stream, text: str) -> None:
        await self._cleared()
        self._emit(TextEvent(stream, text))
        newlines = text.count("\n")
        self.recorder.stream(stream, text, newlines)
        if stream == "stderr":
            await self._feed(self._stderr, text, newlines)
        else:
            self._stdout.feed(text, newlines)
            await self._feed(self._story, text, newlines)

    async def _feed(self, spill: _Spill, text: str, newlines: int | None = None) -> None:
        spill.sink.feed(text, newlines)
        spill.early.append(text)
        spill.early_chars += len(text)
        if spill.early_chars > _WRITE_CHARS and spill.sink.overflowed:
            await self._write(spill)
        elif len(spill.early) > 1000:
            spill.early = ["".join(spill.early)]

    async def _write(self, spill: _Spill) -> None:
        text, more = "".join(spill.early), spill.written
        spill.forget()
        spill.written = True
        if len(text) < _LARGE_CHARS:  # a thread's turn would take longer
            _write_file(spill.path, text, more)
        else:
            await anyio.to_thread.run_sync(_write_file, spill.path, text, more)

    async def _cleared(self) -> None:
        if self._clear_next:
            await self._clear()

    async def _clear(self) -> None:
        self._clear_next = False
        self.recorder.clear()
        self._stdout.clear()
        for stream in self._cleaners:
            self._cleaners[stream] = Cleaner()
        for spill in (self._story, self._stderr, self._result):
            spill.sink.clear()
            spill.forget()
            spill.written = False
        for shown in self._shown:
            _remove(shown)
        self._shown.clear()

    async def _display(self, content: dict[str, Any], *, result: bool) -> None:
        await self._cleared()
        data = content.get("data")
        if not isinstance(data, dict):
            return
        read = await _read(data, content)
        if _has_mark(content, "prims_silent"):
            self.bytes += read.size
            self.recorder.show("display_data", content, None)
            return
        if not read.text.strip() and not read.forms and display_id_of(content) is None:
            return
        shown = await self._keep(read, display_id_of(content), result)
        self.recorder.show("execute_result" if result else "display_data", content, shown.display.path)
        self._emit(DisplayEvent(shown.display.text))
        if result:
            self._result.sink.clear()
            self._result.forget()
            if read.told:
                await self._feed(self._result, read.text)
        elif shown.display.told:
            await self._feed(self._story, read.text if read.text.endswith("\n") else read.text + "\n")
        if not result or read.forms or shown.id:
            self._add(shown)

    def _add(self, shown: _Shown) -> None:
        if (
            shown.digest
            and shown.id is None
            and any((old.digest, old.display.text) == (shown.digest, shown.display.text) for old in self._shown)
        ):
            _remove(shown)  # the same picture again: a figure both shown and left as last value
            return
        if len(self._shown) >= _MOST_DISPLAYS:
            # What stands in the story is not lost when it goes.
            told = next((i for i, old in enumerate(self._shown) if old.display.told), None)
            self.dropped_displays += told is None
            _remove(self._shown.pop(_MOST_DISPLAYS // 2 if told is None else told))
        self._shown.append(shown)

    async def _update(self, content: dict[str, Any]) -> None:
        data, display_id = content.get("data"), display_id_of(content)
        if not isinstance(data, dict) or display_id is None:
            return
        await self._cleared()
        path = None
        for index, old in enumerate(self._shown):
            if old.id == display_id:
                read = await _read(data, content)
                new = await self._keep(read, display_id, old.display.is_result)
                new.display = replace(new.display, after=old.display.after)
                self._shown[index] = new
                path = new.display.path
                _remove(old)
                self._emit(DisplayEvent(new.display.text))
        self.recorder.update(content, path)

    async def _keep(self, read: Content, display_id: str | None, result: bool) -> _Shown:
        """A bundle with its forms in the spool. One that may be updated cannot be told yet."""
        self.bytes += read.size
        told = read.told and (display_id is None or result)
        text = read.text if len(read.text) <= LONGEST_TEXT else read.text[:LONGEST_TEXT] + " [...]"
        display = Display(
            read.mime, len(text.encode()), "text", text=text, told=told, is_result=result, after=self._stdout.chars
        )
        if not read.forms:
            return _Shown(display, display_id)
        self._number += 1
        kind = "figure" if read.forms[0][0] in INLINE else "display"
        files: list[Path] = []
        forms: list[Form] = []
        for mime, raw in read.forms:
            name = f"{kind}-{self._number}{_suffix(mime)}"
            if any(form.name == name for form in forms):
                name = f"{kind}-{self._number}-{len(forms)}{_suffix(mime)}"
            await anyio.to_thread.run_sync((self._spool / name).write_bytes, raw)
            files.append(self._spool / name)
            forms.append(Form(mime, len(raw), name, name))
        first, (mime, raw) = forms[0], read.forms[0]
        width, height = bundles.pixels(raw, mime)
        display = replace(
            display, mime=mime, size=first.size, name=first.name, path=first.path, width=width, height=height,
            alternatives=tuple(forms[1:]),
        )  # fmt: skip
        digest = hashlib.sha256(raw).digest() if kind == "figure" else b""
        return _Shown(display, display_id, tuple(files), digest)


async def _read(data: dict[str, Any], content: dict[str, Any]) -> Content:
    """The bundle of a message. A large one is read in a thread: that may take seconds, and others are not to wait."""
    summary = _has_mark(content, "prims_summary")
    if all(isinstance(value, str) for value in data.values()) and sum(map(len, data.values())) < _LARGE_CHARS:
        return bundles.read(data, summary=summary)
    return await anyio.to_thread.run_sync(partial(bundles.read, data, summary=summary))


def _bounded(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a message with no more forms of one thing, or text of an error, than anybody could mean."""
    data, lines = content.get("data"), content.get("traceback")
    if isinstance(data, dict) and len(data) > _MOST_TYPES:
        content = {**content, "data": dict(itertools.islice(data.items(), _MOST_TYPES))}
    if isinstance(lines, list):
        kept, room = [], _LARGE_CHARS  # in all; what is shown of it in the end is a small part, and says so
        for line in lines[:_MOST_LINES]:
            kept.append(str(line)[:room])
            room -= len(kept[-1])
        content = {**content, "traceback": kept}
    for name in ("ename", "evalue"):
        if isinstance(content.get(name), str):
            content = {**content, name: content[name][:_LARGE_CHARS]}
    return content


def _suffix(mime: str) -> str:
    return ".json" if mime.endswith("json") else _SUFFIXES.get(mime) or mimetypes.guess_extension(mime) or ".bin"


def _has_mark(content: dict[str, Any], mark: str) -> bool:
    """Whether the kernel says so of a bundle: that its text only describes what is shown, or that it shows nothing."""
    metadata = content.get("metadata")
    return isinstance(metadata, dict) and metadata.get(mark) is True


def _remove(shown: _Shown) -> None:
    for path in shown.spooled:
        path.unlink(missing_ok=True)


def _code_error(content: dict[str, Any]) -> CodeError:
    lines = content.get("traceback")
    traceback = plain("\n".join(str(line) for line in lines)) if isinstance(lines, list) else ""
    found = re.findall(rf'File "{CODE_FILE}", line (\d{{1,9}})', traceback)
    return CodeError(
        name=" ".join(plain(content.get("ename", "Error"))[:200].split()),
        value=plain(content.get("evalue", ""))[:20_000],
        traceback=traceback,
        line=int(found[-1]) if found else None,
    )


def _write_file(path: Path, text: str, more: bool) -> None:
    with path.open("a" if more else "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _spooled(spill: _Spill) -> str | None:
    return spill.path.name if spill.written and spill.sink.overflowed else None
