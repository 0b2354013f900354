"""A web server of the tests' own: on loopback, a free port, in a thread; every odd behaviour of servers that matters.

Nothing of it sleeps: a handler that shall hang waits until the server closes, and closing ends every connection.
"""

from __future__ import annotations

import gzip
import json
import socket
import socketserver
import ssl
import threading
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler

CSV = b"a,b\n1,2\n"
CSV2 = b"c,d\n3,4\n"
ENDED_SECONDS = 20.0
"""Bound for the end of a handler; far above what any needs."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived. `body` is what came of it, which may be less than was declared."""

    method: str
    target: str
    headers: Message
    body: bytes = b""


@dataclass(slots=True)
class Site:
    """A server under test: `url` without a final slash, `place` as HOST:PORT, and all that was asked of it."""

    url: str
    place: str
    seen: list[Seen] = field(default_factory=list)

    def asked(self, method: str) -> list[Seen]:
        """The requests with this method so far."""
        return [one for one in self.seen if one.method == method]


@contextmanager
def serving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Site]:
    """A site for the block; its threads and connections end with it."""
    server = _Server((host, 0), _Handler, bind_and_activate=True)
    port = server.server_address[1]
    server.site = Site(f"{'https' if tls else 'http'}://{host}:{port}", f"{host}:{port}")
    if tls:
        # The handshake belongs to the handler's thread: a client that never speaks must not stop the others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="tests.web")
    thread.start()
    try:
        yield server.site
    finally:
        server.closing.set()
        server.shutdown()
        thread.join(ENDED_SECONDS)
        server.end_connections()
        server.server_close()
        assert not thread.is_alive()


