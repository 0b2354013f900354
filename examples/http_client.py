"""A client over streamable HTTP with nothing hidden: the token, progress while code runs, two clients at once.

    python examples/http_client.py [SERVER_URL]

A token, when the server wants one, is in the environment variable PRIMS_TOKEN.
"""

import os

import anyio
import httpx2
from _server import server_url
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

CODE = """
import time

for step in range(3):
    print("{name} is at", step, flush=True)
    time.sleep(0.5)
"""


async def one(url: str, name: str) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        for line in (message or "").splitlines():
            print(f"  while it runs: {line}")

    token = os.environ.get("PRIMS_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=600) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        code = CODE.replace("{name}", name)
        result = await client.call_tool("run_code", {"code": code}, progress_callback=heard)
        run = result.structured_content
        print(f"{name}: {run['status']}, {len(run['stdout'].splitlines())} lines, a session of its own")


async def main() -> None:
    with server_url() as url:
        async with anyio.create_task_group() as group:
            for name in ("Ada", "Grace"):
                group.start_soon(one, url, name)


anyio.run(main)
