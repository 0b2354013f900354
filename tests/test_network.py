"""The network by choice: none, an allow-list, or public hosts, by a proxy outside that real clients use unchanged."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from prims import config
from prims.errors import ConfigError
from prims.hosts import Reachable, host_and_port
from prims.isolation import bubblewrap, proxy, uids
from prims.isolation.network import unavailable
from prims.isolation.walls import NoWalls
from tests import kit
from tests.test_transfer import certificate
from tests.test_walls import newest_landlock

pytestmark = pytest.mark.anyio

SECONDS = 60.0
OUTSIDE = "127.0.0.2"
"""Where servers of the tests listen: 127.0.0.1 would be the sandbox itself."""


def wheel(name: str) -> bytes:
    """A package with one module."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as whole:
        whole.writestr(f"{name}.py", "size = 1\n")
        info = f"{name}-1.0.dist-info"
        whole.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        whole.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        whole.writestr(f"{info}/RECORD", "".join(f"{one},,\n" for one in [*whole.namelist(), f"{info}/RECORD"]))
    return file.getvalue()


TINY, WHEEL = "tiny-1.0-py3-none-any.whl", wheel("tiny")
FILES = {"/simple/tiny/": f'<a href="/{TINY}">{TINY}</a>'.encode(), f"/{TINY}": WHEEL}


class _Site(BaseHTTPRequestHandler):
    """Says what was asked for. `/to/URL` redirects there; a package index is in `/simple/`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self._answer(302, b"", Location=self.path.removeprefix("/to/"))
        elif self.path.startswith(("/simple", "/tiny")):
            found = FILES.get(self.path)
            kind = "text/html" if self.path.endswith("/") else "application/zip"
            self._answer(404 if found is None else 200, found or b"", **{"Content-Type": kind})
        else:
            self._answer(200, f"{self.path} {self.headers['Host']}".encode())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(200, self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def site(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A web server outside of all sandboxes; gives its port."""
    with ThreadingHTTPServer((OUTSIDE, 0), _Site) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


# ------------------------------------------------------------------------------------------- real clients


@pytest.fixture(scope="module")
def outside() -> Iterator[str]:
    with site() as port:
        yield f"{OUTSIDE}:{port}"


