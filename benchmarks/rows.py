"""The rows of the benchmark. Each takes a `Bench` and adds its samples; what is compared is measured in turns."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import peers
import soak as soak_runs
from bench import (
    Bench,
    Target,
    call,
    client_of,
    cpu_seconds,
    prims,
    prims_http,
    program,
    pss,
    said_by,
    servers,
    timed,
    tree,
    why,
)
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from stock_server import execute, start_kernel

COLD = "stock kernel: cold start to its first print(1)"
PAUSE_SECONDS = 2.0


async def _forked(client: Client) -> None:
    """Until the session's kernels are forked, a spare is there, and nothing is being made."""
    for _ in range(20):
        if (await call(client, "print('parent.py' in open('/proc/1/cmdline').read())"))["stdout"] == "True\n":
            break
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)


async def first_reply(bench: Bench) -> None:
    """Spawn to the answer of `initialize`, beside an empty server of the same library."""
    empty, ours = "empty server: spawn to first reply", "prims: spawn to first reply"
    with tempfile.TemporaryDirectory(prefix="pb-") as state:
        commands = {empty: [sys.executable, "-c", peers.EMPTY_SERVER], ours: [sys.executable, "-m", "prims", "serve"]}
        for command in commands.values():  # files in the page cache, bytecode compiled
            await asyncio.to_thread(peers.first_reply, command, state)
        for _ in bench.times(6):
            for name, command in commands.items():
                took = await asyncio.to_thread(peers.first_reply, command, state)
                bench.add(name, took, against=empty if name == ours else "")


async def warm(bench: Bench) -> None:
    """print(1) by a client that pauses, beside one reused stock kernel behind the same MCP library, and ipybox."""
    ours, stock = "prims: warm print(1), 2 s pause", "stock kernel reused, behind the same MCP library: print(1)"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(prims())
        peer = await stack.enter_async_context(client_of([sys.executable, peers.STOCK_SERVER]))
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            ours: lambda: call(client, "print(1)"),
            stock: lambda: peer.call_tool("run_code", {"code": "print(1)"}),
        }
        try:
            other = await stack.enter_async_context(peers.ipybox())
            calls["ipybox: print(1) on its one reused kernel"] = lambda: peers.ipybox_call(other, "print(1)")
        except Exception as problem:
            bench.missing("ipybox", why(problem))
        await _forked(client)
        for work in calls.values():
            await work()
        for _ in bench.times(15):
            for name, work in calls.items():
                await asyncio.sleep(PAUSE_SECONDS / len(calls))
                target = Target(most=40, ratio=1.5) if name == ours else None
                bench.add(name, await timed(work), against=stock if name != stock else "", target=target)


async def burst(bench: Bench) -> None:
    """20 calls back to back, beside the cold start of a stock kernel."""
    async with prims() as client:
        await _forked(client)
        for _ in bench.times(4):
            begun = time.perf_counter()
            manager, kernel = await start_kernel()
            try:
                await execute(kernel, "print(1)")
                bench.add(COLD, (time.perf_counter() - begun) * 1000)
            finally:
                kernel.stop_channels()
                await manager.shutdown_kernel(now=True)
            await asyncio.sleep(0.5)

            async def twenty() -> None:
                for _ in range(20):
                    await call(client, "print(1)")

            each = await timed(twenty) / 20
            bench.add("prims: 20 calls back to back, each", each, against=COLD, target=Target(most=120, ratio=0.2))


