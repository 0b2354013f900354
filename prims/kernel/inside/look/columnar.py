"""Parquet: columns and the number of rows from its footer, which is read here; rows only with pyarrow."""

from __future__ import annotations

import struct

from look.answer import Answer, Ask, one_line, short
from look.source import Source, Unusable, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_FOOTER = 16 << 20
_MOST_COLUMNS = 100_000
_PHYSICAL = ("bool", "int32", "int64", "int96", "float", "double", "bytes", "fixed bytes")
_CONVERTED = {
    0: "text", 1: "map", 3: "list", 4: "enum", 5: "decimal", 6: "date", 7: "time", 8: "time", 9: "timestamp",
    10: "timestamp", 11: "uint8", 12: "uint16", 13: "uint32", 14: "uint64", 15: "int8", 16: "int16", 17: "int32",
    18: "int64", 19: "json",
}  # fmt: skip
_LOGICAL = {1: "text", 2: "map", 3: "list", 4: "enum", 5: "decimal", 6: "date", 7: "time", 8: "timestamp", 14: "uuid"}


def parquet(answer: Answer, ask: Ask, source: Source) -> None:
    """A Parquet file: its columns, how many rows, and some of them where the environment has pyarrow."""
    tail = source.at(max(0, source.size - 8), 8)
    length = struct.unpack("<I", tail[:4])[0] if len(tail) == 8 else 0
    if tail[4:] != b"PAR1" or not 0 < length <= min(source.size - 12, _MOST_FOOTER):
        raise Unusable("its end is missing or damaged")
    rows, columns = _footer(source.at(source.size - 8 - length, length))
    answer.kind = "table"
    answer.rows, answer.rows_exact = rows, True
    answer.set_columns([one_line(n) for n, _ in columns], [t for _, t in columns], ask.columns, len(columns))
    _rows(answer, ask, source, len(columns))


def _rows(answer: Answer, ask: Ask, source: Source, total: int) -> None:
    ask.allow_layers()
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        answer.note("showing rows of a Parquet file needs the package pyarrow")
        return
    from look.tables import render

    file = parquet.ParquetFile(_Readable(source))
    names = file.schema_arrow.names[:30]
    first, groups = 0, []
    for number in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        if first + count > ask.offset:
            groups = list(range(number, file.metadata.num_row_groups))
            break
        first += count
    skip = ask.offset - first
    rows: list[list[str]] = []
    for batch in file.iter_batches(batch_size=1000, row_groups=groups, columns=names, use_threads=False):
        part = batch.slice(skip, ask.rows - len(rows))
        skip = max(0, skip - batch.num_rows)
        columns = [part.column(n) for n in range(part.num_columns)]
        rows += [[_cell(column[n].as_py()) for column in columns] for n in range(part.num_rows)]
        if len(rows) >= ask.rows:
            break
    kinds = ["int" if t.startswith(("int", "uint", "float", "double")) else t for _, t in answer.columns]
    answer.text, shown = render([one_line(n) for n in names], rows, ask.offset, kinds, ask.limit, total)
    answer.offset = ask.offset
    if rows and ask.offset + shown < (answer.rows or 0) and not ask.brief:
        answer.next_offset = ask.offset + shown
    if not rows and ask.offset:
        answer.text = ""
        answer.note(f"there are no rows at offset {ask.offset:,}")


def _cell(value: Any) -> str:
    return "" if value is None else short(str(value), 400)


class _Readable(Window):
    """What pyarrow asks of a file beyond reading."""

    closed = False
    most = 256 << 20  # whole columns at once

    def close(self) -> None:
        """Nothing to do: the descriptor is not ours."""


# ---------------------------------------------------------------------------- the footer (Thrift, compact protocol)


class _Thrift:
    """Reads values of Thrift's compact protocol. Broken data raises; nothing grows beyond the data itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise Unusable("its footer is damaged")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of a type: numbers, bytes, lists, and structs as {field: value}."""
        if depth > 12:
            raise Unusable("its footer is damaged")
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                self._at += 1
                return None
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                self._at += 8
                return None
            case 8:
                length = self._number()
                start, self._at = self._at, self._at + length
                return self._data[start : self._at]
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
        raise Unusable("its footer is damaged")

    def _list(self, depth: int) -> list[Any]:
        head = self._data[self._at]
        self._at += 1
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._number()
        if count > len(self._data) - self._at:
            raise Unusable("its footer is damaged")
        return [self.value(kind, depth) for _ in range(count)]

    def struct(self, depth: int = 0, until: int = 0) -> dict[int, Any]:
        """A struct's fields; those after the field `until` are left unread."""
        found: dict[int, Any] = {}
        field = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if head == 0:
                return found
            field = field + (head >> 4) if head >> 4 else self._signed()
            found[field] = self.value(head & 15, depth)
            if field == until:
                return found


def _footer(data: bytes) -> tuple[int, list[tuple[str, str]]]:
    """The number of rows, and the columns at the top with their types."""
    try:
        footer = _Thrift(data).struct(until=3)
        schema, rows = footer[2], footer[3]
        columns = []
        at = 1
        for _ in range(min(schema[0][5], _MOST_COLUMNS)):
            element = schema[at]
            columns.append((element[4].decode("utf-8", "replace"), _type(element)))
            left = 1  # what lies below this one is its own business
            while left:
                left += schema[at].get(5, 0) - 1
                at += 1
        if not isinstance(rows, int) or not 0 <= rows < 1 << 62:
            raise ValueError(rows)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise Unusable("its footer is damaged") from None
    return rows, columns


def _type(element: dict[int, Any]) -> str:
    logical = element.get(10)
    if isinstance(logical, dict) and logical and (name := _LOGICAL.get(next(iter(logical)))):
        return name
    if (name := _CONVERTED.get(element.get(6, -1))) is not None:
        return name
    if element.get(5):
        return "struct"
    return _PHYSICAL[element[1]]
