# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""MCP as clients of all ages speak it: what is on the wire, when, and what is left when the client is gone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from jsonschema import Draft7Validator, Draft202012Validator

from prims.config import Settings
from prims.model import Artifact, CodeError, Display, Picture, RunResult, Text
from prims.server.render import OUTPUT_SCHEMA, render
from tests import cases, kit
from tests.cases import Served

pytestmark = pytest.mark.anyio

OLD = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEW = "2026-07-28"


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


class Wire:
    """A server's pipes, without any SDK between. `messages` holds all that came, in order."""

    def __init__(self, process: Process, revision: str, state: Path) -> None:
        assert process.stdout is not None and process.stdin is not None
        self.process = process
        self.revision = revision
        self.state = state
        self.messages: list[dict[str, Any]] = []
        self._in, self._out = process.stdin, BufferedByteReceiveStream(process.stdout)
        self._ids = 0

    async def send(self, message: dict[str, Any] | bytes) -> None:
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        await self._in.send(line + b"\n")

    async def ask(self, method: str, params: dict[str, Any] | None = None, token: Any = None) -> int:
        """Send a request; gives its id."""
        self._ids += 1
        params = dict(params or {})
        meta: dict[str, Any] = {}
        if self.revision == NEW:
            meta = {
                "io.modelcontextprotocol/protocolVersion": NEW,
                "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        if token is not None:
            meta["progressToken"] = token
        if meta:
            params["_meta"] = meta
        await self.send({"id": self._ids, "method": method, "params": params})
        return self._ids

    async def read(self) -> dict[str, Any]:
        """The next line, which must be a JSON-RPC message."""
        with anyio.fail_after(kit.SECONDS):
            line = await self._out.receive_until(b"\n", 64 << 20)
        message = json.loads(line)
        assert isinstance(message, dict) and message["jsonrpc"] == "2.0", line[:200]
        assert ("method" in message) != ("result" in message or "error" in message), line[:200]
        self.messages.append(message)
        return message

    async def answer(self, id: int) -> dict[str, Any]:
        """The answer to a request, whatever comes before it."""
        while True:
            for message in self.messages:
                if message.get("id") == id and "method" not in message:
                    return message
            await self.read()

    async def run(self, code: str, token: Any = None, **arguments: Any) -> dict[str, Any]:
        """The result of a run."""
        id = await self.ask("tools/call", {"name": "run_code", "arguments": {"code": code, **arguments}}, token)
        result = (await self.answer(id))["result"]
        assert isinstance(result, dict)
        return result

    async def close(self) -> int:
        """Close the server's stdin, read what still comes, and wait for the end; gives the exit status."""
        await self._in.aclose()
        with anyio.fail_after(kit.SECONDS):
            try:
                while True:
                    await self.read()
            except (anyio.EndOfStream, anyio.IncompleteRead) as end:
                assert isinstance(end, anyio.EndOfStream) or not self._out.buffer, self._out.buffer[:200]
            return await self.process.wait()


@asynccontextmanager
async def wire(revision: str, *arguments: str, umask: int = -1, below: str = "") -> AsyncIterator[Wire]:
    """A new server, spoken to in one revision of the protocol, past its handshake."""
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as folder:
        state = Path(folder) / below
        state.mkdir(parents=True, exist_ok=True)
        with (state / "stderr.log").open("wb") as log:
            process = await anyio.open_process(
                [sys.executable, "-m", "prims", "serve", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=kit.server_environment(state),
                cwd=folder,
                umask=umask,
            )
            try:
                pipes = Wire(process, revision, state)
                if revision == NEW:
                    found = await pipes.answer(await pipes.ask("server/discover"))
                    assert NEW in found["result"]["supportedVersions"]
                else:
                    hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
                    made = await pipes.answer(await pipes.ask("initialize", hello))
                    assert made["result"]["protocolVersion"] == revision
                    await pipes.send({"method": "notifications/initialized"})
                yield pipes
            finally:
                if process.returncode is None:
                    process.kill()
                with anyio.CancelScope(shield=True):
                    await process.aclose()


# ------------------------------------------------------------------------------------------ E01 stdout


@pytest.mark.parametrize("revision", [*OLD, NEW])
async def test_every_line_on_stdout_is_protocol_from_first_byte_to_exit(revision: str) -> None:
    async with wire(revision) as pipes:
        tools = (await pipes.answer(await pipes.ask("tools/list")))["result"]["tools"]
        assert "run_code" in [tool["name"] for tool in tools]
        code = "import os, sys\nos.system('echo noise; echo noise2 >&2')\nos.write(1, b'half a line')\nprint('{\"jsonrpc\": 1}')\nimport six\n"
        result = await pipes.run(code, requirements=["six"])
        assert not result.get("isError"), result
        [text] = [block["text"] for block in result["content"]]
        assert "noise\nhalf a line" in text and "noise2" in text
        if "structuredContent" in result:
            assert result["structuredContent"]["status"] == "ok"
        failed = await pipes.run("1 / 0\n")
        assert failed["isError"] is True and "ZeroDivisionError" in failed["content"][0]["text"]
        assert await pipes.close() == 0
        assert not [m for m in pipes.messages if m.get("method") == "notifications/progress"]


NOISY = {
    "code that looks for the server's stdout": "import os, glob\nfor p in glob.glob('/proc/*/fd/1'):\n    try:\n        open(p, 'w').write('noise\\n')\n    except OSError:\n        pass\nfor n in range(3, 64):\n    try:\n        os.write(n, b'noise\\n')\n    except OSError:\n        pass\nprint('ran')\n",
    "a package that fails to install": None,
    "megabytes of text": "print('x' * 5_000_000)\nprint('ran')\n",
    "a crash": "import ctypes\nprint('ran', flush=True)\nctypes.string_at(0)\n",
    "line separators in text": "print('ran\\u2028\\u2029\\x85end')\n",
}


async def test_stdout_stays_protocol_whatever_code_and_installers_do() -> None:
    async with wire("2025-06-18") as pipes:
        for kind, code in NOISY.items():
            if code is None:
                result = await pipes.run("print('never')\n", requirements=["six==99.99"])
                assert result["isError"] and "never" not in result["content"][0]["text"].replace("'never'", "")
            else:
                result = await pipes.run(code, timeout_seconds=10)  # the first may well cut the kernel's own wires
                assert "ran" in result["content"][0]["text"], kind
        assert await pipes.close() == 0


async def test_a_line_that_is_no_message_does_not_end_the_server() -> None:
    async with wire("2025-06-18") as pipes:
        await pipes.send(b"this is no JSON")
        await pipes.send(b'{"jsonrpc": "2.0", "method": "notifications/nobody-knows"}')
        await pipes.send(b"")
        assert (await pipes.run("print('still here')\n"))["structuredContent"]["stdout"] == "still here\n"


async def test_a_strict_umask_keeps_no_code_from_its_files() -> None:
    async with wire(NEW, umask=0o077) as pipes:
        code = "open('output/f', 'w').close()\nprint(open('mounts/m.txt').read())\n"
        result = await pipes.run(code, files=[{"url": "data:,mounted", "mountPath": "m.txt"}])
        assert result["structuredContent"]["stdout"] == "mounted\n", result


async def test_a_path_too_long_for_sockets_is_told_in_words() -> None:
    async with wire(NEW, below="x" * 90) as pipes:
        [block] = (await pipes.run("1"))["content"]
        assert "too long" in block["text"] and "PRIMS_STATE_DIR" in block["text"]


async def test_what_a_client_writes_carelessly_is_understood_or_answered_at_once() -> None:
    plain = '{"code": "1", "timeout_seconds": -1}'
    ask = '{"jsonrpc": "2.0", "id": "ID", "method": "tools/call", "params": {"name": "run_code", "arguments": ARGS}}'
    careless = {
        "cut emoji": ask.replace("ARGS", '{"code": "1 # \\ud83d", "timeout_seconds": -1}'),
        "byte order mark": "\ufeff" + ask.replace("ARGS", plain),
        "arguments as text": ask.replace("ARGS", json.dumps(plain)),
        "null as token": ask.replace("ARGS", plain + ', "_meta": {"progressToken": null}'),
        "batch": "[" + ask.replace("ARGS", plain) + "]",
    }
    wrong = {"params": '{"jsonrpc": "2.0", "id": "ID", "method": "ping", "params": [1]}', "version": '{"id": "ID", "method": "ping"}'}
    async with wire("2025-03-26") as pipes:
        for name, line in {**careless, **wrong}.items():
            await pipes.send(line.replace("ID", name).encode())
        for name in careless:
            while not (found := [m for m in pipes.messages if m.get("id") == name]):
                await pipes.read()
            assert "timeout_seconds" in found[0]["result"]["content"][0]["text"], found
        for name in wrong:
            while not (found := [m for m in pipes.messages if m.get("id") == name]):
                await pipes.read()
            assert found[0]["error"]["code"] == -32600, found


async def test_nothing_is_said_before_the_client_speaks() -> None:
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        process = await anyio.open_process(
            [sys.executable, "-m", "prims", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=kit.server_environment(Path(folder)),
        )  # fmt: skip
        try:
            assert process.stdin is not None and process.stdout is not None
            await process.stdin.aclose()
            with anyio.fail_after(kit.SECONDS), pytest.raises(anyio.EndOfStream):
                await process.stdout.receive()
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()


# ------------------------------------------------------------------------------------------ E02 progress


TALKING = "import time\nfor i in range(4):\n    time.sleep(0.4); print('tick', i)\n"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", NEW])
@pytest.mark.parametrize("token", ["tok-1", 0, 7, "0", ""], ids=repr)
async def test_progress_carries_the_clients_token_rises_and_ends_before_the_result(revision: str, token: str | int) -> None:
    async with wire(revision) as pipes:
        await pipes.run(TALKING, token)
        assert await pipes.close() == 0
        last = [n for n, m in enumerate(pipes.messages) if "result" in m][-1]
        progress = [m["params"] for m in pipes.messages if m.get("method") == "notifications/progress"]
        assert progress, "no progress at all"
        for params in progress:
            assert params["progressToken"] == token and type(params["progressToken"]) is type(token)
            assert params.get("total") is None or params["progress"] < params["total"]
        values = [params["progress"] for params in progress]
        assert values == sorted(set(values))
        assert not [m for m in pipes.messages[last + 1 :] if "method" in m], "progress after the result"
        told = "".join(params.get("message") or "" for params in progress)
        assert "tick 0" in told and told.index("tick 0") < told.index("tick 1")


@pytest.mark.parametrize("revision", ["2024-11-05", NEW])
async def test_a_client_that_gave_no_token_gets_no_progress(revision: str) -> None:
    async with wire(revision) as pipes:
        await pipes.run("import time\nfor i in range(60):\n    time.sleep(0.1); print(i)\n")
        assert await pipes.close() == 0
        assert not [m for m in pipes.messages if "method" in m]


async def test_a_silent_run_still_gives_signs_of_life() -> None:
    async with wire(NEW) as pipes:
        await pipes.run("import time\ntime.sleep(6)\n", "t")
        assert [m for m in pipes.messages if m.get("method") == "notifications/progress"]


async def test_a_flood_gives_few_progress_messages() -> None:
    async with wire(NEW) as pipes:
        await pipes.run("for i in range(100_000):\n    print(i)\n", "t")
        progress = [m for m in pipes.messages if m.get("method") == "notifications/progress"]
        assert len(progress) < 50 and sum(len(json.dumps(m)) for m in progress) < 200_000


async def test_tokens_of_calls_at_once_do_not_mix() -> None:
    async with wire(NEW) as pipes:
        ids = {}
        for name in ("one", "two", 3):
            code = TALKING.replace("tick", f"tick-{name}")
            ids[name] = await pipes.ask("tools/call", {"name": "run_code", "arguments": {"code": code}}, name)
        for id in ids.values():
            await pipes.answer(id)
        for message in pipes.messages:
            if message.get("method") == "notifications/progress":
                text, token = message["params"].get("message") or "", message["params"]["progressToken"]
                assert not [other for other in ids if other != token and f"tick-{other}" in text]


# ------------------------------------------------------------------------------------------ E06 the client is gone


HOLDING = "import subprocess, time\nsubprocess.Popen(['sleep', '{n}'], start_new_session=True)\nopen('output/x', 'w').close()\nprint('begun', flush=True)\ntime.sleep(300)\n"


async def begun(pipes: Wire, number: int) -> None:
    """A run is under way in this server."""
    code = HOLDING.replace("{n}", str(number))
    await pipes.ask("tools/call", {"name": "run_code", "arguments": {"code": code, "timeout_seconds": 400}}, "t")
    while "begun" not in json.dumps(pipes.messages):
        await pipes.read()
    assert kit.processes_with(f"sleep {number}")


def left_in(state: Path) -> list[str]:
    return [path.name for path in state.iterdir() if path.name != "stderr.log"]


@pytest.mark.parametrize("revision", ["2024-11-05", NEW])
async def test_a_server_whose_stdin_ends_takes_everything_with_it(revision: str) -> None:
    async with wire(revision) as pipes:
        await begun(pipes, 6021)
        assert await pipes.close() == 0
        await cases.until(lambda: not kit.processes_with("sleep 6021"), kit.SECONDS)
        assert not left_in(pipes.state)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signalled_server_takes_everything_with_it(number: signal.Signals) -> None:
    async with wire(NEW) as pipes:
        await begun(pipes, 6022)
        pipes.process.send_signal(number)
        with anyio.fail_after(kit.SECONDS):
            assert await pipes.process.wait() == 0
        await cases.until(lambda: not kit.processes_with("sleep 6022"), kit.SECONDS)
        assert not left_in(pipes.state)


async def test_a_killed_server_leaves_no_process_and_the_next_one_sweeps_its_folders() -> None:
    async with wire(NEW) as pipes:
        await begun(pipes, 6023)
        pipes.process.kill()
        await cases.until(lambda: not kit.processes_with("sleep 6023"), kit.SECONDS)
        stale = set(left_in(pipes.state))
        assert stale, "nothing to sweep: this test shows nothing"
        async with kit.connected(pipes.state) as client:
            assert (await cases.run(client, "print('next')")).stdout == "next\n"
            assert not [name for name in stale & set(left_in(pipes.state)) if any((pipes.state / name).iterdir())]
        assert not left_in(pipes.state)


async def test_a_client_that_stops_reading_does_not_keep_the_server_alive() -> None:
    async with wire(NEW) as pipes:
        for _ in range(8):
            await pipes.ask("tools/call", {"name": "run_code", "arguments": {"code": "print('w' * 10**6)"}}, "t")
        assert pipes.process.stdout is not None
        await pipes.process.stdout.aclose()
        await pipes._in.aclose()
        with anyio.fail_after(kit.SECONDS):
            await pipes.process.wait()
        await cases.until(lambda: not left_in(pipes.state), kit.SECONDS)


@pytest.mark.parametrize("revision", ["2025-11-25", NEW])
async def test_a_cancelled_call_ends_its_run_and_nothing_else(revision: str) -> None:
    async with wire(revision) as pipes:
        await begun(pipes, 6024)
        await pipes.send({"method": "notifications/cancelled", "params": {"requestId": pipes._ids, "reason": "enough"}})
        await cases.until(lambda: not kit.processes_with("sleep 6024"), kit.SECONDS)
        assert (await pipes.run("print('next')\n"))["structuredContent"]["stdout"] == "next\n"


# ------------------------------------------------------------------------------------------ E07, E08 at once


async def test_eight_calls_at_once_each_hold_their_own_output(server: Served) -> None:
    replies: dict[int, cases.Seen] = {}

    async def call(n: int) -> None:
        code = f'import os, time\nfor i in range(20):\n    print("TAG-{n}", i, flush=True); time.sleep(0.02)\nopen("output/me-{n}.txt", "w").write("TAG-{n}")\n{n}\n'
        replies[n] = await server.run(code)

    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(call, n)
    for n, seen in replies.items():
        assert seen.stdout == "".join(f"TAG-{n} {i}\n" for i in range(20))
        assert (seen.status, seen.stderr, seen.value) == ("ok", "", str(n))
        assert f"output/me-{n}.txt" in seen.files
    check = await server.run("for n in range(8):\n    print(open(f'output/me-{n}.txt').read())\n")
    assert check.stdout.split() == [f"TAG-{n}" for n in range(8)]


async def test_calls_at_once_share_no_names_and_no_process(server: Served) -> None:
    replies: dict[int, cases.Seen] = {}

    async def call(n: int) -> None:
        code = f"import os, time, sys\nassert 'mine' not in globals()\nmine = {n}\nos.environ['MINE'] = '{n}'\nos.makedirs('/tmp/private')\ntime.sleep(1)\nprint(mine, os.environ['MINE'])\n"
        replies[n] = await server.run(code)

    async with anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(call, n)
    assert [replies[n].stdout for n in range(4)] == [f"{n} {n}\n" for n in range(4)]


@pytest.mark.slow
async def test_twenty_starts_at_once_all_succeed_round_after_round(server: Served) -> None:
    for _ in range(3):
        replies: list[cases.Seen] = []

        async def call(replies: list[cases.Seen] = replies) -> None:
            replies.append(await server.run('print("up")\n'))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(call)
        assert [seen.stdout for seen in replies] == ["up\n"] * 20


async def test_calls_beyond_the_queue_are_refused_in_words() -> None:
    async with cases.serving("--concurrent-runs", "1", "--queued-runs", "1") as served:
        texts: list[str] = []
        code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('ran')"

        async def call() -> None:
            texts.append(kit.text_of(await kit.run_code(served.client, code)))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(call)
            await cases.until(lambda: len(texts) == 3, kit.SECONDS)
            [files] = served.state.glob("*/w1/files")
            (files / "go").touch()
        assert sum("ran" in text for text in texts) == 2
        busy = [text for text in texts if "ran" not in text]
        assert all("again" in text or "later" in text or "wait" in text for text in busy), busy


# ------------------------------------------------------------------------------------------ E11 schemas


def walk(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """All schemas within a schema, with their places."""
    assert isinstance(schema, dict), f"{path} is a boolean schema or none"
    found = [(path, schema)]
    for name, inner in schema.get("properties", {}).items():
        found += walk(inner, f"{path}/{name}")
    for key in ("items", "additionalProperties", "contains", "not", "if", "then", "else"):
        if key in schema:
            found += walk(schema[key], f"{path}/{key}")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, inner in enumerate(schema.get(key, [])):
            found += walk(inner, f"{path}/{key}{number}")
    return found


@pytest.mark.parametrize("era", kit.ERAS)
async def test_every_schema_is_of_the_kind_that_all_clients_take(era: str) -> None:
    async with cases.serving(mode=era) as served:
        tools = (await served.client.list_tools()).tools
        assert "run_code" in [tool.name for tool in tools]
        for tool in tools:
            assert tool.description and len(tool.description) < 4000
            for schema in filter(None, (tool.input_schema, tool.output_schema)):
                Draft202012Validator.check_schema(schema)
                Draft7Validator.check_schema(schema)
                assert schema["type"] == "object" and isinstance(schema["properties"], dict)
                for path, part in walk(schema):
                    assert isinstance(part.get("type"), str), f"{tool.name}{path} has no single type"
                    assert not {"$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "const", "nullable"} & set(part), path
                    assert part.get("default", 0) is not None, f"{tool.name}{path} defaults to null"
                    if part["type"] == "array":
                        assert isinstance(part["items"]["type"], str), path
                    if part["type"] == "object":
                        assert set(part.get("required", [])) <= set(part.get("properties", {})), path
                    assert None not in part.get("enum", [])
            for name in tool.input_schema["properties"]:
                assert name.isidentifier() and tool.input_schema["properties"][name].get("description")


async def test_the_tool_tells_its_limits_packages_and_what_persists(server: Served) -> None:
    [tool] = [t for t in (await server.client.list_tools()).tools if t.name == "run_code"]
    for piece in ("pandas", "matplotlib", "network", "100 s", "session", "requirements", "output/", "variables"):
        assert piece in (tool.description or "")
    assert tool.input_schema["required"] == ["code"]


# ------------------------------------------------------------------------------------------ E12 state


async def test_files_stay_names_go_and_the_error_says_so(server: Served) -> None:
    first = await server.run('answer = 42\nopen("output/keep.txt", "w").write("kept")\nprint("set")\n')
    assert first.stdout == "set\n" and "output/keep.txt" in first.files
    second = await server.run('import os\nprint(os.path.exists("output/keep.txt"))\nprint(answer)\n')
    assert second.stdout == "True\n" and second.error["name"] == "NameError"
    assert "fresh" in second.hints and second.hints in second.text.replace("- ", "")
    assert "output/keep.txt" not in second.files, "an old file counts as new"


STATE = {
    "an imported module": ("import json\n", "json.dumps(1)\n", "NameError"),
    "a function": ("def helper():\n    return 1\n", "helper()\n", "NameError"),
    "an environment variable": ("import os\nos.environ['KEPT'] = '1'\n", "import os\nos.environ['KEPT']\n", "KeyError"),
    "the working directory": ("import os\nos.makedirs('sub', exist_ok=True)\nos.chdir('sub')\n", "open('nothing-here.txt')\n", "FileNotFoundError"),
    "a patched builtin": ("import builtins\nbuiltins.patched = 1\n", "patched\n", "NameError"),
    "a module of the workspace": ("open('kept_module.py', 'w').write('X = 5')\n", "import kept_module\nprint(kept_module.X)\n", None),
    "a folder": ("import os\nos.makedirs('data/deep', exist_ok=True)\nopen('data/deep/f', 'w').write('f')\n", "print(open('data/deep/f').read())\n", None),
    "a file in /tmp": ("open('/tmp/gone', 'w').write('x')\n", "open('/tmp/gone')\n", "FileNotFoundError"),
    "a file at home": ("import os\nopen(os.path.expanduser('~/gone'), 'w').write('x')\n", "import os\nopen(os.path.expanduser('~/gone'))\n", "FileNotFoundError"),
}


@pytest.mark.parametrize("kind", STATE)
async def test_only_files_of_the_workspace_outlive_a_call(server: Served, kind: str) -> None:
    first, second, error = STATE[kind]
    assert (await server.run(first)).status == "ok"
    seen = await server.run(second)
    assert seen.fields.get("error", {}).get("name") == error, seen


async def test_a_session_is_found_again_by_its_id_and_unknown_ones_are_refused(server: Served) -> None:
    seen = await server.run("open('mine.txt', 'w').write('m')\n")
    again = await server.run("print(open('mine.txt').read())\n", session_id=seen.fields["session_id"])
    assert again.stdout == "m\n" and again.fields["session_id"] == seen.fields["session_id"]
    told = await cases.refused(server.client, "print('must not run')", session_id="s_" + "0" * 32)
    assert "session_id" in told.text


# ------------------------------------------------------------------------------------------ arguments


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown argument": ({"code": "print('must not run')", "language": "python"}, "language"),
    "the wrong name of the time limit": ({"code": "print('must not run')", "timeout": 5}, "timeout_seconds"),
    "a misspelt argument": ({"code": "print('must not run')", "requirement": ["six"]}, "requirements"),
    "no code": ({}, "code"),
    "null as code": ({"code": None}, "code"),
    "a number as code": ({"code": 5}, "code"),
    "a list as code": ({"code": ["print(1)"]}, "code"),
    "empty code": ({"code": ""}, "code"),
    "blank code": ({"code": " \n\t\n"}, "code"),
    "an empty fence": ({"code": "```python\n```"}, "code"),
    "a NUL in the code": ({"code": "print('must not run')\0"}, "NUL"),
    "code that is too long": ({"code": "#" * 200_001}, "200,000"),
    "a time of zero": ({"code": "print('must not run')", "timeout_seconds": 0}, "timeout_seconds"),
    "a negative time": ({"code": "print('must not run')", "timeout_seconds": -1}, "timeout_seconds"),
    "a time beyond the maximum": ({"code": "print('must not run')", "timeout_seconds": 10_000}, "600"),
    "a time in words": ({"code": "print('must not run')", "timeout_seconds": "soon"}, "timeout_seconds"),
    "a time that is no number": ({"code": "print('must not run')", "timeout_seconds": "nan"}, "timeout_seconds"),
    "an endless time": ({"code": "print('must not run')", "timeout_seconds": "inf"}, "timeout_seconds"),
    "a time of 400 digits": ({"code": "print('must not run')", "timeout_seconds": 10**400}, "timeout_seconds"),
    "requirements nested too deeply": ({"code": "print('must not run')", "requirements": "[" * 100_000}, "requirements"),
    "true as time": ({"code": "print('must not run')", "timeout_seconds": True}, "timeout_seconds"),
    "a notebook file": ({"code": '{"cells": [{"cell_type": "code", "source": "print(1)", "outputs": []}]}'}, "notebook"),
    "a number as requirements": ({"code": "print('must not run')", "requirements": 5}, "requirements"),
    "an object as requirements": ({"code": "print('must not run')", "requirements": {"six": "1"}}, "requirements"),
    "numbers in requirements": ({"code": "print('must not run')", "requirements": [1]}, "requirements"),
    "a list as session": ({"code": "print('must not run')", "session_id": ["x"]}, "session_id"),
    "a path as session": ({"code": "print('must not run')", "session_id": "../../etc"}, "session_id"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
async def test_a_wrong_argument_is_a_clear_error_and_runs_nothing(server: Served, kind: str) -> None:
    arguments, named = BAD_ARGUMENTS[kind]
    result = await server.client.call_tool("run_code", arguments)
    text = kit.text_of(result)
    assert result.is_error and named in text
    assert 10 < len(text) < 500 and "Traceback" not in text and "pydantic" not in text


GOOD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "a time as text": {"timeout_seconds": "30"},
    "a time as null": {"timeout_seconds": None},
    "a time as empty text": {"timeout_seconds": ""},
    "a whole number as time": {"timeout_seconds": 30},
    "an empty session": {"session_id": ""},
    "null as session": {"session_id": None},
    "a whole reply of nulls": {"requirements": None, "timeout_seconds": None, "session_id": None},
}


@pytest.mark.parametrize("kind", GOOD_ARGUMENTS)
async def test_other_spellings_of_an_argument_are_understood(server: Served, kind: str) -> None:
    assert (await server.run("print('ran')", **GOOD_ARGUMENTS[kind])).stdout == "ran\n"


async def test_a_number_that_is_none_is_refused_in_words(server: Served) -> None:
    for offset in ("1e999", "NaN", -1):
        result = await server.client.call_tool("preview_file", {"relative_path": "x", "offset": offset})
        assert "offset is a whole number" in kit.text_of(result), offset


async def test_an_unknown_tool_is_named_in_the_error(server: Served) -> None:
    result = await server.client.call_tool("run_python", {"code": "1"})
    assert result.is_error and "run_python" in kit.text_of(result) and "run_code" in kit.text_of(result)


# ------------------------------------------------------------------------------------------ the result


ENDINGS = {
    "ok": ((), "1 + 1\n", 20),
    "error": ((), "1 / 0\n", 20),
    "timeout": ((), "import time\ntime.sleep(60)\n", 1),
    "died": ((), "import os\nos._exit(3)\n", 20),
    "limit": (("--output-bytes", "1M"), "while True:\n    print('x' * 1000)\n", 30),
    "out_of_memory": (
        ("--memory-bytes", "400M"),
        "import subprocess, sys, time\nps = [subprocess.Popen([sys.executable, '-c', \"b = bytearray(150 << 20); b[::4096] = b'x' * len(b[::4096]); import time; time.sleep(60)\"]) for _ in range(4)]\ntime.sleep(60)\n",
        40,
    ),
}


@pytest.mark.parametrize("status", ENDINGS)
async def test_every_ending_of_a_run_fits_the_output_schema(status: str) -> None:
    arguments, code, seconds = ENDINGS[status]
    async with cases.serving(*arguments) as served:
        [tool] = [t for t in (await served.client.list_tools()).tools if t.name == "run_code"]
        assert tool.output_schema == OUTPUT_SCHEMA
        seen = await served.run(code, timeout_seconds=seconds)
        assert seen.status == status, seen
        Draft7Validator(tool.output_schema).validate(seen.fields)
        Draft202012Validator(tool.output_schema).validate(seen.fields)
        assert seen.fields["isolation"] == "bubblewrap" and seen.fields["isolation"] in seen.text
        assert {"environment", "start", "run"} <= set(seen.fields["seconds"])
        assert seen.fields["session_id"] in seen.text
        assert any(p.startswith("pandas==") for p in seen.fields["packages"])


@pytest.mark.parametrize("status", OUTPUT_SCHEMA["properties"]["status"]["enum"])
def test_a_result_of_any_status_renders_within_the_schema(status: str) -> None:
    result = RunResult(
        status=status,  # type: ignore[arg-type]
        isolation="none",
        stdout=Text("out\n", "", 4, 1),
        story=Text("out\n", "", 4, 1),
        error=None if status == "ok" else CodeError("Name", "value\udcff\x1b[0m", "trace", None),
        cause="because",
        displays=(
            Display("image/png", 3, "figure-1.png", "output/figure-1.png", inline=Picture(b"png", "image/png", 1, 1)),
        ),
        artifacts=(Artifact("naïve ☃.txt", "output/naïve ☃.txt", 0, "text/plain"),),
        seconds={"run": 0.1},
    )
    structured = render(result, "s_1", Settings()).structured
    json.dumps(structured).encode()
    Draft7Validator(OUTPUT_SCHEMA).validate(structured)
    Draft202012Validator(OUTPUT_SCHEMA).validate(structured)


# ------------------------------------------------------------------------------------------ while a run goes on


async def test_pings_and_lists_are_answered_while_code_runs() -> None:
    async with wire("2025-11-25") as pipes:
        await begun(pipes, 6025)
        run = pipes._ids
        with anyio.fail_after(kit.SECONDS):  # the run takes longer
            for _ in range(5):
                assert (await pipes.answer(await pipes.ask("ping")))["result"] == {}
                assert (await pipes.answer(await pipes.ask("tools/list")))["result"]["tools"]
        assert not [m for m in pipes.messages if m.get("id") == run]


async def test_lists_are_answered_while_code_floods(server: Served) -> None:
    async with anyio.create_task_group() as group:

        async def flood() -> None:
            await server.run("for i in range(60):\n    print('f' * 500_000)\n", timeout_seconds=80)

        group.start_soon(flood)
        for _ in range(5):
            with anyio.fail_after(30):
                await server.client.list_tools()


async def test_the_memory_of_the_server_does_not_grow_from_call_to_call(server: Served) -> None:
    for _ in range(3):
        await server.run("print('x' * 100_000)\n")
    before = cases.memory_kb(server.pid, "VmRSS")
    for _ in range(15):
        await server.run("print('x' * 100_000)\n")
    assert cases.memory_kb(server.pid, "VmRSS") - before < 15_000
    assert len(os.listdir(f"/proc/{server.pid}/fd")) < 80


@pytest.mark.slow
@pytest.mark.anyio
async def test_silent_code_gives_a_sign_of_life_often_enough_for_every_client(state: Path) -> None:
    """E04: clients give up after a minute without a word."""
    heard: list[float] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        heard.append(anyio.current_time())

    async with kit.connected(state) as client:
        heard.append(anyio.current_time())
        with anyio.fail_after(kit.SECONDS):
            await client.call_tool(
                "run_code", {"code": "import time; time.sleep(16)"}, progress_callback=progress
            )
        heard.append(anyio.current_time())
    assert max(b - a for a, b in itertools.pairwise(heard)) < 10
