"""The folders of a session and of a run, and how they are shown to a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from prims.errors import KernelStartError
from prims.isolation.walls import Box
from prims.model import Limits
from prims.trees import remove_tree

KERNEL_FILES = Path(__file__).parent / "inside"
# A unix socket's path has room for 107 bytes; ours end in "/s/k12345678/s-5".
_LONGEST_RUN_PATH = 80


def make_box(run: Path, session: Path, layers: tuple[Path, ...], limits: Limits, uid: int | None) -> Box:
    """The view of one run; makes the folder for its sockets below `run`, which is new and private.

    Raises:
        KernelStartError: the path is too long for sockets.
    """
    if not fits(run):
        raise KernelStartError(f"{run} is too long a path for sockets: set PRIMS_STATE_DIR to a shorter one.")
    box = view(run, session, layers, limits, uid)
    _make_run_folder(box)
    return box


def fits(run: Path) -> bool:
    """Whether sockets below this folder of a run can have names."""
    return len(os.fsencode(run)) <= _LONGEST_RUN_PATH


def remake_run_folder(box: Box) -> None:
    """Throw away what lies beside the sockets of a kernel that has ended. What is removed is not followed: the folder
    itself is not the code's to replace."""
    remove_tree(box.run)
    _make_run_folder(box)


def _make_run_folder(box: Box) -> None:
    box.run.mkdir(mode=0o700)
    _give(box.uid, box.run)


def view(
    run: Path, session: Path, layers: tuple[Path, ...] = (), limits: Limits | None = None, uid: int | None = None
) -> Box:
    """The view of one run, of which nothing need exist yet."""
    return Box(
        workspace=session / "files",
        mounts=session / "mounts",
        venv=run / "venv",
        layers=layers,
        store=layers[0].parent if layers else None,
        kernel=KERNEL_FILES,
        run=run / "s",
        limits=limits or Limits(),
        uid=uid,
    )


def make_session_folder(folder: Path, mounts_inside: str, uid: int | None) -> None:
    """A session's folder: `files/` for its code, with output/ and a link to the inputs, and `mounts/`."""
    folder.mkdir(mode=0o700, parents=True)
    if uid is not None:
        os.chown(folder, -1, uid)
        folder.chmod(0o710)  # its own code may pass, where the walls give it no other view, and no other code
    (folder / "mounts").mkdir(mode=0o755)
    files = folder / "files"
    (files / "output").mkdir(mode=0o755, parents=True)
    (files / "mounts").symlink_to(mounts_inside)
    _give(uid, files, files / "output")


def _give(uid: int | None, *paths: Path) -> None:
    if uid is not None:
        for path in paths:
            os.chown(path, uid, uid)
