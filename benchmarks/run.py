"""How long a call takes: a real client over stdio, beside a stock kernel and an empty MCP server on this machine.

    python benchmarks/run.py [--json] [--pairs 10] [--repeat 20] [--only NAME ...]

Takes some minutes. Prints medians; ratios are to the stock counterpart measured in the same process. Machine noise is
large: compare numbers of one run only, and run it when nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

STOCK_PRINT = "stock kernel: start to first print"

# These change what is measured, and a user's machine has neither.
ENVIRONMENT = {
    k: v for k, v in os.environ.items()
    if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED") and not k.startswith("PRIMS_")
}  # fmt: skip

EMPTY_SERVER = """
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import ListToolsResult

async def list_tools(context, params):
    return ListToolsResult(tools=[])

async def main():
    server = Server("empty", version="1", on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""

FIRST_REQUESTS = {
    "initialize": {
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
        },
    },
    "discover": {
        "method": "server/discover",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
            },
        },
    },
}  # fmt: skip


class Bench:
    """Samples by name, and what each is compared with."""

    def __init__(self, pairs: int, repeat: int) -> None:
        self.pairs, self.repeat = pairs, repeat
        self.samples: dict[str, list[float]] = {}
        self.against: dict[str, str] = {}

    def add(self, name: str, seconds: float, against: str = "") -> None:
        self.samples.setdefault(name, []).append(seconds)
        if against:
            self.against[name] = against
        print(f"  {name}: {seconds * 1000:.0f} ms", file=sys.stderr)

    def rows(self) -> list[dict[str, Any]]:
        medians = {name: statistics.median(values) for name, values in self.samples.items()}
        rows = []
        for name, values in self.samples.items():
            row = {"name": name, "n": len(values), "median": medians[name], "least": min(values), "most": max(values)}
            if (other := self.against.get(name)) in medians:
                row |= {"against": other, "ratio": medians[name] / medians[other]}
            rows.append(row)
        return rows


@asynccontextmanager
async def served(cache: Path | None = None) -> AsyncIterator[Client]:
    """A client of a new `prims serve`."""
    with tempfile.TemporaryDirectory(prefix="pb-") as state:
        env = {**ENVIRONMENT, "PRIMS_STATE_DIR": state}
        if cache is not None:
            env["PRIMS_CACHE_DIR"] = str(cache)
        server = StdioServerParameters(command=sys.executable, args=["-m", "prims", "serve"], env=env)
        with open(os.devnull, "w") as log:  # noqa: ASYNC230
            async with Client(stdio_client(server, errlog=log)) as client:
                yield client


