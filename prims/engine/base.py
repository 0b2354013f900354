"""The engine's port: where and how a sandbox runs is nobody else's business."""

from __future__ import annotations

from typing import Protocol

from prims.model import Emit, RunResult, SandboxSpec
from prims.stopping import Stop


class Engine(Protocol):
    """Runs sandboxes."""

    async def run(self, spec: SandboxSpec, emit: Emit, stop: Stop) -> RunResult:
        """Run one spec to its end; everything it gave is in the result, whichever way it ended.

        `emit` hears of phases, text and displays as they come, and must not block. `stop.set(reason)` ends the run
        early. Cancelling the caller ends it too, but then there is no result.

        Raises:
            InstallError: the packages could not be had.
            KernelStartError: no kernel could be started.
            IsolationUnavailable: the walls cannot be built.
        """
