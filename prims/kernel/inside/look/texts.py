"""Plain text, JSON and notebooks."""

from __future__ import annotations

import json

from look.answer import Answer, Ask, one_line, short, size_of
from look.decoding import Coding, Lines, piece_at, tidy
from look.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_JSON = 8 << 20
_MOST_NOTEBOOK = 32 << 20
_DEEPEST = 4
_MOST_KEYS = 30
_SAMPLED = 200


def text(answer: Answer, ask: Ask, source: Source, coding: Coding) -> None:
    """A text: how many lines, and the part that was asked for."""
    if answer.kind == "binary":
        answer.kind = "text"
    name_coding(answer, coding)
    show(answer, ask, source, coding, min(ask.limit, 400) if ask.brief else ask.limit)
    if ask.brief:
        answer.text = "\n".join(short(line, 200) for line in answer.text.split("\n")[:3]).rstrip("\n")
        answer.next_offset = None
    count_lines(answer, source, coding)


def name_coding(answer: Answer, coding: Coding) -> None:
    """Say in which encoding the text is, and how sure that is."""
    answer.encoding = coding.label
    if coding.guessed:
        answer.note(f"the encoding {coding.label} is a guess")
    if coding.nul:
        answer.note("it contains NUL characters")


def show(answer: Answer, ask: Ask, source: Source, coding: Coding, limit: int) -> None:
    """Fill in the text from the offset on, `limit` characters at most."""
    total = source.size if not source.packing else None
    if total is not None and ask.offset > total:
        answer.note(f"offset {ask.offset:,} is past the end")
    piece = piece_at(source, coding, ask.offset, limit, total)
    answer.text = tidy(piece.text)
    answer.offset = piece.start
    answer.next_offset = piece.end if piece.more else None
    if "\ufffd" in answer.text:
        answer.note(f"some bytes are not valid {coding.codec} and shown as \ufffd")
    if source.packing and not piece.text and ask.offset:
        answer.note(f"there is nothing at offset {ask.offset:,}, or it is too far to unpack")


def count_lines(answer: Answer, source: Source, coding: Coding) -> None:
    """Count the lines, or estimate them from what can be read in time."""
    lines, last = 0, b""
    if coding.one_byte_newlines:
        newline = b"\r" if b"\n" not in source.head() and b"\r" in source.head() else b"\n"
        for chunk in source.chunks():
            lines += chunk.count(newline)
            last = chunk[-1:]
        lines += last not in (b"", newline)
    else:
        lines = sum(1 for _ in Lines(source, coding))
    if source.cut:
        about = int(lines / source.share)
        answer.note(f"about {about:,} lines, estimated from {source.how_much()}")
    else:
        answer.lines = lines


# ---------------------------------------------------------------------------------------------------- JSON


def load(answer: Answer, source: Source, coding: Coding, most: int) -> Any:
    """The parsed content; None with a note when there is none."""
    if not source.packing and source.size > most:
        answer.note(f"too large to be parsed whole here (over {size_of(most)}); this is its beginning as text")
        return None
    data = b"".join(source.chunks(most=most))
    if source.cut:
        answer.note(f"too large to be parsed whole here (over {size_of(most)}); this is its beginning as text")
        return None
    try:
        return json.loads(data[coding.skip :].decode(coding.codec))
    except RecursionError:
        answer.note("JSON that is nested too deeply to be parsed")
    except (ValueError, UnicodeError) as error:
        if "integer string conversion" in str(error):
            answer.note("JSON with a number too long to be parsed")
        else:
            answer.note(f"not valid JSON: {one_line(short(str(error), 150))}")
    return None


