"""What PRIMS is measured beside. Each peer is the plainest honest form of its kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import ENVIRONMENT, client_of, program, said_by
from mcp.client import Client
from stock_server import start_kernel

STOCK_SERVER = str(Path(__file__).with_name("stock_server.py"))

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

INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
    },
}  # fmt: skip


def first_reply(command: list[str], state: str) -> float:
    """Milliseconds from starting a stdio server to its answer to `initialize`."""
    begun = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**ENVIRONMENT, "PRIMS_STATE_DIR": state},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        reply = process.stdout.readline()
        took = (time.perf_counter() - begun) * 1000
        process.stdin.close()
        process.wait(timeout=30)
    if "result" not in json.loads(reply):
        raise RuntimeError(f"{command} answered {reply!r}")
    return took


async def bare_reader(code: str) -> tuple[float, int]:
    """A stock kernel that prints, and a loop that reads it and nothing else: CPU seconds of the loop, and bytes seen.

    No high-water marks: with the usual ones a reader like this loses output.
    """
    manager, client = await start_kernel(receive_all=True)
    try:
        seconds = []
        for one in ("print(1)", code):
            begun, seen = time.process_time(), 0
            request = client.execute(one, reply=False)
            while True:
                message = await client.get_iopub_msg(timeout=60)
                if message["parent_header"].get("msg_id") != request:
                    continue
                if message["msg_type"] == "stream":
                    seen += len(message["content"]["text"])
                elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
            seconds.append(time.process_time() - begun)
        return seconds[1] - seconds[0], seen
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def plain_venv(folder: Path, packages: Sequence[str], wanted: Sequence[str]) -> Path:
    """The interpreter of a new virtualenv with `wanted` at the versions of `packages`, bytecode compiled."""
    said_by([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    constraints = folder / "pins.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in packages))
    uv = [program("uv"), "pip", "install", "--quiet", "--compile-bytecode", "-c", constraints, "--python", python]
    said_by([*uv, *wanted])
    return python


def uv_install(package: str, cache: str | None, *more: str) -> float:
    """Milliseconds of `uv pip install`, with `more` options, into a new venv; a cache of its own, or the user's."""
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        python = f"{folder}/venv/bin/python"
        said_by([program("uv"), "venv", "--quiet", f"{folder}/venv"])
        uv = [program("uv"), "pip", "install", "--quiet", *more, "--python", python, package]
        begun = time.perf_counter()
        said_by(uv, **({"UV_CACHE_DIR": cache} if cache else {}))
        return (time.perf_counter() - begun) * 1000


# ------------------------------------------------------------------------------------------------ ipybox


@asynccontextmanager
async def ipybox() -> AsyncIterator[Client]:
    """A client of ipybox's MCP server, installed for this into a virtualenv below the user's cache."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prims-benchmarks" / "ipybox"
    if not (folder / "bin" / "ipybox").exists():
        said_by([program("uv"), "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        # Its MCP client is that of the library's first version.
        said_by([program("uv"), "pip", "install", "--quiet", "--python", folder / "bin" / "python", "ipybox", "mcp<2"])
    command = [str(folder / "bin" / "ipybox"), "--workspace", str(folder), "--log-level", "ERROR"]
    async with client_of(command, mode="legacy") as client:
        await ipybox_call(client, "print(1)")
        yield client


async def ipybox_call(client: Client, code: str) -> Any:
    """One cell; it must succeed."""
    result = await client.call_tool("execute_ipython_cell", {"code": code})
    if result.is_error:
        raise RuntimeError(f"ipybox failed: {result.content}")
    return result
