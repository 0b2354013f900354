"""The MCP App: what the server says of it."""

from __future__ import annotations

import base64
import gzip

import pytest
from mcp.client import Client

from prims.server import app


@pytest.mark.anyio
async def test_the_tool_leads_to_the_page(client: Client) -> None:
    (run_code,) = [tool for tool in (await client.list_tools()).tools if tool.name == "run_code"]
    assert run_code.meta == {"ui": {"resourceUri": app.URI}, "ui/resourceUri": app.URI}
    listed = {str(resource.uri): resource for resource in (await client.list_resources()).resources}
    page = (await client.read_resource(app.URI)).contents[0]
    assert page.mime_type == listed[app.URI].mime_type == "text/html;profile=mcp-app"
    assert page.meta == listed[app.URI].meta
    assert page.meta["ui"]["csp"] == {"connectDomains": [], "resourceDomains": []}
    assert len(page.text) < 150_000


@pytest.mark.anyio
async def test_the_libraries_fit_into_one_message(client: Client) -> None:
    for name in ("plotly", "vega"):
        library = (await client.read_resource(f"ui://prims/{name}.js")).contents[0]
        assert len(library.blob) < 700_000
        assert len(gzip.decompress(base64.b64decode(library.blob))) > 500_000
