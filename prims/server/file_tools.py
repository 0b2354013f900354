"""The tools for files: mount_file, list_dir, preview_file, persist_artifact."""

from __future__ import annotations

import base64
import os
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent, ToolAnnotations

from prims.errors import Refused
from prims.kernel.text import plain, tellable
from prims.server.arguments import Parameter
from prims.server.render import count_bytes, file_uri
from prims.session.table import Mounted, locate, open_file
from prims.session.workspace import checked_parts, list_folder

if TYPE_CHECKING:
    from prims.kernel.looking import Look, Sheet
    from prims.server.tools import Call

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_LOOK = {
    "kind": _TEXT,
    "encoding": _TEXT,
    "lines": _COUNT,
    "rows": _COUNT,
    "rows_exact": {"type": "boolean"},
    "columns": {"type": "array", "items": {"type": "object", "properties": {"name": _TEXT, "type": _TEXT}}},
    "sheets": {
        "type": "array",
        "items": {"type": "object", "properties": {"name": _TEXT, "rows": _COUNT, "columns": _COUNT}},
    },
    "entries": {"type": "array", "items": {"type": "object", "properties": {"name": _TEXT, "size": _COUNT}}},
    "width": _COUNT,
    "height": _COUNT,
    "notes": {"type": "array", "items": _TEXT},
}


@dataclass(frozen=True, slots=True)
class FileTool:
    """A tool as it is listed, and what answers it."""

    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    output_schema: dict[str, Any]
    annotations: ToolAnnotations
    handler: Callable[[Call], Awaitable[CallToolResult]]


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**properties, "session_id": _TEXT},
        "required": [*required, "session_id"],
    }


def _answer(call: Call, lines: list[str], structured: dict[str, Any], *more: ContentBlock) -> CallToolResult:
    text = "\n".join([*lines, f"[session_id: {call.session.id}]"])
    return CallToolResult(
        content=[TextContent(type="text", text=text), *more],
        structured_content={**structured, "session_id": call.session.id},
    )


# ---------------------------------------------------------------------------------------------- mount_file


async def mount(call: Call, url: str, mount_path: str, *, replace: bool) -> tuple[str, Mounted]:
    """Put the file at `url` into mounts/; gives its path in the workspace and what it is.

    The same url at the same path is had once. Refused is another content at a path that is taken, unless `replace`.
    """
    from prims.session.addresses import Reach
    from prims.session.transfer import fetch

    session, settings = call.session, call.settings
    parts = checked_parts(unicodedata.normalize("NFC", mount_path))
    if parts[0] == "mounts" and len(parts) > 1:
        parts = parts[1:]
    name = "/".join(parts)
    if not tellable(name):
        raise Refused(f"{mount_path!r} holds control characters; give a plain file name.")
    async with session.mounting:
        known = session.mounted.get(name)
        if known is not None and known.url == url and not replace:
            return f"mounts/{name}", known
        taken = sum(m.bytes for m in session.mounted.values())
        room = settings.download_bytes
        if settings.workspace_bytes is not None:
            room = min(room, settings.workspace_bytes - taken)
        if room <= 0:
            raise Refused("This session's mounts are full (workspace_bytes); end it, or mount less.")
        scratch = session.folder / "incoming"
        scratch.unlink(missing_ok=True)
        reach = Reach(settings.allow_host, tuple(Path(folder) for folder in settings.allow_dir))
        try:
            fetched = await fetch(url, scratch, reach=reach, most_bytes=room, seconds=settings.transfer_seconds)
            if known is not None and known.sha256 != fetched.sha256 and not replace:
                raise Refused(
                    f"mounts/{name} is already there with other content. Choose another mount_path, "
                    "or pass replace=true to put this one in its place."
                )
            await anyio.to_thread.run_sync(_place, scratch, session.mounts, parts)
        finally:
            scratch.unlink(missing_ok=True)
        mounted = Mounted(url, fetched.bytes, fetched.sha256, fetched.mime)
        session.mounted[name] = mounted
        return f"mounts/{name}", mounted


def _place(scratch: Path, mounts: Path, parts: list[str]) -> None:
    """Move a fetched file to its place. Only the server writes below mounts/."""
    target = mounts.joinpath(*parts)
    try:
        for parent in reversed(target.relative_to(mounts).parents[:-1]):
            (mounts / parent).mkdir(mode=0o755, exist_ok=True)
        scratch.chmod(0o444)
        scratch.rename(target)
    except OSError as problem:
        raise Refused(
            f"mounts/{'/'.join(parts)} cannot be made: {problem.strerror}. Choose another mount_path."
        ) from None


async def _mount_file(call: Call) -> CallToolResult:
    arguments = call.arguments
    path, mounted = await mount(
        call, arguments["url"], arguments["mount_path"], replace=arguments.get("replace", False)
    )
    look = await _look(call, path, "describe")
    structured: dict[str, Any] = {
        "mounted_as": path,
        "bytes": mounted.bytes,
        "sha256": mounted.sha256,
        "mime": mounted.mime or look.mime,
        **_look_fields(look),
    }
    lines = [f"{path}: {structured['mime']}, {count_bytes(mounted.bytes)}, read-only", *_look_lines(look)]
    return _answer(call, lines, structured)


