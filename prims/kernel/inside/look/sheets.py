"""Excel workbooks, read row by row."""

from __future__ import annotations

import sys
import time

from look.answer import Answer, Ask, one_line, short
from look.source import Source, Window
from look.tables import has_header, name_columns, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_MEMBERS = 5000
_MOST_SHEETS = 30
_COUNT_SECONDS = 2.0
_MOST_CELLS = 200


def workbook(answer: Answer, ask: Ask, source: Source, members: int) -> bool:
    """Sheets with their sizes, and the first sheet as a table. False when the package for that is missing."""
    ask.allow_layers()
    for module in ("numpy", "PIL", "lxml", "defusedxml"):  # slow to load, and of no use here
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    try:
        from openpyxl import load_workbook  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        answer.note("its sheets can be read with the package openpyxl only")
        return False
    if members > _MOST_MEMBERS:
        answer.note("it has far too many parts for a workbook")
        return False
    import warnings

    warnings.simplefilter("ignore")
    book = load_workbook(Window(source), read_only=True, data_only=True, keep_links=False)
    answer.kind = "table"
    sheets = [sheet for sheet in book.worksheets if hasattr(sheet, "iter_rows")]
    until = time.monotonic() + _COUNT_SECONDS
    for number, sheet in enumerate(sheets[:_MOST_SHEETS]):
        title = short(one_line(str(sheet.title)), 100)
        rows, columns = sheet.max_row, sheet.max_column
        answer.sheets.append((title, _count(rows), _count(columns)))
        if number == 0:
            _first(answer, ask, sheet, until)
    if len(sheets) > _MOST_SHEETS:
        answer.note(f"{len(sheets) - _MOST_SHEETS} more sheets are not listed")
    if len(sheets) > 1:
        answer.note(f"shown is the first of {len(sheets)} sheets, {answer.sheets[0][0]!r}")
    return True


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else None


def _first(answer: Answer, ask: Ask, sheet: Any, until: float) -> None:
    """The first sheet as a table."""
    sheet.reset_dimensions()  # what the file announces may be wrong, and then rows would be padded or cut
    sample: list[list[Any]] = []
    window: list[list[Any]] = []
    last, passed, width, blank = ask.offset + ask.rows + 1, 0, 0, 0
    complete = True
    for values in sheet.iter_rows(values_only=True):
        if all(value is None for value in values):
            blank += 1  # formatting below or between the data
            if blank > 10_000 or time.monotonic() > until:
                complete = False
                break
            continue
        width = max(width, len(values))
        row = list(values[: max(_MOST_CELLS, ask.columns)])
        if passed < _MOST_CELLS:
            sample.append(row)
        if ask.offset <= passed < last:
            window.append(row)
        passed += 1
        if not passed & 63 and time.monotonic() > until:
            complete = False
            break
    if not sample:
        answer.rows, answer.rows_exact = 0, complete
        return
    texts = [[_text(value) for value in row] for row in sample]
    header = has_header(texts)
    body, window = (sample[1:], window[1:]) if header else (sample, window[: ask.rows])
    names = name_columns([t or f"column {n + 1}" for n, t in enumerate(texts[0])] if header else None, width)
    types = [_type([row[c] for row in body if c < len(row)]) for c in range(min(width, ask.columns))]
    answer.set_columns(names, types, ask.columns, width)
    rows = [[_text(value) for value in row] for row in window]
    answer.text, shown = render(names, rows, ask.offset, types, ask.limit, width)
    announced = answer.sheets[0][1]
    count = passed - header
    if not complete:
        answer.note(f"rows were counted up to {count:,} only; the file announces {announced or 'nothing'}")
        count = max(count, (announced or 0) - header)
    answer.rows, answer.rows_exact = count, complete
    answer.sheets[0] = (answer.sheets[0][0], passed + blank if complete else announced, width)
    answer.offset = ask.offset
    if not rows:
        answer.text = "" if ask.offset else answer.text
        if ask.offset:
            answer.note(f"there are no rows at offset {ask.offset:,}, or they are too far to be read here")
    elif ask.offset + shown < count and not ask.brief:
        answer.next_offset = ask.offset + shown
    if not header:
        answer.note("it seems to have no header line")


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = short(str(value), 400)
    return text.removesuffix(" 00:00:00") if type(value).__name__ == "datetime" else text


def _type(values: list[Any]) -> str:
    """The type of a column. Dates and times are dates; numbers of both kinds are floats."""
    names = {"str": "text", "datetime": "date", "time": "date", "timedelta": "date"}
    kinds = {names.get(type(value).__name__, type(value).__name__) for value in values if value is not None}
    if not kinds:
        return "empty"
    if kinds == {"int", "float"}:
        return "float"
    return kinds.pop() if len(kinds) == 1 else "mixed"
