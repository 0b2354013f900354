"""The network by choice: none, an allow-list, or public hosts, by a proxy outside that real clients use unchanged."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mcp.client import Client

from tests import kit

pytestmark = pytest.mark.anyio


class _Site(BaseHTTPRequestHandler):
    """Says which path was asked for; `/to/URL` redirects there."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            body = b""
        else:
            self.send_response(200)
            body = f"{self.headers['Host']} gives {self.path}".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def site(address: str = "127.0.0.2") -> Iterator[str]:
    """A web server outside of all sandboxes; gives HOST:PORT. (127.0.0.1 would be the sandbox itself.)"""
    with ThreadingHTTPServer((address, 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"{address}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def outside() -> Iterator[str]:
    with site() as place:
        yield place


@pytest.fixture(scope="module")
async def client(outside: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A client of a server whose code may reach `outside` only."""
    state = tmp_path_factory.mktemp("n")
    async with kit.connected(state, "--network", "allow-list", "--allow-network", outside) as one:
        yield one


CLIENTS = """
import requests, urllib.request
print(requests.get("http://{outside}/requests").text)
print(urllib.request.urlopen("http://{outside}/urllib").read().decode())
"""


async def test_clients_reach_an_allowed_host_from_started_and_from_forked_kernels(client: Client, outside: str) -> None:
    for _ in range(3):
        result = await kit.run_code(client, CLIENTS.format(outside=outside))
        assert result.structured_content is not None
        assert result.structured_content["stdout"] == f"{outside} gives /requests\n{outside} gives /urllib\n"
        assert result.structured_content["feedback"] == []


async def test_blocked_places_are_told_in_one_line(client: Client, outside: str) -> None:
    code = """
    import requests, socket
    for url in ("https://example.org/", "http://127.0.0.3/"):
        try:
            print(requests.get(url, timeout=20).status_code)
        except requests.RequestException as error:
            print(str(error)[-200:])
    try:
        socket.create_connection(("db.example", 5432), 5)
    except OSError:
        print("no connection")
    """
    result = await kit.run_code(client, code)
    assert result.structured_content is not None
    assert "403 Blocked: example.org:443 is not a host" in result.structured_content["stdout"]
    (line,) = result.structured_content["feedback"]
    assert line == (
        "network is limited; blocked: example.org:443, 127.0.0.3:80, db.example:5432. "
        f"HTTP and HTTPS reach {outside}; nothing else goes out."
    )


async def test_a_call_may_lower_the_network_and_not_raise_it(client: Client, outside: str) -> None:
    code = "import requests\nrequests.get('https://example.org/')"
    result = await kit.run_code(client, code, network="none")
    assert result.structured_content is not None
    assert result.structured_content["error"]["name"] == "ConnectionError"
    (line,) = result.structured_content["feedback"]
    assert line.startswith("network is off; blocked: example.org:443.")
    for wanted in ("full", "FULL", "some"):
        refused = await kit.run_code(client, "1", network=wanted)
        assert refused.is_error and "network may be none or allow-list here" in kit.text_of(refused)


async def test_without_walls_no_network_is_promised(tmp_path: Path) -> None:
    async with kit.connected(tmp_path, "--isolation", "none", "--network", "full") as client:
        refused = await kit.run_code(client, "1")
    assert refused.is_error and "cannot be held without walls" in kit.text_of(refused)