@contextmanager
def silent_port() -> Iterator[int]:
    """A port of loopback that is bound and refuses every connection."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 64
    daemon_threads = False
    block_on_close = True
    site: Site

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.closing = threading.Event()
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(*arguments, **keywords)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)

    def end_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def count(self, name: str) -> int:
        """How often this was called with `name`, this time included."""
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1
            return self.counts[name]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = ENDED_SECONDS

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet: the site's `seen` is the log."""

    def do_GET(self) -> None:
        self.server.site.seen.append(Seen("GET", self.path, self.headers))
        path, query = self._target()
        if path.startswith("/status/"):
            number = int(path.rpartition("/")[2])
            self._answer(number, b"<html><body>error page %d</body></html>" % number, {"Content-Type": "text/html"})
        elif path in _FILES:
            headers, body = _FILES[path]
            self._answer(200, body, headers)
        elif path in _GETS:
            _GETS[path](self, query)
        else:
            self._answer(404, b"no such fixture")

    def do_PUT(self) -> None:
        path, query = self._target()
        body = b"" if path in _HASTY else self._read_body()
        self.server.site.seen.append(Seen("PUT", self.path, self.headers, body))
        if path in _PUTS:
            _PUTS[path](self, query)
        else:
            self._xml(404, "NoSuchBucket", "no such fixture")

    def _target(self) -> tuple[str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        return parts.path, {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}

    def _read_body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _xml(self, status: int, code: str, message: str, **more: str) -> None:
        inner = "".join(f"<{k}>{v}</{k}>" for k, v in {"Code": code, "Message": message, **more}.items())
        body = f"<?xml version='1.0'?>\n<Error>{inner}</Error>".encode()
        self._answer(status, body, {"Content-Type": "application/xml"})

    def _pour(self, piece: bytes) -> None:
        """Send `piece` again and again until somebody ends it."""
        with suppress(OSError):
            while not self.server.closing.is_set():
                self.wfile.write(piece)
        self.close_connection = True

    # ---- GET

    def redirect(self, query: Mapping[str, str]) -> None:
        self._answer(int(query.get("status", "302")), b"", {"Location": query["to"]})

    def hops(self, query: Mapping[str, str]) -> None:
        left = int(query["n"])
        self._answer(302, b"", {"Location": f"/hops?n={left - 1}" if left > 1 else "/csv"})

    def short(self, query: Mapping[str, str]) -> None:
        self._head(200, {"Content-Length": query["declared"]})
        self.wfile.write(b"s" * int(query["sent"]))
        self.close_connection = True

    def chunked_cut(self, _: Mapping[str, str]) -> None:
        self._head(200, {"Transfer-Encoding": "chunked"})
        self.wfile.write(b"4\r\na,b\n\r\n")
        self.close_connection = True

    def until_close(self, _: Mapping[str, str]) -> None:
        self._head(200, {"Connection": "close"})
        self.wfile.write(CSV)
        self.close_connection = True

    def stall(self, query: Mapping[str, str]) -> None:
        after = int(query.get("after", "1000"))
        self._head(200, {"Content-Length": str(after + 1000)})
        self.wfile.write(b"s" * after)
        self.wfile.flush()
        self.server.closing.wait(ENDED_SECONDS)
        self.close_connection = True

    def drip(self, _: Mapping[str, str]) -> None:
        self._head(200, {"Content-Length": "1000000"})
        with suppress(OSError):
            while not self.server.closing.wait(0.05):
                self.wfile.write(b"d")
                self.wfile.flush()
        self.close_connection = True

    def mute(self, _: Mapping[str, str]) -> None:
        self.server.closing.wait(ENDED_SECONDS)
        self.close_connection = True

    def endless(self, _: Mapping[str, str]) -> None:
        self._head(200, {"Transfer-Encoding": "chunked"})
        self._pour(b"10000\r\n" + b"e" * 65536 + b"\r\n")

    def hollow(self, _: Mapping[str, str]) -> None:
        """For ever, and nothing when it is unpacked."""
        piece = gzip.compress(b"") * 1000
        self._head(200, {"Transfer-Encoding": "chunked", "Content-Encoding": "gzip"})
        self._pour(b"%x\r\n%b\r\n" % (len(piece), piece))

    def huge(self, query: Mapping[str, str]) -> None:
        self._head(200, {"Content-Length": query["declared"]})
        self._pour(b"h" * 65536)

    def babble(self, _: Mapping[str, str]) -> None:
        self.wfile.write(b"220 mail.example ESMTP ready\r\n")
        self.close_connection = True

    def log(self, _: Mapping[str, str]) -> None:
        told = [
            {"path": one.target, "headers": dict(one.headers.items()), "bytes": len(one.body)}
            for one in self.server.site.asked("PUT")
        ]
        self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    # ---- PUT

    def put_ok(self, _: Mapping[str, str]) -> None:
        self._answer(200, b"", {"ETag": '"e"'})

    def put_no_content_type(self, _: Mapping[str, str]) -> None:
        if self.headers.get("Content-Type"):
            self._xml(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        else:
            self._answer(200)

    def put_need_content_type(self, query: Mapping[str, str]) -> None:
        if self.headers.get("Content-Type") == query["ct"]:
            self._answer(200)
        else:
            self._xml(403, "SignatureDoesNotMatch", "content-type is a signed header")

    def put_no_chunked(self, _: Mapping[str, str]) -> None:
        if self.headers.get("Transfer-Encoding"):
            self._xml(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        elif self.headers.get("Content-Length") is None:
            self._xml(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
        else:
            self._answer(200)

    def put_expired(self, _: Mapping[str, str]) -> None:
        self._xml(403, "AccessDenied", "Request has expired")

    def put_hasty(self, _: Mapping[str, str]) -> None:
        self._xml(403, "AccessDenied", "Request has expired")
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        # Read on until the client is done, as careful servers do, so that the answer is not lost to a reset.
        with suppress(OSError):
            while self.connection.recv(1 << 20):
                pass
        self.close_connection = True

    def put_busy(self, query: Mapping[str, str]) -> None:
        if self.server.count("busy") <= int(query["times"]):
            code = {"s3": "SlowDown", "azure": "ServerBusy", "broken": "InternalError"}[query["kind"]]
            self._xml(503, code, "Please reduce your request rate.")
        else:
            self._answer(200)

    def put_region(self, query: Mapping[str, str]) -> None:
        body = b"<Error><Code>TemporaryRedirect</Code><Message>Please re-send this request</Message></Error>"
        self._answer(307, body, {"Location": query["to"]})

    def put_json(self, query: Mapping[str, str]) -> None:
        self._answer(int(query["status"]), query["body"].encode(), {"Content-Type": "application/json"})

    def put_echo(self, query: Mapping[str, str]) -> None:
        """A storage that tells all it was told."""
        told = f"{self.path} {query} {self.headers}"
        self._xml(403, "AccessDenied", told.replace("&", "&amp;").replace("<", "&lt;"), StringToSign="SECRETSIG")

    def put_long(self, _: Mapping[str, str]) -> None:
        self._head(400, {"Transfer-Encoding": "chunked"})
        self._pour(b"1000\r\n" + b"<Code>X" + b"x" * 4089 + b"\r\n")

    def put_mute(self, _: Mapping[str, str]) -> None:
        self.mute({})


def _packed(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(wbits=bits)
    return packer.compress(data) + packer.flush()


_TEXT = {"Content-Type": "text/csv; charset=utf-8"}
_GZIP = {"Content-Encoding": "gzip"}
_DEFLATE = {"Content-Encoding": "deflate"}
_GZ = {"Content-Type": "application/x-gzip"}
_Action = Callable[[_Handler, Mapping[str, str]], None]

_FILES: dict[str, tuple[dict[str, str], bytes]] = {
    "/csv": (_TEXT, CSV),
    "/csv2": (_TEXT, CSV2),
    "/empty": (_TEXT, b""),
    "/two-mib": ({}, b"0123456789abcdef" * (1 << 17)),
    "/gz/plain.csv": (_TEXT | _GZIP, gzip.compress(CSV)),
    "/gz/double.csv.gz": (_GZ | _GZIP, gzip.compress(CSV)),
    "/gz/by-name.csv.gz": (_TEXT | _GZIP, gzip.compress(CSV)),
    "/gz/by-type": (_GZ | _GZIP, gzip.compress(CSV)),
    "/gz/twice.csv.gz": (_GZ | _GZIP, gzip.compress(gzip.compress(CSV))),
    "/gz/file.csv.gz": (_GZ, gzip.compress(CSV)),
    "/gz/not.csv.gz": (_GZ | _GZIP, CSV),
    "/gz/chain.csv": (_TEXT | {"Content-Encoding": "deflate, gzip"}, gzip.compress(zlib.compress(CSV))),
    "/gz/members.csv": (_TEXT | _GZIP, gzip.compress(CSV) + gzip.compress(CSV2)),
    "/gz/empty.csv": (_TEXT | _GZIP, b""),
    "/gz/damaged.csv": (_TEXT | _GZIP, gzip.compress(CSV)[:-8] + b"12345678"),
    "/gz/cut.csv": (_TEXT | _GZIP, gzip.compress(CSV * 1000)[:-12]),
    "/gz/bomb.csv": (_TEXT | _GZIP, gzip.compress(bytes(64 << 20))),
    "/gz/bomb2.csv": (_TEXT | {"Content-Encoding": "gzip, gzip"}, gzip.compress(gzip.compress(bytes(64 << 20)))),
    "/gz/hollow.csv": (_TEXT | _GZIP, gzip.compress(b"") * 5000),
    "/deflate/zeros": (_DEFLATE, _packed(bytes((1 << 20) + 5), -15)),
    "/deflate/zlib.csv": (_TEXT | _DEFLATE, zlib.compress(CSV)),
    "/deflate/raw.csv": (_TEXT | _DEFLATE, _packed(CSV, -15)),
    "/br.csv": (_TEXT | {"Content-Encoding": "br"}, b"\x0b\x03\x80a,b\n1,2\n\x03"),
    "/identity.csv": (_TEXT | {"Content-Encoding": "identity"}, CSV),
}

_GETS: dict[str, _Action] = {
    "/redirect": _Handler.redirect,
    "/hops": _Handler.hops,
    "/loop": lambda handler, _: handler._answer(302, b"", {"Location": "/loop"}),
    "/short": _Handler.short,
    "/chunked-cut": _Handler.chunked_cut,
    "/until-close": _Handler.until_close,
    "/stall": _Handler.stall,
    "/drip": _Handler.drip,
    "/mute": _Handler.mute,
    "/endless": _Handler.endless,
    "/hollow": _Handler.hollow,
    "/huge": _Handler.huge,
    "/babble": _Handler.babble,
    "/denied": lambda handler, _: handler._xml(403, "AccessDenied", "Request has expired"),
    "/_log": _Handler.log,
}

_PUTS: dict[str, _Action] = {
    "/put/ok": _Handler.put_ok,
    "/put/no-content-type": _Handler.put_no_content_type,
    "/put/need-content-type": _Handler.put_need_content_type,
    "/put/no-chunked": _Handler.put_no_chunked,
    "/put/expired": _Handler.put_expired,
    "/put/hasty": _Handler.put_hasty,
    "/put/busy": _Handler.put_busy,
    "/put/region": _Handler.put_region,
    "/put/json": _Handler.put_json,
    "/put/echo": _Handler.put_echo,
    "/put/long": _Handler.put_long,
    "/put/mute": _Handler.put_mute,
}
# Those that answer before they have read the body.
_HASTY = frozenset({"/put/hasty"})
