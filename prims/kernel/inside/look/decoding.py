"""Which encoding a text has, and how to take whole characters out of its bytes."""

from __future__ import annotations

import codecs
import io
from itertools import pairwise

from look.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32-le", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32-be", "utf-32"),
    (b"\xff\xfe", "utf-16-le", "utf-16"),
    (b"\xfe\xff", "utf-16-be", "utf-16"),
)
# Tab, line ends, form feed, backspace and escape are in texts; the other control codes are in binaries.
_CONTROLS = bytes({*range(0x20)} - {0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x1B} | {0x7F})
_NOT_CONTROLS = bytes(set(range(256)) - set(_CONTROLS))
_ASCII = bytes(range(128))
_WESTERN = frozenset("ÄÖÜäöüßÉÈÊËéèêëÀÁÂÃÅÆàáâãåæÇçÍÎÏíîïìÑñÓÔÕØóôõøòœŒÚÛúûùŸÿ€£¥§©®°«»¿¡±²³µ·½¼¾×÷…–—‘’“”„‚•™ªº\xa0")
_COMMON_HANZI = frozenset("的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就要下以生会這個國們說時為")
_LONGEST_LINE = 1 << 20


class Coding:
    """How to read a text: a codec's name, the bytes to skip at the start, and the codec that Python would read it
    with as a whole."""

    def __init__(self, codec: str, *, skip: int = 0, label: str = "", guessed: bool = False, nul: bool = False) -> None:
        self.codec = codec
        self.skip = skip
        self.label = label or codec
        self.guessed = guessed
        self.nul = nul

    def past(self, count: int) -> Coding:
        """The same for what follows so many bytes more."""
        return Coding(self.codec, skip=self.skip + count, label=self.label, guessed=self.guessed, nul=self.nul)

    @property
    def one_byte_newlines(self) -> bool:
        """Whether a newline byte is always a newline."""
        return not self.codec.startswith(("utf-16", "utf-32"))


def coding_of(head: bytes, whole: bool, allow_layers: Callable[[], None]) -> Coding | None:
    """The encoding of a text that begins with `head` (and ends with it when `whole`); None when it is no text."""
    for bom, marked, label in _BOMS:
        if head.startswith(bom):
            return Coding(marked, skip=len(bom), label=label) if _decodes(head[len(bom) :], marked, whole) else None
    nuls = head.count(0)
    if nuls and (codec := _utf16(head, whole)):
        return Coding(codec)
    controls = len(head.translate(None, _NOT_CONTROLS))
    if _decodes(head, "utf-8", whole):
        # A stray control code, or NULs in a log after a crash, do not make a text a binary.
        strays = controls - nuls
        sound = nuls <= len(head) // 10 and strays <= (len(head) // 100 if nuls else max(4, len(head) // 20))
        return Coding("utf-8", nul=nuls > 0) if sound else None
    if nuls or controls > len(head) // 200:
        return None
    if mostly := _mostly_utf8(head, whole):
        return mostly
    return Coding(_eight_bit(head, whole, allow_layers), guessed=True)


def _decodes(data: bytes, codec: str, whole: bool) -> bool:
    """Whether `data` is valid; a character that is cut at its end is no fault unless it is `whole`."""
    try:
        codecs.getincrementaldecoder(codec)("strict").decode(data, whole)
    except UnicodeError:
        return False
    return True


def _utf16(head: bytes, whole: bool) -> str | None:
    """UTF-16 without a mark, as far as half of its bytes are NUL: scripts near ASCII."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    codec = "utf-16-le" if odd > even else "utf-16-be"
    if max(even, odd) < half * 0.4 or min(even, odd) > half * 0.02 or not _decodes(head, codec, whole):
        return None
    text = head.decode(codec, "ignore")
    return codec if sum(c.isprintable() or c in "\r\n\t" for c in text) > 0.95 * len(text) else None


def _mostly_utf8(head: bytes, whole: bool) -> Coding | None:
    """UTF-8 with a few broken bytes, as in logs of several programs."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head, whole)
    broken, beyond = text.count("\ufffd"), sum(c > "\x7f" for c in text)
    return Coding("utf-8") if broken * 10 <= beyond else None


def _eight_bit(head: bytes, whole: bool, allow_layers: Callable[[], None]) -> str:
    sample = head[: 16 << 10]
    whole = whole and len(sample) == len(head)
    high = len(sample.translate(None, _ASCII))
    text = sample.decode("cp1252", "replace")
    if sum(c in _WESTERN for c in text if c > "\x7f") >= 0.95 * high and _isolated(sample, high):
        return "cp1252"
    if asian := _asian(sample, whole):
        return asian
    for codec in ("cp1251", "koi8-r"):
        if _cyrillic(sample.decode(codec, "replace"), high):
            return codec
    if known := _asked(sample, allow_layers):
        return known
    return "cp1252" if _decodes(sample, "cp1252", True) else "latin-1"


def _isolated(sample: bytes, high: int) -> bool:
    """Whether letters beyond ASCII stand among ASCII ones, as in western languages."""
    pairs = sum(a > 0x7F and b > 0x7F for a, b in pairwise(sample))
    return pairs <= high * 0.35


