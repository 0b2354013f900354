"""What archives hold: names and sizes, never the content."""

from __future__ import annotations

import struct
import time

from look.answer import Answer, Ask, one_line, short, size_of
from look.kinds import suffix_of
from look.source import MOST_BYTES, MOST_SECONDS, Source, Unusable, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LISTED = 20_000
_MOST_DIRECTORY = 16 << 20
_OFFICE = (
    ("xl/workbook.xml", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "Excel workbook"),
    ("word/document.xml", "application/vnd.openxmlformats-officedocument.wordprocessingml.document", "Word document"),
    ("ppt/presentation.xml", "application/vnd.openxmlformats-officedocument.presentationml.presentation", "slides"),
    ("META-INF/MANIFEST.MF", "application/java-archive", "Java archive"),
)
_OTHERS = {
    "ods": ("application/vnd.oasis.opendocument.spreadsheet", "OpenDocument spreadsheet"),
    "odt": ("application/vnd.oasis.opendocument.text", "OpenDocument text"),
    "epub": ("application/epub+zip", "EPUB book"),
    "npz": ("application/x-npz", "NumPy arrays"),
    "whl": ("application/x-wheel+zip", "Python wheel"),
}
# Parts of a workbook that are read before its first row.
_READ_WHOLE = ("xl/sharedStrings.xml", "xl/styles.xml", "xl/workbook.xml")
_MOST_WHOLE = 48 << 20

Entry = tuple[str, "int | None"]


def outline(answer: Answer, ask: Ask, words: str, entries: list[Entry], total: int, unpacked: int | None) -> None:
    """Show entries, the first of which is number `ask.offset` of `total`."""
    answer.kind = "archive"
    answer.set_entries(entries[: ask.entries])
    size = f", {size_of(unpacked)} unpacked" if unpacked is not None else ""
    lines = [f"{words} with {total:,} entr{'y' if total == 1 else 'ies'}{size}"]
    room = ask.limit - len(lines[0])
    shown = 0
    for name, count in entries[: ask.entries]:
        number = "" if count is None else f"{count:,}"
        line = f"{number:>14}  {short(one_line(name), 200)}"
        if room < len(line) + 1:
            break
        room -= len(line) + 1
        shown += 1
        lines.append(line)
    answer.text = "\n".join(lines)
    answer.offset = ask.offset
    if shown and ask.offset + shown < total and not ask.brief:
        answer.next_offset = ask.offset + shown
    if any(name.startswith("/") or ".." in name.replace("\\", "/").split("/") for name, _ in entries):
        answer.note("some names lead out of the folder that it is unpacked in (absolute, or with ..)")


# --------------------------------------------------------------------------------------------------- ZIP


def zip_file(answer: Answer, ask: Ask, source: Source) -> None:
    """A ZIP archive, or a document that is one. Read here, because `zipfile` makes an object of every entry."""
    total, start, length = _directory(source)
    shown: list[Entry] = []
    names: dict[str, int] = {}
    unpacked, listed, encrypted = 0, 0, False
    for name, size, flags in _central(source, start, length):
        if ask.offset <= listed < ask.offset + ask.entries:
            shown.append((name, size))
        if listed < 2000:
            names[name] = size
        listed += 1
        unpacked += size
        encrypted |= bool(flags & 1)
    complete = listed == total
    if listed < total and listed < _MOST_LISTED:
        answer.note(f"its directory is damaged: {total:,} entries are announced, {listed:,} can be read")
        complete, total = True, listed
    elif not complete:
        answer.note(f"only the first {listed:,} entries were looked at")
    words = "ZIP archive"
    for member, mime, said in _OFFICE:
        if member in names:
            answer.mime, words = mime, said
            break
    else:
        answer.mime, words = _OTHERS.get(suffix_of(ask.name), (answer.mime, words))
    if encrypted:
        answer.note("it is encrypted")
    if "xl/workbook.xml" in names:
        from look import sheets

        if max(names.get(part, 0) for part in _READ_WHOLE) > _MOST_WHOLE:
            answer.note("its texts are too large to be read here")
        elif sheets.workbook(answer, ask, source, total):
            return
    outline(answer, ask, words, shown, total, unpacked if complete else None)


