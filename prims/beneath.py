"""Opening what lies below a folder that hostile code can write to.

Every component is opened by its own descriptor and never followed as a link: a name is opened, then looked at, so that
nothing planted in between leads anywhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a fifo waits for its other end.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_folder(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of the folder at `parts` below `root`; the caller closes it.

    Raises:
        OSError: there is none, or the way to it goes through a link.
        ValueError: a part holds a NUL.
    """
    folder = os.open(root, FOLDER)
    for part in parts:
        try:
            inner = os.open(part, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def open_file(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of the regular file at `parts` below `root`; the caller closes it.

    Raises:
        OSError: there is none, the way to it goes through a link, or it is something else, or has a second name.
        ValueError: a part holds a NUL.
    """
    folder = open_folder(root, parts[:-1])
    try:
        descriptor = os.open(parts[-1], FILE, dir_fd=folder)
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    # A second name could be one outside of the folder.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(f"{parts[-1]!r} is not a plain file")
    return descriptor
