"""What clients send that the SDK drops without a word: made whole where it can be, else answered, as somebody waits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.context import ServerRequestContext
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

Item = SessionMessage | Exception


async def mend(read: AsyncIterator[Item], write: Any, mended: MemoryObjectSendStream[Item]) -> None:
    """Pass a client's messages on; requests that are none are answered.

    Lone surrogates, as clients in JavaScript make of a cut emoji, become question marks; a byte order mark goes; a
    batch becomes its messages. A line in which no request can be found stays without an answer, as in the SDK.
    """
    async with mended:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for item in read:
                if not isinstance(item, ValidationError):
                    await mended.send(item)
                    continue
                for message in _messages(item):
                    try:
                        whole = jsonrpc_message_adapter.validate_python(message, by_name=False)
                        await mended.send(SessionMessage(whole))
                    except ValidationError:
                        if isinstance(message, dict) and isinstance(id := message.get("id"), (str, int)):
                            error = ErrorData(code=INVALID_REQUEST, message="Invalid Request")
                            await write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=error)))


def _messages(problem: ValidationError) -> list[Any]:
    """What was in a line that the SDK could not read."""
    inputs = [error["input"] for error in problem.errors(include_url=False, include_context=False)]
    line = next((value for value in inputs if isinstance(value, dict) and "id" in value), inputs[0])
    try:
        value = json.loads(line.lstrip("\ufeff")) if isinstance(line, str) else line
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else [value]


def mended_context(context: ServerRequestContext[Any, Any]) -> ServerRequestContext[Any, Any]:
    """A request with arguments that came as JSON text, or with a progress token that is null, as it was meant."""
    params = dict(context.params or {})
    if isinstance(text := params.get("arguments"), str):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(arguments := json.loads(text), dict):
                params["arguments"] = arguments
    meta = params.get("_meta")
    if isinstance(meta, dict) and "progressToken" in meta and meta["progressToken"] is None:
        params["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}
    return replace(context, params=params) if params != (context.params or {}) else context
