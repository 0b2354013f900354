"""The MCP App: a page that shows a run to the person, for clients that support it (SEP-1865).

Clients without it see one more resource in a list. The page is built from app/ of the repository.
"""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files
from typing import Any

from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import BlobResourceContents, ReadResourceResult, Resource, TextResourceContents

URI = "ui://prims/run.html"
EXTENSIONS: dict[str, dict[str, Any]] = {EXTENSION_ID: {}}
"""What a server says of itself in its capabilities."""

# Hosts before the extension was final look for the flat name.
TOOL_META: dict[str, Any] = {"ui": {"resourceUri": URI}, "ui/resourceUri": URI}
# All that the page needs is in it, or is read through the host.
_PAGE_META: dict[str, Any] = {"ui": {"csp": {"connectDomains": [], "resourceDomains": []}, "prefersBorder": True}}

PAGE = Resource(
    uri=URI,
    name="run.html",
    title="A run, for people",
    description="Shows a result of run_code in clients that support MCP Apps.",
    mime_type=APP_MIME_TYPE,
    _meta=_PAGE_META,
)

# Read by the page when a result needs them. Packed, so that they fit into one message of any client.
_LIBRARIES = {"ui://prims/plotly.js": "plotly.js.gz", "ui://prims/vega.js": "vega.js.gz"}


@cache
def _read(name: str) -> bytes:
    return files("prims.server").joinpath("app_view", name).read_bytes()


def read(uri: str) -> ReadResourceResult | None:
    """The resource of the app behind a uri; `None` when it is no such uri."""
    contents: TextResourceContents | BlobResourceContents
    if uri == URI:
        contents = TextResourceContents(
            uri=uri, mime_type=APP_MIME_TYPE, text=_read("run.html").decode(), _meta=_PAGE_META
        )
    elif uri in _LIBRARIES:
        packed = base64.b64encode(_read(_LIBRARIES[uri])).decode("ascii")
        contents = BlobResourceContents(uri=uri, mime_type="application/gzip", blob=packed)
    else:
        return None
    return ReadResourceResult(contents=[contents])
