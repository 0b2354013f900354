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
from prims.isolation.self_protection import protect_server
from prims.server.host import Host, running_host
from prims.server.mending import Item, mend
from prims.server.tools import make_server

# Together with the closing this stays below the two seconds that clients give a server to end.
_ANSWER_SECONDS = 2.0
_WRITE_SECONDS = 0.05
_CLOSE_SECONDS = 10.0  # it needs a tenth of one; who is in a hurry kills what has not ended


def serve(settings: Settings) -> int:
    """Serve until stdin ends or a signal comes; gives the exit status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="prims: %(levelname)s: %(message)s")
    protect_server()
    anyio.run(_serve, settings)
    return 0


async def _serve(settings: Settings) -> None:
    leaving = anyio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    async with running_host(settings) as host:
        server = make_server(host)
        async with stdio_server() as (read, write), anyio.create_task_group() as group:
            group.start_soon(_leave, leaving, host)
            into, mended = anyio.create_memory_object_stream[Item](0)
            group.start_soon(mend, read, write, into)
            async with mended:
                await server.run(mended, write, server.create_initialization_options())
            group.cancel_scope.cancel()


async def _leave(leaving: anyio.Event, host: Host) -> None:
    """On a signal: answer the calls under way with what their runs gave until now, clean up, and be gone."""
    await leaving.wait()
    host.stop_runs()
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(_ANSWER_SECONDS):
            await host.until_no_calls()
            await anyio.sleep(_WRITE_SECONDS)
        with anyio.move_on_after(_CLOSE_SECONDS):
            await host.close()
    sys.stderr.flush()
    # The thread that reads stdin cannot be woken, and would hold up every orderly end for ever.
    os._exit(0)
