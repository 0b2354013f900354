"""The server's ends of a kernel's sockets, with real libzmq at the other end, and with what else code can put there.

What is sent by raw sockets is written by hand, as its format says: it must not be made by what it is to test.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import zmq

from prims.kernel.channels import LARGEST_MESSAGE, MOST_AHEAD, Channel
from tests.processes import until

pytestmark = pytest.mark.anyio

SECONDS = 60.0
NAME = "s-1"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
HELLO = GREETING + READY
MORE, LONG, COMMAND = 1, 2, 4


def short(body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BB", flags, len(body)) + body


def long(body: bytes, flags: int = 0, size: int | None = None) -> bytes:
    return struct.pack(">BQ", flags | LONG, len(body) if size is None else size) + body


def listener(folder: Path, name: str = NAME) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(SECONDS)
    one.bind(str(folder / name))
    one.listen()
    return one


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def raw_peer(folder: Path) -> AsyncIterator[tuple[Channel, socket.socket]]:
    """A channel and who is at its other end, who has said nothing yet."""
    channel = Channel("SUB")
    with anyio.fail_after(SECONDS), listener(folder) as door:
        await channel.connect(folder, [NAME])
        theirs, _ = door.accept()
        theirs.settimeout(SECONDS)
        with theirs:
            try:
                yield channel, theirs
            finally:
                channel.close()


async def next_of(channel: Channel) -> list[bytes]:
    await channel.wait()
    return channel.take()


async def all_of(channel: Channel) -> list[list[bytes]]:
    """All messages, to the end of the connection."""
    messages = []
    with anyio.fail_after(SECONDS):
        try:
            while True:
                messages.append(await next_of(channel))
        except anyio.EndOfStream:
            return messages


# ------------------------------------------------------------------------------------------------ libzmq

SIZES = (0, 1, 255, 256, 5_000, 70_000, 3 << 20)


async def test_a_dealer_and_a_router_of_libzmq_understand_each_other(state: Path) -> None:
    channel = Channel("DEALER")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, anyio.fail_after(SECONDS):
        router.linger, router.rcvtimeo = 0, int(SECONDS * 1000)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.connect, state, [NAME])  # before there is anything
            await anyio.lowlevel.checkpoint()
            router.bind(f"ipc://{state}/{NAME}")
        sent = [[b"x" * size for size in SIZES], [b""], [b"last", b""]]
        for frames in sent:
            channel.send(frames)
        who = None
        for frames in sent:
            who, *got = await anyio.to_thread.run_sync(router.recv_multipart)
            assert got == frames
        for frames in sent:
            router.send_multipart([who, *frames])
        assert [await next_of(channel) for _ in sent] == sent
        channel.close()


async def test_a_publisher_of_libzmq_hears_of_the_subscription_and_loses_nothing(state: Path) -> None:
    channel, number = Channel("SUB"), 5_000
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, anyio.fail_after(SECONDS):
        publisher.linger, publisher.sndhwm, publisher.rcvtimeo = 0, 0, int(SECONDS * 1000)
        publisher.bind(f"ipc://{state}/{NAME}")
        await channel.connect(state, [NAME])
        assert await anyio.to_thread.run_sync(publisher.recv) == b"\x01"
        for n in range(number):
            publisher.send_multipart([b"any topic", b"%d" % n, b"x" * n])
        for n in range(number):
            assert await next_of(channel) == [b"any topic", b"%d" % n, b"x" * n]
        channel.close()


# ---------------------------------------------------------------------------------------- what is sent here


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody sends, and what is to come of it before the connection ends."""

    data: bytes
    messages: list[list[bytes]]
    passed_over: int = 0


