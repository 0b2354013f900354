"""What a session has as MCP resources: the files of its workspace, and itself as a notebook."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from urllib.parse import parse_qs, unquote

import aiofiles
import anyio.to_thread
from mcp.types import (
    BlobResourceContents,
    ReadResourceResult,
    ResourceTemplate,
    TextResourceContents,
)

from prims.errors import Refused
from prims.session.notebook import FORMS
from prims.session.table import Session, SessionTable, open_file

TEMPLATES = [
    ResourceTemplate(
        uri_template="prims://{session_id}/files/{+path}{?offset,limit}",
        name="workspace file",
        title="A file of a session's workspace",
        description="A file that code made, by the uri that a result of run_code gives. A large one is read in parts, "
        "by offset and limit in bytes.",
    ),
    *(
        ResourceTemplate(
            uri_template=f"prims://{{session_id}}/notebook.{suffix}{{?offset,limit}}",
            name=f"session as .{suffix}",
            title=form.title,
            description=f"{form.description} A large one is read in parts, by offset and limit in bytes.",
            mime_type=form.mime,
        )
        for suffix, form in FORMS.items()
    ),
]
# As base64 in one message with its frame, this stays below what clients take in one piece.
LARGEST_BYTES = 500_000
_URI = re.compile(
    r"prims://(?P<session>[A-Za-z0-9_-]{1,100})/(?:files/(?P<path>[^?]+)|notebook\.(?P<form>\w+))"
    r"(?:\?(?P<query>(?:(?:offset|limit)=\d{1,15}&?){1,2}))?",
    re.DOTALL,
)


async def read(table: SessionTable, uri: str, principal: str | None) -> ReadResourceResult:
    """What is behind a uri, as text when it is text.

    Raises:
        Refused: no such uri, session or file, or it is too large for one message.
    """
    match = _URI.fullmatch(uri)
    if match is None or (match["form"] and match["form"] not in FORMS):
        raise Refused(
            f"There is no resource {uri[:200]!r}; files are prims://SESSION_ID/files/PATH, and the session itself is "
            f"{', '.join(f'prims://SESSION_ID/notebook.{suffix}' for suffix in FORMS)}."
        )
    session = table.get(match["session"], principal)
    query = {name: int(value[-1]) for name, value in parse_qs(match["query"] or "").items()}
    offset, limit = query.get("offset", 0), min(query.get("limit", LARGEST_BYTES), LARGEST_BYTES)
    if form := match["form"]:
        whole = await table.export(session, form)
        data, size, mime = whole[offset : offset + limit], len(whole), FORMS[form].mime
    else:
        path = unquote(match["path"])
        data, size = await _part(session, path, offset, limit)
        mime = mimetypes.guess_type(path, strict=False)[0] or ""
    if not query and size > LARGEST_BYTES:
        raise Refused(
            f"{uri} has {size:,} bytes; read it in parts of at most {LARGEST_BYTES:,}, "
            f"such as {uri}?offset=0&limit={LARGEST_BYTES}."
        )
    try:
        # A part may begin and end within a character, so parts are bytes.
        as_bytes = query or mime.startswith(("image/", "audio/", "video/"))
        text = None if as_bytes else data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" not in text:
        contents = TextResourceContents(uri=uri, mime_type=mime or "text/plain", text=text)
        return ReadResourceResult(contents=[contents])
    blob = base64.b64encode(data).decode("ascii")
    return ReadResourceResult(
        contents=[BlobResourceContents(uri=uri, mime_type=mime or "application/octet-stream", blob=blob)]
    )


async def _part(session: Session, path: str, offset: int, limit: int) -> tuple[bytes, int]:
    """At most `limit` bytes of a file of the workspace, and how many it has."""
    descriptor = await anyio.to_thread.run_sync(open_file, session, path)
    async with aiofiles.open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        await file.seek(offset)
        return await file.read(limit), size
