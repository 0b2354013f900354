"""The engine's port: where and how a sandbox runs is nobody else's business."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prims.model import Emit, RunResult, SandboxSpec
from prims.stopping import Stop

if TYPE_CHECKING:
    from prims.kernel.looking import Look


class Engine(Protocol):
    """Runs sandboxes."""

    async def open_session(self, folder: Path) -> int | None:
        """Make a session's folder, `files/` and `mounts/` in it; gives the uid of its own that its code will have."""

    async def close_session(self, folder: Path, uid: int | None) -> None:
        """End what was made ahead for a session; its folder is the caller's to remove."""

    async def look(self, uid: int | None, root: Path, relative: str, want: str, offset: int, limit: int) -> Look:
        """Look at the file `relative` below `root`, a folder of the session of `uid`, in a confined process."""

    async def run(self, spec: SandboxSpec, emit: Emit, stop: Stop) -> RunResult:
        """Run one spec to its end; everything it gave is in the result, whichever way it ended.

        `emit` hears of phases, text and displays as they come, and must not block. `stop.set(reason)` ends the run
        early. Cancelling the caller ends it too, but then there is no result.

        Raises:
            InstallError: the packages could not be had.
            KernelStartError: no kernel could be started.
            IsolationUnavailable: the walls cannot be built.
        """
