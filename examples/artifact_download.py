"""Download what code left in output/, by plain HTTP with the same token: whole, and a part.

    python examples/artifact_download.py [SERVER_URL [FOLDER]]

The files go to FOLDER when one is named.
"""

import sys
from pathlib import Path

import anyio
from _server import http_client, server_url
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

CODE = """
import os

os.makedirs("output/pages")
open("output/pages/report.html", "w").write("<h1>Report</h1>")
open("output/numbers.csv", "w").write("n\\n" + "".join(f"{n}\\n" for n in range(1000)))
"""


async def main() -> None:
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with server_url() as url:
        async with http_client() as http, Client(streamable_http_client(url, http_client=http)) as client:
            run = (await client.call_tool("run_code", {"code": CODE})).structured_content
            for file in run["artifacts"]:
                path = file["relative_path"].removeprefix("output/")
                address = f"{url.removesuffix('/mcp')}/artifacts/{run['session_id']}/{path}"
                answer = (await http.get(address)).raise_for_status()
                print(f"{path}: {len(answer.content)} bytes of {answer.headers['content-type']}")
                part = await http.get(address, headers={"Range": "bytes=0-3"})
                print(f"    {part.status_code}, the first four: {part.text!r}")
                if folder:
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(answer.content)


anyio.run(main)
