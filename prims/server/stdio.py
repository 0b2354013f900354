"""MCP over stdio: nothing but protocol on stdout, and a prompt end on EOF, SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import anyio
from mcp.server.stdio import stdio_server

from prims.config import Settings
from prims.isolation.probe import protect_server
from prims.server.host import running_host
from prims.server.tools import make_server


def serve(settings: Settings) -> int:
    """Serve until stdin ends or a signal comes; gives the exit status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="prims: %(levelname)s: %(message)s")
    protect_server()
    anyio.run(_serve, settings)
    return 0


async def _serve(settings: Settings) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        async with running_host(settings) as host:
            server = make_server(host)
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
    finally:
        if task.cancelling():
            # The thread that reads stdin cannot be woken and would hold up the interpreter's own end.
            sys.stderr.flush()
            os._exit(0)