async def eight(bench: Bench) -> None:
    """8 clients over HTTP, 100 calls in all; and 8 calls at once of one client, as often."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(prims_http())
        clients = [await stack.enter_async_context(Client(streamable_http_client(url))) for _ in range(8)]
        sessions = [(await call(client, "print(1)"))["session_id"] for client in clients]
        for _ in range(2):  # until their kernels are forked
            await asyncio.gather(*(call(c, "print(1)", session_id=s) for c, s in zip(clients, sessions, strict=True)))
            await asyncio.sleep(1.5)

        async def run(client: Client, session: str) -> None:
            await call(client, "print(1)", session_id=session)

        works = [lambda c=c, s=s: run(c, s) for c, s in zip(clients, sessions, strict=True)]  # type: ignore[misc]
        await _hundred(bench, "prims: 8 clients, 100 calls", works)
    async with prims() as client:
        await _forked(client)
        await _hundred(bench, "prims: 8 at once of one client, 100 calls", [lambda: call(client, "print(1)")] * 8)


async def _hundred(bench: Bench, name: str, works: list[Callable[[], Awaitable[Any]]]) -> None:
    """100 calls by as many workers as there are works; an error ends the row."""
    for _ in bench.times(2):
        done: list[list[float]] = [[] for _ in works]
        left = iter(range(100))
        workers = [_worker(work, left, times) for work, times in zip(works, done, strict=True)]
        seconds = await timed(partial(asyncio.gather, *workers)) / 1000
        counts, took = [len(times) for times in done], [one for times in done for one in times]
        bench.add(f"{name}: completed", len(took) / seconds, "runs/s", target=Target(least=14))
        bench.add(f"{name}: fewest / most of one client", min(counts) / max(counts), "", target=Target(least=0.7))
        bench.add(
            f"{name}: 95th percentile / median", statistics.quantiles(took, n=20)[-1] / statistics.median(took), ""
        )


async def _worker(work: Callable[[], Awaitable[Any]], left: Iterator[int], times: list[float]) -> None:
    for _ in left:
        times.append(await timed(work))


async def requirements(bench: Bench) -> None:
    """print(1) with requirements that an earlier call had, beside the bare call."""
    wanted = {"requirements": ["pandas", "matplotlib"]}
    for arguments, bare, again in (
        ((), "prims: print(1), 1 s pause", "prims: print(1), pandas and matplotlib required again"),
        (
            ("--default-packages", ""),
            "prims: print(1), bare packages only",
            "prims: print(1), pandas and matplotlib in a layer of the call's own",
        ),
    ):
        async with prims(*arguments) as client:
            await call(client, "print(1)", **wanted)
            await _forked(client)
            for _ in bench.times(7):
                await asyncio.sleep(1)
                bench.add(bare, await timed(lambda: call(client, "print(1)")))
                await asyncio.sleep(1)
                took = await timed(lambda: call(client, "print(1)", **wanted))
                bench.add(again, took, against=bare, target=Target(more=60))


async def first_use(bench: Bench) -> None:
    """A requirement for the first time, beside `uv pip install` of it into a new venv.

    Neither compiles bytecode; PRIMS does that behind the reply. uv with it is there to be seen.
    """
    wanted = "flask"
    for state in ("warm", "cold"):
        peer = f"uv pip install {wanted}, cache {state}"
        ours = f"prims: print(1) with {wanted} for the first time, cache {state}"
        await asyncio.to_thread(peers.uv_install, wanted, None)  # the user's cache is warm from here on
        for _ in bench.times(3):
            with tempfile.TemporaryDirectory(prefix="pb-") as cache, tempfile.TemporaryDirectory(prefix="pb-") as other:
                own = {"UV_CACHE_DIR": f"{other}/own"} if state == "cold" else {}
                async with prims("--default-packages", "", PRIMS_CACHE_DIR=cache, **own) as client:
                    await _forked(client)
                    took = await timed(partial(call, client, "print(1)", requirements=[wanted]))
                for name, more in ((peer, ()), (f"{peer}, bytecode compiled", ("--compile-bytecode",))):
                    theirs = tempfile.mkdtemp(dir=other) if state == "cold" else None
                    bench.add(name, await asyncio.to_thread(peers.uv_install, wanted, theirs, *more))
                bench.add(ours, took, against=peer, target=Target(ratio=1.2))


async def pandas(bench: Bench) -> None:
    """`import pandas` in a fresh run, beside a plain venv with the same versions and compiled bytecode."""
    plain, ours = "plain venv: import pandas", "prims: import pandas in a fresh run"
    code = "import time; t = time.perf_counter(); import pandas; print(time.perf_counter() - t)"
    async with prims() as client:
        packages = (await call(client, "import pandas"))["packages"]
        with tempfile.TemporaryDirectory(prefix="pb-") as folder:
            python = await asyncio.to_thread(peers.plain_venv, Path(folder) / "venv", packages, ("pandas",))
            await asyncio.to_thread(said_by, [python, "-c", code])
            await _forked(client)
            for _ in bench.times(9):
                bench.add(plain, float(await asyncio.to_thread(said_by, [python, "-c", code])) * 1000)
                await asyncio.sleep(0.5)
                took = float((await call(client, code))["stdout"]) * 1000
                bench.add(ours, took, against=plain, target=Target(ratio=1.1))


async def memory(bench: Bench) -> None:
    """Proportional memory of an idle server with one spare kernel, and of each kernel and session more."""
    async with prims() as client:
        await _forked(client)
        [server] = servers()
        await asyncio.sleep(1)
        idle = sum(map(pss, tree(server)))
        bench.add("prims: idle server, parent, one spare kernel", idle, "MB", target=Target(most=130))
        bench.add("prims: of that, the server itself", pss(server), "MB")
        # Kernels that wait are spares to the memory: the same processes, with no more in them.
        waiting = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
        calls = [asyncio.create_task(call(client, waiting)) for _ in range(4)]
        await asyncio.sleep(4)
        more = sum(map(pss, tree(server))) - idle
        bench.add("prims: each further kernel of the session", more / 4, "MB", target=Target(most=25))
        await call(client, "open('go', 'w').close()")
        await asyncio.gather(*calls)
    with prims_http("--spare-kernels", "4") as url:
        [server] = servers()
        totals = []
        async with AsyncExitStack() as stack:
            for _ in range(3):
                client = await stack.enter_async_context(Client(streamable_http_client(url)))
                session = (await call(client, "print(1)"))["session_id"]
                for _ in range(3):
                    await asyncio.sleep(1)
                    await call(client, "print(1)", session_id=session)
                await asyncio.sleep(2)
                totals.append(sum(map(pss, tree(server))))
        bench.add("prims: each further session, with its parent and its spare", (totals[2] - totals[0]) / 2, "MB")


async def output(bench: Bench) -> None:
    """Much output: nothing is lost, and the CPU time that it costs the server beside a bare jupyter_client reader's.

    Of both what they need for `print(1)` is taken off: a server also makes the next kernel meanwhile.
    """
    cases = {
        "20,000 lines": "for i in range(20_000): print('line', i)",
        "100 MB": "for i in range(1_000): print('x' * 104_856, i)",
    }
    async with prims() as client:
        await _forked(client)
        [server] = servers()

        async def used(code: str) -> tuple[float, dict[str, Any]]:
            """Milliseconds of the server's CPU time until it is idle again."""
            await asyncio.sleep(1.5)
            before = cpu_seconds(server)
            found = await call(client, code)
            await asyncio.sleep(1)
            return (cpu_seconds(server) - before) * 1000, found

        for what, code in cases.items():
            reader, ours = f"bare jupyter_client reader, {what}: CPU", f"prims, {what}: server CPU"
            for _ in bench.times(7 if what == "20,000 lines" else 3):  # its few milliseconds are differences
                seconds, seen = await peers.bare_reader(code)
                bench.add(reader, seconds * 1000)
                nothing, _ = await used("print(1)")
                total, found = await used(code)
                [whole] = [a["size"] for a in found["artifacts"]]
                if whole != seen or not seen:
                    raise RuntimeError(f"output was lost: {whole} bytes kept, {seen} seen by the bare reader")
                bench.add(ours, total - nothing, against=reader, target=Target(ratio=2))
                bench.add("prims, print(1): server CPU, with the making of the next kernel", nothing)


