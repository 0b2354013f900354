"""The server's ends of a kernel's sockets: ZMTP 3.0 over a stream, read here and within bounds.

libzmq bounds the size of a frame and how many messages wait, but not how many frames a message has, nor what an
unfinished one takes: a kernel could fill the server's memory. It also connects by a path that the kernel's code can
replace, and each message goes through a thread of its own. Format: rfc.zeromq.org/spec/23, as peers of minor version 0
speak it, without security: the walls are that.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import anyio
import anyio.lowlevel

from prims.beneath import open_folder

LARGEST_MESSAGE = 32 << 20
"""Larger messages are passed over, in bytes; ours are never so large."""
MOST_AHEAD = 16 << 20
"""What may wait on one channel to be received, in bytes; then no more is taken from the kernel."""

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_FRAME_COST = 128  # what a frame takes here, however small it is
# What is read before others have their turn: little, as it may be frames without content, or what a frame still lacks.
_READ_BYTES, _READ_MOST = 4 << 10, 64 << 10
_RECEIVED_AT_ONCE = 64 << 10  # the same of what is received
_SOON, _LATER, _SOON_TRIES = 0.004, 0.1, 500  # between attempts to connect: a kernel that starts has no sockets yet


class Channel(asyncio.BufferedProtocol):
    """A connection to one socket of a kernel: to a ROUTER as a DEALER, or to a publisher as a SUB of all there is.

    One task at a time may `wait` for messages and `take` them. `passed_over` counts messages that were too large.
    """

    def __init__(self, kind: Literal["DEALER", "SUB"]) -> None:
        self.passed_over = 0
        ready = b"\x05READY" + _property(b"Socket-Type", kind.encode())
        self._begin = _GREETING + _frame(ready, _COMMAND)
        # Until the other end is ready; libzmq lets go of who sends a message before.
        self._unsent: bytes | None = _frame(b"\x01") if kind == "SUB" else b""
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_READ_MOST))
        self._rest = bytearray()
        self._greeted = False
        self._skip = 0  # bytes of a frame that is not wanted
        self._lacks = 0  # bytes of one that is
        self._frames: list[bytes] = []
        self._size = 0  # of the message that has begun
        self._messages: deque[list[bytes]] = deque()
        self._ahead = 0
        self._received = 0
        self._paused = False
        self._lost = False
        self._news = anyio.Event()

    async def connect(self, root: Path, parts: Sequence[str]) -> None:
        """Connect to the socket at `parts` below `root`, without following links, as soon as there is one."""
        for pause in itertools.chain(itertools.repeat(_SOON, _SOON_TRIES), itertools.repeat(_LATER)):
            try:
                found = _connected(root, parts)
            except OSError:
                await anyio.sleep(pause)
            else:
                await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=found)
                return

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message; what cannot be sent yet is kept."""
        assert self._transport is not None
        last = len(frames) - 1
        data = b"".join(_frame(frame, _MORE * (n < last)) for n, frame in enumerate(frames))
        if self._unsent is None:
            self._transport.write(data)
        else:
            self._unsent += data

    async def wait(self) -> int:
        """Until there is a message to `take`; gives how large it is, in bytes.

        Raises:
            anyio.EndOfStream: none comes any more.
        """
        while not self._messages:
            if self._lost:
                raise anyio.EndOfStream
            self._news = anyio.Event()
            await self._news.wait()
        if self._received > _RECEIVED_AT_ONCE:
            self._received = 0
            await anyio.lowlevel.checkpoint()  # others have their turn, however much there is
        return _size(self._messages[0])

    def take(self) -> list[bytes]:
        """The frames of the message that is there."""
        frames = self._messages.popleft()
        size = _size(frames)
        self._ahead -= size
        self._received += size
        if self._paused and self._ahead <= MOST_AHEAD and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return frames

    def close(self) -> None:
        """Let go of the connection, which need not be there yet, and of what has come by it."""
        self._messages.clear()
        self._end_it()

    def _end_it(self) -> None:
        self._lost = True
        self._news.set()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------ asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._begin)  # the other end need not have said anything yet
        if self._lost:
            self._end_it()

    def eof_received(self) -> None:
        self._end_it()  # now, whatever could not be sent

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_it()
        self._rest.clear()
        self._frames.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: max(_READ_BYTES, self._skip, self._lacks)]

    def buffer_updated(self, nbytes: int) -> None:
        self._rest += self._buffer[:nbytes]
        at = self._lacks = 0
        while not self._lost and (end := self._next(at)) > at:
            at = end
        del self._rest[:at]

    # ------------------------------------------------------------------------------------------------- ZMTP

    def _next(self, at: int) -> int:
        """Take in what stands at `at`; gives where it ends, or `at` when it is not all there."""
        there = len(self._rest) - at
        if not self._greeted:
            return at + self._greet() if there >= len(_GREETING) else at
        if self._skip:
            skipped = min(self._skip, there)
            self._skip -= skipped
            return at + skipped
        head = 9 if there and self._rest[at] & _LONG else 2
        if there < head:
            return at
        flags = self._rest[at]
        begin = at + head
        size = int.from_bytes(self._rest[at + 1 : begin], "big")
        if flags & _COMMAND:
            self._is_ready()  # that is what its first one says, and there is no other that matters
            self._skip = size
            return begin
        total = self._size + size + _FRAME_COST
        if total > LARGEST_MESSAGE:
            self._frames.clear()
            self._skip = size
        elif there < head + size:
            self._lacks = head + size - there
            return at
        else:
            self._frames.append(bytes(memoryview(self._rest)[begin : begin + size]))
            begin += size
        self._size = total
        if not flags & _MORE:
            self._end()
        return begin

    def _greet(self) -> int:
        if self._rest[0] != _GREETING[0] or self._rest[9] != _GREETING[9] or self._rest[10] < _GREETING[10]:
            self._end_it()
        self._greeted = True
        return len(_GREETING)

    def _is_ready(self) -> None:
        if self._unsent is not None and self._transport is not None:
            self._transport.write(self._unsent)
            self._unsent = None

    def _end(self) -> None:
        """A message is complete."""
        frames, self._frames, self._size = self._frames, [], 0
        if not frames:
            self.passed_over += 1
            return
        self._messages.append(frames)
        self._news.set()
        self._ahead += _size(frames)
        if self._ahead > MOST_AHEAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()


def _frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + len(body).to_bytes(8, "big") + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames)) + len(frames) * _FRAME_COST


def _connected(root: Path, parts: Sequence[str]) -> socket.socket:
    """A connection to the socket at `parts` below `root`. Raises OSError."""
    folder = open_folder(root, parts[:-1])
    try:
        os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)  # cheap, and at first there is nothing yet
        found = os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
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
