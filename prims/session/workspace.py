"""One session's folder: the only place where the server touches files that hostile code can write.

Everything goes through directory descriptors and `O_NOFOLLOW`: a name is opened, then looked at, never the other way
round, so no link planted in between leads anywhere else.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import mimetypes
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from prims.beneath import FOLDER, open_file, open_folder
from prims.errors import NoSuchFile, Refused
from prims.kernel.text import tellable
from prims.model import Artifact

# Below output/: forms of what was shown that are for programs only.
HIDDEN = ".shown"

_MOST_ENTRIES, _FEW_ENTRIES = 20_000, 50
_MOST_LISTED = 250
# What code in the best walls sees before each path of its files, and so what it prints.
_INSIDE = "/workspace/"
_DEEPEST = 32

# Where a file stood when it was last looked at: a change of any of these is a change of the file.
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The regular files below output/ at one moment.

    `nameless` are those whose names cannot be told; `complete` is False when there were too many to look at.
    """

    files: dict[str, Stamp]
    nameless: int = 0
    complete: bool = True


def open_beneath(root: Path, parts: list[str], name: str) -> int:
    """A descriptor of the regular file at `parts` below `root`; `name` is how readers call it. The caller closes it.

    Raises:
        NoSuchFile: there is none.
        Refused: the way to it goes through a link, or it is not a plain file.
    """
    if not parts:
        raise Refused(f"{name!r} of this session's workspace is a folder, not a file: list_dir shows it.")
    try:
        return open_file(root, parts)
    except FileNotFoundError:
        raise NoSuchFile(f"There is no file {name!r} in this session's workspace.") from None
    except (OSError, ValueError):
        what = "is a folder, not a file: list_dir shows it." if _is_folder(root, parts) else "is not a plain file."
        raise Refused(f"{name!r} of this session's workspace {what}") from None


def _is_folder(root: Path, parts: list[str]) -> bool:
    try:
        os.close(open_folder(root, parts))
    except (OSError, ValueError):
        return False
    return True


