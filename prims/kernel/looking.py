"""What a file is and what it holds, found out by a helper process in the walls of a sandbox.

Files come from code and from the network. The server never parses them: it starts `inside/look`, which sees nothing
but the file's folder (read-only) and the packages of an environment, and reads one JSON object from it, field by field.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import anyio
import anyio.to_thread

from prims.beneath import open_folder
from prims.isolation.limits import Watch, describe_exit
from prims.isolation.walls import Box, Places, Walls, base_python, empty_box
from prims.kernel.environment import Environment
from prims.kernel.folders import KERNEL_FILES
from prims.kernel.text import plain
from prims.model import Limits, Picture, PictureBudget
from prims.trees import remove_tree

MOST_CHARS = 50_000
SECONDS = 10.0

_MEMORY = 1 << 30
_PROCESSES = 64
_REPLY_BYTES = 2 << 20
_STDERR_BYTES = 4096
_READ_BYTES = 256 * 1024
_END_SECONDS = 1.0
_LARGEST = 1 << 62

Kind = Literal[
    "text", "table", "json", "image", "archive", "notebook", "audio", "video", "pdf", "binary", "empty"
]  # fmt: skip
_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `type` is a short word: int, float, bool, date, text, empty, or what the format calls it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet of a workbook, with its size including the header, as far as it is known."""

    name: str
    rows: int | None
    columns: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of an archive; `size` is unpacked, as the archive announces it."""

    name: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """What a file is, for a reader with a budget. All of it is what the file claims to be.

    `size` is bytes on disk, `encoding` a codec of Python's. `rows` leaves out a header line, and is an estimate unless
    `rows_exact`. `offset` and `next_offset` (where to go on, None at the end) count bytes in texts and JSON (unpacked
    ones where the file is packed), rows in tables, entries in archives, and cells in notebooks. `text` is free of
    control codes but newlines and tabs; names are one line each. `image` is a PNG or JPEG drawn anew by the helper.
    `notes` are short sentences on what was left out, guessed or wrong.
    """

    kind: Kind
    mime: str
    size: int
    encoding: str | None = None
    lines: int | None = None
    rows: int | None = None
    rows_exact: bool = False
    columns: tuple[Column, ...] = ()
    columns_left_out: int = 0
    sheets: tuple[Sheet, ...] = ()
    width: int | None = None
    height: int | None = None
    entries: tuple[Entry, ...] = ()
    text: str = ""
    offset: int = 0
    next_offset: int | None = None
    image: bytes | None = None
    image_mime: str | None = None
    notes: tuple[str, ...] = ()


async def look(
    walls: Walls,
    environment: Environment,
    scratch: Path,
    root: Path,
    relative: str,
    *,
    uid: int | None,
    limits: Limits,
    want: str,
    offset: int = 0,
    limit: int = 8000,
    pictures: PictureBudget,
) -> Look:
    """Look at the file `relative` (posix) below `root`, which nobody but the server can move; links are not followed.

    "describe" gives the facts with at most a few rows or lines, "preview" up to `limit` characters (at most 50,000)
    from `offset` on, or a picture within what `pictures` gives one. `scratch` is a private folder for temporary files,
    `uid` the session's uid where the walls drop the uid, and `limits` those of the session's runs: the helper gets
    less, and never more than 10 seconds and 1 GB.

    Whatever the file does to the helper, there is an answer: at worst one of kind "binary" whose note begins with
    "could not be looked at". On cancellation the helper is killed before this returns. Any number may run at once;
    the caller bounds how many.

    Raises:
        OSError: the server's own folder `scratch` cannot be written.
    """
    question = {
        "relative": relative,
        "want": want,
        "offset": min(max(0, offset), _LARGEST),
        "limit": min(max(200, limit), MOST_CHARS),
        "image_bytes": pictures.each,
        "image_edge": pictures.edge,
    }
    reply, trouble = await _asked(walls, environment, scratch, root, question, limits, uid)
    if not trouble:
        try:
            return _read(reply, pictures.each)
        except (ValueError, TypeError, KeyError, RecursionError):
            trouble = "the helper answered nonsense"
    return await anyio.to_thread.run_sync(_unseen, root, relative, trouble)


async def redraw(
    walls: Walls,
    environment: Environment,
    scratch: Path,
    root: Path,
    wanted: Mapping[str, int],
    *,
    uid: int | None,
    limits: Limits,
    edge: int,
) -> dict[str, Picture | str]:
    """Draw pictures anew, all in one helper: files of `root` by name, each within so many bytes.

    Gives for each a PNG or JPEG of at most `edge` pixels, or a short reason why there is none. Otherwise as `look`.
    """
    # The helper may have another uid than the one that alone could read what was spooled.
    await anyio.to_thread.run_sync(_open_to_all, root, list(wanted))
    question = {"want": "redraw", "pictures": list(wanted.items()), "image_edge": edge}
    reply, trouble = await _asked(walls, environment, scratch, root, question, limits, uid)
    drawn: dict[str, Picture | str] = dict.fromkeys(wanted, trouble or "the helper answered nonsense")
    if not trouble:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            answers = _list(json.loads(reply)["pictures"], len(wanted))
            for (name, room), answer in zip(wanted.items(), answers, strict=True):
                drawn[name] = _drawn(answer, room)
    return drawn


def _drawn(answer: Any, room: int) -> Picture | str:
    image, mime = _image(answer, room)
    if image is None or mime is None:
        return _name(answer["note"], 300)
    return Picture(image, mime, _int(answer["width"]), _int(answer["height"]))


def _open_to_all(root: Path, names: Sequence[str]) -> None:
    """Let others read these files of a private folder: the folder that holds it is private too."""
    root.chmod(0o755)
    for name in names:
        (root / name).chmod(0o644)


# ---------------------------------------------------------------------------------------------- the helper


async def _asked(
    walls: Walls,
    environment: Environment,
    scratch: Path,
    root: Path,
    question: Mapping[str, Any],
    limits: Limits,
    uid: int | None,
) -> tuple[bytes, str]:
    """What a helper in a box of its own prints, and what went wrong, in words."""
    folder = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, None, "look-", scratch))
    try:
        box = await anyio.to_thread.run_sync(empty_box, folder, _less(limits, uid), uid)
        # Its venv is empty: the base interpreter runs, and knows the layers by name only.
        box = replace(box, mounts=root, layers=environment.layers, kernel=KERNEL_FILES)
        places = walls.places(box)
        # What it sets itself, below what the walls would end it for.
        memory = box.limits.memory_bytes
        bounds = {"memory": memory and memory * 9 // 10, "seconds": (box.limits.run_seconds or SECONDS) * 0.8}
        told = {"root": places.mounts, "layers": list(places.layers), **bounds, **question}
        return await _ask(walls, box, places, json.dumps(told))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove_tree, folder)


def _less(limits: Limits, uid: int | None) -> Limits:
    # The kernel counts a uid's threads over all its sandboxes, and those of the session's runs come first.
    runs = (limits.processes or 0) if uid is not None else 0
    return Limits(
        run_seconds=_least(SECONDS, limits.run_seconds),
        memory_bytes=_least(_MEMORY, limits.memory_bytes),
        processes=None if limits.processes is None and uid is not None else _PROCESSES + runs,
        open_files=_least(64, limits.open_files),
        file_bytes=1 << 20,
        output_bytes=_REPLY_BYTES,
        tmp_bytes=min(16 << 20, limits.tmp_bytes),
    )


_N = TypeVar("_N", int, float)


def _least(most: _N, wanted: _N | None) -> _N:
    return most if wanted is None else min(most, wanted)


async def _ask(walls: Walls, box: Box, places: Places, question: str) -> tuple[bytes, str]:
    """What the helper prints, and what went wrong, in words."""
    argv = [base_python().executable, "-I", "-S", f"{places.kernel}/look/__main__.py", question]
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": places.home,
        "TMPDIR": places.tmp,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    try:
        # In this thread: the helper dies with the thread that started it.
        process = walls.spawn(box, argv, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return b"", f"the helper did not start ({error.strerror or error})"
    assert process.stdout is not None and process.stderr is not None
    reply, said, trouble = bytearray(), bytearray(), ""

    def exceeded(reason: str) -> None:
        nonlocal trouble
        trouble = "it takes too much memory"
        walls.kill(process)

    try:
        with anyio.move_on_after(box.limits.run_seconds) as timer:
            async with anyio.create_task_group() as group:
                group.start_soon(Watch().run, process.pid, box.limits, exceeded)
                group.start_soon(read_pipe, process.stderr.fileno(), said, _STDERR_BYTES)
                whole = await read_pipe(process.stdout.fileno(), reply, _REPLY_BYTES)
                if whole:
                    await _wait(process)
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_end, walls, process)
    if trouble:
        return b"", trouble
    if timer.cancelled_caught:
        return b"", f"it takes longer than {box.limits.run_seconds:g} s"
    if not whole:
        return b"", "the helper answered nonsense"
    if process.returncode == 0:
        return bytes(reply), ""
    words = plain(said.decode("utf-8", "replace")).strip().splitlines()
    detail = f": {words[-1][:200]}" if words else ""
    return b"", f"the helper ended with {describe_exit(process.returncode)}{detail}"


async def read_pipe(pipe: int, into: bytearray, most: int) -> bool:
    """Read to the end; of what is beyond `most` nothing is kept, and False given."""
    os.set_blocking(pipe, False)
    while True:
        await anyio.wait_readable(pipe)
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            continue
        if not data:
            return True
        into += data[: most - len(into)]
        if len(into) >= most:
            return False


async def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until the process has ended by itself, for a short while."""
    if process.poll() is None:
        descriptor = os.pidfd_open(process.pid)
        try:
            with anyio.move_on_after(_END_SECONDS):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    process.poll()


