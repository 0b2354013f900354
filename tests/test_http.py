"""The HTTP face, by real clients of both eras against a real `prims serve --transport http`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests import kit

TOKEN = "a-token-that-is-long-enough"


@dataclass
class Served:
    """A server over HTTP."""

    url: str
    process: subprocess.Popen[str]
    state: Path

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")


@contextlib.contextmanager
def served(state: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """A `prims serve --transport http` on a free port, ended by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "prims", "serve", "--transport", "http", "--port", "0", *arguments],
        env={**kit.server_environment(state), **(env or {})},
        cwd=state,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"serving (http://\S+/mcp)", line):
                yield Served(match[1], process, state)
                return
        pytest.fail(f"the server ended: {''.join(lines)}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(kit.SECONDS)
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    import shutil
    import tempfile

    state = Path(tempfile.mkdtemp(prefix="pt-"))
    with served(state) as running:
        yield running
    shutil.rmtree(state)


@asynccontextmanager
async def client_of(server: Served, mode: str = "auto", token: str | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=kit.SECONDS) as http,
        Client(streamable_http_client(server.url, http_client=http), mode=mode) as client,  # type: ignore[arg-type]
    ):
        yield client


@pytest.mark.anyio
@pytest.mark.parametrize("mode", kit.ERAS)
async def test_a_call_over_http_returns_what_one_over_stdio_does(server: Served, mode: str) -> None:
    async with client_of(server, mode) as client:
        result = await kit.run_code(client, "print('over http')\n6 * 7")
        assert not result.is_error
        assert result.structured_content["stdout"] == "over http\n"
        assert result.structured_content["result"] == "42"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", kit.ERAS)
async def test_files_stay_for_a_session_that_is_named(server: Served, mode: str) -> None:
    async with client_of(server, mode) as client:
        first = await kit.run_code(client, "open('output/kept.txt', 'w').write('kept')")
        session_id = first.structured_content["session_id"]
    async with client_of(server, "auto") as other:
        # A stateful connection's session ends with it; one that was minted stays.
        again = await kit.run_code(other, "print(open('output/kept.txt').read())", session_id=session_id)
        if mode == "legacy":
            assert again.is_error
            assert "session" in kit.text_of(again)
        else:
            assert again.structured_content["stdout"] == "kept\n"


@pytest.mark.anyio
async def test_a_stateful_connection_has_one_session_without_naming_it(server: Served) -> None:
    async with client_of(server, "legacy") as client:
        await kit.run_code(client, "open('output/mine.txt', 'w').write('mine')")
        again = await kit.run_code(client, "print(open('output/mine.txt').read())")
        assert again.structured_content["stdout"] == "mine\n"


@pytest.mark.anyio
async def test_modern_calls_without_a_session_id_share_nothing(server: Served) -> None:
    async with client_of(server) as client:
        first = await kit.run_code(client, "open('output/a.txt', 'w').write('a')")
        second = await kit.run_code(client, "import os; print(os.listdir('output'))")
        assert second.structured_content["stdout"] == "[]\n"
        assert first.structured_content["session_id"] != second.structured_content["session_id"]


@pytest.mark.anyio
async def test_an_unknown_session_is_an_error_and_never_a_new_one(server: Served) -> None:
    async with client_of(server) as client:
        result = await kit.run_code(client, "1", session_id="s_" + "0" * 32)
        assert result.is_error
        assert "session_id is unknown" in kit.text_of(result)


@pytest.mark.anyio
async def test_many_clients_at_once_get_their_own_output(server: Served) -> None:
    outputs: dict[int, str] = {}

    async def one(number: int) -> None:
        async with client_of(server, kit.ERAS[number % 2]) as client:
            result = await kit.run_code(client, f"for i in range(20): print('TAG-{number}', i, flush=True)")
            outputs[number] = result.structured_content["stdout"]

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(one, number)
    for number in range(8):
        assert outputs[number] == "".join(f"TAG-{number} {i}\n" for i in range(20))


