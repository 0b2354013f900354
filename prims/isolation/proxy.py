"""The way out of one sandbox: an HTTP proxy in a process of its own, which ends with the sandbox.

Started by `network.py` as `python -I -m prims.isolation.proxy CONFIG_JSON`. What is inside has no network but its own
loopback: it makes a listening socket there and hands it over through a unix socket; a socket stays in the network that
it was made in, so clients inside connect to 127.0.0.1 and are served from here. All that they send is hostile. This
process therefore gives up its rights first, keeps no secret, and can be killed at any time.

A library was looked for: none takes a socket from elsewhere, checks the addresses that it connects to, and is small.

CONFIG_JSON: `server` (its pid), `socket` (descriptor of the unix socket), `uid` (to become, or null), `entries` and
`every` (see `Reachable`), `most_bytes` (of all connections, both ways; null for no limit). Each line on stdout is a
list: `["blocked", HOST:PORT]` once for each place that was refused, `["bytes"]` when the limit of bytes is reached.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import encodings.idna
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from prims.hosts import Reachable, host_and_port, literal, spelled
from prims.isolation import wrapper

CONNECTIONS = 64  # at once; more wait to be accepted
HEAD_BYTES = 16 << 10  # of a request, and of an answer to plain HTTP
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 15.0
_LAST_SECONDS = 30.0  # for what a client still sends when the other side has ended
_MOST_TOLD = 100
_READ_BYTES = 64 << 10

Resolve = Callable[[str, int], Awaitable[list[str]]]
# Loaded lazily by asyncio and socket: too late for a process that may no longer read the files of its Python.
_LOADED = (concurrent.futures.thread, encodings.idna)
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_REQUEST = re.compile(r"([A-Z]{1,20}) ([!-~]{1,8192}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t -~\x80-\xff]*")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")
_OF_ONE_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "upgrade",
}  # fmt: skip


class _Refused(Exception):
    """A request is not served: status and reason, and the place that is told as blocked, if any."""

    def __init__(self, status: int, reason: str, blocked: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.blocked = blocked


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, from this machine's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Proxy:
    """Serves the clients of one sandbox at a time by `reachable`; `tell` gets what is worth telling, few in number."""

    def __init__(
        self,
        reachable: Reachable,
        tell: Callable[[list[str]], None],
        *,
        most_bytes: int | None = None,
        resolve: Resolve = look_up,
    ) -> None:
        self._reachable = reachable
        self._tell = tell
        self._told: set[str] = set()
        self._left = most_bytes
        self._resolve = resolve
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept from `listener`, which is closed in the end. Raises OSError when that fails."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._slots.acquire()
                try:
                    client, _ = await loop.sock_accept(listener)
                except ConnectionAbortedError:
                    self._slots.release()
                    continue
                task = asyncio.create_task(self._serve_one(client))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _serve_one(self, client: socket.socket) -> None:
        streams: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=HEAD_BYTES)
            streams.append(writer)
            try:
                await self._request(reader, writer, streams)
            except _Refused as refused:
                if refused.blocked:
                    self._say("blocked", refused.blocked)
                head = f"HTTP/1.1 {refused.status} {refused.reason}\r\nConnection: close\r\n"
                body = f"{refused.reason}\n".encode()
                writer.write(f"{head}Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                async with asyncio.timeout(_LAST_SECONDS):
                    await writer.drain()
                    writer.write_eof()
                    while await reader.read(_READ_BYTES):  # closing over unread bytes would destroy the answer
                        pass
            async with asyncio.timeout(_LAST_SECONDS):
                for stream in streams:
                    stream.close()
                    await stream.wait_closed()
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            for stream in streams:
                stream.transport.abort()  # of no effect on those that are closed

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, streams: list[asyncio.StreamWriter]
    ) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            first, headers = await _head(reader, 431, "The head of the request is too long")
        request = _REQUEST.fullmatch(first)
        if request is None:
            raise _Refused(400, "The request line is malformed")
        method, target = request.groups()
        if method == "CONNECT":
            host, port, path = *_place(target, None), ""
        else:
            if not target.lower().startswith("http://"):
                raise _Refused(400, "This is a proxy: it takes CONNECT, and http URLs")
            authority, path = re.fullmatch("([^/?#]*)(.*)", target[7:]).groups()  # type: ignore[union-attr]
            host, port = _place(authority, 80)
        if self._left is not None and self._left <= 0:
            raise _Refused(403, "The limit of bytes of this run is reached")
        upstream, onward = await self._connect(host, port)
        streams.append(onward)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._both(self._copy(reader, onward), self._copy(upstream, writer))
            return
        kept = [line for line in _end_to_end(headers) if not line.lower().startswith("host:")]
        path = path if path.startswith("/") else f"/{path}"
        first = f"{method} {path.partition('#')[0]} HTTP/1.1"
        lines = [first, f"Host: {authority}", *kept, "Connection: close", "", ""]
        self._write(onward, "\r\n".join(lines).encode("latin-1"))
        await self._both(self._copy(reader, onward), self._answer(upstream, writer))

    async def _answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An answer to plain HTTP, after which the client is not to send another request on this connection: that could
        be for another host."""
        while True:
            first, headers = await _head(upstream, 502, "The head of the answer is too long")
            status = _STATUS.fullmatch(first)
            if status is None or status[1] == "101":
                raise _Refused(502, "The answer is not one of HTTP/1.1")
            interim = status[1].startswith("1")
            lines = [first, *_end_to_end(headers), *([] if interim else ["Connection: close"]), "", ""]
            self._write(writer, "\r\n".join(lines).encode("latin-1"))
            if not interim:
                break
        await self._copy(upstream, writer)

    async def _connect(self, host: str, port: int) -> _Streams:
        """A connection to an allowed place, by an address that was checked."""
        place = spelled(host, port)
        if not self._reachable.names(host, port):
            raise _Refused(403, f"Blocked: {place} is not a host that this sandbox may reach", place)
        problem = "it has no address"
        async with asyncio.timeout(CONNECT_SECONDS):
            try:
                found = [host] if literal(host) else await self._resolve(host, port)
            except (OSError, UnicodeError):
                raise _Refused(502, f"The host {host} was not found") from None
            allowed = [a for a in found if self._reachable.reaches(a, port) and not self._is_own(a, port)]
            if found and not allowed:
                raise _Refused(403, f"Blocked: {place} is at an address that is not public", place)
            for address in allowed:
                try:
                    return await asyncio.open_connection(address, port, limit=HEAD_BYTES)
                except OSError as error:
                    problem = os.strerror(error.errno) if error.errno and error.errno > 0 else "it cannot be reached"
        raise _Refused(502, f"No connection to {place}: {problem}")

    def _is_own(self, address: str, port: int) -> bool:
        """Whether a public address, which is no entry, is this machine's: what listens there may trust us more than
        others."""
        if self._reachable.has(address, port) or not _binds(address):
            return False
        return not _binds("192.0.2.1")  # unless everything can be bound here (ip_nonlocal_bind)

    async def _both(self, to: Awaitable[None], back: Awaitable[None]) -> None:
        """Copy both ways; when what comes back has ended, the rest has little time."""
        sending, receiving = asyncio.ensure_future(to), asyncio.ensure_future(back)
        try:
            await receiving
            async with asyncio.timeout(_LAST_SECONDS):
                await sending
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            self._write(writer, data)
            await writer.drain()
        writer.write_eof()

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._say("bytes")
                raise ConnectionAbortedError
        writer.write(data)

    def _say(self, *words: str) -> None:
        line = " ".join(words)
        if line not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(line)
            self._tell(list(words))


