"""Text as it comes from a kernel, made safe and short: control codes, carriage returns, budgets. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from unicodedata import category

from prims.model import Text

# CSI, OSC/DCS/PM/APC/SOS strings with their ends, and the short escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_CONTROLS = re.compile(r"[\x02-\x07\x0e-\x1f\x7f-\x9f]")
_BREAKS = str.maketrans("\x0b\x0c\x85", "\n\n\n")  # of lines and pages, in texts of documents
_SUSPECT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SUSPECT_ASCII = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])

# The name of the user's code in tracebacks, as a pattern: that of a script, or of a cell among others.
CODE_FILE = r'(?:[^"\n]*/main\.py|Cell In\[\d{1,9}\])'

# A line without an end is passed on in pieces of this many characters, so that it cannot fill the memory.
LONGEST_LINE = 64 * 1024
_MOST_HELD = 4 * LONGEST_LINE  # and all lines that may still be drawn over
_LONGEST_ESCAPE = 4096


def _is_plain(data: bytes) -> bool:
    """Whether a text is ASCII without control codes: the quickest of all looks, as there can be a lot of it."""
    return data.isascii() and len(data.translate(None, _SUSPECT_ASCII)) == len(data)


def _suspect(text: str) -> bool:
    """Whether a text holds control codes."""
    if text.isascii():
        return not _is_plain(text.encode())
    return _SUSPECT.search(text) is not None


def tellable(name: str) -> bool:
    """Whether a name can be told and asked for as it is: valid, on one line, and nothing in it hides or turns text.

    Joiners are part of names: of emoji, and of words in Persian and Indian scripts.
    """
    return all(c in "\u200c\u200d" or category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in name)


def plain(value: object) -> str:
    """Any value as text that can go on the wire: no lone surrogates, no control codes but newline and tab."""
    text = value if isinstance(value, str) else str(value)
    text = text.encode("utf-8", "replace").decode("utf-8")
    if _suspect(text):
        text = _lines(text)
    return text


# Erasing the line, or its end, belongs to redrawing and must be known until the line is put together.
_ERASE_END, _ERASE_LINE = "\0", "\1"
_ERASES = re.compile(r"\x1b\[(?:0?K|[12]K)")
_REDRAWS = re.compile(r"([\r\b\0\1])")


def _redrawn(line: str) -> str:
    """What a terminal shows of a line that is drawn over: by carriage returns, backspaces and erasing.

    A redraw that is shorter than what stood there leaves the rest standing, as terminals do; a line that ends in
    a carriage return still shows what was there.
    """
    specials = set(_REDRAWS.findall(line))
    if not specials:
        return line
    text = ""
    if specials == {"\r"}:  # nearly always, and quicker this way
        for part in line.split("\r"):
            text = part + text[len(part) :]
        return text.rstrip(" ") if text.endswith("  ") else text
    shown: list[str] = []
    at = 0
    for part in _REDRAWS.split(line):
        match part:
            case "\r":
                at = 0
            case "\b":
                at = max(0, at - 1)
            case "\0":
                del shown[at:]
            case "\1":
                shown.clear()
                at = 0
            case _:
                shown[at : at + len(part)] = part
                at += len(part)
    text = "".join(shown)
    return text.rstrip(" ") if text.endswith("  ") else text


# Bars that stand one below the other are redrawn by going up and down: so many lines can be reached, and so often
# in one piece of text is it looked at.
_MOVES = re.compile(r"\x1b\[(\d{0,3})([ABEF])")
_MOST_ROWS, _MOST_MOVES = 50, 2000


def _goes_up(text: str) -> bool:
    if "\x1b[" not in text:
        return False
    ways = [move[2] for _, move in zip(range(_MOST_MOVES + 1), _MOVES.finditer(text), strict=False)]
    return len(ways) <= _MOST_MOVES and ("A" in ways or "F" in ways)


def _drawn(rows: list[str], at: int, text: str) -> tuple[list[str], int]:
    """Draw text over lines as a terminal does; in which of them the cursor is, and is then.

    A terminal keeps the column; here each move begins the line anew, as programs that make moves do anyhow. Lines that
    were drawn over are marked by a carriage return, so that they stay open.
    """
    for count, way, written in _moved_pieces(text):
        rows[at] += "\r" if way else ""
        steps = int(count or 1) if way else 0
        at = max(0, at - steps) if way in "AF" else min(len(rows) - 1, at + steps)
        lines = written.split("\n")
        over = [f"{row}\r{line}" for row, line in zip(rows[at + 1 :], lines[1:], strict=False)]
        rows[at] += lines[0]
        rows[at + 1 :] = [*over, *lines[1 + len(over) :], *rows[at + 1 + len(over) :]]
        at += len(lines) - 1
    return [_collapsed(row, number == at) for number, row in enumerate(rows)], at


def _collapsed(line: str, current: bool) -> str:
    """A line that was drawn over, in short, so that a bar that redraws for hours stays small; still marked as one.

    In the current one what follows goes on where it is, in others at the begin.
    """
    before, cr, last = line.rpartition("\r")
    return cr + _lines(before) + cr + last if current else cr + _lines(line)


def _moved_pieces(text: str) -> Iterator[tuple[str, str, str]]:
    """Moves, each with its count, its letter and the text after it; first the text before any."""
    first, *moves = _MOVES.split(text)
    yield "", "", first
    yield from zip(moves[::3], moves[1::3], moves[2::3], strict=True)


def _settled(rows: list[str]) -> list[str]:
    """What is left of lines that were drawn over; one that was wiped is none."""
    return [text for row in rows if (text := _lines(row)).strip() or "\r" not in row]


class Cleaner:
    """Bytes in, clean text out, a whole line at a time: what a later piece may change is held back.

    That is cut characters, cut escapes, the last line, which a carriage return may still redraw, and lines before it
    that were redrawn, as there may be a way back up to them.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._below = 0  # so many lines are below that of the cursor
        self._live = False  # whether lines were reached from below
        self._cut = ""  # the begin of an escape
        self._plain = True  # nothing in what is held back may be changed by what follows

    def feed(self, data: bytes) -> str:
        """The lines that are now certain."""
        if self._plain and _is_plain(data):
            # Nearly all of much text, for which each further look counts.
            text = self._rest + data.decode("ascii")
            cut = text.rfind("\n") + 1
            if len(text) - cut > LONGEST_LINE:
                cut = len(text)
            self._rest = text[cut:]
            return text[:cut]
        text = self._feed(self._cut + self._decode.decode(data))
        self._plain = not (_suspect(self._rest) or self._below or self._cut or self._decode.getstate()[0])
        return text

    def _feed(self, text: str) -> str:
        cut = _UNFINISHED.search(text, max(0, len(text) - _LONGEST_ESCAPE)) if "\x1b" in text else None
        text, self._cut = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
        if self._below or _goes_up(text):
            return self._moved(text)
        head, newline, line = (self._rest + text).rpartition("\n")
        self._rest = ""
        if len(line) > LONGEST_LINE:
            return _lines(head + newline + line)
        line = _collapsed(line, True) if "\r" in line else line
        sure = head.split("\n") if "\r" in head else []
        held: list[str] = []
        room = _MOST_HELD
        while sure and len(held) < _MOST_ROWS and len(sure[-1]) < room and "\r" in sure[-1].removesuffix("\r"):
            held.insert(0, _collapsed(sure.pop(), False))
            room -= len(held[0])
        self._rest = "\n".join([*held, line])
        return _lines("\n".join([*sure, ""]) if held else head + newline)

    def _moved(self, text: str) -> str:
        """Text in which the cursor goes up, or is: the last lines are held back."""
        rows = self._rest.split("\n")
        rows, at = _drawn(rows, len(rows) - 1 - self._below, text)
        self._live = True
        sure = rows[: min(at, max(0, len(rows) - _MOST_ROWS))]
        if sum(map(len, rows[len(sure) :])) > _MOST_HELD:
            sure, rows, at = rows, [*rows, ""], len(rows)
        self._rest, self._below = "\n".join(rows[len(sure) :]), len(rows) - 1 - at
        return "".join(f"{row}\n" for row in _settled(sure))

    def flush(self) -> str:
        """What was held back: the unfinished line as it stands."""
        text = self._rest + self._cut + self._decode.decode(b"", True)
        rows = _settled(text.split("\n")[:-1]) if self._live else []
        text = "\n".join([*rows, _lines(text.rpartition("\n")[2])]) if self._live else _lines(text)
        self._rest, self._below, self._cut, self._live, self._plain = "", 0, "", False, True
        return text