@pytest.mark.anyio
async def test_artifacts_are_downloads_with_ranges_and_nothing_that_a_browser_runs(server: Served) -> None:
    code = """
open("output/page.html", "w").write("<script>alert(1)</script>")
open("output/data.bin", "wb").write(bytes(range(100)))
import os
os.symlink("/etc/passwd", "output/link")
open("secret.txt", "w").write("outside of output")
"""
    async with client_of(server) as client, httpx2.AsyncClient(base_url=server.base) as http:
        made = await kit.run_code(client, code)
        root = f"/artifacts/{made.structured_content['session_id']}"
        page = await http.get(f"{root}/page.html")
        assert page.status_code == 200
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in page.headers["content-security-policy"]
        part = await http.get(f"{root}/data.bin", headers={"Range": "bytes=10-19"})
        assert part.status_code == 206
        assert part.content == bytes(range(10, 20))
        whole = await http.get(f"{root}/data.bin")
        assert whole.content == bytes(range(100))
        tag = whole.headers["etag"]
        for asked, status in {tag: 304, f'"x", W/{tag}': 304, "*": 304, '"x"': 200}.items():
            known = await http.get(f"{root}/data.bin", headers={"If-None-Match": asked})
            assert known.status_code == status, asked
        ranges = {"bytes=-5": 206, "bytes=0-1, 5-6": 206, "bytes=200-": 416, "bytes=9-5": 200, "x=0-1": 200, "": 200}
        for asked, status in ranges.items():
            answer = await http.get(f"{root}/data.bin", headers={"Range": asked})
            assert answer.status_code == status, asked
        for path in ("link", "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "no.txt", "a%00b", "/etc/passwd"):
            refused = await http.get(f"{root}/{path}")
            # (A client may itself shorten a path with dots; what is asked for then is no file either.)
            assert refused.status_code in (307, 404), path
            assert "outside" not in refused.text and "root:" not in refused.text
        other = await http.get(f"/artifacts/s_{'0' * 32}/data.bin")
        assert other.status_code == 404


@pytest.mark.anyio
async def test_a_session_is_downloaded_as_a_notebook_in_each_form(server: Served) -> None:
    async with client_of(server) as client, httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        made = await kit.run_code(client, "print('<script>alert(1)</script>')")
        root = f"/sessions/{made.structured_content['session_id']}"
        starts = {"ipynb": '{"cells": [', "py": "# /// script\n", "html": "<!DOCTYPE html>"}
        for form, start in starts.items():
            answer = await http.get(f"{root}/notebook.{form}")
            assert answer.status_code == 200, answer.text
            assert answer.text.lstrip().startswith(start)
            assert "alert(1)" in answer.text
            assert answer.headers["content-disposition"] == f'attachment; filename="session.{form}"'
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in answer.headers["content-security-policy"]
        for path in (f"{root}/notebook.exe", f"/sessions/s_{'0' * 32}/notebook.ipynb"):
            assert (await http.get(path)).status_code == 404


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({}, 200),
    ],
)
async def test_foreign_hosts_and_origins_are_refused_on_every_route(
    server: Served, headers: dict[str, str], status: int
) -> None:
    async with httpx2.AsyncClient(base_url=server.base) as http:
        assert (await http.get("/healthz", headers=headers)).status_code == status
        if status != 200:
            assert (await http.post("/mcp", headers=headers, json={})).status_code == status


@pytest.mark.anyio
async def test_a_body_over_the_limit_is_refused(server: Served) -> None:
    async with httpx2.AsyncClient(base_url=server.base) as http:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        answer = await http.post("/mcp", content=b" " * (5 << 20), headers=headers)
        assert answer.status_code == 413


