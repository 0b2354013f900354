"""Files of the workspace as MCP resources."""

from __future__ import annotations

import base64

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from tests import kit


@pytest.mark.anyio
async def test_every_uri_of_a_result_can_be_read(client: Client) -> None:
    code = """
import os
import matplotlib.pyplot as plt
plt.plot([1, 2])
os.makedirs("output/sub dir", exist_ok=True)
open("output/sub dir/naïve ☃.txt", "w", encoding="utf-8").write("snow")
open("output/raw.bin", "wb").write(bytes(range(256)))
"""
    result = await kit.run_code(client, code)
    content = result.structured_content
    uris = {a["relative_path"]: a["uri"] for a in content["artifacts"]}
    text = (await client.read_resource(uris["output/sub dir/naïve ☃.txt"])).contents[0]
    assert text.text == "snow"
    raw = (await client.read_resource(uris["output/raw.bin"])).contents[0]
    assert base64.b64decode(raw.blob) == bytes(range(256))
    picture = (await client.read_resource(content["displays"][0]["uri"])).contents[0]
    assert picture.mime_type == "image/png"
    assert base64.b64decode(picture.blob).startswith(b"\x89PNG")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    ["../lock", "output/../../lock", "%2e%2e/lock", "output/link", "output", "output/fifo", "/etc/passwd", "a%00b"],
)
async def test_no_uri_leads_out_of_the_workspace(state: object, path: str) -> None:
    async with kit.connected(state) as client:  # type: ignore[arg-type]
        code = "import os\nos.symlink('/etc/passwd', 'output/link')\nos.mkfifo('output/fifo')"
        made = await kit.run_code(client, code)
        session = made.structured_content["session_id"]
        with pytest.raises(MCPError):
            await client.read_resource(f"prims://{session}/files/{path}")


@pytest.mark.anyio
async def test_a_large_file_is_read_in_parts(client: Client) -> None:
    result = await kit.run_code(client, "open('output/big.txt', 'w').write('0123456789' * 100_000)")
    uri = result.structured_content["artifacts"][0]["uri"]
    with pytest.raises(MCPError, match="offset=0"):
        await client.read_resource(uri)
    found = b""
    for offset in range(0, 1_000_000, 400_000):
        part = (await client.read_resource(f"{uri}?offset={offset}&limit=400000")).contents[0]
        found += base64.b64decode(part.blob)
    assert found == b"0123456789" * 100_000


@pytest.mark.anyio
async def test_results_link_to_the_files_of_the_run(client: Client) -> None:
    result = await kit.run_code(client, "open('output/a.csv', 'w').write('a,b')")
    (link,) = [block for block in result.content if block.type == "resource_link"]
    assert link.mime_type == "text/csv"
    assert link.size == 3
    assert (await client.read_resource(str(link.uri))).contents[0].text == "a,b"


@pytest.mark.anyio
async def test_a_session_that_is_not_ours_is_refused(client: Client) -> None:
    with pytest.raises(MCPError, match="session_id"):
        await client.read_resource("prims://s_00000000000000000000000000000000/files/output/a.txt")
