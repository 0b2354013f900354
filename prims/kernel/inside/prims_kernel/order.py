"""Keep text and displays in the order in which the code made them, though they travel on different ways.

Text goes through pipes, displays through iopub. Before a display (or a clear, a result, an error) is published, a mark
with a running number is written to both pipes, and the message carries the same number: the reader then knows which
text came before. The mark is an OSC sequence, which the reader removes from text anyhow.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import types
from collections.abc import Iterator
from json import dumps, loads
from typing import Any

import jupyter_client.session
from jupyter_client.session import Session

from prims_kernel import streams, twins

ORDERED = {"display_data", "update_display_data", "execute_result", "clear_output", "error"}
KEY = "prims_order"
# Larger messages would be cut off by the server's limit, together with all that follows; say so instead.
LARGEST = 16 << 20


def _dumps(value: Any, **kwargs: Any) -> str:
    """A message as JSON that can be sent: halves of pairs of surrogates are no text, and come in data of the web."""
    text = dumps(value, **kwargs)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# Code may put others in the place of these two; the kernel must be able to answer then, too.
jupyter_client.session.json = types.SimpleNamespace(dumps=_dumps, loads=loads)

_pipes: list[int] = []
_pid = 0
_lock = threading.Lock()
_count = 0
_muted = False


def begin() -> None:
    """Look at the process that this is: a forked kernel is another one than that which has imported this."""
    global _pipes, _pid
    _pipes, _pid = [os.dup(1), os.dup(2)], os.getpid()


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Nothing is displayed meanwhile."""
    global _muted
    before, _muted = _muted, True
    try:
        yield
    finally:
        _muted = before


def mark() -> int:
    """Write the next mark to both pipes and give its number."""
    global _count
    streams.flush()
    with _lock:
        _count += 1
        for pipe in _pipes:
            with contextlib.suppress(OSError):
                os.write(pipe, b"\x1b]prims;%d\x07" % _count)
        return _count


def _json(value: Any) -> Any:
    """A value as JSON can carry it: what JSON does not know becomes null or text."""
    try:
        dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _plain(value, 0)
    return value


def _plain(value: Any, depth: int) -> Any:
    if depth > 50:
        return "..."
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(inner, depth + 1) for inner in value]
    return str(value)


def _bounded(content: dict[str, Any]) -> dict[str, Any]:
    """The content without data that is too large to travel."""
    data = content.get("data")
    if not isinstance(data, dict):
        return content
    data = {str(mime): value if isinstance(value, (str, bytes)) else _json(value) for mime, value in data.items()}
    sizes = {mime: len(v) if isinstance(v, (str, bytes)) else len(dumps(v)) for mime, v in data.items()}
    large = {mime: size for mime, size in sizes.items() if size > LARGEST}
    if not large:
        return {**content, "data": data}
    smaller = twins.smaller_picture(data["image/png"]) if "image/png" in large else None
    note = "; ".join(f"{mime} of {size / 1e6:.0f} MB was too large to show" for mime, size in large.items())
    kept = {mime: v for mime, v in data.items() if mime not in large}
    if smaller is not None:
        kept["image/png"] = smaller
    copy = "; this is a smaller copy" if smaller is not None else ""
    note = f"[{note}: save it to a file in output/{copy}]"
    kept["text/plain"] = f"{str(kept.get('text/plain', ''))[:1000]}\n{note}".strip()
    return {**content, "data": kept}


def _from_child(msg_or_type: Any, content: Any) -> None:
    """A forked child has no sockets of its own: what it shows becomes text."""
    content = msg_or_type.get("content") if isinstance(msg_or_type, dict) else content
    data = twins.complete(content).get("data") if isinstance(content, dict) else None
    if isinstance(data, dict) and "text/plain" in data:
        print(data["text/plain"], flush=True)
    if isinstance(data, dict) and any(mime.startswith("image/") for mime in data):
        print("A picture of a child process cannot be shown: save it to output/.", file=sys.stderr, flush=True)


class OrderedSession(Session):  # type: ignore[misc]
    """A session that marks what must keep its place among the text."""

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != _pid:
            return _from_child(msg_or_type, content)
        if _muted and "display_data" in (msg_or_type, isinstance(msg_or_type, dict) and msg_or_type.get("msg_type")):
            return None
        if isinstance(msg_or_type, dict):
            if msg_or_type.get("header", {}).get("msg_type") in ORDERED:
                msg_or_type["content"] = _bounded(twins.complete(msg_or_type["content"]))
                msg_or_type["metadata"] = {**msg_or_type.get("metadata", {}), KEY: mark()}
        elif msg_or_type in ORDERED:
            content = _bounded(twins.complete(content or {}))
            kwargs["metadata"] = {**(kwargs.get("metadata") or {}), KEY: mark()}
        return super().send(stream, msg_or_type, content, *args, **kwargs)
