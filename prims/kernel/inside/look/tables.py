"""Tables in text: CSV and its kin, and one JSON object a line. And how any table is shown."""

from __future__ import annotations

import csv
import json
import re

from look.answer import Answer, Ask, one_line, short
from look.decoding import Coding, Lines
from look.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_SAMPLE_ROWS = 1000
_SAMPLE_CELLS = 50_000
_SAMPLE_COLUMNS = 1000
_LONGEST_FIELD = 4 << 20
_WIDEST_CELL = 40
_WIDEST_TABLE = 220
_MOST_SHOWN = 30
_FAR_SECONDS = 2.0

_TABS = {"\t": "tabs"}
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "-", "?", "#n/a"))
_INT = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[+-]?(?:\d{1,40}(?:[.,]\d{0,40})?|[.,]\d{1,40})(?:[eE][+-]?\d{1,3})?|[+-]?inf", re.IGNORECASE)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}(?: \d{1,2}:\d{2}(?::\d{2})?)?"
)


# ------------------------------------------------------------------------------------------------ types


def kind_of(cell: str) -> str:
    """The type of a single cell: int, float, bool, date, text, or nothing for a missing value."""
    cell = cell.strip()
    if cell.lower() in _MISSING:
        return ""
    if _INT.fullmatch(cell):
        return "int"
    if cell.isdigit():
        return "text"  # leading zeros, or too long: an identifier
    if _FLOAT.fullmatch(cell):
        return "float"
    if cell.lower() in ("true", "false"):
        return "bool"
    return "date" if _DATE.fullmatch(cell) else "text"


def column_types(rows: list[list[str]], count: int) -> list[str]:
    """The types of the first `count` columns, as the rows say."""
    types = []
    for column in range(count):
        kinds = {kind_of(row[column]) for row in rows if column < len(row)} - {""}
        if kinds == {"int", "float"}:
            kinds = {"float"}
        types.append("empty" if not kinds else kinds.pop() if len(kinds) == 1 else "text")
    return types