async def clean_up(bench: Bench) -> None:
    """What grows over many runs (100 here; `soak.py` does 1,000)."""
    with tempfile.TemporaryDirectory(prefix="pb-") as cache:  # nobody else adds to it
        async with prims("--default-packages", "", PRIMS_CACHE_DIR=cache) as client:
            await _forked(client)
            table = await soak_runs.soak(client, [20, 60 if bench.quick else 120])
    for what, (first, last) in soak_runs.growth(table).items():
        # The session's notebook is remembered; and threads of a pool come and go.
        most = first + {"server MB": 6, "parent MB": 4, "threads": 4}.get(what, 0)
        bench.add(
            f"prims: {what} after {max(table)} runs ({first:g} after {min(table)})", last, "", target=Target(most=most)
        )


async def cold_peers(bench: Bench) -> None:
    """A fresh environment the other ways: venv and pip for every call, `uv run --with`; and PRIMS from nothing."""
    code = "import pandas, matplotlib; print(1)"
    async with prims() as client:
        await _forked(client)
        name = "prims: fresh environment with pandas and matplotlib, imported"
        for _ in bench.times(5):
            await asyncio.sleep(1)
            bench.add(name, await timed(lambda: call(client, code)))
    uv = [program("uv"), "run", "--no-project", "--with", "pandas", "--with", "matplotlib", "python", "-c", code]
    try:
        await asyncio.to_thread(said_by, uv)
        for _ in bench.times(5):
            took = await timed(lambda: asyncio.to_thread(said_by, uv))
            bench.add("uv run --with pandas --with matplotlib: the same, no kernel", took, against=name)
    except RuntimeError as problem:
        bench.missing("uv run", str(problem))
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:

        def venv_and_pip() -> None:
            base = getattr(sys, "_base_executable", sys.executable)
            said_by([base, "-m", "venv", f"{folder}/venv"])
            python = f"{folder}/venv/bin/python"
            said_by([python, "-m", "pip", "install", "--quiet", "ipykernel", "pandas", "matplotlib"])
            said_by([python, "-c", code])

        try:
            took = await timed(lambda: asyncio.to_thread(venv_and_pip))
            bench.add("python -m venv, pip install, run: the same", took, against=name)
        except RuntimeError as problem:
            bench.missing("venv and pip", str(problem))
    for _ in bench.times(3):
        begun = time.perf_counter()
        async with prims() as client:
            await call(client, "print(1)")
            bench.add("prims: spawn to first result, layers ready", (time.perf_counter() - begun) * 1000)


ROWS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        warm, burst, eight, requirements, first_use, pandas, memory, output, clean_up, first_reply, cold_peers,
    )
}  # fmt: skip
