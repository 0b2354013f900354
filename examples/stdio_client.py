"""A client that starts the server itself and speaks over its stdin and stdout, as desktop clients do.

    python examples/stdio_client.py

There is one session, which ends with the server: no session_id is needed.
"""

import os
import sys

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def main() -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "prims", "serve", "--run-seconds", "30"],
        env=dict(os.environ),
    )
    async with Client(stdio_client(server)) as client:
        print(f"{client.server_info.name} {client.server_info.version}")
        await client.call_tool("run_code", {"code": "open('output/kept.txt', 'w').write('kept')"})
        result = await client.call_tool("run_code", {"code": "open('output/kept.txt').read()"})
        print(result.structured_content["result"])

        result = await client.call_tool("run_code", {"code": "while True: pass", "timeout_seconds": 1})
        print(result.structured_content["status"])


anyio.run(main)
