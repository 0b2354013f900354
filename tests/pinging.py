"""`python -m tests.pinging URL`: how long a server takes to answer, and a bare process beside it, until stdin ends.

A process of its own, so that what the tests do meanwhile does not count. Prints the longest of both, in seconds, and
the number of answers, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import anyio
import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

_WORK_SECONDS = 0.02  # of a processor, which is what an answer takes


def echo(channel: socket.socket) -> None:
    """Answer with a byte for each, after some work."""
    while channel.recv(1):
        until = time.process_time() + _WORK_SECONDS
        while time.process_time() < until:
            pass
        channel.send(b"x")


def asked(channel: socket.socket) -> float:
    began = time.monotonic()
    channel.send(b"x")
    channel.recv(1)
    return time.monotonic() - began


async def measure(url: str, channel: socket.socket) -> None:
    pings, echoes = list[float](), list[float]()
    async with (
        httpx2.AsyncClient(timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
        anyio.create_task_group() as group,
    ):
        await client.list_tools()
        print("ready", flush=True)

        async def until_told() -> None:
            await anyio.wait_readable(sys.stdin)
            group.cancel_scope.cancel()

        group.start_soon(until_told)
        while True:
            began = time.monotonic()
            await client.list_tools()
            pings.append(time.monotonic() - began)
            echoes.append(await anyio.to_thread.run_sync(asked, channel))
            await anyio.sleep(0.05)
    print(json.dumps([max(pings), max(echoes), len(pings)]))


def main() -> None:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        echo(theirs)
        os._exit(0)
    theirs.close()
    anyio.run(measure, sys.argv[1], ours)


if __name__ == "__main__":
    main()
