"""Which server the examples talk to: the one whose URL is the first argument, else a new one on a free port.

A token, when the server wants one, is in the environment variable PRIMS_TOKEN.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client


@contextmanager
def server_url(*arguments: str) -> Iterator[str]:
    """The URL of a server: the first argument's, or a new `prims serve` with `arguments` that ends with the block."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    command = [sys.executable, "-m", "prims", "serve", "--transport", "http", "--port", "0", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr.readline, "")
            url = next((found[1] for found in (re.search(r"serving (http\S+)", line) for line in lines) if found), None)
            if url is None:
                raise SystemExit("The server did not start; `prims serve --transport http --port 0` says why.")
            rest = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr))
            rest.start()
            yield url
        finally:
            process.terminate()
        rest.join()


def http_client() -> httpx2.AsyncClient:
    """An HTTP client that sends the token, and waits for long runs."""
    token = os.environ.get("PRIMS_TOKEN")
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=600)


@asynccontextmanager
async def connect(*arguments: str) -> AsyncIterator[Client]:
    """An MCP client of that server; `arguments` are for a new one."""
    with server_url(*arguments) as url:
        async with http_client() as http, Client(streamable_http_client(url, http_client=http)) as client:
            yield client