MEGABYTE, LARGEST = bytes(1 << 20), bytes(LARGEST_MESSAGE - 200)
AFTER = short(b"after")
SAID = {
    "nothing": Said(b"", []),
    "half a greeting": Said(GREETING[:40], []),
    "only a greeting": Said(GREETING, []),
    "a greeting and half a command": Said(HELLO[:70], []),
    "a message": Said(HELLO + short(b"x"), [[b"x"]]),
    "a message before it is ready": Said(GREETING + short(b"x") + READY + AFTER, [[b"x"], [b"after"]]),
    "three frames": Said(HELLO + short(b"a", MORE) + short(b"", MORE) + short(b"c"), [[b"a", b"", b"c"]]),
    "a message without an end": Said(HELLO + short(b"x") + short(b"y", MORE) * 3, [[b"x"]]),
    "half a frame": Said(HELLO + short(b"x") + short(b"yyyy")[:4], [[b"x"]]),
    "half a size": Said(HELLO + short(b"x") + long(b"yyyy")[:5], [[b"x"]]),
    "a size that is longer than need be": Said(HELLO + long(b"x") + AFTER, [[b"x"], [b"after"]]),
    "a command between frames": Said(
        HELLO + short(b"a", MORE) + short(b"\4PING", COMMAND) + short(b"b"), [[b"a", b"b"]]
    ),
    "commands of all sizes": Said(
        HELLO + short(b"", COMMAND) + long(b"", COMMAND) + long(MEGABYTE * 40, COMMAND) + AFTER, [[b"after"]]
    ),
    "many commands": Said(HELLO + short(b"", COMMAND) * 100_000 + AFTER, [[b"after"]]),
    "a command without an end": Said(HELLO + short(b"x") + long(b"", COMMAND, 2**64 - 1) + MEGABYTE, [[b"x"]]),
    "bits without a meaning": Said(HELLO + short(b"a", 0xF8 | MORE) + short(b"b", 0xF8), [[b"a", b"b"]]),
    "the largest message": Said(HELLO + long(LARGEST) + AFTER, [[LARGEST], [b"after"]]),
    "one too large": Said(HELLO + long(bytes(LARGEST_MESSAGE)) + AFTER, [[b"after"]], 1),
    "one too large in parts": Said(HELLO + long(MEGABYTE, MORE) * 40 + short(b"") + AFTER, [[b"after"]], 1),
    "one of too many frames": Said(HELLO + short(b"", MORE) * 270_000 + short(b"") + AFTER, [[b"after"]], 1),
    "one that is too large twice": Said(
        HELLO + long(bytes(LARGEST_MESSAGE), MORE) + short(b"", MORE) + long(bytes(LARGEST_MESSAGE)) + AFTER,
        [[b"after"]], 1,
    ),
    "a frame of 2^63 bytes": Said(HELLO + short(b"x") + long(b"", size=2**63) + MEGABYTE * 3, [[b"x"]], 1),
    "a first frame of 2^63 bytes": Said(HELLO + short(b"x") + long(b"", MORE, 2**63) + MEGABYTE * 3, [[b"x"]]),
    "a frame of the largest number of bytes": Said(HELLO + long(b"", size=2**64 - 1) + AFTER, [], 1),
    "many small messages": Said(HELLO + short(b"") * 20_000, [[b""]] * 20_000),
    "no greeting": Said(READY + short(b"x") * 100, []),
    "zeros": Said(bytes(1000), []),
    "another protocol": Said(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000, []),
    "the second version of it": Said(b"\xff" + bytes(8) + b"\x7f\x01" + bytes(100) + short(b"x"), []),
    "the first version of it": Said(b"\x01\x00" + b"\x02\x00x" * 50, []),
}  # fmt: skip


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_what_is_sent_is_a_message_or_nothing(state: Path, said: Said) -> None:
    async with raw_peer(state) as (channel, theirs), anyio.create_task_group() as group:

        def send() -> None:
            try:
                theirs.sendall(said.data)
                theirs.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has hung up

        group.start_soon(anyio.to_thread.run_sync, send)
        assert await all_of(channel) == said.messages
        assert channel.passed_over == said.passed_over
        await until(lambda: not channel._rest and not channel._frames, SECONDS, "nothing is kept")


async def test_it_does_not_matter_in_what_pieces_something_comes(state: Path) -> None:
    data = HELLO + short(b"a", MORE) + long(b"b" * 300) + short(b"\4PING", COMMAND) + short(b"c")
    async with raw_peer(state) as (channel, theirs):
        for byte in data:
            theirs.send(bytes((byte,)))
            for _ in range(3):  # so that each is read alone
                await anyio.lowlevel.checkpoint()
        assert [await next_of(channel) for _ in range(2)] == [[b"a", b"b" * 300], [b"c"]]


# ------------------------------------------------------------------------------------------------ bounds


