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

from prims.beneath import open_folder

MOST_AHEAD = 64 << 20
"""What a kernel may have sent on one connection that is not yet a message which was taken, in bytes."""

_PIECE = 256 << 10
_SOON, _LATER, _SOON_TRIES = 0.004, 0.1, 500  # between attempts to connect: a kernel that starts has no sockets yet


class Flow:
    """How far one connection of a kernel is ahead of what was taken from it."""

    def __init__(self) -> None:
        self._ahead = 0
        self._fell = asyncio.Event()

    def took(self, frames: Sequence[bytes]) -> None:
        """A whole message was received."""
        self._ahead -= sum(len(frame) + (2 if len(frame) < 256 else 9) for frame in frames)  # with ZMTP's heads
        self._fell.set()

    def begin(self) -> None:
        """A new connection."""
        self._ahead = 0

    async def passed(self, size: int) -> None:
        """Bytes were passed on; waits while that was too much."""
        self._ahead += size
        while self._ahead > MOST_AHEAD:
            self._fell.clear()
            await self._fell.wait()


@asynccontextmanager
async def bridge(outer: Path, root: Path, inner: Sequence[str], flows: dict[int, Flow]) -> AsyncIterator[None]:
    """Sockets at `{outer}-{port}` for each of `flows`, which lead to those at `{inner}-{port}` below `root`.

    Raises:
        OSError: the folder of the inner ones cannot be opened.
    """
    loop = asyncio.get_running_loop()
    folder = open_folder(root, inner[:-1])
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        listeners = {port: stack.enter_context(_listener(f"{outer}-{port}")) for port in flows}
        tasks = [
            loop.create_task(_serve(listeners[port], folder, f"{inner[-1]}-{port}", flow))
            for port, flow in flows.items()
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(path)
    listener.listen(1)
    return listener


async def _serve(listener: socket.socket, folder: int, name: str, flow: Flow) -> None:
    """Connect one caller after the other to what has this name in the folder then."""
    loop = asyncio.get_running_loop()
    while True:
        ours, _ = await loop.sock_accept(listener)
        with ours, await _connected(folder, name) as theirs:
            ours.setblocking(False)
            flow.begin()
            asking = loop.create_task(_pass(ours, theirs))
            try:
                await _pass(theirs, ours, flow)
            finally:
                asking.cancel()
                # Else asyncio would still let go of the descriptor's number when it is another connection's already.
                await asyncio.wait([asking])


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


async def _pass(source: socket.socket, sink: socket.socket, flow: Flow | None = None) -> None:
    """Pass on what comes until one side has ended."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, _PIECE):
            await loop.sock_sendall(sink, data)
            if flow is not None:
                await flow.passed(len(data))