def _directory(source: Source) -> tuple[int, int, int]:
    """How many entries a ZIP archive announces, and where its directory begins and how long it is."""
    tail_at = max(0, source.size - (64 << 10) - 22)
    tail = source.at(tail_at, source.size - tail_at)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise Unusable("it has no directory at its end; it may be cut off")
    total, length, start = struct.unpack_from("<HII", tail, at + 10)
    end = tail_at + at
    if 0xFFFF in (total,) or 0xFFFFFFFF in (length, start):
        locator = tail[at - 20 : at] if at >= 20 else b""
        if locator.startswith(b"PK\x06\x07"):
            (place,) = struct.unpack_from("<Q", locator, 8)
            record = source.at(place, 56)
            if len(record) == 56 and record.startswith(b"PK\x06\x06"):
                total, length, start = struct.unpack_from("<QQQ", record, 32)
                end = place
    if start + length > end:
        raise Unusable("its directory is not where it is announced")
    # What stands before the archive, as in self-extracting ones, shifts everything.
    return total, end - length, length


def _central(source: Source, start: int, length: int) -> Iterator[tuple[str, int, int]]:
    """Name, unpacked size and flags of the entries, until a bound."""
    until = time.monotonic() + MOST_SECONDS
    data = source.at(start, min(length, _MOST_DIRECTORY))
    at = 0
    for _ in range(_MOST_LISTED):
        if len(data) < at + 46 or not data.startswith(b"PK\x01\x02", at) or time.monotonic() > until:
            return
        (flags,) = struct.unpack_from("<H", data, at + 8)
        (size, named, extra, comment) = struct.unpack_from("<IHHH", data, at + 24)
        raw = data[at + 46 : at + 46 + named]
        if size == 0xFFFFFFFF:
            size = _long_size(data[at + 46 + named : at + 46 + named + extra]) or size
        at += 46 + named + extra + comment
        if at > len(data):
            return
        yield raw.decode("utf-8" if flags & 0x800 or raw.isascii() else "cp437", "replace"), size, flags


def _long_size(extra: bytes) -> int | None:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and length >= 8 and at + 12 <= len(extra):
            return int(struct.unpack_from("<Q", extra, at + 4)[0])
        at += 4 + length
    return None


# --------------------------------------------------------------------------------------------------- tar


class _Stream:
    """A packed source as a file that is only read forward, in pieces of bounded size."""

    def __init__(self, source: Source) -> None:
        self._chunks = source.chunks()
        self._rest = b""

    def read(self, count: int) -> bytes:
        """Like that of a file."""
        parts, missing = [self._rest], min(count, 16 << 20) - len(self._rest)
        while missing > 0:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            missing -= len(chunk)
        data = b"".join(parts)
        wanted = min(count, 16 << 20)
        self._rest = data[wanted:]
        return data[:wanted]


def tar(answer: Answer, ask: Ask, source: Source) -> None:
    """A tar archive, packed or not."""
    import tarfile

    until = time.monotonic() + MOST_SECONDS
    file, mode = (_Stream(source), "r|") if source.packing else (Window(source), "r:")
    shown: list[Entry] = []
    listed = unpacked = 0
    complete = False
    try:
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            while listed < _MOST_LISTED and time.monotonic() < until:
                member = archive.next()
                if member is None:
                    complete = not source.cut
                    break
                archive.members.clear()  # it keeps all that it has seen
                if ask.offset <= listed < ask.offset + ask.entries:
                    link = member.islnk() or member.issym()
                    mark = "/" if member.isdir() else f" → {member.linkname}" if link else ""
                    shown.append((member.name + mark, member.size))
                listed += 1
                unpacked += max(0, member.size)
    except (tarfile.TarError, ValueError, OSError) as error:
        if not listed:
            raise Unusable(str(error)) from None
        if not source.cut:
            answer.note(f"the archive is damaged after {listed:,} entries: {one_line(short(str(error), 100))}")
            complete = True
    if not complete:
        answer.note(f"only the first {listed:,} entries were looked at")
    words = f"tar archive ({source.packing})" if source.packing else "tar archive"
    outline(answer, ask, words, shown, listed, unpacked if complete else None)


def packed(answer: Answer, ask: Ask, source: Source, magic: tuple[str, str] | None) -> None:
    """A single packed file that is no text."""
    size = 0
    for chunk in source.chunks():
        size += len(chunk)
    what = magic[1] if magic else "binary data"
    name = ask.relative.rpartition("/")[2]
    stem = name.rpartition(".")[0] or name
    outline(answer, ask, f"{source.packing} of one file ({what})", [(stem, None if source.cut else size)], 1, None)
    answer.offset, answer.next_offset = 0, None
    if source.cut:
        answer.note(f"more than {size_of(min(size, MOST_BYTES))} unpacked; only so much was unpacked")