def checked_parts(relative: str) -> list[str]:
    """The components of a relative posix path, or a refusal that says what is wrong with it."""
    if "\0" in relative or len(relative) > 4000:
        raise Refused("A path is a short text without NUL characters.")
    relative = relative.removeprefix(_INSIDE)
    if relative.startswith("/"):
        raise Refused(f"Give a path relative to the workspace, such as output/table.csv, not {relative!r}.")
    parts = [p for p in relative.split("/") if p not in ("", ".")]
    if not parts or ".." in parts:
        raise Refused(f"{relative!r} does not name a file inside the workspace.")
    return parts


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a folder. `path` is posix, from the workspace; `modified` is seconds since the epoch."""

    name: str
    path: str
    type: str
    size: int
    modified: float


def list_folder(root: Path, parts: list[str], shown: str) -> tuple[list[Listed], int]:
    """The entries of a folder by name, and how many more there are; `shown` is how readers call the folder."""
    try:
        descriptor = open_folder(root, parts)
    except NotADirectoryError:
        raise Refused(f"{shown!r} of this session's workspace is no folder: preview_file shows files.") from None
    except (OSError, ValueError):
        raise Refused(f"There is no folder {shown!r} in this session's workspace.") from None
    found: list[Listed] = []
    count = itertools.count()
    try:
        with os.scandir(descriptor) as entries:
            counted = (entry for entry, _ in zip(entries, count, strict=False) if tellable(entry.name))
            told = heapq.nsmallest(_MOST_LISTED, counted, key=lambda e: e.name)  # never holds all of a huge folder
        for entry in told:
            with contextlib.suppress(OSError):
                found.append(_listed(entry, shown))
    finally:
        os.close(descriptor)
    return found, next(count) - len(told)


def _listed(entry: os.DirEntry[str], shown: str) -> Listed:
    status = entry.stat(follow_symlinks=False)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    path = f"{shown}/{entry.name}" if shown else entry.name
    return Listed(entry.name, path, kind, status.st_size if kind == "file" else 0, status.st_mtime)


async def snapshot(files: Path) -> Snapshot:
    """What lies below output/ now; bounded in time, whatever was planted there."""
    # Of a few files a look takes less time than a thread's turn.
    few = _snapshot(files, _FEW_ENTRIES)
    return few if few.complete else await anyio.to_thread.run_sync(_snapshot, files, _MOST_ENTRIES)


def _snapshot(files: Path, most: int) -> Snapshot:
    found: dict[str, Stamp] = {}
    nameless = 0
    try:
        for name, status in _walk(files, 4 * most):
            if len(found) >= most:
                raise _TooMany
            if tellable(name):
                found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
            else:
                nameless += 1
    except _TooMany:
        return Snapshot(found, nameless, complete=False)
    return Snapshot(found, nameless)


class _TooMany(Exception):
    """There is more below output/ than is looked at."""


def written_beside(files: Path, since: float) -> list[str]:
    """Files in the workspace itself, beside output/, that were written after `since` (as `time.time` counts); of a
    large folder, those that come first."""
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(files) as entries:
        for entry in itertools.islice(entries, 4 * _FEW_ENTRIES):
            with contextlib.suppress(OSError):
                # The time of a change cannot be set by code. Linux counts it in steps of some milliseconds.
                changed = entry.stat(follow_symlinks=False).st_ctime > since - 0.01
                if changed and entry.is_file(follow_symlinks=False) and tellable(entry.name):
                    found.append(entry.name)
    return sorted(found)


def changes(before: Snapshot, after: Snapshot) -> list[Artifact]:
    """Files that are new in `after` or differ from `before`, by path."""
    new = [name for name, stamp in after.files.items() if before.files.get(name) != stamp]
    return [_artifact(name, after.files[name][1]) for name in sorted(new)]


def _artifact(name: str, size: int) -> Artifact:
    mime = mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"
    return Artifact(name.rsplit("/", 1)[-1], f"output/{name}", size, mime)


def _walk(files: Path, most: int) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below output/, by posix path relative to it; links and devices are not files of ours.

    Raises:
        _TooMany: there are more than `most` entries of any kind.
    """
    try:
        top = os.open("output", FOLDER, dir_fd=(root := os.open(files, FOLDER)))
    except OSError:
        return
    finally:
        with contextlib.suppress(UnboundLocalError, OSError):
            os.close(root)
    pending = [("", top)]
    seen = 0
    try:
        while pending:
            prefix, folder = pending.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > most:
                            raise _TooMany
                        name = prefix + entry.name
                        with contextlib.suppress(OSError):
                            if entry.is_dir(follow_symlinks=False):
                                if name != HIDDEN and name.count("/") < _DEEPEST and len(pending) < 200:
                                    pending.append((name + "/", os.open(entry.name, FOLDER, dir_fd=folder)))
                            elif entry.is_file(follow_symlinks=False):
                                yield name, entry.stat(follow_symlinks=False)
            except OSError:
                pass
            finally:
                os.close(folder)
    finally:
        for _, folder in pending:
            os.close(folder)


def adopt(files: Path, spooled: Path, name: str, uid: int | None, *, hidden: bool = False) -> str | None:
    """Move a file of ours to output/`name` (or a like name that is free); its path from the workspace, or None.

    A `hidden` one goes to a folder that no list of files looks into. The code may still be running: nothing of it is
    followed or overwritten.
    """
    stem, dot, suffix = name.rpartition(".")
    parts = ["output", *([HIDDEN] if hidden else [])]
    folder = os.open(files, FOLDER)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError, OSError):
                os.mkdir(part, 0o755, dir_fd=folder)
                if uid is not None:
                    os.chown(part, uid, uid, dir_fd=folder, follow_symlinks=False)
            outer, folder = folder, os.open(part, FOLDER, dir_fd=folder)
            os.close(outer)
        for attempt in range(20):
            free = name if not attempt else f"{stem}-{attempt}{dot}{suffix}"
            try:
                # A hard link never replaces what is there, and never follows it; the spool's own name goes next.
                os.link(spooled, free, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                continue
            os.unlink(spooled)
            if uid is not None:
                os.chown(free, uid, uid, dir_fd=folder, follow_symlinks=False)
            return "/".join([*parts, free])
    except OSError:
        return None
    finally:
        os.close(folder)
    return None
