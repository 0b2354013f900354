"""The wish to end a run, from any side: a deadline, a client, the operator, a limit."""

from __future__ import annotations

from typing import Literal

import anyio

StopReason = Literal["timeout", "cancelled", "shutdown", "out_of_memory", "cpu", "output", "disk", "files"]


class Stop:
    """Set once; the first reason counts. `detail` says in words what only who set it knows."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self.reason: StopReason | None = None
        self.detail = ""

    def set(self, reason: StopReason, detail: str = "") -> None:
        """Ask for the end; returns at once."""
        if self.reason is None:
            self.reason, self.detail = reason, detail
            self._event.set()

    async def wait(self) -> None:
        """Until somebody asked."""
        await self._event.wait()