def has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns: it does, unless it looks like data."""
    first = [kind for kind in map(kind_of, rows[0]) if kind]
    numbers = [cell for cell in rows[0] if kind_of(cell) in ("int", "float", "date", "bool")]
    if len(numbers) * 2 <= len(first):
        return True
    years = all(re.fullmatch(r"(?:1[89]|20|21)\d\d", cell.strip()) for cell in numbers)
    return years and len(numbers) < len(first)


def name_columns(first: list[str] | None, count: int) -> list[str]:
    """Names for `count` columns, from the header where there is one."""
    names = [one_line(short(name, 200)) for name in (first or [])[:count]]
    return names + [f"column {n + 1}" for n in range(len(names), count)]


# ----------------------------------------------------------------------------------------------- showing


def render(
    names: list[str], rows: list[list[str]], first: int, types: list[str], limit: int, total: int
) -> tuple[str, int]:
    """Rows as an aligned table within `limit` characters, and how many of them fitted (one at least).

    The first column is the number of the row, from `first`; `total` is how many columns there are in truth.
    """
    cap = _WIDEST_CELL if len(names) > 2 else 160
    cells = [[one_line(short(cell, cap)) for cell in row[:_MOST_SHOWN]] for row in rows]
    heads = ["row", *(short(name, cap) for name in names[:_MOST_SHOWN])]
    lines = [heads, *([str(first + n), *row] for n, row in enumerate(cells))]
    widths = [max(_width(line[i]) if i < len(line) else 0 for line in lines) for i in range(len(heads))]
    shown = 1
    while shown < len(heads) and sum(widths[: shown + 1]) + 2 * shown <= _WIDEST_TABLE:
        shown += 1
    right = [True, *(kind in ("int", "float") for kind in types)]
    right += [False] * (len(heads) - len(right))
    more = f"… and {total - shown + 1:,} more columns" if total > shown - 1 else ""
    used, count = len(more), 0
    out = []
    for number, line in enumerate(lines):
        padded = [_pad(line[i] if i < len(line) else "", widths[i], right[i]) for i in range(shown)]
        row = "  ".join(padded).rstrip()
        if number > 1 and used + len(row) + 1 > limit:
            break
        used += len(row) + 1
        count += number > 0
        out.append(row)
    return "\n".join([*out, more] if more else out)[:limit], count


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


# --------------------------------------------------------------------------------------------------- CSV


def delimiter_of(sample: str, whole: bool, candidates: str) -> tuple[str, int, float]:
    """The delimiter that cuts a sample most evenly, how many fields it gives, and for which share of the rows."""
    lines = sample.split("\n")[:60]
    lines = lines if whole and len(lines) < 60 else lines[:-1] or lines
    best = (candidates[0], 1, 0.0)
    for candidate in candidates:
        try:
            rows = [
                len(row) for row in csv.reader((line[:20_000] + "\n" for line in lines), delimiter=candidate) if row
            ]
        except csv.Error:
            continue
        usual = max(set(rows), key=lambda n: (rows.count(n), n), default=1)
        share = rows.count(usual) / len(rows) if rows else 0.0
        if usual > 1 and (share, usual) > (best[2] + 0.05 * (best[1] > 1), 1):
            best = (candidate, usual, share)
    return best


class _Rows:
    """The rows of a CSV file, blank lines left out. Broken quoting ends them, with `error` set."""

    def __init__(self, source: Source, coding: Coding, delimiter: str, quoting: bool) -> None:
        self.lines = Lines(source, coding)
        self.error = ""
        self._options: dict[str, Any] = {"delimiter": delimiter}
        if not quoting:
            self._options["quoting"] = csv.QUOTE_NONE

    def __iter__(self) -> Iterator[list[str]]:
        csv.field_size_limit(_LONGEST_FIELD)
        try:
            for row in csv.reader(self.lines, **self._options):
                if row:
                    yield row
        except csv.Error as error:
            self.error = str(error)


def csv_file(answer: Answer, ask: Ask, source: Source, coding: Coding, delimiter: str) -> None:
    """A table in text: columns with types, the rows from the offset, how many there are."""
    usual = "\t" if answer.mime == "text/tab-separated-values" else ","
    coding, delimiter = _past_preamble(answer, source, coding, delimiter)
    answer.kind = "table"
    answer.encoding = coding.label
    if coding.guessed:
        answer.note(f"the encoding {coding.label} is a guess")
    rows = _Rows(source, coding, delimiter, True)
    sample, widths, window, passed = _read(rows, ask)
    if rows.error:
        answer.note("its quotes do not match; read without minding quotes")
        rows = _Rows(source, coding, delimiter, False)
        sample, widths, window, passed = _read(rows, ask)
    quoting = "quoting" not in rows._options
    if not sample:
        answer.rows, answer.rows_exact = 0, True
        return
    header = sample[0] if has_header(sample) else None
    if header is None:
        answer.note("it seems to have no header line")
    body = sample[1:] if header is not None else sample
    window = window[: ask.rows] if header is None else window[1:]
    width = max(widths)
    widths = widths[header is not None :]
    names = name_columns(header, width)
    types = column_types(body, min(width, ask.columns))
    answer.set_columns(names, types, ask.columns, width)
    if header is not None and len(header) < width and len(set(widths)) == 1:
        answer.note("the first line has fewer fields than the others: perhaps it is not the header")
    if len(set(widths)) > 1:
        answer.note(f"rows have different numbers of fields, from {min(widths):,} to {max(widths):,}")
    if header is not None and len(set(header)) < len(header):
        answer.note("some column names occur more than once")
    if delimiter != usual:
        answer.note(f"fields are separated by {_TABS.get(delimiter, repr(delimiter))}")
    if any("," in cell for row in body[:50] for cell in row if kind_of(cell) == "float"):
        answer.note("numbers have a decimal comma")
    answer.text, shown = render(names, window, ask.offset, types, ask.limit, width)
    answer.offset = ask.offset
    _count(answer, source, coding, delimiter, quoting, header is not None)
    if rows.lines.long:
        answer.note("lines longer than 1 MB were cut")
    if rows.lines.bad:
        answer.note(f"some bytes are not valid {coding.codec}")
    _continue(answer, ask, shown if window else 0, passed - (header is not None))


def _past_preamble(answer: Answer, source: Source, coding: Coding, delimiter: str) -> tuple[Coding, str]:
    """Past what stands before the header: Excel's line that names the delimiter, or comments with fewer fields."""
    if not coding.one_byte_newlines:
        return coding, delimiter
    lines = source.head()[coding.skip :].splitlines(keepends=True)
    if named := re.fullmatch(rb'"?sep=([,;|\t])"?\s*', lines[0], re.IGNORECASE):
        before, delimiter = 1, named[1].decode()
        answer.note("the table begins in line 2; the first one only names the delimiter")
    else:
        before = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(b"#")), 0)
        fields = lines[before].count(delimiter.encode())
        if not before or fields == 0 or any(line.count(delimiter.encode()) == fields for line in lines[:before]):
            return coding, delimiter
        answer.note(f"the table begins in line {before + 1:,}, after comments (#)")
    return coding.past(sum(map(len, lines[:before]))), delimiter


def _continue(answer: Answer, ask: Ask, shown: int, passed: int) -> None:
    """Say how to go on after the rows that are shown, of those that were passed."""
    after = ask.offset + shown
    if shown and after < passed and not ask.brief:
        answer.next_offset = after
    if not shown and ask.offset:
        answer.text = ""
        answer.note(f"there are no rows at offset {ask.offset:,}, or they are too far to be read here")


