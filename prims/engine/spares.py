"""Sandboxes made ahead: fresh ones that nobody has used, one a session, few in all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from prims.errors import PrimsError

T = TypeVar("T")
_log = logging.getLogger(__name__)

# A spare that nobody has wanted for this long is given up: its memory is worth more than its second.
IDLE_SECONDS = 600.0
# And one that is younger than this does not give way to another: sessions that take turns would make them for nothing.
FRESH_SECONDS = 5.0


@dataclass(slots=True)
class _Entry(Generic[T]):
    """A spare, or one being made."""

    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    making: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    wanted: anyio.Event = field(default_factory=anyio.Event)
    settled: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    since: float = 0.0
    value: T | None = None


class Spares(Generic[T]):
    """At most one spare for each key and `most` in all; the one that was made first gives way when it is not young.

    What `make` opens may be closed in another task than it was opened in.
    """

    def __init__(self, group: TaskGroup, make: Callable[[Hashable], AbstractAsyncContextManager[T]], most: int) -> None:
        self._group = group
        self._make = make
        self._most = most
        self._entries: dict[Hashable, _Entry[T]] = {}

    def prepare(self, key: Hashable, after: float = 0.0) -> None:
        """Begin to make a spare for `key`, unless there is one; returns at once.

        The work begins when `after` seconds have passed, or when somebody wants the spare.
        """
        if key in self._entries or self._most == 0:
            return
        if len(self._entries) >= self._most:
            young = anyio.current_time() - FRESH_SECONDS
            oldest = next((k for k, e in self._entries.items() if e.settled.is_set() and e.since < young), None)
            if oldest is None:
                return
            self._group.start_soon(self.drop, oldest)
        entry: _Entry[T] = _Entry(since=anyio.current_time())
        self._entries[key] = entry
        self._group.start_soon(self._fill, key, entry, after)

    async def _fill(self, key: Hashable, entry: _Entry[T], after: float) -> None:
        try:
            with entry.making:
                if after > 0:
                    with anyio.move_on_after(after):
                        await entry.wanted.wait()
                entry.value = await entry.stack.enter_async_context(self._make(key))
        except PrimsError as problem:
            # The next run makes its own, and tells what is wrong.
            _log.info("no spare: %s", problem)
            if self._entries.get(key) is entry:
                del self._entries[key]
            return
        finally:
            entry.settled.set()
        with anyio.move_on_after(IDLE_SECONDS):
            await entry.gone.wait()
            return
        if self._entries.get(key) is entry:
            await self.drop(key)

    async def take(self, key: Hashable) -> tuple[T, AsyncExitStack] | None:
        """The spare of `key` and what closes it, both now the caller's; waits for one that is being made.

        None when there is none. When cancelled, the spare is closed.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        hurried = not entry.settled.is_set()
        entry.wanted.set()
        try:
            await entry.settled.wait()
        except BaseException:
            self._group.start_soon(self._close, entry)
            raise
        entry.gone.set()
        if entry.value is None:
            return None
        if hurried:  # the calls come faster than spares are made
            self.prepare(key)
        return entry.value, entry.stack

    async def drop(self, key: Hashable) -> None:
        """Close the spare of `key`, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            await self._close(entry)

    async def _close(self, entry: _Entry[T]) -> None:
        with anyio.CancelScope(shield=True):
            if entry.value is None:
                entry.making.cancel()
            await entry.settled.wait()
            entry.gone.set()
            await entry.stack.aclose()

    async def close(self) -> None:
        """Close all spares; the task group must not take new ones afterwards."""
        self._most = 0
        async with anyio.create_task_group() as group:
            for key in list(self._entries):
                group.start_soon(self.drop, key)
