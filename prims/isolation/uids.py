"""The unprivileged uids that a root server's code runs as: each is taken once at a time, on the whole machine.

What Linux counts by uid (processes, queued signals, watches) is then one session's own, and no other server's code can
reach its files by their owner.
"""

from __future__ import annotations

import fcntl
import functools
import os
import pwd
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prims.errors import IsolationUnavailable
from prims.isolation.walls import Walls

_RANGES = (range(2_000_000, 2_065_536), range(40_000, 60_000))
_FOLDERS = ("/run", "/dev/shm", "/tmp")  # the first that root may write to
_taken: set[int] = set()


@contextmanager
def uid_for(walls: Walls) -> Iterator[int | None]:
    """A uid for one sandbox in these walls, None where they have no use for one. Raises as `take_uid`."""
    uid = take_uid() if walls.drops_uid else None
    try:
        yield uid
    finally:
        give_uid_back(uid)


def take_uid() -> int:
    """A uid that is mapped, of no account, and taken by no server until `give_uid_back`, or the end of this process.

    Raises:
        IsolationUnavailable: there is none in this user namespace, or no way to see which are taken.
    """
    maps = [Path(f"/proc/self/{kind}_map").read_text() for kind in ("uid", "gid")]
    locks = _locks()
    for numbers in _RANGES:
        if all(_is_mapped(numbers, text) for text in maps):
            start = random.randrange(len(numbers))
            for offset in range(len(numbers)):
                uid = numbers[(start + offset) % len(numbers)]
                # A lock of this process does not stop itself.
                if uid not in _taken and not _has_account(uid) and _lock(locks, uid):
                    _taken.add(uid)
                    return uid
    raise IsolationUnavailable(
        "there is no free uid to run code as: a root server needs the uids and gids 40000 to 59999 or "
        "2000000 to 2065535 mapped in its user namespace; map them, or run PRIMS as an ordinary user"
    )


def give_uid_back(uid: int | None) -> None:
    """Others may take it."""
    if uid is not None:
        fcntl.lockf(_locks(), fcntl.LOCK_UN, 1, uid)
        _taken.discard(uid)


@functools.cache
def _locks() -> int:
    """A file in which the byte at each taken uid is locked. Never closed: that would free all that this process has."""
    for folder in _FOLDERS:
        with suppress(OSError):
            path = f"{folder}/prims-uids"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return descriptor
            os.close(descriptor)
    raise IsolationUnavailable(
        f"a root server notes the uids that its code has in one of {', '.join(_FOLDERS)}; make one of them writable"
    )


def _lock(locks: int, uid: int) -> bool:
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, uid)
    except OSError:
        return False
    return True


def _is_mapped(numbers: range, id_map: str) -> bool:
    extents = [tuple(map(int, line.split())) for line in id_map.splitlines()]
    return any(first <= numbers[0] and numbers[-1] < first + count for first, _, count in extents)


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
