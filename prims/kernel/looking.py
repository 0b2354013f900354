"""Stand-in until the real one lands."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    kind: str
    mime: str
    size: int
    encoding: str | None = None
    lines: int | None = None
    rows: int | None = None
    rows_exact: bool = True
    columns: tuple[Any, ...] = ()
    columns_left_out: int = 0
    sheets: tuple[Any, ...] = ()
    width: int | None = None
    height: int | None = None
    entries: tuple[Any, ...] = ()
    entries_left_out: int = 0
    text: str = ""
    offset: int = 0
    next_offset: int | None = None
    image: bytes | None = None
    image_mime: str | None = None
    notes: tuple[str, ...] = ()
