"""What a run leaves to be closed and removed, done behind its reply: counted, bounded, and never given up."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import anyio
from anyio.abc import TaskGroup

from prims.tasks import after_reply

_log = logging.getLogger(__name__)


class Leftovers:
    """Closes stacks in tasks of `group`, which ends only when all are closed, cancelled or not.

    While `most` are being closed, `room` makes the next run wait: garbage never outgrows what is run.
    """

    def __init__(self, group: TaskGroup, most: int) -> None:
        self._group = group
        self._most = most
        self._closing: set[anyio.Event] = set()

    def close(self, stack: AsyncExitStack) -> None:
        """Begin to close a stack; returns at once."""
        done = anyio.Event()
        self._closing.add(done)
        self._group.start_soon(self._close, stack, done)

    async def room(self) -> None:
        """Until fewer than `most` are being closed."""
        while len(self._closing) >= self._most:
            await next(iter(self._closing)).wait()

    async def closed(self) -> None:
        """Until all is closed that has been given until now."""
        for done in list(self._closing):
            await done.wait()

    async def _close(self, stack: AsyncExitStack, done: anyio.Event) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await after_reply()
                await stack.aclose()
        except Exception:
            # Nobody waits here who could be told, and the other runs go on.
            _log.exception("something of a run could not be closed")
        finally:
            self._closing.discard(done)
            done.set()