def _asian(sample: bytes, whole: bool) -> str | None:
    best, most = None, 0.0
    for codec in ("cp932", "gb18030", "euc_jp", "euc_kr", "big5"):
        if not _decodes(sample, codec, whole):
            continue
        text = codecs.getincrementaldecoder(codec)("ignore").decode(sample, whole)
        wide = [c for c in text if c > "\x7f"]
        if not wide:
            continue
        kana = sum("\u3040" <= c <= "\u30ff" for c in wide)
        common = sum(c in _COMMON_HANZI for c in wide)
        ideographs = sum("\u4e00" <= c <= "\u9fff" for c in wide)
        hangul = sum("\uac00" <= c <= "\ud7a3" for c in wide)
        marks = sum("\u3000" <= c <= "\u303f" or "\uff01" <= c <= "\uff5e" for c in wide)
        likely = {"cp932": kana * 2, "euc_jp": kana * 2, "euc_kr": hangul * 1.5}.get(codec, common * 4)
        sound = (kana + ideographs + hangul + marks) / len(wide)
        score = sound + min(1.0, likely / len(wide))
        if sound > 0.85 and likely > 0 and score > most:
            best, most = codec, score
    return best


def _cyrillic(text: str, high: int) -> bool:
    letters = sum("а" <= c <= "я" or c == "ё" for c in text)
    capitals = sum("А" <= c <= "Я" for c in text)
    common = sum(c in "оеаинтсрвл" for c in text)
    return letters + capitals >= 0.9 * high and letters > capitals and common > 0.52 * letters


def _asked(sample: bytes, allow_layers: Callable[[], None]) -> str | None:
    """What charset-normalizer thinks, where the environment has it."""
    allow_layers()
    try:
        from charset_normalizer import from_bytes  # type: ignore[import-not-found, unused-ignore]

        found = from_bytes(sample[: 8 << 10]).best()
        codec = str(found.encoding) if found else ""
        codecs.lookup(codec)
    except Exception:  # a library's business: without it we guess
        return None
    return codec if _decodes(sample, codec, False) else None


# --------------------------------------------------------------------------------------------- taking text


class Piece:
    """Whole characters out of the middle of a text: where they begin and end in bytes."""

    def __init__(self, text: str, start: int, end: int, more: bool) -> None:
        self.text = text
        self.start = start
        self.end = end
        self.more = more


def piece_at(source: Source, coding: Coding, offset: int, limit: int, total: int | None) -> Piece:
    """At most `limit` characters from byte `offset` on, cut at a line end where one is near.

    An offset within a character means that character; the mark at the start is left out. `total` is the number of
    bytes, where it is known.
    """
    start = _aligned(max(offset, coding.skip), coding)
    first = max(coding.skip, start - 4)
    before = source.at(first, start - first)
    data = source.at(start - len(before), len(before) + 4 * limit + 8)
    back = _back(data, len(before), coding.codec)
    start, data = start - back, data[len(before) - back :]
    known = source.size if not source.packing else total
    at_end = start + len(data) >= known if known is not None else len(data) < 4 * limit + 8
    decoder = codecs.getincrementaldecoder(coding.codec)
    text = decoder("replace").decode(data, at_end)
    if len(text) <= limit and at_end:
        return Piece(text, start, start + len(data), False)
    wanted = min(limit, len(text))
    line_end = max(text.rfind("\n", 0, wanted), text.rfind("\r", 0, wanted - 1))
    if line_end >= wanted * 3 // 4:
        wanted = line_end + 1
    elif wanted > 1 and text[wanted - 1] == "\r":
        wanted -= 1  # its newline may follow
    low, high = 0, len(data)  # the fewest bytes that give so many characters
    while low < high:
        middle = (low + high) // 2
        if len(decoder("replace").decode(data[:middle])) >= wanted:
            high = middle
        else:
            low = middle + 1
    return Piece(decoder("replace").decode(data[:low]), start, start + low, low < len(data) or not at_end)


def _back(data: bytes, at: int, codec: str) -> int:
    """How many bytes before `at` the character begins that `at` is in."""
    if codec == "utf-8":
        for back in range(min(at, 3) + 1):
            if at - back < len(data) and data[at - back] & 0xC0 != 0x80:
                # Only when it really reaches over `at`: a broken sequence may end before.
                lead = data[at - back]
                length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
                return back if back < length else 0
    if codec.startswith("utf-16") and at >= 2:  # the second half of a pair
        unit = data[at + 1 : at + 2] if codec == "utf-16-le" else data[at : at + 1]
        return 2 if unit and 0xDC <= unit[0] <= 0xDF else 0
    return 0


def _aligned(offset: int, coding: Coding) -> int:
    """An offset that is no place between the halves of a code unit."""
    unit = 2 if coding.codec.startswith("utf-16") else 4 if coding.codec.startswith("utf-32") else 1
    return offset - (offset - coding.skip) % unit


def tidy(text: str) -> str:
    """Line ends as newlines: a carriage return that ends a line must not be taken for one that redraws it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


class Lines:
    """The lines of a text, each with its newline; `long` tells of lines that were cut, `bad` of undecodable bytes."""

    def __init__(self, source: Source, coding: Coding) -> None:
        self._source = source
        self._coding = coding
        self.long = False
        self.bad = False

    def __iter__(self) -> Iterator[str]:
        decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder(self._coding.codec)("replace"), translate=True
        )
        rest, skip, dropping = "", self._coding.skip, False
        for chunk in self._source.chunks():
            text = decoder.decode(chunk[skip:])
            skip = 0
            if "\ufffd" in text:
                self.bad = True
            lines = text.split("\n")
            if len(lines) == 1:
                if not dropping:
                    rest += text
                    if len(rest) > _LONGEST_LINE:
                        rest, dropping, self.long = rest[:_LONGEST_LINE], True, True
                continue
            yield (rest if dropping else rest + lines[0]) + "\n"
            dropping = False
            for line in lines[1:-1]:
                yield line + "\n"
            rest = lines[-1]
        rest += decoder.decode(b"", True) if not dropping else ""
        if rest:
            yield rest
