"""A host of MCP Apps for tests: the page of app/test-host/ in headless Chromium, with a real server behind it.

The page is on http://localhost, its sandbox proxy on http://127.0.0.1: two origins, as the specification asks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from prims.trees import remove_tree
from tests.test_http import served

APP = Path(__file__).parents[1] / "app"
SECONDS = 60.0
"""Bound of every wait in the browser; far above what any needs."""

# What the specification says that a host allows when an app names no domains.
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; media-src 'self' data:; connect-src 'none'; frame-src 'none'; object-src 'none'; base-uri 'none'"
)
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing() -> str:
    """What a machine lacks for these tests, in words; empty when nothing."""
    if chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    if not (APP / "node_modules" / "esbuild").is_dir() or which("node") is None:
        return "the packages of app/ are not installed: npm ci --prefix app"
    return ""


def require() -> None:
    """Skip the test when the machine lacks something; fail where that must not be."""
    if why := missing():
        if os.environ.get("APP_TESTS") == "required":
            pytest.fail(why)
        pytest.skip(why)


def chromium() -> str | None:
    return which("chromium") or which("chromium-browser") or which("google-chrome")


@dataclass
class Host:
    """The host's page, and all requests of the browser so far."""

    page: Any
    origins: tuple[str, ...]
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def call(self, code: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run code; its arguments and its result as the client gets them."""
        given = {"code": code, **arguments}
        return given, self.page.evaluate("given => testHost.call(given)", given)

    def show(self, given: dict[str, Any] | None, result: dict[str, Any] | None, **more: Any) -> Any:
        """Show a result in a new frame, and give the frame of the app."""
        shown = {"input": given, "result": result, **more}
        self.page.evaluate("shown => testHost.show(shown)", shown)
        frame = self.page.frame_locator("iframe").frame_locator("iframe#app")
        frame.locator("main:not([aria-busy])").wait_for()
        return frame

    def log(self, name: str) -> list[Any]:
        """What the app asked of the host since it was shown: links, downloads, modes, errors, asked."""
        told: list[Any] = self.page.evaluate("name => testHost.log[name]", name)
        return told

    def note(self, request: Any) -> None:
        """A request that failed. What a policy has stopped was never sent."""
        if request.failure != "csp":
            self.requests.append(f"{request.url} {request.failure}")

    def strangers(self) -> list[str]:
        """Requests to anything but the host, its sandbox and the server."""
        return [url for url in self.requests if not url.startswith((*self.origins, "data:", "about:", "blob:"))]


@contextmanager
def running() -> Iterator[Host]:
    """A browser with the host's page, connected to a new server."""
    from playwright.sync_api import sync_playwright

    state = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        scripts = state / "scripts"
        build = ["node", "test-host/build.mjs", str(scripts)]
        subprocess.run(build, cwd=APP, check=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
        with (
            _site([scripts, APP / "test-host"]) as port,
            served(state, "--cors-origins", f"http://localhost:{port}") as server,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=chromium(), args=_FLAGS, timeout=SECONDS * 1000)
            try:
                page = browser.new_page(viewport={"width": 900, "height": 3000})
                page.set_default_timeout(SECONDS * 1000)
                origins = (f"http://localhost:{port}/", f"http://127.0.0.1:{port}/", server.base)
                host = Host(page, origins)
                page.context.on("requestfinished", lambda request: host.requests.append(request.url))
                page.context.on("requestfailed", host.note)
                page.on("pageerror", lambda error: host.errors.append(str(error)))
                page.goto(origins[0])
                page.evaluate("url => testHost.connect(url)", server.url)
                yield host
            finally:
                browser.close()
    finally:
        remove_tree(state)


@contextmanager
def _site(folders: list[Path]) -> Iterator[int]:
    """A web server for the files of `folders`; gives its port."""
    kinds = {".html": "text/html", ".js": "text/javascript"}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            name = self.path.partition("?")[0].strip("/") or "index.html"
            file = next((folder / name for folder in folders if (folder / name).is_file()), None)
            body = file.read_bytes() if file else b""
            self.send_response(200 if file else 404)
            self.send_header("Content-Type", kinds[Path(name).suffix] if file else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            if name == "sandbox.html":
                self.send_header("Content-Security-Policy", _POLICY)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(SECONDS)
        server.server_close()


class Canary:
    """A port of loopback that notices when anything connects to it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def touched(self, within: float = 0.0) -> list[str]:
        """The first lines of what has connected since the last look; waits `within` seconds for the first one."""
        lines = []
        self._listener.settimeout(within)
        with suppress(BlockingIOError, TimeoutError):
            while True:
                connection = self._listener.accept()[0]
                self._listener.settimeout(0.0)
                with connection, suppress(TimeoutError):
                    connection.settimeout(1.0)
                    lines.append(connection.recv(1000).decode("latin-1").partition("\r\n")[0])
        return lines

    def close(self) -> None:
        self._listener.close()
