"""The server's own side of a transfer: a file that appears whole or not at all, and files of allowed folders."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio

from prims.beneath import FILE, open_folder
from prims.errors import Refused, TransferError

_WRITE = 1 << 20


class Sink:
    """A descriptor that is written in big blocks, counted and hashed.

    Not through aiofiles: there a cancelled write goes on in its thread, into a descriptor that is closed by then.
    """

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self._block = bytearray()

    @property
    def sha256(self) -> str:
        """Of all that was flushed."""
        return self._hash.hexdigest()

    async def write(self, data: bytes) -> None:
        """Take `data`; refuses as soon as it is too much in all."""
        self.bytes += len(data)
        if self.bytes > self.most_bytes:
            raise self.too_large()
        self._block += data
        if len(self._block) >= _WRITE:
            await self.flush()

    async def flush(self) -> None:
        """Put what is still held on disk."""
        block, self._block = self._block, bytearray()
        try:
            await anyio.to_thread.run_sync(self._store, block)
        except OSError as problem:
            raise TransferError(f"The file could not be saved: {why(problem)}.", reason="local") from problem

    def _store(self, block: bytearray) -> None:
        self._hash.update(block)
        with memoryview(block) as view:
            done = 0
            while done < len(view):
                done += os.write(self._descriptor, view[done:])

    def too_large(self, size: int | None = None) -> Refused:
        """The refusal of a file that this sink cannot take."""
        return too_large_for(self.most_bytes, size)


def too_large_for(most_bytes: int, size: int | None = None) -> Refused:
    """The refusal of a file with `size` bytes, or with too many to be counted."""
    has = "has more than" if size is None else f"has {size:,} bytes, above"
    return Refused(
        f"The file {has} the limit of {most_bytes:,} bytes for one download (download_bytes); nothing was kept. "
        "Use a smaller file or a part of it."
    )


@contextlib.contextmanager
def written(target: Path, most_bytes: int) -> Iterator[Sink]:
    """A sink into a new file beside `target` that takes its name at the end of a good block, replacing nothing."""
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise TransferError(f"The file could not be saved: {why(problem)}.", reason="local") from problem
    try:
        yield Sink(descriptor, most_bytes)
        os.fchmod(descriptor, 0o444)
        # A link fails where something is already; a rename would replace it.
        os.link(part, target, follow_symlinks=False)
    except FileExistsError:
        raise Refused("There is a file at this place already; nothing was replaced.") from None
    except OSError as problem:
        raise TransferError(f"The file could not be saved: {why(problem)}.", reason="local") from problem
    finally:
        os.close(descriptor)
        os.unlink(part)


def why(problem: OSError) -> str:
    """What the system says, without the path that it says it about."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return "there is no space left"
    return os.strerror(problem.errno) if problem.errno else "the system refused"


def stamp(status: os.stat_result) -> tuple[int, int]:
    """How a file stands: another stamp is another content."""
    return status.st_size, status.st_mtime_ns


def open_allowed(path: str, folders: Sequence[Path]) -> int:
    """A descriptor of a regular file below one of `folders`; one and the same refusal for all that is elsewhere."""
    refusal = Refused(
        "This local file is not below a folder that the operator allowed (--allow-dir), or is not a plain file without "
        "links on its way. Use an https URL, a data: URL, or an allowed folder."
    )
    names = path.split("/")
    if "\0" in path or not path.startswith("/") or ".." in names:
        raise refusal
    names = [name for name in names if name not in ("", ".")]
    for folder in folders:
        for top in dict.fromkeys((folder.parts[1:], Path(os.path.realpath(folder)).parts[1:])):
            if len(names) > len(top) and tuple(names[: len(top)]) == top:
                try:
                    return _open_below(folder, names[len(top) :])
                except (OSError, ValueError):
                    raise refusal from None
    raise refusal


def _open_below(top: Path, names: Sequence[str]) -> int:
    # The operator's own folder may be a link; below it, none is followed.
    folder = open_folder(Path(os.path.realpath(top)), names[:-1])
    try:
        descriptor = os.open(names[-1], FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor
