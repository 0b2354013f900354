"""What the tests of the fault cases share: one server for many calls, and what must hold for every reply."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from jsonschema import Draft7Validator, Draft202012Validator
from mcp.client import Client
from mcp.types import CallToolResult, ImageContent

from prims.server.render import OUTPUT_SCHEMA
from tests import kit

STATUSES = {"ok", "error", "timeout", "died", "out_of_memory", "limit", "cancelled", "shutdown"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OURS = re.compile(
    r"prims_kernel|ipykernel|site-packages/IPython|/tmp/ipykernel|connection_file|kernel-[0-9a-f-]{8,}\.json"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{400}")


@dataclass(frozen=True)
class Served:
    """A running server, its client and its private folder."""

    client: Client
    state: Path

    async def run(self, code: str, /, **arguments: Any) -> Seen:
        return await run(self.client, code, **arguments)

    @property
    def pid(self) -> int:
        [pid] = server_pids(self.state)
        return pid


@dataclass(frozen=True)
class Seen:
    """One reply, as a client sees it."""

    result: CallToolResult
    seconds: float
    fields: dict[str, Any] = field(repr=False)

    @property
    def text(self) -> str:
        return kit.text_of(self.result)

    @property
    def images(self) -> list[ImageContent]:
        return [block for block in self.result.content if isinstance(block, ImageContent)]

    @property
    def status(self) -> str:
        return str(self.fields.get("status", "refused"))

    @property
    def stdout(self) -> str:
        return str(self.fields["stdout"])

    @property
    def stderr(self) -> str:
        return str(self.fields["stderr"])

    @property
    def value(self) -> str:
        return str(self.fields["result"])

    @property
    def error(self) -> dict[str, Any]:
        error = self.fields["error"]
        assert isinstance(error, dict)
        return error

    @property
    def hints(self) -> str:
        return "\n".join(self.fields["feedback"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        return {artifact["relative_path"]: artifact for artifact in self.fields["artifacts"]}

    def __str__(self) -> str:
        """For the message of a failed assertion."""
        return f"[{self.status} after {self.seconds:.1f} s]\n{self.text[:3000]}"


@asynccontextmanager
async def serving(
    *arguments: str, mode: str = "2026-07-28", env: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """A server in a short folder of its own, for as many calls as its tests like."""
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as folder:
        async with kit.connected(Path(folder), *arguments, mode=mode, env=env) as client:
            yield Served(client, Path(folder))


async def run(client: Client, code: str, /, **arguments: Any) -> Seen:
    """Call run_code and hold the reply to what holds for every reply that ran code."""
    begun = time.monotonic()
    result = await kit.run_code(client, code, **arguments)
    seen = Seen(result, time.monotonic() - begun, result.structured_content or {})
    check_reply(seen)
    return seen


async def refused(client: Client, code: str, /, **arguments: Any) -> Seen:
    """Call run_code where it must say no before anything runs: a failure with a sentence and nothing else."""
    begun = time.monotonic()
    result = await kit.run_code(client, code, **arguments)
    seen = Seen(result, time.monotonic() - begun, result.structured_content or {})
    assert result.is_error, seen
    assert not seen.fields.get("stdout"), "the code was run"
    assert "must not run" not in seen.text.replace(repr(code), ""), "the code was run"
    assert 10 < len(seen.text) < 4000
    assert "Traceback" not in seen.text
    return seen


def check_reply(seen: Seen) -> None:
    """Schema, flag, size and cleanliness of any reply to run_code that ran."""
    assert seen.fields, seen.text
    for validator in (Draft202012Validator, Draft7Validator):
        validator(OUTPUT_SCHEMA).validate(seen.fields)
    assert seen.status in STATUSES
    assert bool(seen.result.is_error) == (seen.status != "ok"), seen
    assert ("error" in seen.fields) == (seen.status != "ok"), seen
    wire = json.dumps(seen.fields, ensure_ascii=False)
    assert not _CONTROL.search(seen.text), repr(_CONTROL.search(seen.text))
    assert not _CONTROL.search("".join(strings(seen.fields)))
    assert len(seen.text) + len(wire) < 50_000
    assert len(wire) + len(seen.text) + sum(len(image.data) for image in seen.images) < 700_000
    assert not _OURS.search(seen.fields.get("error", {}).get("traceback", "")), seen
    assert len(seen.text) >= 5, "an empty reply"


def assert_no_base64(seen: Seen) -> None:
    """Pictures are in image blocks and nowhere else."""
    assert not _BASE64.search(seen.text)
    assert not _BASE64.search(json.dumps(seen.fields))


def strings(value: Any) -> list[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *strings(item))]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return []


def server_pids(state: Path) -> list[int]:
    """Live processes that are the server of this state folder."""
    wanted = f"PRIMS_STATE_DIR={state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment, line = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0") and b"\0prims\0serve" in line:
                found.append(int(entry.name))
    return found


def memory_kb(pid: int, key: str) -> int:
    """A field of /proc/PID/status in KB: VmRSS now, VmHWM the highest so far."""
    match = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert match
    return int(match[1])


async def until(met: Callable[[], bool], seconds: float) -> float:
    """Wait until `met()`; gives how long it took and fails when it takes longer than `seconds`."""
    begun = time.monotonic()
    with anyio.fail_after(seconds):
        while not met():
            await anyio.sleep(0.02)
    return time.monotonic() - begun
