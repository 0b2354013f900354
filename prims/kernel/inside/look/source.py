"""A file's bytes, unpacked where need be, and never more of them than can be afforded."""

from __future__ import annotations

import os
import stat
import time

from look.answer import size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

MOST_BYTES = 64 << 20
MOST_SECONDS = 3.0
HEAD_BYTES = 64 << 10
_CHUNK = 256 << 10
_UNPACK_MEMORY = 128 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFIFO: ("inode/fifo", "a named pipe"),
    stat.S_IFSOCK: ("inode/socket", "a socket"),
    stat.S_IFCHR: ("inode/chardevice", "a device"),
    stat.S_IFBLK: ("inode/blockdevice", "a device"),
    stat.S_IFDIR: ("inode/directory", "a folder"),
    stat.S_IFLNK: ("inode/symlink", "a symbolic link, and those are not followed"),
}


class Unusable(Exception):
    """The file, or what it should be, cannot be looked at; the message says why."""

    def __init__(self, message: str, mime: str = "") -> None:
        super().__init__(message)
        self.mime = mime


def open_beneath(root: str, relative: str) -> tuple[int, int]:
    """A descriptor of the plain file `relative` below `root`, and its size now. No link is followed on the way."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if relative.startswith("/") or not parts or ".." in parts or "\0" in relative:
        raise Unusable("the path does not name a file below its folder")
    folder = os.open(root, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        _check(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))  # opening a device may already do things
        descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    except FileNotFoundError:
        raise Unusable("there is no such file") from None
    except OSError as error:
        raise Unusable(error.strerror or "the system refused it") from None
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    _check(status)
    return descriptor, status.st_size


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        mime, what = _KINDS.get(stat.S_IFMT(status.st_mode), ("", "of an unknown kind"))
        raise Unusable(f"it is not a plain file but {what}", mime)


class Source:
    """The content of one open file, from any place and any number of times.

    `packing` ("gzip", "bzip2", "xz") makes it the unpacked content. `cut` says whether the last walk over `chunks`
    ended early because of a bound, `share` how much of the file it had seen, and `damage` what was wrong with the
    packing.
    """

    def __init__(self, descriptor: int, size: int, packing: str = "") -> None:
        self.descriptor = descriptor
        self.size = size
        self.packing = packing
        self.cut = False
        self.damage = ""
        self._raw_seen = 0
        self._head: bytes | None = None

    @property
    def share(self) -> float:
        """How much of the file on disk the last walk has read, from just above 0 to 1."""
        return min(1.0, max(1, self._raw_seen) / max(1, self.size))

    def how_much(self) -> str:
        """How far a walk that was cut came, in words."""
        what = " of unpacked data" if self.packing else ""
        return f"the first {size_of(MOST_BYTES)}{what} (or {MOST_SECONDS:g} s of reading)"

    def head(self) -> bytes:
        """The first 64 KB."""
        if self._head is None:
            self._head = self.at(0, HEAD_BYTES)
        return self._head

    @property
    def head_is_all(self) -> bool:
        """Whether `head` is the entire content."""
        return len(self.head()) < HEAD_BYTES

    def at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer at the end, and where unpacking would go too far."""
        if not self.packing:
            return self._read(offset, count)
        found = bytearray()
        place = 0
        for chunk in self.chunks():
            if place + len(chunk) > offset:
                found += chunk[max(0, offset - place) : offset + count - place]
            place += len(chunk)
            if place >= offset + count:
                break
        return bytes(found)

    def chunks(self, most: int = MOST_BYTES, seconds: float = MOST_SECONDS) -> Iterator[bytes]:
        """The content from its beginning, until the end or a bound."""
        self.cut, self._raw_seen, self.damage = False, 0, ""
        until = time.monotonic() + seconds
        seen = 0
        for chunk in unpacked(self._raw(), self.packing, self._damaged) if self.packing else self._raw():
            if seen + len(chunk) > most or time.monotonic() > until:
                self.cut = True
                if most > seen:
                    yield chunk[: most - seen]
                return
            seen += len(chunk)
            if chunk:
                yield chunk

    def _raw(self) -> Iterator[bytes]:
        while self._raw_seen < self.size:  # as it was when opened: a file that grows has an end for us
            data = self._read(self._raw_seen, _CHUNK)
            if not data:
                return
            self._raw_seen += len(data)
            yield data

    def _read(self, offset: int, count: int) -> bytes:
        count = min(count, self.size - offset)
        parts = []
        while count > 0:
            data = os.pread(self.descriptor, count, offset)
            if not data:
                break
            parts.append(data)
            offset, count = offset + len(data), count - len(data)
        return b"".join(parts)

    def _damaged(self, what: str) -> None:
        self.damage = what


class Window:
    """A seekable file object for libraries: of a `Source` without packing, and never more than `most` bytes at once."""

    most = 16 << 20

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def read(self, count: int | None = -1) -> bytes:
        """Like that of a file."""
        data = self._source.at(self._at, self.most if count is None or count < 0 else min(count, self.most))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Like that of a file."""
        self._at = max(0, offset + (0, self._at, self._source.size)[whence])
        return self._at

    def tell(self) -> int:
        """Like that of a file."""
        return self._at

    def seekable(self) -> bool:
        """Like that of a file."""
        return True

    readable = seekable


def unpacked(raw: Iterator[bytes], packing: str, damaged: Callable[[str], None]) -> Iterator[bytes]:
    """What packed bytes unpack to, in pieces of bounded size; calls `damaged` with words when they are broken."""
    try:
        ended = yield from _gunzipped(raw) if packing == "gzip" else _decompressed(raw, packing)
    except Exception as error:  # each module has errors of its own
        if isinstance(error, MemoryError):
            raise
        damaged(f"the {packing} data is damaged ({error})")
    else:
        if not ended:
            damaged(f"the {packing} data is cut off")


def _gunzipped(raw: Iterator[bytes]) -> Generator[bytes, None, bool]:
    import zlib

    machine = zlib.decompressobj(31)
    for piece in raw:
        data = piece
        while data:
            if machine.eof:  # another member follows, or padding
                data = data.lstrip(b"\0")
                if not data.startswith(b"\x1f"):
                    break
                machine = zlib.decompressobj(31)
            yield machine.decompress(data, _CHUNK)
            data = machine.unused_data if machine.eof else machine.unconsumed_tail
    if not machine.eof:
        yield machine.flush()
    return bool(machine.eof)


def _decompressed(raw: Iterator[bytes], packing: str) -> Generator[bytes, None, bool]:
    def fresh() -> Any:
        if packing == "bzip2":
            import bz2

            return bz2.BZ2Decompressor()
        import lzma

        return lzma.LZMADecompressor(memlimit=_UNPACK_MEMORY)

    machine = fresh()
    for piece in raw:
        data = piece
        while True:
            if machine.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                machine = fresh()
            yield machine.decompress(data, _CHUNK)
            data = b""
            if machine.eof:
                data = machine.unused_data
            elif machine.needs_input:
                break
    return bool(machine.eof)