@pytest.fixture(scope="module")
async def client(outside: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A client of a server whose code may reach `outside`, and any port of another address there."""
    state = tmp_path_factory.mktemp("n")
    allowed = f"{outside},{OUTSIDE}"
    async with kit.connected(state, "--network", "allow-list", "--allow-network", allowed) as one:
        yield one


async def out(client: Client, code: str, **arguments: Any) -> tuple[str, list[str]]:
    """What code prints, and the feedback of its run, which must have succeeded."""
    result = await kit.run_code(client, code, **arguments)
    fields = result.structured_content
    assert fields is not None and fields["status"] == "ok", kit.text_of(result)
    return fields["stdout"], fields["feedback"]


async def test_started_and_forked_kernels_reach_an_allowed_host(client: Client, outside: str) -> None:
    code = f"""
    import requests, urllib.request
    print(requests.get("http://{outside}/a").text)
    print(urllib.request.urlopen("http://{outside}/b").read().decode())
    """
    for _ in range(3):
        assert await out(client, code) == (f"/a {outside}\n/b {outside}\n", [])


async def test_python_clients_and_installers_work_without_changes(client: Client, outside: str, tmp_path: Path) -> None:
    server, _ = certificate(tmp_path, OUTSIDE)
    pem = (tmp_path / "both.pem").read_text().partition("-----END PRIVATE KEY-----\n")[2]
    with site(tls=server) as port:
        code = f"""
        import asyncio, os, ssl, subprocess, sys
        open("ca.pem", "w").write({pem!r})
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            os.environ[name] = os.path.abspath("ca.pem")
        import aiohttp, httpx, requests, urllib.request
        url = "https://{OUTSIDE}:{port}"
        print(requests.get(url + "/requests").text)
        print(requests.post("http://{outside}/", data=b"x" * 300_000).text.count("x"))
        with requests.Session() as session:
            for at in (url, "http://{outside}", "http://{outside}", url):
                print(session.get(at + "/again").text)
        print(httpx.get(url + "/httpx").text)
        print(urllib.request.urlopen(url + "/urllib").read().decode())
        async def main():
            async with aiohttp.ClientSession(trust_env=True) as session:
                context = ssl.create_default_context(cafile="ca.pem")
                for at in ("http://{outside}", url):
                    async with session.get(at + "/aiohttp", ssl=context) as answer:
                        print(await answer.text())
        await main()
        index = ["--index-url", "http://{outside}/simple/", "--no-deps", "tiny"]
        pip = next(p for p in sys.path if os.path.isdir(p + "/pip/_internal")) + "/pip"
        caught = dict(capture_output=True, text=True)
        done = subprocess.run([sys.executable, pip, "download", "-d", "/tmp/got", *index], **caught)
        print(done.stderr, os.listdir("/tmp/got"))
        done = subprocess.run(["uv", "pip", "install", "--target", "/tmp/uv", *index], **caught)
        print(os.path.exists("/tmp/uv/tiny.py") or done.stderr)
        if os.path.exists("/usr/bin/curl"):
            done = subprocess.run(["curl", "-sS", url + "/requests"], **caught)
            assert done.stdout == "/requests {OUTSIDE}:{port}", done
        """
        said, hints = await out(client, code, requirements=["httpx", "aiohttp", "pip", "uv"])
    tls = f"{OUTSIDE}:{port}"
    again = [f"/again {place}" for place in (tls, outside, outside, tls)]
    want = [f"/requests {tls}", "300000", *again, f"/httpx {tls}", f"/urllib {tls}", f"/aiohttp {outside}"]
    want += [f"/aiohttp {tls}", f" ['{TINY}']", "True"]
    assert said.splitlines() == want
    assert hints == []


async def test_blocked_places_are_told_in_one_line(client: Client, outside: str) -> None:
    code = f"""
    import requests, socket
    for url in ("https://example.org/", "http://127.0.0.3/", "http://{outside}/to/http://192.168.1.1/secret"):
        try:
            print(requests.get(url, timeout=20).text.strip())
        except requests.RequestException as error:
            print(str(error)[-200:])
    try:
        socket.create_connection(("db.example", 5432), 5)
    except OSError:
        print("no connection")
    with socket.create_server(("127.0.0.1", 0)) as own:
        socket.create_connection(own.getsockname()).close()
    """
    said, hints = await out(client, code)
    assert "403 Blocked: example.org:443 is not a host" in said
    assert "\nBlocked: 192.168.1.1:80 is not a host that this sandbox may reach\nno connection\n" in said
    assert hints == [
        "network is limited; blocked: example.org:443, 127.0.0.3:80, 192.168.1.1:80, db.example:5432. "
        f"HTTP and HTTPS reach {outside}, {OUTSIDE}; nothing else goes out."
    ]


async def test_a_call_may_lower_the_network_and_not_raise_it(client: Client) -> None:
    code = "import requests\nrequests.get('https://example.org/')"
    result = await kit.run_code(client, code, network="none")
    assert result.structured_content is not None
    assert result.structured_content["error"]["name"] == "ConnectionError"
    (line,) = result.structured_content["feedback"]
    assert line.startswith("network is off; blocked: example.org:443.")
    for wanted in ("full", "FULL", "some"):
        refused = await kit.run_code(client, "1", network=wanted)
        assert refused.is_error and "network may be none or allow-list here" in kit.text_of(refused)


async def test_thousands_of_connections_slow_and_half_closed_ones_hurt_nobody(client: Client, outside: str) -> None:
    code = f"""
    import os, requests, socket
    proxy = ("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2]))
    for _ in range(10_000):
        socket.create_connection(proxy).close()
    idle = [socket.create_connection(proxy) for _ in range(40)]
    for one in idle[:20]:
        one.sendall(b"GET http://")
    print(requests.get("http://{outside}/still").text)
    """
    assert await out(client, code) == (f"/still {outside}\n", [])


async def test_what_programs_did_not_reach_is_told_by_their_own_words(client: Client) -> None:
    code = """
    import subprocess, sys
    program = "import requests; requests.get('https://example.org:8443/')"
    subprocess.run([sys.executable, "-c", program], env={})
    """
    _, hints = await out(client, code, network="none")
    assert hints == ["network is off; blocked: example.org:8443. Give data as files, and packages in requirements."]


@pytest.mark.parametrize("network", ["allow-list", "full"])
def test_other_walls_than_bubblewrap_give_no_network_and_say_why(network: str) -> None:
    assert unavailable(network, "bubblewrap") is None
    assert unavailable("none", "landlock") is None and unavailable("none", "none") is None
    assert "keep code from opening any connection" in (unavailable(network, "landlock") or "")
    assert "cannot be held without walls" in (unavailable(network, "none") or "")


async def test_without_walls_no_network_is_promised(state: Path) -> None:
    async with kit.connected(state, "--isolation", "none", "--network", "full") as client:
        refused = await kit.run_code(client, "1")
    assert refused.is_error and "cannot be held without walls" in kit.text_of(refused)


# ----------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"network": "some"}, "network must be one of"),
        ({"network": "allow-list"}, "names no host"),
        ({"allow_network": "example.org"}, "network is none"),
        *(
            ({"network": "full", "allow_network": entry}, "allow_network: it takes")
            for entry in (
                "http://a.example",
                "a.example/x",
                "a:b",
                "*.10.0.0.1",
                "*",
                "a b",
                "0x7f.1",
                "x:0",
                "x:70000",
            )
        ),
    ],
)
def test_what_the_operator_did_not_mean_is_an_error(flags: dict[str, str | None], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
        config.load(flags, {})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Example.ORG.:443", ("example.org", 443)),
        ("[::1]:8080", ("::1", 8080)),
        ("::1", ("::1", None)),
        ("[FD00::1]:80", ("fd00::1", 80)),
        ("10.0.0.1", ("10.0.0.1", None)),
        ("[10.0.0.1]:80", None),
        ("[::1%lo]:80", None),
        ("127.1:80", None),
        ("2130706433:80", None),
        ("a@b:80", None),
        ("", None),
        (":80", None),
        ("a:", None),
        ("a:80:90", None),
        ("-a.example:80", None),
        ("a..b:80", None),
        ("ä.example:80", None),
    ],
)
def test_hosts_have_one_spelling(text: str, place: tuple[str, int | None] | None) -> None:
    assert host_and_port(text) == place


# ---------------------------------------------------------------------------------- the proxy, by itself


NAMES = {
    "good.example": ["127.0.0.2"],
    "rebound.example": ["127.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "mapped.example": ["::ffff:192.168.0.1"],
    "private.example": ["10.0.0.1", "fd00::1"],
    "carrier.example": ["100.64.0.1"],
    "any.example": ["0.0.0.0"],
    "empty.example": [],
}


@dataclass
class Running:
    """A proxy that runs in this process: where, and what it told."""

    address: tuple[str, int]
    told: list[list[str]] = field(default_factory=list)

    async def ask(self, request: bytes, *, end: bool = False) -> bytes:
        """The whole answer to one request; `end` half-closes first."""
        with anyio.fail_after(SECONDS):
            stream = await anyio.connect_tcp(*self.address)
            async with stream:
                with suppress(anyio.BrokenResourceError):
                    await stream.send(request)
                    if end:
                        await stream.send_eof()
                answer = b""
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        answer += await stream.receive()
                return answer


@asynccontextmanager
async def running(*entries: str, every: bool = False, most_bytes: int | None = None) -> AsyncIterator[Running]:
    async def resolve(host: str, port: int) -> list[str]:
        if host not in NAMES:
            raise socket.gaierror("unknown")
        return NAMES[host]

    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    one = Running(listener.getsockname())
    made = proxy.Proxy(Reachable(entries, every), one.told.append, most_bytes=most_bytes, resolve=resolve)
    task = asyncio.create_task(made.serve(listener))
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def connect(place: str) -> bytes:
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()


ODD = [
    b"GET /x HTTP/1.1\r\nHost: good.example\r\n\r\n",
    b"GET https://good.example/ HTTP/1.1\r\n\r\n",
    b"GET ftp://good.example/ HTTP/1.1\r\n\r\n",
    b"GET http:///x HTTP/1.1\r\n\r\n",
    b"GET http://good.example@evil.example/ HTTP/1.1\r\n\r\n",
    b"GET http://good.example\\@evil.example/ HTTP/1.1\r\n\r\n",
    b"GET http://good.example:0/ HTTP/1.1\r\n\r\n",
    b"CONNECT good.example HTTP/1.1\r\n\r\n",
    b"CONNECT good.example:99999 HTTP/1.1\r\n\r\n",
    b"CONNECT good.example:4 43 HTTP/1.1\r\n\r\n",
    b"CONNECT http://good.example:80 HTTP/1.1\r\n\r\n",
    b"CONNECT 2130706433:80 HTTP/1.1\r\n\r\n",
    b"CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n",
    b"CONNECT [::1:80 HTTP/1.1\r\n\r\n",
    b"CONNECT [fe80::1%25lo]:80 HTTP/1.1\r\n\r\n",
    b"connect good.example:80 HTTP/1.1\r\n\r\n",
    b"CONNECT good.example:80 HTTP/2\r\n\r\n",
    b"CONNECT good.example:80\r\n\r\n",
    b"CONNECT good.example:80 HTTP/1.1\nHost: x\r\n\r\n",
    b"CONNECT good.example:80 HTTP/1.1\r\n folded\r\n\r\n",
    b"CONNECT good.example:80 HTTP/1.1\r\nbad name: x\r\n\r\n",
    b"CONNECT good.example:80 HTTP/1.1\r\nX: \0\r\n\r\n",
    b"CONNECT good\0.example:80 HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"\r\n\r\n",
    "CONNECT gööd.example:80 HTTP/1.1\r\n\r\n".encode(),
]
BLOCKED = [
    *("evil.example:80", "good.example:81", "sub.good.example:80", "127.0.0.1:80", "[::1]:80", "[64:ff9b::7f00:1]:80"),
    *("rebound.example:80", "metadata.example:80", "mapped.example:80", "private.example:80", "carrier.example:80"),
    *("any.example:80", "169.254.169.254:80"),
]


async def test_odd_requests_are_answered_and_lead_nowhere() -> None:
    async with running(*(f"{name}:80" for name in NAMES), every=False) as one:
        for request in ODD:
            assert (await one.ask(request)).startswith(b"HTTP/1.1 400 "), request
        for place in BLOCKED:
            answer = await one.ask(connect(place))
            assert answer.startswith(b"HTTP/1.1 403 Blocked: " + place.encode()), answer
            assert (await one.ask(f"GET http://{place}/ HTTP/1.1\r\n\r\n".encode())).startswith(b"HTTP/1.1 403 ")
        for bomb in (b"CONNECT good.example:80 HTTP/1.1\r\n" + b"A: b\r\n" * 10_000, b"GET http://" + b"a" * 1_000_000):
            assert (await one.ask(bomb + b"\r\n\r\n")).startswith((b"HTTP/1.1 431 ", b""))
        assert (await one.ask(connect("empty.example:80"))).startswith(b"HTTP/1.1 502 No connection")
    assert [words[1] for words in one.told] == BLOCKED


async def test_public_hosts_does_not_mean_this_machine() -> None:
    async with running(every=True) as one:
        for place in ("127.0.0.1:80", "rebound.example:80", "[fd00::1]:80", "10.1.2.3:80", "metadata.example:80"):
            assert (await one.ask(connect(place))).startswith(b"HTTP/1.1 403 Blocked"), place
        assert (await one.ask(connect("unknown.example:80"))).startswith(b"HTTP/1.1 502 The host unknown.example")


async def test_a_private_address_is_reached_when_it_is_named_and_its_name_is_allowed() -> None:
    with site() as port:
        async with running(f"*.example:{port}", f"{OUTSIDE}:{port}") as one:
            get = f"GET http://good.example:{port}/x?y#z HTTP/1.1\r\nProxy-Authorization: a\r\nHost: evil\r\n\r\n"
            answer = await one.ask(get.encode())
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(f"/x?y good.example:{port}".encode())
            assert b"\r\nConnection: close\r\n" in answer
            half = connect(f"good.example:{port}") + b"GET /half HTTP/1.0\r\nHost: h\r\n\r\n"
            answer = await one.ask(half, end=True)
            assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200")
            assert answer.endswith(b"/half h")
        async with running("*.example") as two:
            assert (await two.ask(get.encode())).startswith(b"HTTP/1.1 403 ")


async def test_bytes_are_counted_and_then_nothing_goes_out() -> None:
    with site() as port:
        async with running(f"{OUTSIDE}:{port}", most_bytes=50_000) as one:
            body = b"x" * 40_000
            post = f"POST http://{OUTSIDE}:{port}/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            assert len(await one.ask(post)) < 40_000
            assert (await one.ask(post)).startswith(b"HTTP/1.1 403 The limit of bytes")
    assert one.told == [["bytes"]]


async def test_slow_clients_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.3)
    async with running() as one, _idle(one, 3 * proxy.CONNECTIONS):
        assert (await one.ask(connect("a.example:80"))).startswith(b"HTTP/1.1 403 ")


@asynccontextmanager
async def _idle(one: Running, count: int) -> AsyncIterator[None]:
    """So many connections that say nothing."""
    made = [socket.create_connection(one.address) for _ in range(count)]
    try:
        yield
    finally:
        for each in made:
            each.close()


RIGHTS = """
import json, os, signal, socket, sys
from prims.isolation import proxy, wrapper
secret, port, abstract, uid = json.loads(sys.argv[1])
proxy.give_up_rights(uid)
told = {}
def attempt(name, action):
    try: action()
    except OSError as problem: told[name] = problem.strerror or str(problem)
    else: told[name] = "done"
def served():
    with socket.create_server(("127.0.0.1", 0)): pass
def called():
    with socket.socket(socket.AF_UNIX) as one: one.connect("\\0" + abstract)
attempt("read", lambda: open(secret).read())
attempt("list", lambda: os.listdir(os.path.dirname(secret)))
attempt("write", lambda: open(secret + "2", "w"))
attempt("own code", lambda: open(proxy.__file__).read())
attempt("run", lambda: os.execv("/bin/true", ["true"]))
attempt("others", lambda: os.listdir("/proc"))
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("serve", served)
attempt("abstract", called)
attempt("connect", lambda: socket.create_connection(("127.0.0.1", port)).close())
attempt("resolver", lambda: open("/etc/hosts").close())
attempt("look up", lambda: socket.getaddrinfo("localhost", port))
print(json.dumps(told))
"""


@pytest.mark.skipif(not newest_landlock(), reason="this kernel has no Landlock")
def test_the_proxy_keeps_connections_and_lookups_and_nothing_else(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("of the server's user")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        uids.uid_for(bubblewrap.find() or NoWalls()) as uid,
    ):
        unix.bind(f"\0{tmp_path}")
        unix.listen()
        facts = json.dumps([str(secret), tcp.getsockname()[1], str(tmp_path), uid])
        command = [sys.executable, "-I", "-c", RIGHTS, facts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    allowed = {"connect", "resolver", "look up"}
    # Since these versions Landlock judges ports, and abstract sockets and signals.
    allowed |= {"serve"} if newest_landlock() < 4 else set()
    allowed |= {"abstract", "signal"} if newest_landlock() < 6 else set()
    assert {name for name, what in told.items() if what == "done"} <= allowed
    assert {name: told[name] for name in ("connect", "resolver", "look up")} == dict.fromkeys(
        ("connect", "resolver", "look up"), "done"
    )
