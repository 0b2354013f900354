"""What the tests share: a real server as a child process, real MCP clients of both eras, and a look for leftovers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent

SECONDS = 90.0
"""Bound of every wait on a server; far above what any needs."""

ERAS = ("2026-07-28", "legacy")


def server_parameters(state: Path, *arguments: str, env: Mapping[str, str] | None = None) -> StdioServerParameters:
    """A `prims serve` of this checkout on the tests' interpreter, its folders below `state`."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "prims", "serve", *arguments],
        env={**server_environment(state), **(env or {})},
        cwd=str(state),
    )


def server_environment(state: Path) -> dict[str, str]:
    """The environment of a server under test: the machine's, without what redirects Python or PRIMS."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PRIMS_", "PYTEST"))}
    return {**kept, "PRIMS_STATE_DIR": str(state)}


@asynccontextmanager
async def connected(
    state: Path, *arguments: str, mode: str = "auto", env: Mapping[str, str] | None = None, errlog: Any = None
) -> AsyncIterator[Client]:
    """A client of a new server over stdio; both end with the block."""
    parameters = server_parameters(state, *arguments, env=env)
    with (state / "stderr.log").open("a") as log:
        async with Client(stdio_client(parameters, errlog=errlog or log), mode=mode) as client:  # type: ignore[arg-type]
            yield client


async def run_code(client: Client, code: str, /, **arguments: Any) -> CallToolResult:
    """Call run_code; the wait is bounded."""
    with anyio.fail_after(SECONDS):
        result = await client.call_tool("run_code", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result


def text_of(result: CallToolResult) -> str:
    """All text blocks of a result."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def processes_with(marker: str) -> list[str]:
    """Command lines of live processes on this machine that hold `marker` (zombies and this process apart)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if marker in line:
                found.append(line.strip())
    return found
