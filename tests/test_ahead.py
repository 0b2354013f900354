"""What is made before a call and thrown away behind it: when, how many, and that none is forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from prims.engine import spares as spares_module
from prims.engine.leftovers import Leftovers
from prims.engine.spares import Spares
from prims.errors import KernelStartError
from prims.isolation import bubblewrap
from tests.engines import engine_of_one_session
from tests.processes import named, until

pytestmark = pytest.mark.anyio


class Maker:
    """Makes spares that are strings, and knows which were begun and which were closed."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.closed: list[str] = []
        self.go = anyio.Event()

    @asynccontextmanager
    async def make(self, key: Any) -> AsyncIterator[str]:
        self.begun.append(key)
        await self.go.wait()
        try:
            yield f"{key}{len(self.begun)}"
        finally:
            self.closed.append(key)


async def test_a_spare_is_made_after_its_delay_or_when_it_is_wanted() -> None:
    maker = Maker()
    maker.go.set()
    async with anyio.create_task_group() as group:
        spares: Spares[str] = Spares(group, maker.make, 2)
        spares.prepare("a", after=60)
        spares.prepare("a")  # there is one already
        await anyio.wait_all_tasks_blocked()
        assert maker.begun == []
        with anyio.fail_after(60):
            taken = await spares.take("a")
        assert taken is not None and taken[0] == "a1"
        # Who had to wait for it is in a hurry: the next is made at once.
        await anyio.wait_all_tasks_blocked()
        assert maker.begun == ["a", "a"]
        await taken[1].aclose()
        again = await spares.take("a")
        assert again is not None and again[0] == "a2"
        await anyio.wait_all_tasks_blocked()
        assert maker.begun == ["a", "a"]  # this one was ready
        await again[1].aclose()
        assert await spares.take("a") is None
        spares.prepare("a", after=0.01)
        await until(lambda: len(maker.begun) == 3, 60, "it is made when the time has come")
        await spares.close()
        assert maker.closed == ["a"] * 3


async def test_a_young_spare_does_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker()
    maker.go.set()
    async with anyio.create_task_group() as group:
        spares: Spares[str] = Spares(group, maker.make, 2)
        monkeypatch.setattr(spares_module, "FRESH_SECONDS", 600.0)
        for key in "abc":
            spares.prepare(key)
            await anyio.wait_all_tasks_blocked()
        assert maker.begun == ["a", "b"]
        assert await spares.take("c") is None
        monkeypatch.setattr(spares_module, "FRESH_SECONDS", -1.0)
        spares.prepare("c")
        await anyio.wait_all_tasks_blocked()
        assert (maker.begun, maker.closed) == (["a", "b", "c"], ["a"])
        await spares.close()
        assert sorted(maker.closed) == ["a", "b", "c"]
        spares.prepare("d")
        await anyio.wait_all_tasks_blocked()
        assert len(maker.begun) == 3


async def test_a_spare_nobody_takes_any_more_is_closed_wherever_it_was() -> None:
    maker = Maker()
    async with anyio.create_task_group() as group:
        spares: Spares[str] = Spares(group, maker.make, 3)
        spares.prepare("a")
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.02):
            await spares.take("a")
        spares.prepare("b", after=60)
        await anyio.wait_all_tasks_blocked()
        await spares.drop("b")
        spares.prepare("c")
        await anyio.wait_all_tasks_blocked()
        await spares.drop("c")
        await spares.close()
    assert maker.begun == ["a", "c"]
    assert spares._entries == {}


async def test_a_spare_that_cannot_be_made_is_none() -> None:
    @asynccontextmanager
    async def make(key: Any) -> AsyncIterator[str]:
        raise KernelStartError("no")
        yield

    async with anyio.create_task_group() as group:
        spares: Spares[str] = Spares(group, make, 1)
        spares.prepare("a", after=60)
        with anyio.fail_after(60):
            assert await spares.take("a") is None
        await spares.close()


async def test_what_is_left_is_closed_behind_and_holds_up_the_next_when_it_is_too_much() -> None:
    gone: list[int] = []
    go = anyio.Event()

    def stack(number: int) -> AsyncExitStack:
        async def close() -> None:
            await go.wait()
            gone.append(number)
            if number == 1:
                raise RuntimeError("this one fails")

        stack = AsyncExitStack()
        stack.push_async_callback(close)
        return stack

    async with anyio.create_task_group() as group:
        leftovers = Leftovers(group, 2)
        leftovers.close(stack(0))
        with anyio.fail_after(60):
            await leftovers.room()
        leftovers.close(stack(1))
        with anyio.move_on_after(0.05) as waited:
            await leftovers.room()
        assert waited.cancelled_caught and gone == []
        group.cancel_scope.cancel()  # as at the end of a server: all is closed even so
        go.set()
    assert sorted(gone) == [0, 1]


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("settings", [{"fork_kernels": "off"}, {"isolation": "none"}], ids=["walls", "none"])
async def test_when_a_run_returns_its_processes_are_gone_and_its_folders_go_behind_it(settings: dict[str, str]) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '34719.25'], start_new_session=True); print(1)"
    async with engine_of_one_session(**settings) as session:
        for _ in range(2):
            assert (await session.run(code)).stdout.head == "1\n"
            # No await since: what is still to be closed has not been waited for.
            assert session.engine._leftovers._closing
            assert named("34719.25") == []
        await session.engine._leftovers.closed()
        assert list(session.folder.parent.glob("k*")) == []