# ---------------------------------------------------------------------------------------------- list_dir


async def _list_dir(call: Call) -> CallToolResult:
    wanted = call.arguments.get("dir_path", "")
    if wanted.strip("/.") == "" and ".." not in wanted and not wanted.startswith("/"):
        where: tuple[Path, list[str], str] = (call.session.files, [], "")
    else:
        where = locate(call.session, wanted)
    root, parts, shown = where
    entries, left_out = await anyio.to_thread.run_sync(list_folder, root, parts, shown)
    listed = []
    for entry in entries:
        # The link to the inputs is, for its readers, the folder that it leads to.
        kind = "directory" if entry.path == "mounts" else entry.type
        modified = datetime.fromtimestamp(entry.modified, UTC).isoformat(timespec="seconds")
        listed.append({"name": entry.name, "path": entry.path, "type": kind, "size": entry.size, "modified": modified})
    lines = []
    for e in listed[:200]:
        about = count_bytes(int(str(e["size"]))) if e["type"] == "file" else e["type"]
        lines.append(f"{e['path']}/" if e["type"] == "directory" else f"{e['path']} ({about})")
    more = left_out + max(0, len(listed) - 200)
    lines += [f"and {more} more"] if more else []
    return _answer(call, lines or [f"{shown or 'the workspace'} is empty."], {"entries": listed, "left_out": left_out})


# ---------------------------------------------------------------------------------------------- preview_file


async def _preview_file(call: Call) -> CallToolResult:
    arguments, session = call.arguments, call.session
    limit = arguments.get("limit") or 8000
    look = await _look(call, arguments["relative_path"], "preview", arguments.get("offset", 0), limit)
    _, _, name = locate(session, arguments["relative_path"])
    structured: dict[str, Any] = {
        "name": name.rsplit("/", 1)[-1],
        "path": name,
        "size": look.size,
        "mime": look.mime,
        "text": look.text,
        "truncated": look.next_offset is not None,
        "offset": look.offset,
        "uri": file_uri(session.id, name),
        **_look_fields(look),
    }
    if look.next_offset is not None:
        structured["next_offset"] = look.next_offset
    lines = [f"{name}: {look.mime}, {count_bytes(look.size)}", *_look_lines(look)]
    if look.next_offset is not None:
        lines.append(f"(more with offset={look.next_offset})")
    images: list[ContentBlock] = []
    if look.image is not None and look.image_mime is not None:
        data = base64.b64encode(look.image).decode("ascii")
        images.append(ImageContent(type="image", data=data, mime_type=look.image_mime))
    return _answer(call, lines, structured, *images)


async def _look(call: Call, relative: str, want: str, offset: int = 0, limit: int = 2000) -> Look:
    session = call.session
    root, parts, _ = locate(session, relative)
    # Opened first: what is not a plain file of the workspace is refused before anything looks at it.
    os.close(await anyio.to_thread.run_sync(open_file, session, relative))
    return await call.table.look(session, root, "/".join(parts), want, offset, limit)


def _look_fields(look: Look) -> dict[str, Any]:
    """What is known of a file, without what is not."""
    fields: dict[str, Any] = {"kind": look.kind, "notes": list(look.notes)}
    for name in ("encoding", "lines", "rows", "width", "height"):
        value = getattr(look, name)
        if value is not None:
            fields[name] = value
    if look.rows is not None:
        fields["rows_exact"] = look.rows_exact
    if look.columns:
        fields["columns"] = [{"name": c.name, "type": c.type} for c in look.columns]
    if look.sheets:
        fields["sheets"] = [_known(name=s.name, rows=s.rows, columns=s.columns) for s in look.sheets]
    if look.entries:
        fields["entries"] = [_known(name=e.name, size=e.size) for e in look.entries]
    return fields


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _look_lines(look: Look) -> list[str]:
    lines = []
    # What a plain open() does not read is told.
    other = look.encoding if look.encoding not in (None, "utf-8", "ascii") else ""
    if look.rows is not None:
        about = "" if look.rows_exact else "about "
        columns = len(look.columns) + look.columns_left_out
        lines.append(f"{about}{_counted(look.rows, 'row')}, {_counted(columns, 'column')}{other and f', {other}'}")
    elif look.lines is not None:
        lines.append(_counted(look.lines, "line") + (f", {look.encoding}" if look.encoding else ""))
    elif other:
        lines.append(f"encoding {other}")
    if look.columns:
        names = ", ".join(f"{c.name} ({c.type})" for c in look.columns[:60])
        rest = len(look.columns) - 60 + look.columns_left_out
        lines.append(f"columns: {names}" + (f" and {rest} more" if rest > 0 else ""))
    if look.sheets:
        lines.append("sheets: " + ", ".join(map(_sheet, look.sheets[:30])))
    if look.width is not None and look.height is not None:
        lines.append(f"{look.width}x{look.height} px")
    if look.text:
        lines.append(look.text)
    elif look.entries:
        lines += [
            f"- {e.name}" + (f" ({count_bytes(e.size)})" if e.size is not None else "") for e in look.entries[:50]
        ]
    return lines + [f"note: {note}" for note in look.notes]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _sheet(sheet: Sheet) -> str:
    if sheet.rows is None:
        return sheet.name
    return f"{sheet.name} ({_counted(sheet.rows, 'row')}, {_counted(sheet.columns or 0, 'column')})"


