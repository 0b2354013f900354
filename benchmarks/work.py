"""The counted work of one warm call: what it costs on any machine, however fast that is or busy.

    python benchmarks/work.py [--json] [--record]

A call is `print(1)` in a session whose kernels are forked, from its start until the next kernel waits and nothing of
this one is left. What the server itself does is counted from within, by Python's audit events and the kernel's counters
for a process. Where strace is there (and may trace), the system calls and processes of the server and of everything
below it are counted too. Each number is the least of several calls, which leaves out what only sometimes happens.
`budget.json` holds what it may be; `--record` writes what it is, with some room.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from prims import config
from prims.engine.local import LocalEngine, _Key
from prims.isolation.wrapper import tree
from prims.model import Limits, RunRequest
from prims.session.table import Session, SessionTable

BUDGET = Path(__file__).with_name("budget.json")
CALLS = 6
FORKED = "print(__import__('gc').get_freeze_count() > 0)"  # the parent has frozen what it had

# Audit events of the server's process, by what they are told as.
_EVENTS = {
    "os.mkdir": "folders made",
    "os.symlink": "links made",
    "os.remove": "files removed",
    "os.rmdir": "folders removed",
    "os.rename": "files renamed",
    "os.scandir": "folders listed",
    "os.listdir": "folders listed",
    "subprocess.Popen": "programs started",
    "socket.__new__": "sockets made",
}
# How often one looks whether a kernel has stopped, or is there already, depends on who is quicker, too.
_LOOKS = ("files opened to be read", "folders listed", "bytes read", "system calls that read", "sockets made")
_EXACT = ("programs started", "programs (strace)", "processes and threads (strace)", "mounts (strace)")


class Counts:
    """What has been done in this process since it was made."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        sys.addaudithook(self._hear)
        run_sync = anyio.to_thread.run_sync

        async def counted(*arguments: Any, **options: Any) -> Any:
            self._seen["turns of threads"] += 1
            return await run_sync(*arguments, **options)

        anyio.to_thread.run_sync = counted  # type: ignore[assignment]
        asyncio.get_running_loop().set_task_factory(self._task)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if isinstance(arguments[0], (str, bytes, os.PathLike)):
                self._seen["files made" if flags & os.O_CREAT else "files opened to be read"] += 1
        elif (name := _EVENTS.get(event)) is not None:
            self._seen[name] += 1

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        self._seen["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def now(self) -> dict[str, int]:
        """All counts so far."""
        with open("/proc/self/io") as file:
            io = {name: int(value) for name, value in (line.split(": ") for line in file)}
        return {
            **{name: self._seen[name] for name in sorted({*_EVENTS.values(), *self._seen})},
            "bytes written": io["wchar"],
            "bytes read": io["rchar"],
            "system calls that write": io["syscw"],
            "system calls that read": io["syscr"],
        }


@dataclass(frozen=True, slots=True)
class Warm:
    """An engine in this process, and a session of it whose kernels are forked."""

    engine: LocalEngine
    table: SessionTable
    session: Session
    limits: Limits

    @property
    def key(self) -> _Key:
        return _Key(self.session.folder, self.session.uid)

    async def run(self, code: str, expected: str = "ok") -> str:
        """The standard output of a run that ends as is expected."""
        result = await self.table.start(self.session, RunRequest(code, limits=self.limits), lambda event: None).wait()
        if result.status != expected:
            raise RuntimeError(f"a call did not end as {expected}: {result}")
        return result.stdout.head

    async def settled(self) -> None:
        """Until nothing of the runs before is left, and the next kernel waits."""
        await self.engine._leftovers.closed()
        with anyio.fail_after(60):
            while self.key not in self.engine._spares._entries:  # noqa: ASYNC110  (it sets no event)
                await anyio.sleep(0.02)
            await self.engine._spares._entries[self.key].settled.wait()

    async def call(self) -> None:
        """One warm call; returns when everything is as before."""
        await self.run("print(1)")
        await self.settled()


@asynccontextmanager
async def warm_session() -> AsyncIterator[Warm]:
    """A session in which all that only the first calls do has been done."""
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        settings = config.load({"default_packages": ""}, {})
        async with (
            LocalEngine(settings, Path(folder)) as engine,
            SessionTable(settings, engine, Path(folder)) as table,
        ):
            warm = Warm(engine, table, await table.create(lasting=True), settings.limits())
            with anyio.fail_after(60):
                while await warm.run(FORKED) != "True\n":
                    await warm.settled()
            await warm.call()
            yield warm


async def counted(counts: Counts, call: Callable[[], Awaitable[object]]) -> dict[str, int]:
    """The least that one of some calls takes."""
    taken: list[dict[str, int]] = []
    for _ in range(CALLS):
        before = counts.now()
        await call()
        after = counts.now()
        taken.append({name: after[name] - before.get(name, 0) for name in after})
    return {name: min(one.get(name, 0) for one in taken) for name in taken[-1]}


# ------------------------------------------------------------------------------------------------ strace

_MARK = "/prims-work/"
_NEW = {"clone", "clone3", "fork", "vfork"}
# How often somebody waits depends on who was quicker, and memory on the allocator's mood.
_MOODS = {"futex", "poll", "ppoll", "epoll_wait", "epoll_pwait", "clock_nanosleep", "restart_syscall", "sched_yield",
          "select", "pselect6", "madvise", "mprotect", "brk"}  # fmt: skip


async def traced(call: Callable[[], Awaitable[object]]) -> dict[str, int]:
    """The least number of system calls of some calls, of the server and all below it.

    Raises:
        RuntimeError: they cannot be counted here; says why.
    """
    if shutil.which("strace") is None:
        raise RuntimeError("strace is not installed")
    pids = tree(os.getpid())
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        command = ["strace", "-f", "-s", "40", "-e", "signal=none", "-o", f"{folder}/log"]
        command += [word for pid in pids for word in ("-p", str(pid))]
        strace = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            await _attached(strace, len(pids))
            for number in range(CALLS):
                os.access(f"{_MARK}{number}", os.F_OK)
                await call()
            os.access(f"{_MARK}end", os.F_OK)
        finally:
            with suppress(ProcessLookupError):
                strace.send_signal(signal.SIGINT)
            await strace.communicate()
        calls = _between_marks(Path(folder) / "log")

    def least(wanted: Callable[[str], bool]) -> int:
        return min(sum(n for name, n in one.items() if wanted(name)) for one in calls)

    return {
        "system calls (strace)": least(lambda name: name not in _MOODS),
        "processes and threads (strace)": least(lambda name: name in _NEW),
        "programs (strace)": least(lambda name: name.startswith("execve")),
        "mounts (strace)": least(lambda name: name in ("mount", "umount2")),
    }


def _between_marks(log: Path) -> list[Counter[str]]:
    """How often each system call was begun, for each call of ours."""
    calls: list[Counter[str]] = []
    for line in log.read_text(errors="replace").splitlines():
        if _MARK in line:
            calls.append(Counter())
        elif calls and (match := re.match(r"\d+ +(\w+)\(", line)):  # not the second half of one
            calls[-1][match[1]] += 1
    return calls[:-1]


async def _attached(strace: asyncio.subprocess.Process, number: int) -> None:
    """Until strace says that it has attached to so many processes."""
    assert strace.stderr is not None
    said: list[str] = []
    with anyio.move_on_after(20):
        async for line in strace.stderr:
            said.append(line.decode(errors="replace").strip())
            if sum(" attached" in one for one in said) == number:
                return
    raise RuntimeError(f"strace could not attach: {'; '.join(said)[-300:]}")


# ------------------------------------------------------------------------------------------------ budget


async def work() -> tuple[dict[str, int], str]:
    """All counts, and why some are missing."""
    counts = Counts()
    async with warm_session() as warm:
        own = await counted(counts, warm.call)
        try:
            return {**own, **await traced(warm.call)}, ""
        except RuntimeError as problem:
            return own, str(problem)


def _with_room(name: str, count: int) -> int:
    if name in _EXACT:
        return count
    # Threads of kernels look about them from time to time.
    return round(count * (1.3 if name.startswith("system calls (") or name in _LOOKS else 1.1)) + 1


def over(counts: dict[str, int], budget: dict[str, int]) -> list[str]:
    """What is more than it may be, in words."""
    return [
        f"{name}: {counts[name]}, where {most} are budgeted"
        for name, most in budget.items()
        if name in counts and counts[name] > most
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--record", action="store_true", help="make what is counted the budget")
    options = parser.parse_args()
    begun = time.monotonic()
    counts, missing = asyncio.run(work())
    if options.record:
        room = {name: _with_room(name, count) for name, count in counts.items()}
        BUDGET.write_text(json.dumps(room, indent=2) + "\n")
    budget = json.loads(BUDGET.read_text())
    if options.json:
        print(json.dumps({"counts": counts, "missing": missing, "over": over(counts, budget)}))
        return 0
    for name, count in counts.items():
        print(f"{name:32} {count:>9,} {budget.get(name, 0):>9,}")
    print(f"{time.monotonic() - begun:.0f} s{'; not counted: ' + missing if missing else ''}")
    for line in over(counts, budget):
        print(f"OVER {line}")
    return 1 if over(counts, budget) else 0


if __name__ == "__main__":
    sys.exit(main())
