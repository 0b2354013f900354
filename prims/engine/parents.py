"""Preloaded parents that fork kernels: one a session, few in all, none that is not wanted any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from prims.errors import PrimsError
from prims.kernel.forkserver import ForkServer

_log = logging.getLogger(__name__)

# One that has forked nothing for this long is given up, as a spare is.
IDLE_SECONDS = 600.0
_FAILURES = 3  # after which no other is tried: what stands in the way stays there


@dataclass(slots=True, eq=False)
class _Entry:
    """A parent, or one being started."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    gone: anyio.Event = field(default_factory=anyio.Event)
    parent: ForkServer | None = None
    used: float = 0.0

    @property
    def idle(self) -> bool:
        return self.parent is not None and not self.parent.busy


class Parents:
    """At most one parent for each key and `most` in all; of those that have no kernel, the one used last stays.

    They are tasks of `group`, each of which opens and closes what `make` gives for the key.
    """

    def __init__(
        self, group: TaskGroup, make: Callable[[Hashable], AbstractAsyncContextManager[ForkServer]], most: int
    ) -> None:
        self._group = group
        self._make = make
        self._most = most
        self._failures = 0
        self._entries: dict[Hashable, _Entry] = {}

    def prepare(self, key: Hashable) -> None:
        """Begin to start a parent for `key`, unless there is one or no room for one; returns at once."""
        entry = self._entries.get(key)
        if entry is not None and (entry.parent is None or entry.parent.alive):
            return
        if entry is not None:
            self._forget(key, entry)
        if self._failures >= _FAILURES:
            return
        if len(self._entries) >= self._most:
            idle = [(e.used, k) for k, e in self._entries.items() if e.idle]
            if not idle:
                return
            oldest = min(idle, key=lambda pair: pair[0])[1]
            self._forget(oldest, self._entries[oldest])
        entry = self._entries[key] = _Entry(used=anyio.current_time())
        self._group.start_soon(self._keep, key, entry)

    def get(self, key: Hashable) -> ForkServer | None:
        """The parent of `key` when it is there and ready."""
        entry = self._entries.get(key)
        if entry is None or entry.parent is None or not entry.parent.alive:
            return None
        entry.used = anyio.current_time()
        return entry.parent

    async def drop(self, key: Hashable) -> None:
        """End the parent of `key`, if there is one, with all that it has forked."""
        entry = self._entries.get(key)
        if entry is not None:
            self._forget(key, entry)
            await entry.gone.wait()

    async def close(self) -> None:
        """End all of them; no other will be started."""
        self._most = 0
        async with anyio.create_task_group() as group:
            for key in list(self._entries):
                group.start_soon(self.drop, key)

    async def _keep(self, key: Hashable, entry: _Entry) -> None:
        try:
            with entry.scope:
                async with self._make(key) as entry.parent:
                    self._failures = 0
                    while entry.parent.busy or anyio.current_time() < entry.used + IDLE_SECONDS:  # noqa: ASYNC110
                        await anyio.sleep(IDLE_SECONDS / 10)
        except (PrimsError, OSError) as problem:
            _log.warning("kernels are started and not forked: %s", problem)
            self._failures += 1
        finally:
            self._forget(key, entry)
            entry.gone.set()

    def _forget(self, key: Hashable, entry: _Entry) -> None:
        entry.scope.cancel()
        if self._entries.get(key) is entry:
            del self._entries[key]
