"""Single flight: one piece of work per key, however many wait for it, in tasks that one object owns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from prims.errors import ShuttingDown

T = TypeVar("T")
Tell = Callable[[str], None]


class Builds(Generic[T]):
    """Runs builds as tasks of its own. Use it as `async with`; leaving cancels and awaits what still runs."""

    def __init__(self) -> None:
        self._group: TaskGroup
        self._closing = False
        self._running: dict[tuple[str, ...], _Build[T]] = {}

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._group.cancel_scope.cancel()
        # Without the body's exception: the group would wrap it, and no build can be its cause. As we return
        # None, it goes on its way as it is.
        await self._group.__aexit__(None, None, None)

    def check_open(self) -> None:
        """Raise ShuttingDown when this is being left."""
        if self._closing:
            raise ShuttingDown("The server is shutting down; no packages are installed any more.")

    def behind(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin `work`, which raises nothing and for which nobody waits."""
        self.check_open()
        self._group.start_soon(work)

    async def shared(
        self,
        key: tuple[str, ...],
        make: Callable[[Tell], Awaitable[T]],
        tell: Tell,
        seconds: float,
        *,
        keep: bool = False,
    ) -> T:
        """The result of the one build of `key`, started now unless it runs already.

        `make` gets a function for short texts, which reach the `tell` of everyone who waits. A cancelled
        waiter takes nothing from the others; when the last one goes, the build is cancelled unless it is to
        be kept.

        Raises:
            TimeoutError: this waiter has waited `seconds`.
            ShuttingDown: this is being left.
            Exception: whatever `make` raised.
        """
        self.check_open()
        build = self._running.get(key)
        if build is None:
            build = self._running[key] = _Build(keep)
            self._group.start_soon(self._run, key, build, make)
        try:
            with anyio.fail_after(seconds):
                return await build.wait(tell)
        finally:
            # At once and not when it has ended: who comes now must not join a build that is being cancelled.
            if build.scope.cancel_called:
                self._forget(key, build)

    async def _run(self, key: tuple[str, ...], build: _Build[T], make: Callable[[Tell], Awaitable[T]]) -> None:
        try:
            with build.scope:
                build.result = (await make(build.tell),)
        except Exception as e:  # handed to all who wait, bugs as well: one must not end the other builds
            build.error = e
        finally:
            self._forget(key, build)
            build.done.set()

    def _forget(self, key: tuple[str, ...], build: _Build[T]) -> None:
        if self._running.get(key) is build:
            del self._running[key]


@dataclass(slots=True, eq=False)
class _Build(Generic[T]):
    """One piece of work and those who wait for it."""

    keep: bool
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    result: tuple[T] | None = None
    error: Exception | None = None
    latest: str = ""
    listeners: list[Tell] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.latest = text
        for listener in self.listeners:
            listener(text)

    async def wait(self, tell: Tell) -> T:
        self.listeners.append(tell)
        if self.latest:
            tell(self.latest)
        try:
            await self.done.wait()
        finally:
            self.listeners.remove(tell)
            if not self.listeners and not self.done.is_set() and not self.keep:
                self.scope.cancel()
        if self.error is not None:
            raise self.error
        if self.result is None:  # cancelled with someone waiting: only closing does that
            raise ShuttingDown("The server is shutting down; the packages were not installed.")
        return self.result[0]
