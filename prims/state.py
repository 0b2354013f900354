"""The folder that a server's sessions and runs live in, and the sweep of what dead servers left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prims.errors import ConfigError
from prims.trees import remove_large_tree

_LOCK = "lock"
_NEW = "new-"
_OURS = re.compile(r"(?:new-)?[0-9a-f]{8}")
_NEW_SECONDS = 3600.0


@contextmanager
def state_folder(base: Path) -> Iterator[Path]:
    """A new private folder below `base`, removed with all that is in it at the end.

    A lock says that its server lives, so that after a `kill -9` the next start removes what is left.

    Raises:
        ConfigError: `base` cannot be made or belongs to somebody else.
    """
    _own(base)
    # Under another name until the lock is held: nobody may take it for a dead one's.
    fresh = base / (_NEW + secrets.token_hex(4))
    fresh.mkdir(mode=_mode())
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = base / secrets.token_hex(4)
    fresh.rename(folder)
    try:
        yield folder
    finally:
        remove_large_tree(folder)
        os.close(lock)


def sweep(base: Path) -> None:
    """Remove the folders of servers that are gone."""
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            if _dead(folder):
                remove_large_tree(folder)


def _dead(folder: Path) -> bool:
    """Whether a folder is one of ours whose server is gone. Without our name and our lock it is somebody else's."""
    if not _OURS.fullmatch(folder.name):
        return False
    try:
        if folder.name.startswith(_NEW) and time.time() - folder.stat().st_mtime < _NEW_SECONDS:
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _mode() -> int:
    """Private; but the uids that a root server gives its code may pass, where the walls give them no other view."""
    return 0o711 if os.geteuid() == 0 else 0o700


def _own(base: Path) -> None:
    """Make `base`, or see that it is a folder of ours that nobody else can write to."""
    try:
        base.mkdir(mode=_mode(), parents=True, exist_ok=True)
        status = os.lstat(base)
    except OSError as problem:
        raise ConfigError(f"{base} cannot be used for sessions: {problem}. Set PRIMS_STATE_DIR.") from problem
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"{base} is not a folder that belongs to this user alone, so sessions are not put there. "
            "Set PRIMS_STATE_DIR to a private folder."
        )