def json_file(answer: Answer, ask: Ask, source: Source, coding: Coding, *, certain: bool) -> bool:
    """JSON: its shape, then its content. False, with nothing said, when it is none and that is not `certain`."""
    quiet = Answer()
    value = load(answer if certain else quiet, source, coding, _MOST_JSON)
    if not isinstance(value, dict | list) and (not certain or value is None):
        if certain:
            text(answer, ask, source, coding)
        return certain
    answer.kind = "json"
    if not certain:
        answer.mime = "application/json"
    name_coding(answer, coding)
    shape = short("\n".join(_shape(value, 0)), ask.limit // 2)
    records = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    if records:
        answer.rows, answer.rows_exact = len(value), True
        sample = value[:_SAMPLED]
        names = list(dict.fromkeys(key for item in sample for key in list(item)[:1000]))
        kinds = [type_of_all([item.get(name) for item in sample]) for name in names[: ask.columns]]
        answer.set_columns(map(one_line, names), kinds, ask.columns, len(names))
    if ask.brief:
        answer.text = shape
        if records:
            table(answer, ask, names, value[:3], 0)
        return True
    if ask.offset:
        shape = ""
    show(answer, ask, source, coding, ask.limit - len(shape) - 1)
    answer.text = f"{shape}\n\n{answer.text}" if shape else answer.text
    answer.text = answer.text[: ask.limit + 1]
    return True


def table(answer: Answer, ask: Ask, names: list[str], items: list[Any], first: int) -> int:
    """Show objects as the rows of a table; gives how many fitted."""
    from look.tables import render

    rows = [[cell(item.get(name)) if name in item else "" for name in names[:100]] for item in items]
    kinds = [kind for _, kind in answer.columns]
    answer.text, shown = render(list(map(one_line, names[:100])), rows, first, kinds, ask.limit, len(names))
    return shown


def cell(value: object) -> str:
    """A value as a table's cell."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        try:
            return short(json.dumps(value, ensure_ascii=False), 200)
        except RecursionError:
            return "…"
    return "" if value is None else json.dumps(value)


def type_of(value: object) -> str:
    """The type of a JSON value, as tables call it."""
    from look.tables import column_types

    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return column_types([[value]], 1)[0] if value else "text"
        case list():
            return "array"
        case _:
            return "object"


def type_of_all(values: list[Any]) -> str:
    """The type that a column of JSON values has."""
    kinds = {
        ("text" if k not in ("date",) and isinstance(v, str) else k) for v in values if (k := type_of(v)) != "null"
    }
    if not kinds:
        return "empty"
    if kinds == {"int", "float"}:
        return "float"
    if kinds == {"date", "text"}:
        return "text"
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _shape(value: Any, depth: int, label: str = "") -> list[str]:
    """What a JSON value consists of, a line for each part."""
    indent = "  " * depth
    head = f"{indent}{label}: " if label else indent
    match value:
        case dict():
            lines = [f"{head}object with {len(value):,} key{'s' * (len(value) != 1)}"]
            if depth < _DEEPEST:
                for key in list(value)[:_MOST_KEYS]:
                    lines += _shape(value[key], depth + 1, short(one_line(key), 80))
                if len(value) > _MOST_KEYS:
                    lines.append(f"{indent}  … and {len(value) - _MOST_KEYS:,} more keys")
        case list():
            kinds = sorted({type_of(item) for item in value[:_SAMPLED]})
            of = f" of {' or '.join(kinds)}" if kinds else ""
            lines = [f"{head}array with {len(value):,} item{'s' * (len(value) != 1)}{of}"]
            if depth < _DEEPEST and value and isinstance(value[0], dict | list):
                lines += _shape(value[0], depth + 1, "first")
        case _:
            lines = [f"{head}{type_of(value)}"]
    return lines[:200]


# ------------------------------------------------------------------------------------------------ notebooks


def notebook(answer: Answer, ask: Ask, source: Source, coding: Coding) -> None:
    """A notebook: an outline of its cells. The offset counts cells."""
    value = load(answer, source, coding, _MOST_NOTEBOOK)
    cells = value.get("cells") if isinstance(value, dict) else None
    if not isinstance(cells, list):
        if value is not None:
            answer.note("not a notebook of the format 4: it has no list of cells")
        text(answer, ask, source, coding)
        return
    answer.kind = "notebook"
    name_coding(answer, coding)
    lines = [f"notebook with {len(cells):,} cell{'s' * (len(cells) != 1)}{_language(value)}"]
    budget = ask.limit - len(lines[0])
    at = ask.offset
    for at, item in enumerate(cells[ask.offset :], ask.offset):
        part = _cell(at, item, 100 if ask.brief else 600)
        if len(part) + 1 > budget or (ask.brief and at >= 5):
            break
        budget -= len(part) + 1
        lines.append(part)
    else:
        at = len(cells)
    answer.text = "\n".join(lines)
    answer.offset = min(ask.offset, len(cells))
    answer.next_offset = at if ask.offset < at < len(cells) and not ask.brief else None


def _language(value: dict[str, Any]) -> str:
    try:
        name = value["metadata"]["kernelspec"]["language"]
    except (KeyError, TypeError):
        return ""
    return f", {one_line(short(name, 40))}" if isinstance(name, str) else ""


def _cell(number: int, item: Any, most: int) -> str:
    if not isinstance(item, dict):
        return f"[{number}] not a cell"
    kind = item.get("cell_type")
    code = item.get("source")
    parts = code if isinstance(code, list) else [code]
    joined = tidy("".join(part for part in parts[:2000] if isinstance(part, str))).strip()
    lines = joined.split("\n")
    shown = "\n".join("    " + short(line, 160) for line in lines[: 2 if most < 200 else 8])
    more = f"\n    … {len(lines) - 8} more lines" if most >= 200 and len(lines) > 8 else ""
    outputs = item.get("outputs")
    gave = _outputs(outputs) if isinstance(outputs, list) and outputs else ""
    name = one_line(short(kind, 20)) if isinstance(kind, str) else "cell"
    return short(f"[{number}] {name}{gave}\n{shown}{more}", most + 200)


def _outputs(outputs: list[Any]) -> str:
    seen: dict[str, int] = {}
    for output in outputs[:1000]:
        if isinstance(output, dict):
            data = output.get("data")
            names = [output.get("name") or output.get("ename") or output.get("output_type")]
            if isinstance(data, dict) and data:
                names = [next((m for m in data if isinstance(m, str) and m.startswith("image/")), next(iter(data)))]
            name = one_line(short(str(names[0]), 40))
            seen[name] = seen.get(name, 0) + 1
    return " → " + ", ".join(f"{n} × {name}" if n > 1 else name for name, n in list(seen.items())[:6])