def test_other_addresses_than_loopback_need_authentication(state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prims", "serve", "--transport", "http", "--host", "0.0.0.0", "--port", "0"],
        env=kit.server_environment(state),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=kit.SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "authenticate" in done.stderr


@pytest.mark.anyio
async def test_a_token_opens_every_route_and_nothing_else_does(state: Path) -> None:
    with served(state, env={"PRIMS_TOKEN": TOKEN}) as server:
        async with httpx2.AsyncClient(base_url=server.base) as http:
            assert (await http.get("/healthz")).status_code == 200
            for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
                paths = ("/artifacts/a/b", "/sessions/a/notebook.py")
                asked = [await http.get(path, headers=headers) for path in paths]
                for answer in (await http.post("/mcp", json={}, headers=headers), *asked):
                    assert answer.status_code == 401
                    assert "Bearer" in answer.headers["www-authenticate"]
        async with client_of(server, token=TOKEN) as client:
            assert (await kit.run_code(client, "1 + 1")).structured_content["result"] == "2"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", kit.ERAS)
async def test_a_client_that_vanishes_has_its_run_stopped(server: Served, mode: str) -> None:
    marker = f"{60000 + os.getpid() % 1000}.{kit.ERAS.index(mode)}"
    code = f"import subprocess; print('up', flush=True); subprocess.run(['sleep', '{marker}'])"
    script = f"""
import anyio, httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
async def main():
    async with httpx2.AsyncClient(timeout=100) as http:
        async with Client(streamable_http_client({server.url!r}, http_client=http), mode={mode!r}) as client:
            await client.call_tool("run_code", {{"code": {code!r}, "timeout_seconds": 300}})
anyio.run(main)
"""
    child = await anyio.open_process([sys.executable, "-c", script])
    try:
        with anyio.fail_after(kit.SECONDS):
            while not kit.processes_with(f"sleep {marker}"):
                await anyio.sleep(0.05)
        child.kill()
        with anyio.fail_after(kit.SECONDS):
            while kit.processes_with(f"sleep {marker}"):
                await anyio.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.aclose()


@pytest.mark.anyio
async def test_a_stopped_server_answers_what_was_under_way(state: Path) -> None:
    results: list[Any] = []
    with served(state) as server:
        async with client_of(server) as client, anyio.create_task_group() as group:
            started = anyio.Event()

            async def heard(progress: float, total: float | None, message: str | None) -> None:
                if "half" in (message or ""):
                    started.set()

            async def call() -> None:
                code = "import time; print('half', flush=True); time.sleep(300)"
                results.append(
                    await client.call_tool("run_code", {"code": code, "timeout_seconds": 400}, progress_callback=heard)
                )

            group.start_soon(call)
            with anyio.fail_after(kit.SECONDS):
                await started.wait()
            server.process.send_signal(signal.SIGTERM)
        status = await anyio.to_thread.run_sync(server.process.wait, kit.SECONDS)
    assert status == 0
    assert results[0].structured_content["status"] == "shutdown"
    assert results[0].structured_content["stdout"] == "half\n"
    assert [p for p in state.iterdir() if p.is_dir()] == []


@pytest.mark.anyio
async def test_an_unused_session_ends_after_its_time(state: Path) -> None:
    with served(state, "--session-idle-seconds", "1") as server:
        async with client_of(server) as client:
            session_id = (await kit.run_code(client, "1")).structured_content["session_id"]
            with anyio.fail_after(kit.SECONDS):
                while True:
                    result = await client.call_tool("list_dir", {"session_id": session_id})
                    if result.is_error:
                        break
                    await anyio.sleep(2)
            assert "session has ended" in kit.text_of(result)


@pytest.mark.anyio
async def test_more_sessions_than_allowed_are_refused_in_words(state: Path) -> None:
    with served(state, "--sessions", "2") as server:
        async with client_of(server) as client:
            for _ in range(2):
                assert not (await kit.run_code(client, "1")).is_error
            refused = await kit.run_code(client, "1")
            assert refused.is_error
            assert "2 sessions" in kit.text_of(refused)


@pytest.mark.parametrize("port", ["70000", "taken"])
def test_an_address_that_cannot_be_listened_on_is_an_error_in_words(state: Path, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1]) if port == "taken" else port
        done = subprocess.run(
            [sys.executable, "-m", "prims", "serve", "--transport", "http", "--port", number],
            env=kit.server_environment(state), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=kit.SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert number in done.stderr
    assert "cannot listen" in done.stderr or "at most 65535" in done.stderr
    assert "Traceback" not in done.stderr
