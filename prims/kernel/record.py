"""A run's outputs as the notebook format has them, within bounds. Everything that comes in is hostile.

What a reader of a reply gets is made for a budget (`relay`); this keeps what was really shown, for a notebook of the
session. All that is kept is strict JSON: no NaN, no lone surrogates, nothing nested deeper than programs can read.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from prims.kernel.text import TextSink
from prims.model import CellResult, Output

# Of each stream in one piece this many characters are kept at its head, and as many at its tail.
_KEEP_CHARS = 200_000
_MOST_OUTPUTS = 1000
_MOST_METADATA = 10_000
_DEEPEST = 100
_MIME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}/[A-Za-z0-9][\w.+-]{0,99}(?:;[\w .=+-]{1,100})?", re.ASCII)
_JSON_MIME = re.compile(r"application/(.*\+)?json")
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(slots=True)
class _Entry:
    """An output as it is kept during a run; `text` is that of a stream."""

    content: dict[str, Any]
    size: int = 0
    text: TextSink | None = None
    path: str | None = None
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Cell:
    begun: float | None = None
    ended: float | None = None
    entries: list[_Entry] = field(default_factory=list)
    streams: dict[str, _Entry] = field(default_factory=dict)
    updatable: dict[str, list[_Entry]] = field(default_factory=dict)
    dropped: int = 0


class Recorder:
    """The outputs of one run, cell by cell. At most `most` bytes of them are kept, and 1000 in each cell.

    `files` names for each stream the file in the spool that holds it whole, once it is long.
    """

    def __init__(self, most: int, files: dict[str, str]) -> None:
        self._room = most
        self._files = files
        self._cells = [_Cell()]

    @property
    def begun(self) -> int:
        """How many cells have begun; the first one has from the start."""
        return len(self._cells)

    def begin(self, number: int) -> CellResult | None:
        """What follows belongs to the cell of that number, counted from 0; gives what the one before has."""
        cell = self._cells[-1]
        if number == self.begun:
            cell.ended = time.time()
            self._cells.append(_Cell(cell.ended))
            return self._result(cell)
        cell.begun = cell.begun or time.time()
        return None

    def stream(self, name: str, text: str, newlines: int | None = None) -> None:
        """Clean text of a stream, and how many newlines it has, if that was counted. Such texts are one output."""
        cell = self._cells[-1]
        entry = cell.streams.get(name)
        if entry is None or entry is not cell.entries[-1]:
            new = _Entry({"output_type": "stream", "name": name}, text=TextSink(_KEEP_CHARS))
            if self._add(new):
                cell.streams[name] = entry = new
            elif entry is None:
                return
            # Else there are too many outputs: the text is kept, its place is not.
        assert entry.text is not None
        charged = min(len(text), max(0, 2 * _KEEP_CHARS - entry.size))
        if charged > self._room:
            entry.text.lose(len(text), text.count("\n") if newlines is None else newlines)
            return
        entry.size += charged
        self._room -= charged
        entry.text.feed(text, newlines)

    def show(self, kind: str, content: dict[str, Any], path: str | None) -> None:
        """A display_data or an execute_result; `path` is the spooled file that holds the thing whole."""
        entry = _Entry({"output_type": kind})
        if self._add(entry):
            self._fill(entry, content, path)
            if (display_id := display_id_of(content)) is not None:
                self._cells[-1].updatable.setdefault(display_id, []).append(entry)

    def update(self, content: dict[str, Any], path: str | None) -> None:
        """An update_display_data: it replaces what was shown under its id, in every cell."""
        display_id = display_id_of(content)
        for cell in self._cells:
            for entry in cell.updatable.get(display_id or "", ()):
                self._fill(entry, content, path)

    def error(self, content: dict[str, Any]) -> None:
        """An error with its traceback."""
        lines = content.get("traceback")
        traceback = [_text(line)[:_KEEP_CHARS] for line in lines[:1000]] if isinstance(lines, list) else []
        if sum(map(len, traceback)) > self._room:
            traceback = []
        entry = _Entry(
            {
                "output_type": "error",
                "ename": _text(content.get("ename", "Error"))[:200],
                "evalue": _text(content.get("evalue", ""))[:20_000],
                "traceback": traceback,
            }
        )
        if self._add(entry):
            entry.size = sum(map(len, traceback))
            self._room -= entry.size

    def clear(self) -> None:
        """What the cell has shown until now is not there any more."""
        self._room += sum(entry.size for entry in self._cells[-1].entries)
        self._cells[-1] = _Cell(self._cells[-1].begun)

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """What was kept of each cell, in order. Streams and displays name files in the spool by `path`."""
        return tuple(map(self._result, self._cells))

    def _result(self, cell: _Cell) -> CellResult:
        now = time.time()
        return CellResult(tuple(self._outputs(cell)), cell.begun or now, cell.ended or now)

    def _outputs(self, cell: _Cell) -> list[Output]:
        found = []
        for entry in cell.entries:
            text = None
            if entry.text is not None:
                text = entry.text.text(self._files[entry.content["name"]] if entry.text.overflowed else None)
            found.append(Output(entry.content, text, entry.path, entry.left_out))
        if cell.dropped:
            note = f"{cell.dropped} more outputs"
            found.append(Output({"output_type": "display_data", "data": {}, "metadata": {}}, left_out=(note,)))
        return found

    def _add(self, entry: _Entry) -> bool:
        cell = self._cells[-1]
        if len(cell.entries) >= _MOST_OUTPUTS:
            cell.dropped += 1
            return False
        cell.entries.append(entry)
        return True

    def _fill(self, entry: _Entry, content: dict[str, Any], path: str | None) -> None:
        """Give an entry the forms of a bundle that fit, small ones first."""
        self._room += entry.size
        forms, left_out = [], []
        data = content.get("data")
        for mime, value in (data if isinstance(data, dict) else {}).items():
            if isinstance(mime, str) and _MIME.fullmatch(mime):
                if mime.endswith(".json") and not isinstance(value, str):
                    mime = mime.removesuffix(".json") + "+json"  # altair's own, which the notebook format does not know
                form = _json(value) if _JSON_MIME.fullmatch(mime) else _multiline(value)
                if form is None:
                    left_out.append(f"{mime} (no data of that type)")
                else:
                    forms.append((mime, *form))
        kept = {}
        entry.size = 0
        for mime, value, size in sorted(forms, key=lambda form: form[2]):
            if entry.size + size <= self._room:
                kept[mime] = value
                entry.size += size
            else:
                left_out.append(f"{mime} of {size:,} bytes")
        self._room -= entry.size
        metadata = _json(content.get("metadata"))
        taken = metadata[0] if metadata and metadata[1] <= _MOST_METADATA else {}
        if isinstance(taken, dict):
            taken = {key: value for key, value in taken.items() if not key.startswith("prims_")}  # between us
        entry.content = {
            "output_type": entry.content["output_type"],
            # In the order in which they came, as others keep it.
            "data": {mime: kept[mime] for mime, _, _ in forms if mime in kept},
            "metadata": taken if isinstance(taken, dict) else {},
        }
        entry.path, entry.left_out = path, tuple(left_out)


def display_id_of(content: dict[str, Any]) -> str | None:
    """By which what is shown can be updated, if it can be."""
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return display_id if isinstance(display_id, str) else None


def _text(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _multiline(value: object) -> tuple[str, int] | None:
    """A text, or a list of its lines, as one text with its size."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    if not isinstance(value, str):
        return None
    return _text(value), len(value)


def _json(value: object) -> tuple[Any, int] | None:
    """A value as strict JSON has it, with its size; None for one that is nested too deep."""
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:
            # As browsers write it: what is no number is null.
            value = json.loads(json.dumps(value), parse_constant=lambda _: None)
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (RecursionError, ValueError):
        return None
    raw = text.encode("utf-8", "replace")
    brackets = _STRINGS.sub(b"", raw).translate(None, _NO_BRACKETS)
    for _ in range(_DEEPEST):
        # The innermost pairs, at once and in C: one level less each time.
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        return None
    return (value if text.isascii() else json.loads(raw)), len(raw)
