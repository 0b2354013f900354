"""Workspace files as MCP resources: `prims://{session_id}/files/{+path}`."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from urllib.parse import unquote

import aiofiles
import anyio.to_thread
from mcp.types import (
    BlobResourceContents,
    ReadResourceResult,
    ResourceTemplate,
    TextResourceContents,
)

from prims.errors import Refused
from prims.session.table import SessionTable, open_file

TEMPLATE = ResourceTemplate(
    uri_template="prims://{session_id}/files/{+path}",
    name="workspace file",
    title="A file of a session's workspace",
    description="A file that code made, by the uri that a result of run_code gives.",
)
# As base64 in one message with its frame, this stays below what clients take in one piece.
LARGEST_BYTES = 500_000
_URI = re.compile(r"prims://(?P<session>[A-Za-z0-9_-]{1,100})/files/(?P<path>.+)", re.DOTALL)


async def read(table: SessionTable, uri: str, principal: str | None) -> ReadResourceResult:
    """The file behind a uri, as text when it is text.

    Raises:
        Refused: no such uri, session or file, or the file is too large for one message.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise Refused(f"There is no resource {uri[:200]!r}; files are prims://SESSION_ID/files/PATH.")
    session = table.get(match["session"], principal)
    path = unquote(match["path"])
    descriptor = await anyio.to_thread.run_sync(open_file, session, path)
    async with aiofiles.open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        data = await file.read(LARGEST_BYTES + 1) if size <= LARGEST_BYTES else b""
    if size > LARGEST_BYTES or len(data) > LARGEST_BYTES:
        raise Refused(f"{path!r} has {size:,} bytes; at most {LARGEST_BYTES:,} can be read as a resource.")
    mime = mimetypes.guess_type(path, strict=False)[0]
    try:
        text = data.decode("utf-8") if not (mime or "").startswith(("image/", "audio/", "video/")) else None
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" not in text:
        contents = TextResourceContents(uri=uri, mime_type=mime or "text/plain", text=text)
        return ReadResourceResult(contents=[contents])
    blob = base64.b64encode(data).decode("ascii")
    return ReadResourceResult(
        contents=[BlobResourceContents(uri=uri, mime_type=mime or "application/octet-stream", blob=blob)]
    )
