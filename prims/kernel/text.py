"""Text as it comes from a kernel, made safe and short: control codes, carriage returns, budgets. Pure."""

from __future__ import annotations

import codecs
import re

from prims.model import Text

# CSI, OSC/DCS/PM/APC/SOS strings with their ends, and the short escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_CONTROLS = re.compile(r"[\x02-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SUSPECT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SUSPECT_ASCII = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])

# The name of the user's code in tracebacks, as a pattern: that of a script, or of a cell among others.
CODE_FILE = r'(?:[^"\n]*/main\.py|Cell In\[\d{1,9}\])'

# A line without an end is passed on in pieces of this many characters, so that it cannot fill the memory.
LONGEST_LINE = 64 * 1024
_LONGEST_ESCAPE = 4096


def _is_plain(data: bytes) -> bool:
    """Whether a text is ASCII without control codes: the quickest of all looks, as there can be a lot of it."""
    return data.isascii() and len(data.translate(None, _SUSPECT_ASCII)) == len(data)


def _suspect(text: str) -> bool:
    """Whether a text holds control codes."""
    if text.isascii():
        return not _is_plain(text.encode())
    return _SUSPECT.search(text) is not None


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


class Cleaner:
    """Bytes in, clean text out, a whole line at a time: what a later piece may change is held back.

    That is cut characters, cut escapes, and the last line, which a carriage return may still redraw.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
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
        text = self._feed(data)
        self._plain = not _suspect(self._rest) and not self._decode.getstate()[0]
        return text

    def _feed(self, data: bytes) -> str:
        head, newline, line = (self._rest + self._decode.decode(data)).rpartition("\n")
        self._rest = ""
        if len(line) > LONGEST_LINE:
            return _lines(head + newline) + self._long(line)
        cut = _UNFINISHED.search(line, max(0, len(line) - _LONGEST_ESCAPE)) if "\x1b" in line else None
        line, unfinished = (line[: cut.start()], line[cut.start() :]) if cut else (line, "")
        before, cr, last = line.rpartition("\r")
        if cr:
            # Collapsed at once, so that a bar that redraws for hours stays small.
            line = _lines(before) + cr + last
        self._rest = line + unfinished
        return _lines(head + newline)

    def flush(self) -> str:
        """What was held back: the unfinished line as it stands."""
        line, self._rest = self._rest + self._decode.decode(b"", True), ""
        self._plain = True
        return _lines(line)

    def _long(self, line: str) -> str:
        """A line without an end, passed on but for the part that may be cut."""
        cut = _UNFINISHED.search(line, len(line) - _LONGEST_ESCAPE) if "\x1b" in line else None
        at = cut.start() if cut else len(line)
        self._rest = line[at:]
        return _lines(line[:at])


def _lines(text: str) -> str:
    if not _suspect(text):
        return text
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
