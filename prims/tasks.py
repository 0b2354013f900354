"""Work with a companion beside it, and what comes behind a reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")
_REPLY_SECONDS = 0.02


async def after_reply() -> None:
    """Until a reply that is ready has gone: what holds up the event loop, or a processor, comes behind it."""
    await anyio.sleep(_REPLY_SECONDS)


async def alongside(work: Callable[[], Awaitable[T]], companion: Callable[[], Awaitable[object]]) -> T | None:
    """The value of `work`, while `companion` goes on beside it; None when the companion ended first.

    Whichever ends first cancels the other. What `work` raises is raised as it is, not in a group.
    """
    problem: Exception | None = None
    value: T | None = None

    async def accompany(scope: anyio.CancelScope) -> None:
        await companion()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(accompany, group.cancel_scope)
        try:
            value = await work()
        except Exception as raised:
            problem = raised
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return value