def _end(walls: Walls, process: subprocess.Popen[bytes]) -> None:
    walls.kill(process)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


# ------------------------------------------------------------------------------------------------ its answer


def _read(reply: bytes, image_bytes: int) -> Look:
    """The helper's JSON as a value of ours. Raises ValueError, TypeError or KeyError for anything else."""
    data = json.loads(reply)
    kind = data["kind"]
    if kind not in get_args(Kind):
        raise ValueError("kind")
    offset, next_offset = _int(data["offset"]), _optional(_int, data["next_offset"])
    if next_offset is not None and next_offset <= offset:
        raise ValueError("next_offset")  # a reader would never come to an end
    image, image_mime = _image(data, image_bytes)
    return Look(
        kind=kind,
        mime=_name(data["mime"], 100),
        size=_int(data["size"]),
        encoding=_optional(_name, data["encoding"]),
        lines=_optional(_int, data["lines"]),
        rows=_optional(_int, data["rows"]),
        rows_exact=_bool(data["rows_exact"]),
        columns=tuple(Column(_name(name), _name(type)) for name, type in _list(data["columns"], 200)),
        columns_left_out=_int(data["columns_left_out"]),
        sheets=tuple(
            Sheet(_name(name), _optional(_int, rows), _optional(_int, columns))
            for name, rows, columns in _list(data["sheets"], 50)
        ),
        width=_optional(_int, data["width"]),
        height=_optional(_int, data["height"]),
        entries=tuple(Entry(_name(name), _optional(_int, size)) for name, size in _list(data["entries"], 100)),
        text=plain(_str(data["text"], MOST_CHARS + 1)),
        offset=offset,
        next_offset=next_offset,
        image=image,
        image_mime=image_mime,
        notes=tuple(_name(note, 300) for note in _list(data["notes"], 20)),
    )