async def call(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    """One run_code call that must succeed."""
    result = await client.call_tool("run_code", {"code": code, **arguments})
    if result.is_error or result.structured_content is None:
        raise SystemExit(f"a call failed: {result.content}")
    return result.structured_content


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


@asynccontextmanager
async def stock_kernel(bench: Bench, note: bool = True) -> AsyncIterator[Any]:
    """A stock ipykernel of the same interpreter, ready to execute."""
    begun = time.perf_counter()
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel(env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        request = client.kernel_info()
        while True:
            reply = await client.get_shell_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == request:
                break
        if note:
            bench.add("stock kernel: start to kernel_info reply", time.perf_counter() - begun)
        # What is published before the subscription stands is lost, the idle that is waited for included.
        while (await client.get_iopub_msg(timeout=60))["msg_type"] != "iopub_welcome":
            pass
        await stock_execute(client, "print(1)")
        if note:
            bench.add(STOCK_PRINT, time.perf_counter() - begun)
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def stock_execute(client: Any, code: str) -> None:
    """Until its own reply and its own idle have come."""
    request = client.execute(code, reply=False)
    pending = {"reply", "idle"}
    while "reply" in pending:
        message = await client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            pending.discard("reply")
    while "idle" in pending:
        message = await client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "status":
            pending -= {message["content"]["execution_state"]}


# ---------------------------------------------------------------------------------------------- measurements


async def first_reply(bench: Bench) -> None:
    """Spawn to the first reply, PRIMS and an empty SDK server in turns, in both eras."""
    commands = {"prims": [sys.executable, "-m", "prims", "serve"], "empty": [sys.executable, "-c", EMPTY_SERVER]}
    with tempfile.TemporaryDirectory(prefix="pb-") as state:
        env = {**ENVIRONMENT, "PRIMS_STATE_DIR": state}
        for command in commands.values():  # files in the page cache, bytecode compiled
            _ask_first(command, env, "initialize")
        for era in FIRST_REQUESTS:
            for turn in range(bench.pairs):
                order = list(commands) if turn % 2 else list(reversed(commands))
                for who in order:
                    name = f"{who} server: spawn to first reply ({era})"
                    bench.add(
                        name,
                        await asyncio.to_thread(_ask_first, commands[who], env, era),
                        f"empty server: spawn to first reply ({era})" if who == "prims" else "",
                    )


def _ask_first(command: list[str], env: dict[str, str], era: str) -> float:
    request = json.dumps({"jsonrpc": "2.0", "id": 1, **FIRST_REQUESTS[era]}) + "\n"
    begun = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(request.encode())
        process.stdin.flush()
        reply = process.stdout.readline()
        took = time.perf_counter() - begun
        if "result" not in json.loads(reply):
            raise SystemExit(f"{command} answered {reply!r}")
        process.stdin.close()
        process.wait(timeout=30)
    return took


async def stock(bench: Bench) -> None:
    """What a stock kernel costs: cold, and warm."""
    for _ in range(5):
        async with stock_kernel(bench) as client:
            await stock_execute(client, "print(1)")
    async with stock_kernel(bench, note=False) as client:
        for _ in range(bench.repeat):
            took = await timed(lambda: stock_execute(client, "print(1)"))
            bench.add("stock kernel: warm print(1), the same kernel again", took)


async def first_call(bench: Bench) -> None:
    """Server spawn to the first result: with layers ready, and from an empty layer cache."""
    for _ in range(3):
        begun = time.perf_counter()
        async with served() as client:
            await call(client, "print(1)")
            bench.add("prims: spawn to first result, layers ready", time.perf_counter() - begun, STOCK_PRINT)
    cache = Path(tempfile.mkdtemp(prefix="pb-cache-"))
    try:
        begun = time.perf_counter()
        async with served(cache) as client:
            await call(client, "print(1)")
            bench.add("prims: spawn to first result, layers made from uv's cache", time.perf_counter() - begun)
    finally:
        shutil.rmtree(cache)


async def warm(bench: Bench) -> None:
    """`print(1)` on a server that is up; each call has a new environment and a new kernel."""
    async with served() as client:
        await call(client, "print(1)")
        for _ in range(bench.repeat):
            await asyncio.sleep(0.5)
            took = await timed(lambda: call(client, "print(1)"))
            bench.add("prims: warm print(1), after a pause of 0.5 s", took, STOCK_PRINT)
        for _ in range(bench.repeat):
            took = await timed(lambda: call(client, "print(1)"))
            bench.add("prims: warm print(1), back to back", took, STOCK_PRINT)
        phases = (await call(client, "print(1)"))["seconds"]
        print(f"  phases of one call: {phases}", file=sys.stderr)


async def requirements(bench: Bench) -> None:
    """Calls that name packages, known from an earlier call."""
    wanted = {"requirements": ["pandas", "matplotlib"]}
    async with served() as client:
        await call(client, "print(1)", **wanted)
        for _ in range(bench.repeat // 2):
            took = await timed(lambda: call(client, "print(1)", **wanted))
            bench.add("prims: print(1) with cached requirements (pandas, matplotlib)", took, STOCK_PRINT)


async def eight(bench: Bench) -> None:
    """Eight calls at once, and eight stock kernels at once."""
    async with served() as client:
        await call(client, "print(1)")
        for _ in range(3):
            took = await timed(lambda: asyncio.gather(*(call(client, "print(1)") for _ in range(8))))
            bench.add("prims: 8 calls at once, all done", took, "stock kernel: 8 at once, all done")

    async def one() -> None:
        async with stock_kernel(bench, note=False):
            pass

    for _ in range(3):
        took = await timed(lambda: asyncio.gather(*(one() for _ in range(8))))
        bench.add("stock kernel: 8 at once, all done", took)


async def pandas(bench: Bench) -> None:
    """`import pandas` inside a run and in a plain virtualenv with the same version."""
    code = "import time; t = time.perf_counter(); import pandas; print(time.perf_counter() - t)"
    plain = "import pandas in a plain venv"
    async with served() as client:
        packages = (await call(client, "print(1)"))["packages"]
        for _ in range(7):
            seconds = float((await call(client, code))["stdout"])
            bench.add("import pandas in a run", seconds, plain)
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        python = await asyncio.to_thread(_plain_venv, Path(folder) / "venv", packages)
        for _ in range(7):
            bench.add(plain, float(await asyncio.to_thread(_output, [python, "-c", code])))


def _plain_venv(folder: Path, packages: list[str]) -> Path:
    """A virtualenv with pandas and what it needs, as in a run, bytecode compiled."""
    base = getattr(sys, "_base_executable", sys.executable)
    _output([base, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    pins = [p for p in packages if p.startswith(("pandas==", "numpy==", "python-dateutil==", "tzdata==", "six=="))]
    uv = Path(sys.executable).with_name("uv")
    _output([uv, "pip", "install", "--quiet", "--compile-bytecode", "--no-deps", "--python", python, *pins])
    return python


def _output(command: list[Any]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=True).stdout


MEASUREMENTS = {m.__name__: m for m in (first_reply, stock, first_call, warm, requirements, eight, pandas)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--pairs", type=int, default=10, help="pairs for the first reply (default: 10)")
    parser.add_argument("--repeat", type=int, default=20, help="repetitions of warm calls (default: 20)")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="measure these")
    options = parser.parse_args()
    bench = Bench(options.pairs, options.repeat)
    for name in options.only:
        print(f"{name} ...", file=sys.stderr)
        await MEASUREMENTS[name](bench)
    rows = bench.rows()
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "cpus": os.cpu_count(), "measurements": rows}, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    print(f"{'':{width}}  {'median':>9} {'least':>9} {'most':>9}  {'n':>3}  ratio")
    for row in rows:
        times = " ".join(f"{row[key] * 1000:>6.0f} ms" for key in ("median", "least", "most"))
        ratio = f"{row['ratio']:.2f} x {row['against']}" if "ratio" in row else ""
        print(f"{row['name']:{width}}  {times}  {row['n']:>3}  {ratio}".rstrip())


if __name__ == "__main__":
    asyncio.run(main())