# ---------------------------------------------------------------------------------------------- persist_artifact


async def _persist_artifact(call: Call) -> CallToolResult:
    from prims.session.addresses import Reach
    from prims.session.upload import put

    arguments, settings = call.arguments, call.settings
    descriptor = await anyio.to_thread.run_sync(open_file, call.session, arguments["relative_path"])
    try:
        size = os.fstat(descriptor).st_size
        stored = await put(
            descriptor,
            size,
            arguments["presigned_url"],
            headers=arguments.get("headers", {}),
            reach=Reach(settings.allow_host),
            most_bytes=settings.upload_bytes,
            seconds=settings.transfer_seconds,
        )
    finally:
        os.close(descriptor)
    structured: dict[str, Any] = {"uploaded_bytes": size, "status": stored.status}
    if stored.etag:
        structured["etag"] = plain(stored.etag)[:200]
    return _answer(
        call, [f"Uploaded {arguments['relative_path']}: {size:,} bytes, status {stored.status}."], structured
    )


_PATH = "Path from the workspace, such as output/table.csv or mounts/data.csv."

TOOLS = (
    FileTool(
        "mount_file",
        "Bring a file in",
        "Download a file into mounts/, where code reads it (read-only), and describe it: size, hash, type, and rows "
        "and columns, sheets, pixels or entries. https and http URLs of public hosts, data: URLs, and local paths that "
        "the operator allowed. The same URL at the same path is downloaded once.",
        (
            Parameter("url", "text", "Where the file is.", required=True),
            Parameter("mount_path", "text", "Its path below mounts/, such as data.csv.", required=True),
            Parameter("replace", "flag", "Put it in place of a file of that name with other content."),
        ),
        _schema(
            ["mounted_as", "bytes", "sha256", "mime"], mounted_as=_TEXT, bytes=_COUNT, sha256=_TEXT, mime=_TEXT, **_LOOK
        ),
        ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True),
        _mount_file,
    ),
    FileTool(
        "list_dir",
        "List files",
        "List a folder of the session's workspace: the working directory of code, with mounts/ (inputs) and output/ "
        "(results).",
        (Parameter("dir_path", "text", "The folder, such as output; the workspace itself when not given."),),
        _schema(
            ["entries"],
            entries={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": _TEXT,
                        "path": _TEXT,
                        "type": {"type": "string", "enum": ["file", "directory", "link", "other"]},
                        "size": _COUNT,
                        "modified": _TEXT,
                    },
                    "required": ["name", "path", "type", "size", "modified"],
                },
            },
            left_out=_COUNT,
        ),
        ToolAnnotations(read_only_hint=True, open_world_hint=False),
        _list_dir,
    ),
    FileTool(
        "preview_file",
        "Look at a file",
        "Show a file of the workspace within a budget: text by slices, tables as a short table, pictures as a picture, "
        "archives and notebooks as an outline, anything else as type, size and first bytes.",
        (
            Parameter("relative_path", "text", _PATH, required=True),
            Parameter("offset", "count", "Where to begin: bytes of a text, rows of a table; as next_offset told."),
            Parameter("limit", "count", "Most characters of text to show; 8000 when not given."),
        ),
        _schema(
            ["name", "path", "size", "mime", "text", "truncated", "offset"],
            name=_TEXT,
            path=_TEXT,
            size=_COUNT,
            mime=_TEXT,
            text=_TEXT,
            truncated={"type": "boolean"},
            offset=_COUNT,
            next_offset=_COUNT,
            uri=_TEXT,
            **_LOOK,
        ),
        ToolAnnotations(read_only_hint=True, open_world_hint=False),
        _preview_file,
    ),
    FileTool(
        "persist_artifact",
        "Upload a result",
        "Upload a file of the workspace to a presigned URL by PUT, with its exact length and only the headers you "
        "give: name those that the URL was signed with, such as Content-Type.",
        (
            Parameter("relative_path", "text", _PATH, required=True),
            Parameter("presigned_url", "text", "Where to PUT the file.", required=True),
            Parameter("headers", "headers", "Headers that the URL was signed with."),
        ),
        _schema(["uploaded_bytes", "status"], uploaded_bytes=_COUNT, status=_COUNT, etag=_TEXT),
        ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True),
        _persist_artifact,
    ),
)
