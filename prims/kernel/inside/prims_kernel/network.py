"""The network as code finds it: none, or a proxy that the usual variables name; and a note of what did not get out.

The proxy stands outside. This side makes the socket on which clients in here find it, and gives that away.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any

NOTES = "network.log"
_MOST = 20
_HERE = frozenset({"", "localhost", "localhost.localdomain", "0.0.0.0", "::", "::1", "sandbox"})

_notes = ""
_noted: set[str] = set()


def begin(folder: str, venv: str | None = None) -> None:
    """Connect this sandbox to its proxy, if its venv has the socket of one. What is blocked is noted in `folder`."""
    global _notes
    path = os.path.join(venv or sys.prefix, "proxy.sock")
    if os.path.exists(path):
        _hand_over(path)
    _notes = os.path.join(folder, NOTES)
    sys.addaudithook(_notice)


def _hand_over(path: str) -> None:
    """Make the socket on which clients find the proxy, and give it away."""
    with (
        socket.socket(socket.AF_UNIX) as door,
        socket.create_server(("127.0.0.1", 0), backlog=4096) as listener,
    ):
        door.connect(path)
        socket.send_fds(door, [b"listen"], [listener.fileno()])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ[name] = os.environ[name.upper()] = url
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"


def _notice(event: str, args: tuple[Any, ...]) -> None:
    """Note where this process wants to go. Nothing here can stop it: that the walls do."""
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        if isinstance(address, tuple) and len(address) >= 2:
            _note(address[0], address[1])
    elif event == "socket.getaddrinfo":
        _note(args[0], args[1])
    elif event == "socket.gethostbyname":
        _note(args[0], None)


def _note(host: object, port: object) -> None:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if not isinstance(name, str) or name.lower() in _HERE or name.startswith("127.") or len(_noted) >= _MOST:
        return
    name = f"[{name}]" if ":" in name else name
    line = f"{name}:{port}" if isinstance(port, int) and port > 0 else name
    if line not in _noted and len(line) < 300 and line.isprintable():
        _noted.add(line)
        with contextlib.suppress(OSError):
            descriptor = os.open(_notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, f"{line}\n".encode())
            finally:
                os.close(descriptor)