def _read(rows: _Rows, ask: Ask) -> tuple[list[list[str]], list[int], list[list[str]], int]:
    """A sample of the first rows with their true widths, the rows that are asked for with one more (the header is among
    them), and how many were passed."""
    import time

    until = time.monotonic() + _FAR_SECONDS
    sample: list[list[str]] = []
    widths: list[int] = []
    window: list[list[str]] = []
    cells = 0
    passed = 0
    last = ask.offset + ask.rows + 1
    for row in rows:
        if passed < _SAMPLE_ROWS and cells < _SAMPLE_CELLS:
            widths.append(len(row))
            sample.append([cell[:400] for cell in row[:_SAMPLE_COLUMNS]])
            cells += len(sample[-1])
        elif passed >= last:
            passed += 1
            break
        if ask.offset <= passed < last:
            window.append([short(cell, 400) for cell in row[: _MOST_SHOWN + 1]])
        passed += 1
        if not passed & 1023 and time.monotonic() > until:
            break
    return sample, widths, window, passed


def _count(answer: Answer, source: Source, coding: Coding, delimiter: str, quoting: bool, header: bool) -> None:
    count = _count_lines(source, coding, stop_at=b'"' if quoting else None)
    if count is None:
        rows = _Rows(source, coding, delimiter, quoting)
        count = sum(1 for _ in rows)
        if rows.error:
            answer.note(f"row {count + 1:,} cannot be read: {rows.error}")
            source.cut = True
    set_rows(answer, source, count, header)


def set_rows(answer: Answer, source: Source, count: int, header: bool) -> None:
    """The number of rows, or an estimate when not everything was read."""
    if source.cut:
        count = int(count / source.share)
        answer.note(f"the number of rows is an estimate from {source.how_much()}")
    answer.rows, answer.rows_exact = max(0, count - header), not source.cut


def _count_lines(source: Source, coding: Coding, *, stop_at: bytes | None) -> int | None:
    """The lines that are not blank; None where bytes do not tell: other line ends, quotes that may hold some."""
    head = source.head()
    if not coding.one_byte_newlines or (b"\r" in head and b"\r" in head.replace(b"\r\n", b"")):
        return None
    count, rest = 0, b""
    skip = coding.skip
    for chunk in source.chunks():
        if stop_at and stop_at in chunk:
            return None
        data = rest + chunk[skip:]
        skip = 0
        end = data.rfind(b"\n") + 1
        block, rest = data[:end], data[end : end + 16]
        if block[:1] in (b"\r", b"\n") or b"\n\n" in block or b"\n\r\n" in block:
            count += sum(1 for line in block.split(b"\n") if line not in (b"", b"\r"))
        else:
            count += block.count(b"\n")
    return count + bool(rest.strip(b"\r"))


# ------------------------------------------------------------------------------------------ JSON lines


def are_json_lines(sample: str) -> bool:
    """Whether a text begins with two objects, each in a line of its own."""
    lines = [line for line in sample.split("\n", 100)[:100] if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return False


def json_lines(answer: Answer, ask: Ask, source: Source, coding: Coding) -> None:
    """One JSON value a line, as a table."""
    from look.texts import name_coding, table, text, type_of_all

    lines = Lines(source, coding)
    values: list[Any] = []
    window: list[Any] = []
    bad = passed = 0
    for line in lines:
        if not line.strip():
            continue
        sampled = len(values) + bad < 200
        if passed >= ask.offset + ask.rows and not sampled:
            passed += 1
            break
        if sampled or passed >= ask.offset:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                bad += 1
                value = line.strip()
            value = value if isinstance(value, dict) else {"value": value}
            if sampled:
                values.append(value)
            if ask.offset <= passed < ask.offset + ask.rows:
                window.append(value)
        passed += 1
    if bad * 2 > len(values):
        answer.note("its lines are not JSON")
        text(answer, ask, source, coding)
        return
    answer.kind = "table"
    name_coding(answer, coding)
    names = list(dict.fromkeys(key for value in values for key in list(value)[:1000]))
    types = [type_of_all([value.get(name) for value in values]) for name in names[: ask.columns]]
    answer.set_columns(map(one_line, names), types, ask.columns, len(names))
    if bad:
        answer.note("some lines are not valid JSON")
    if lines.long:
        answer.note("lines longer than 1 MB were cut")
    answer.offset = ask.offset
    shown = table(answer, ask, names, window, ask.offset)
    count = _count_lines(source, coding, stop_at=None)
    if count is None:
        count = sum(1 for line in Lines(source, coding) if line.strip())
    set_rows(answer, source, count, False)
    _continue(answer, ask, shown if window else 0, passed)
