"""Samples, what each is compared with, and the table; a client of a new server; looks at processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

# These change what is measured, and a user's machine has neither.
ENVIRONMENT = {
    k: v for k, v in os.environ.items()
    if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED") and not k.startswith("PRIMS_")
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """What a row must not exceed: `most` in its own unit, `ratio` times, or `more` in its unit above, the other."""

    most: float | None = None
    ratio: float | None = None
    more: float | None = None
    least: float | None = None

    def __str__(self) -> str:
        words = [f"<= {self.ratio:.3g} x"] if self.ratio is not None else []
        words += [f"<= +{self.more:.3g}"] if self.more is not None else []
        words += [f"<= {self.most:.3g}"] if self.most is not None else []
        words += [f">= {self.least:.3g}"] if self.least is not None else []
        return ", ".join(words)

    def met(self, value: float, other: float | None) -> bool:
        """Whether a median meets it. What there is nothing to compare with does not."""
        compared = other is not None or (self.ratio is None and self.more is None)
        return (
            compared
            and (self.most is None or value <= self.most)
            and (self.least is None or value >= self.least)
            and (self.ratio is None or other is None or value <= self.ratio * other)
            and (self.more is None or other is None or value <= other + self.more)
        )


class Bench:
    """Samples by name. Units are the caller's; times are milliseconds unless the name's unit says otherwise."""

    def __init__(self, *, quick: bool = False) -> None:
        self.quick = quick
        self.samples: dict[str, list[float]] = {}
        self.gone: dict[str, str] = {}
        self._about: dict[str, tuple[str, str, Target | None]] = {}

    def times(self, count: int) -> range:
        """How often to do what a full run does `count` times."""
        return range(max(2, count // 3) if self.quick else count)

    def add(
        self, name: str, value: float, unit: str = "ms", *, against: str = "", target: Target | None = None
    ) -> None:
        """One sample of a row."""
        self.samples.setdefault(name, []).append(value)
        self._about[name] = (unit, against, target)
        print(f"  {name}: {value:.4g} {unit}", file=sys.stderr, flush=True)

    def missing(self, name: str, why: str) -> None:
        """A row or a peer that is not here, and why."""
        self.gone[name] = why
        print(f"  {name}: not measured: {why}", file=sys.stderr, flush=True)

    def lines(self) -> list[dict[str, Any]]:
        """One line for each name, medians with their spread."""
        medians = {name: statistics.median(values) for name, values in self.samples.items()}
        found = []
        for name, values in self.samples.items():
            unit, against, target = self._about[name]
            line: dict[str, Any] = {
                "name": name, "unit": unit, "n": len(values), "median": medians[name],
                "least": min(values), "most": max(values),
            }  # fmt: skip
            other = medians.get(against)
            if other:
                line |= {"against": against, "ratio": medians[name] / other}
            if target is not None:
                line |= {"target": str(target), "met": target.met(medians[name], other)}
            found.append(line)
        return found

    def table(self) -> str:
        """For people."""
        lines = self.lines()
        width = max((len(line["name"]) for line in lines), default=0)
        shown = [f"{'':{width}}  {'median':>8} {'least':>8} {'most':>8} {'unit':6} {'n':>3}  target"]
        for line in lines:
            numbers = " ".join(f"{line[key]:>8.4g}" for key in ("median", "least", "most"))
            ratio = f"{line['ratio']:.2f} x {line['against']}" if "ratio" in line else ""
            verdict = f"{'met' if line['met'] else 'MISSED'} ({line['target']})" if "target" in line else ""
            about = "; ".join(part for part in (verdict, ratio) if part)
            shown.append(f"{line['name']:{width}}  {numbers} {line['unit']:6} {line['n']:>3}  {about}".rstrip())
        shown += [f"not measured: {name}: {why}" for name, why in self.gone.items()]
        return "\n".join(shown)


# ----------------------------------------------------------------------------------------------- servers


@asynccontextmanager
async def client_of(command: list[str], env: dict[str, str] | None = None, mode: Any = "auto") -> AsyncIterator[Client]:
    """A client of a server that is started for it, over stdio; `mode` "legacy" for one of the protocol's first era."""
    server = StdioServerParameters(command=command[0], args=command[1:], env={**ENVIRONMENT, **(env or {})})
    with open(os.devnull, "w") as log:  # noqa: ASYNC230
        async with Client(stdio_client(server, errlog=log), mode=mode) as client:
            yield client


@asynccontextmanager
async def prims(*arguments: str, **env: str) -> AsyncIterator[Client]:
    """A client of a new `prims serve` with a private state folder."""
    with tempfile.TemporaryDirectory(prefix="pb-") as state:
        command = [sys.executable, "-m", "prims", "serve", *arguments]
        async with client_of(command, {"PRIMS_STATE_DIR": state, **env}) as client:
            yield client


@contextmanager
def prims_http(*arguments: str) -> Iterator[str]:
    """The URL of a new `prims serve` over HTTP."""
    with tempfile.TemporaryDirectory(prefix="pb-") as state:
        process = subprocess.Popen(
            [sys.executable, "-m", "prims", "serve", "--transport", "http", "--port", "0", *arguments],
            env={**ENVIRONMENT, "PRIMS_STATE_DIR": state},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if match := re.search(r"serving (http://\S+/mcp)", line):
                    yield match[1]
                    return
            raise RuntimeError(f"the server ended: {said}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            finally:
                process.kill()
                process.wait()


async def call(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    """One run_code call of PRIMS that must succeed."""
    result = await client.call_tool("run_code", {"code": code, **arguments})
    if result.is_error or result.structured_content is None:
        raise RuntimeError(f"a call failed: {result.content}")
    return result.structured_content


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Milliseconds that it takes."""
    begun = time.perf_counter()
    await work()
    return (time.perf_counter() - begun) * 1000


def said_by(command: list[Any], **env: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **env}, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:4]))} ... failed: {done.stderr[-300:]}")
    return done.stdout


def why(problem: BaseException) -> str:
    """A problem in one line; of several, the first."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


def program(name: str) -> str:
    """A program beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise RuntimeError(f"{name} is not installed")
    return found


# --------------------------------------------------------------------------------------------- processes


def children(pid: int) -> list[int]:
    """Processes that `pid` has started and that still are, in order of age."""
    try:
        return [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    except OSError:
        return []


def tree(pid: int) -> list[int]:
    """`pid` and all below it."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def servers() -> list[int]:
    """The PRIMS servers that this process has started."""
    return [p for p in children(os.getpid()) if b"\0prims\0serve" in Path(f"/proc/{p}/cmdline").read_bytes()]


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, without its children: to the nanosecond, where /proc has hundredths."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock's number as clock_getcpuclockid(3) makes it


def pss(pid: int) -> float:
    """Proportional memory in MB; 0 when it has gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0
