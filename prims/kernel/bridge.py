"""Between the server's sockets and a kernel's: bytes are passed on, and few more of them than are taken.

libzmq bounds the size of a frame and how many messages wait, but not how many frames a message has, nor what an
unfinished one takes: over a direct connection a kernel could fill the server's memory. It also connects by a path that
the kernel's code can replace, again and again. Here the socket is opened below the run's folder, without links.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from prims.beneath import open_folder

MOST_AHEAD = 64 << 20
"""What a kernel may have sent on one connection that is not yet a message which was taken, in bytes."""

_SOON, _LATER, _SOON_TRIES = 0.004, 0.1, 500  # between attempts to connect: a kernel that starts has no sockets yet


class Flow:
    """How far one connection of a kernel is ahead of what was taken from it."""

    def __init__(self) -> None:
        self._ahead = 0
        self._held: _End | None = None

    def took(self, frames: Sequence[bytes]) -> None:
        """A whole message was received."""
        self._ahead -= sum(len(frame) + (2 if len(frame) < 256 else 9) for frame in frames)  # with ZMTP's heads
        if self._held is not None and self._ahead <= MOST_AHEAD:
            self._held.go_on("flow")
            self._held = None

    def begin(self) -> None:
        """A new connection."""
        self._ahead, self._held = 0, None

    def passed(self, size: int, source: _End) -> None:
        """Bytes were passed on; no more are taken from `source` while that was too much."""
        self._ahead += size
        if self._ahead > MOST_AHEAD:
            source.hold("flow")
            self._held = source


class _End(asyncio.Protocol):
    """One end of a connection: what comes in here goes out at the other, which holds this one up when it is slow."""

    def __init__(self, flow: Flow | None = None) -> None:
        self._flow = flow
        self._reasons: set[str] = set()
        self._transport: asyncio.Transport | None = None
        self._given_up = False
        self._other: _End | None = None

    def join(self, other: _End) -> None:
        """Be the other end of `other`, and it of this."""
        if self._transport is None or self._transport.is_closing():
            other.close()  # its caller is gone already
        self._other, other._other = other, self
        for end in (self, other):
            end.go_on("alone")

    def hold(self, reason: str) -> None:
        """Take nothing in until there is no reason left."""
        if not self._reasons and self._transport is not None:
            self._transport.pause_reading()
        self._reasons.add(reason)

    def go_on(self, reason: str) -> None:
        """One reason less."""
        self._reasons.discard(reason)
        if not self._reasons and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Let go of the connection, also of one that is just being made; what was not sent yet is lost."""
        self._given_up = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.hold("alone")
        if self._given_up:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._other is not None and self._other._transport is not None
        self._other._transport.write(data)
        if self._flow is not None:
            self._flow.passed(len(data), self)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.hold("slow")

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.go_on("slow")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.close()  # after what it has still to send


@asynccontextmanager
async def bridge(outer: Path, root: Path, inner: Sequence[str], flows: dict[int, Flow]) -> AsyncIterator[None]:
    """Sockets at `{outer}-{port}` for each of `flows`, which lead to those at `{inner}-{port}` below `root`.

    Raises:
        OSError: the folder of the inner ones cannot be opened.
    """
    loop = asyncio.get_running_loop()
    folder = open_folder(root, inner[:-1])
    doors: list[_Door] = []
    servers: list[asyncio.Server] = []
    try:
        for port, flow in flows.items():
            doors.append(_Door(folder, f"{inner[-1]}-{port}", flow))
            servers.append(await loop.create_unix_server(doors[-1], f"{outer}-{port}"))
        yield
    finally:
        for server in servers:
            server.close()
        for door in doors:
            door.close()
        os.close(folder)
        await asyncio.sleep(0)  # asyncio closes sockets a turn later


class _Door:
    """Connects each caller to what has a name in a folder then; the one before has been given up."""

    def __init__(self, folder: int, name: str, flow: Flow) -> None:
        self._folder = folder
        self._name = name
        self._flow = flow
        self._ends: tuple[_End, ...] = ()
        self._joining: asyncio.Task[None] | None = None
        self._closed = False

    def __call__(self) -> _End:
        """The end of a new caller."""
        self._let_go()
        ours, theirs = self._ends = (_End(), _End(self._flow))
        if self._closed:  # it had been accepted just before
            ours.close()
            return ours
        self._joining = asyncio.get_running_loop().create_task(self._join(ours, theirs))
        return ours

    async def _join(self, ours: _End, theirs: _End) -> None:
        found = await _connected(self._folder, self._name)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: theirs, found)
        self._flow.begin()
        ours.join(theirs)

    def close(self) -> None:
        """Let go of what is connected, and of whoever still comes."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
        for end in self._ends:
            end.close()


async def _connected(folder: int, name: str) -> socket.socket:
    """A connection to the socket of this name, as soon as there is one."""
    for pause in itertools.chain(itertools.repeat(_SOON, _SOON_TRIES), itertools.repeat(_LATER)):
        with contextlib.suppress(OSError):
            return _connect(folder, name)
        await asyncio.sleep(pause)
    raise AssertionError("the pauses have no end")


def _connect(folder: int, name: str) -> socket.socket:
    os.stat(name, dir_fd=folder, follow_symlinks=False)  # cheap, and at first there is nothing yet
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    theirs = socket.socket(socket.AF_UNIX)
    try:
        theirs.setblocking(False)
        theirs.connect(f"/proc/self/fd/{found}")
    except BaseException:
        theirs.close()
        raise
    finally:
        os.close(found)
    return theirs
