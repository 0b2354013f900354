"""What is asked about files, and what is answered: every string short, every list bounded."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_NAME = 200
_NOTE = 300
_MOST_NOTES = 12
_LARGEST = 1 << 62


class Ask:
    """The question. `rows`, `columns` and `entries` are how many are shown at most."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.root: str = question["root"]
        self.want: str = question["want"]
        self.pictures: list[tuple[str, int]] = question.get("pictures", [])
        self.relative: str = question.get("relative", "")
        self.brief: bool = self.want == "describe"
        self.offset: int = question.get("offset", 0)
        self.limit: int = question.get("limit", 0)
        self.image_bytes: int = question.get("image_bytes", 0)
        self.image_edge: int = question["image_edge"]
        self.memory: int | None = question["memory"]
        self.seconds: float = question["seconds"]
        self.layers: list[str] = question["layers"]
        if self.brief:
            self.limit, self.offset = min(self.limit, 1200), 0
        self.rows = 3 if self.brief else 50
        self.columns = 50 if self.brief else 200
        self.entries = 10 if self.brief else 100

    @property
    def name(self) -> str:
        """The file's own name, in lower case."""
        return self.relative.rpartition("/")[2].lower()

    def allow_layers(self) -> None:
        """Make the packages of the environment importable; not before, because most files need none."""
        sys.path += [layer for layer in self.layers if layer not in sys.path]


class Answer:
    """What was found out so far. Fields as in the server's `Look`."""

    def __init__(self) -> None:
        self.kind = "binary"
        self.mime = "application/octet-stream"
        self.size = 0
        self.encoding: str | None = None
        self.lines: int | None = None
        self.rows: int | None = None
        self.rows_exact = False
        self.columns: list[tuple[str, str]] = []
        self.columns_left_out = 0
        self.sheets: list[tuple[str, int | None, int | None]] = []
        self.width: int | None = None
        self.height: int | None = None
        self.entries: list[tuple[str, int | None]] = []
        self.text = ""
        self.offset = 0
        self.next_offset: int | None = None
        self.image: str | None = None  # base64
        self.image_mime: str | None = None
        self.notes: list[str] = []

    def forget(self) -> None:
        """Take back everything but the size, the type and the notes."""
        mime, size, notes = self.mime, self.size, self.notes
        self.__init__()  # type: ignore[misc]
        self.mime, self.size, self.notes = mime, size, notes

    def note(self, text: str) -> None:
        """Add a short sentence for the reader, once."""
        text = short(text, _NOTE)
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def set_columns(self, names: Iterable[str], types: Iterable[str], most: int, total: int) -> None:
        """The first `most` of `total` columns."""
        pairs = zip(names, types, strict=False)
        self.columns = [(short(name, _NAME), short(kind, _NAME)) for name, kind in pairs][:most]
        self.columns_left_out = total - len(self.columns)

    def set_entries(self, entries: list[tuple[str, int | None]]) -> None:
        """What an archive holds, or the part of it that was asked for."""
        self.entries = [
            (short(name, _NAME), None if size is None else min(max(size, 0), _LARGEST)) for name, size in entries
        ]

    def fields(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return dict(vars(self))


def short(text: str, most: int) -> str:
    """At most `most` characters of a text."""
    return text if len(text) <= most else text[: most - 1] + "…"


def one_line(text: str) -> str:
    """A text that stays on one line and does not redraw it: what cannot be printed is written as an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def size_of(count: int) -> str:
    """A number of bytes for people."""
    for unit, step in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= step:
            return f"{count / step:.3g} {unit}"
    return f"{count} bytes"