def _lines(text: str) -> str:
    if not _suspect(text):
        return text
    text = text.translate(_BREAKS)
    if "\x1b" in text:
        text = text.replace(_ERASE_END, "").replace(_ERASE_LINE, "")
        text = _ERASES.sub(lambda found: _ERASE_LINE if found[0][2] in "12" else _ERASE_END, text)
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    else:
        text = _CONTROLS.sub("", text).replace(_ERASE_END, "").replace(_ERASE_LINE, "")
    if not _REDRAWS.search(text):
        return text
    return "\n".join(_redrawn(line.removesuffix("\r")) for line in text.split("\n"))


class TextSink:
    """Keeps the first and last `keep` characters of a text of any length, and counts the rest."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.head = ""
        self._tail: list[str] = []
        self._tail_chars = 0
        self.chars = 0
        self.newlines = 0
        self._ends_line = True

    def feed(self, text: str, newlines: int | None = None) -> None:
        """Add text; `newlines` are how many it has, if that was counted already."""
        if not text:
            return
        self.chars += len(text)
        self.newlines += text.count("\n") if newlines is None else newlines
        self._ends_line = text.endswith("\n")
        room = self._keep - len(self.head)
        if room > 0:
            self.head += text[:room]
            text = text[room:]
        if text:
            text = text[-self._keep :]
            self._tail.append(text)
            self._tail_chars += len(text)
            if self._tail_chars > 4 * self._keep or len(self._tail) > 1000:
                joined = "".join(self._tail)[-self._keep :]
                self._tail, self._tail_chars = [joined], len(joined)

    def lose(self, chars: int, newlines: int) -> None:
        """Count text that is not kept at all."""
        self.chars += chars
        self.newlines += newlines

    @property
    def overflowed(self) -> bool:
        """Whether not everything is kept."""
        return self.chars > len(self.head) + self._tail_chars

    def text(self, path: str | None = None) -> Text:
        """What was kept; `head` is the whole text when it fits twice the budget."""
        tail = "".join(self._tail)
        head = self.head
        if len(head) + len(tail) == self.chars:
            head, tail = head + tail, ""
        else:
            tail = tail[-self._keep :]
        return Text(head, tail, self.chars, self.newlines + (not self._ends_line), path)


def shorten(text: Text, budget: int) -> str:
    """The text within about `budget` characters: the head, a line that says what was left out, the tail."""
    if text.whole and len(text.head) <= budget:
        return text.head
    whole = text.head if text.whole else ""
    front = budget * 6 // 10
    back = budget - front
    head = text.head[:front]
    tail = (whole or text.tail or text.head)[-back:] if back else ""
    # Cut at line ends where one is near, so that no half line misleads.
    cut = head.rfind("\n", max(0, front - 300))
    head = head[: cut + 1] if cut >= 0 else head
    cut = tail.find("\n", 0, 300)
    tail = tail[cut + 1 :] if 0 <= cut < len(tail) - 1 else tail
    left_out = text.chars - len(head) - len(tail)
    where = f"; all of it is in {text.path}" if text.path else ""
    note = f"[... {left_out:,} of {text.chars:,} characters left out ({text.lines:,} lines in all){where} ...]"
    return f"{head}{'' if head.endswith(chr(10)) or not head else chr(10)}{note}\n{tail}"


# In one line, or in the lines of 64 or 76 characters of mails and certificates.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}(?:\n[A-Za-z0-9+/_-]{64,76}(?![A-Za-z0-9+/_-]))*={0,2}")


_SAME_LINES = re.compile(r"^(.*\n)\1{9,}", re.M)


def squeezed(text: str) -> str:
    """The text with one of many equal lines, and a little of base64, of which a model can make nothing."""

    def cut(found: re.Match[str]) -> str:
        whole = found[0]
        if len(whole) < 1000 or not all(re.search(kind, whole) for kind in ("[A-Z]", "[a-z]", "[0-9]")):
            return whole
        return f"{whole[:40]}[... {len(whole) - 40:,} characters of base64 left out; display() shows pictures ...]"

    text = _SAME_LINES.sub(lambda same: f"{same[1]}[{len(same[0]) // len(same[1]) - 1:,} more lines like this]\n", text)
    return _BASE64.sub(cut, text)


def shorten_str(text: str, budget: int) -> str:
    """`shorten` for a plain string."""
    return shorten(Text(text, "", len(text), text.count("\n") + 1), budget)


def share(budget: int, wants: list[int]) -> list[int]:
    """Divide `budget` among parts that want `wants` each: small ones get all, large ones an equal share."""
    given = [0] * len(wants)
    left, order = budget, sorted(range(len(wants)), key=lambda i: wants[i])
    for position, index in enumerate(order):
        given[index] = min(wants[index], left // (len(order) - position))
        left -= given[index]
    return given