async def test_no_more_is_taken_than_may_wait_and_all_of_it_comes_in_the_end(state: Path) -> None:
    piece, number = 100_000, 2 * MOST_AHEAD // 100_000
    async with raw_peer(state) as (channel, theirs), anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, theirs.sendall, HELLO + long(bytes(piece)) * number)
        await until(lambda: channel._paused, SECONDS, "nothing more is taken")
        assert MOST_AHEAD < channel._ahead < MOST_AHEAD + 2 * piece
        for _ in range(number):
            assert len((await next_of(channel))[0]) == piece
            assert channel._ahead < MOST_AHEAD + 2 * piece
        assert channel._ahead == 0


async def test_a_message_that_does_not_end_takes_no_more_than_the_largest(state: Path) -> None:
    most = 0

    class Measured(Channel):
        def buffer_updated(self, nbytes: int) -> None:
            nonlocal most
            super().buffer_updated(nbytes)
            most = max(most, len(self._rest) + sum(map(len, self._frames)))

    with listener(state) as door, anyio.fail_after(SECONDS):
        channel = Measured("DEALER")
        await channel.connect(state, [NAME])
        with door.accept()[0] as theirs:
            theirs.settimeout(SECONDS)
            await anyio.to_thread.run_sync(theirs.sendall, HELLO + long(bytes(5 << 20), MORE) * 15)
            theirs.shutdown(socket.SHUT_WR)
            assert await all_of(channel) == []
    assert LARGEST_MESSAGE // 2 < most < LARGEST_MESSAGE + (1 << 20)