def _image(data: Mapping[str, Any], most: int) -> tuple[bytes | None, str | None]:
    if data["image"] is None:
        return None, None
    mime = _str(data["image_mime"], 20)
    image = base64.b64decode(_str(data["image"], _REPLY_BYTES), validate=True)
    if len(image) > most or not image.startswith(_SIGNATURES[mime]):
        raise ValueError("image")
    return image, mime


_V = TypeVar("_V")


def _optional(read: Callable[[Any], _V], value: Any) -> _V | None:
    return None if value is None else read(value)


def _int(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("not a number in range")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("not a bool")
    return value


def _str(value: Any, most: int) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError("not a text in range")
    return value


def _list(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise ValueError("not a list in range")
    return value


def _name(value: Any, most: int = 250) -> str:
    """A short text on one line: what redraws, reorders or breaks lines is written as an escape."""
    return _printable(_str(value, most))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# ------------------------------------------------------------------------------------------- without an answer


def _unseen(root: Path, relative: str, trouble: str) -> Look:
    """What can be told without opening the file."""
    mime = mimetypes.guess_type(relative, strict=False)[0] or "application/octet-stream"
    return Look("binary", mime, _size(root, relative), notes=(_printable(f"could not be looked at: {trouble}"),))


def _size(root: Path, relative: str) -> int:
    """The size of a plain file below `root`, without following a link; 0 when there is none."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    with suppress(OSError, ValueError):
        if parts and ".." not in parts:
            folder = open_folder(root, parts[:-1])
            try:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
            return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0