async def _head(reader: asyncio.StreamReader, status: int, too_long: str) -> tuple[str, list[str]]:
    """The first line and the header lines of a message."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(status, too_long) from None
    first, *headers = head[:-4].decode("latin-1").split("\r\n")
    if not all(map(_HEADER.fullmatch, headers)):
        raise _Refused(400 if status == 431 else 502, "A header is malformed")
    return first, headers


def _end_to_end(headers: list[str]) -> list[str]:
    """Those headers that are not for one connection only."""
    named = [line.partition(":")[::2] for line in headers]
    listed = ",".join(value for name, value in named if name.lower() == "connection").lower()
    dropped = _OF_ONE_HOP.union(word.strip() for word in listed.split(","))
    return [line for line in headers if line.partition(":")[0].lower() not in dropped]


def _place(authority: str, default: int | None) -> tuple[str, int]:
    place = host_and_port(authority)
    port = place[1] or default if place else None
    if place is None or port is None:
        raise _Refused(400, "The host is not written as HOST:PORT")
    return place[0], port


def _binds(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ the program


async def _take_listeners(door: socket.socket, proxy: Proxy) -> None:
    """Serve on the socket that the last caller at `door` has handed over. (A restarted kernel hands over another.)"""
    loop = asyncio.get_running_loop()
    door.setblocking(False)
    serving: asyncio.Task[None] | None = None
    while True:
        caller, _ = await loop.sock_accept(door)
        with caller:
            caller.settimeout(5)
            listener = await loop.run_in_executor(None, _listener_from, caller)
        if listener is not None:
            if serving is not None:
                serving.cancel()
            serving = asyncio.create_task(proxy.serve(listener))


def _listener_from(caller: socket.socket) -> socket.socket | None:
    handed: list[int] = []
    try:
        _, handed, _, _ = socket.recv_fds(caller, 16, 1)
        one = socket.socket(fileno=handed[0])
        handed.clear()
        if one.family == socket.AF_INET and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return one
        one.close()
    except (OSError, IndexError):
        for descriptor in handed:
            os.close(descriptor)
    return None


def _print(words: list[str]) -> None:
    with contextlib.suppress(OSError):  # the pipe holds all that is ever told; without a reader nobody wants it
        os.write(1, json.dumps(words).encode() + b"\n")


# Where names are looked up, and the libraries that are loaded for it.
_TABLES = ("/etc/gai.conf", "/etc/host.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf")
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")


def give_up_rights(uid: int | None) -> None:
    """Become `uid`, if any, and keep no more than this process needs: connections, and what names are looked up in.

    What Landlock holds back (other files, executing, abstract sockets, signals) depends on its version here.
    """
    rlimits = {"NOFILE": 512, "CORE": 0, "FSIZE": 0, "DATA": 1 << 30}
    wrapper.confine({"uid": uid, "rlimits": rlimits, "confine": True})
    try:
        abi = wrapper.landlock_abi()
    except OSError:
        return
    # Their folders, because such a file is replaced when this machine changes networks.
    folders = {os.path.dirname(os.path.realpath(path)) for path in _TABLES}
    looked = filter(os.path.exists, ["/etc", *folders, *_LIBRARIES])
    wrapper.restrict({"abi": abi, "look": list(looked), "connects": True})


def main(config: dict[str, Any]) -> None:
    """Serve until killed."""
    give_up_rights(config["uid"])
    wrapper.prctl(4, 0)  # PR_SET_DUMPABLE: nobody else of this uid looks into this process
    wrapper.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which a change of uid would undo
    if os.getppid() != config["server"]:
        return
    reachable = Reachable(tuple(config["entries"]), config["every"])
    with socket.socket(fileno=config["socket"]) as door:
        asyncio.run(_take_listeners(door, Proxy(reachable, _print, most_bytes=config["most_bytes"])))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