@pytest.mark.parametrize("body", [b"", bytes(60_000)], ids=["tiny ones", "large ones"])
async def test_others_have_their_turn_however_many_messages_there_are(state: Path, body: bytes) -> None:
    turns = 0
    data = long(body) * (MOST_AHEAD // (len(body) + 200))  # all of it waits before any is received

    async with raw_peer(state) as (channel, theirs), anyio.create_task_group() as group:

        async def other() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        await anyio.to_thread.run_sync(theirs.sendall, HELLO + data)
        theirs.shutdown(socket.SHUT_WR)
        await until(lambda: channel._lost, SECONDS, "all has come")
        group.start_soon(other)
        waited = len(await all_of(channel))
        group.cancel_scope.cancel()
    assert waited == len(data) // len(long(body))
    assert turns >= MOST_AHEAD // (200 << 10)


async def test_what_may_be_many_frames_is_read_in_small_parts(state: Path) -> None:
    async with raw_peer(state) as (channel, theirs):
        assert len(channel.get_buffer(-1)) <= 4096
        theirs.sendall(HELLO + long(b"x", size=1 << 20))
        await until(lambda: channel._lacks > 0, SECONDS, "half a frame is there")
        assert len(channel.get_buffer(-1)) > 4096  # it is that frame's, and costs no more than a copy
        await anyio.to_thread.run_sync(theirs.sendall, bytes((1 << 20) - 1) + short(b"y")[:1])
        assert len((await next_of(channel))[0]) == 1 << 20
        assert len(channel.get_buffer(-1)) <= 4096


# ----------------------------------------------------------------------------------------- before and after


async def test_nothing_is_said_to_who_is_not_ready_and_all_of_it_then(state: Path) -> None:
    async with raw_peer(state) as (channel, theirs):
        channel.send([b"early", b"x" * 300])
        assert theirs.recv(64, socket.MSG_WAITALL)[10:16] == b"\3\0NULL"
        assert theirs.recv(1000).startswith(b"\4")
        theirs.sendall(GREETING)
        await until(lambda: channel._greeted, SECONDS, "the greeting has been read")
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        theirs.settimeout(SECONDS)
        theirs.sendall(READY)
        wanted = short(b"\1") + short(b"early", MORE) + long(b"x" * 300)
        assert await anyio.to_thread.run_sync(theirs.recv, len(wanted), socket.MSG_WAITALL) == wanted


async def test_a_connection_ends_though_what_was_sent_cannot_be_got_rid_of(state: Path) -> None:
    async with raw_peer(state) as (channel, theirs):
        theirs.sendall(HELLO)
        channel.send([bytes(5 << 20)])
        await anyio.wait_readable(theirs)
        theirs.shutdown(socket.SHUT_WR)  # and nothing is read
        assert await all_of(channel) == []


async def test_a_message_is_not_lost_when_who_waited_for_it_goes(state: Path) -> None:
    async with raw_peer(state) as (channel, theirs):
        theirs.sendall(HELLO)
        async with anyio.create_task_group() as group:
            group.start_soon(next_of, channel)
            await anyio.wait_all_tasks_blocked()
            theirs.sendall(short(b"x"))
            group.cancel_scope.cancel()
        assert await next_of(channel) == [b"x"]


async def test_who_waits_wakes_when_the_connection_ends(state: Path) -> None:
    for end in ("ours", "theirs"):
        async with raw_peer(state) as (channel, theirs), anyio.create_task_group() as group:
            theirs.sendall(HELLO)
            ended: list[list[list[bytes]]] = []

            async def wait(channel: Channel = channel, ended: list[list[list[bytes]]] = ended) -> None:
                ended.append(await all_of(channel))

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            theirs.close() if end == "theirs" else channel.close()
            await until(lambda ended=ended: ended == [[]], SECONDS, f"woken by {end}")  # type: ignore[misc]
        (state / NAME).unlink()


async def test_a_paused_connection_can_be_closed(state: Path) -> None:
    before = descriptors()
    async with raw_peer(state) as (channel, theirs):
        async with anyio.create_task_group() as group:

            def send() -> None:
                with pytest.raises(OSError):
                    theirs.sendall(HELLO + long(MEGABYTE) * 100)

            group.start_soon(anyio.to_thread.run_sync, send)
            await until(lambda: channel._paused, SECONDS, "nothing more is taken")
            channel.close()
        channel.close()
        channel.send([b"into the void"])
        assert await all_of(channel) == []
    await until(lambda: descriptors() == before, SECONDS, "all is closed")


@pytest.mark.parametrize("there", [False, True], ids=["no socket", "a socket"])
async def test_an_attempt_that_is_given_up_leaves_nothing(state: Path, there: bool) -> None:
    before = descriptors()
    with anyio.fail_after(SECONDS), listener(state, NAME if there else "other") as door:
        for close_first in (False, True):
            channel = Channel("DEALER")
            if close_first:
                channel.close()
            with anyio.CancelScope() as scope:
                if not (there and close_first):
                    scope.cancel()
                await channel.connect(state, [NAME])
            assert scope.cancelled_caught != (there and close_first)
            if there:
                with door.accept()[0] as theirs, theirs.makefile("rb") as all_it_says:
                    theirs.settimeout(SECONDS)
                    await anyio.to_thread.run_sync(all_it_says.read)  # to its end
            if close_first:
                assert await all_of(channel) == []
    await until(lambda: descriptors() == before, SECONDS, "all is closed")


# ------------------------------------------------------------------------------------------- other things


def linked(folder: Path) -> None:
    (folder / "real").mkdir()
    listener(folder / "real").close()
    (folder / "in" / NAME).symlink_to("../real/" + NAME)


def linked_folder(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "in").rmdir()
    (folder / "in").symlink_to("real")


def of_another_kind(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(str(folder / "in" / NAME))


IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "a link": linked,
    "a link to the folder": linked_folder,
    "a file": lambda folder: (folder / "in" / NAME).write_bytes(b"x"),
    "a folder": lambda folder: (folder / "in" / NAME).mkdir(),
    "a pipe": lambda folder: os.mkfifo(folder / "in" / NAME),
    "a device": lambda folder: (folder / "in" / NAME).symlink_to("/dev/zero"),
    "a socket of another kind": of_another_kind,
    "no folder": lambda folder: (folder / "in").rmdir(),
}


@pytest.mark.parametrize("place", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
async def test_only_a_socket_is_connected_to(state: Path, place: Callable[[Path], object]) -> None:
    (state / "in").mkdir()
    place(state)
    aim = state / ("real" if (state / "real").exists() else "elsewhere")
    aim.mkdir(exist_ok=True)
    (aim / NAME).unlink(missing_ok=True)
    channel = Channel("DEALER")
    with listener(aim) as reached, anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(channel.connect, state, ["in", NAME])
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            (state / "in").rename(state / "away") if (state / "in").exists() else None
            (state / "in").mkdir()
            door = listener(state / "in")
        with door, door.accept()[0]:
            reached.setblocking(False)
            with pytest.raises(BlockingIOError):
                reached.accept()
        channel.close()
