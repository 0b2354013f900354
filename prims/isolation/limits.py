"""What a run uses: the limits the kernel enforces, the memory we watch ourselves, and why a process ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from prims.isolation.cgroups import Cgroup
from prims.isolation.wrapper import tree as tree
from prims.model import Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# RLIMIT_DATA counts what is mapped, not what is touched: thread stacks and allocator arenas per core.
_DATA_HEADROOM = 2 << 30
_MEMLOCK = 8 << 20
_QUEUED_SIGNALS = 1024  # and timers; Linux counts them by uid, which may be the server's too

# Between two looks at a run, and when it may soon be at its limit.
_FAR_SECONDS, _NEAR_SECONDS = 0.1, 0.03
_QUICK_SECONDS = 0.003  # a look at /proc that takes longer is made in a thread


def rlimits(limits: Limits, *, other_threads: int = 0) -> dict[str, int]:
    """The resource limits of one process, by name without RLIMIT_.

    `other_threads` are the threads of the same uid that the kernel counts too and that are not of this run.
    """
    wanted = {
        "CORE": 0,
        "MEMLOCK": _MEMLOCK,
        "MSGQUEUE": 0,
        "SIGPENDING": _QUEUED_SIGNALS,
        "NICE": 0,  # some users may have what would let code come before others
        "RTPRIO": 0,
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_bytes,
        "NPROC": None if limits.processes is None else limits.processes + other_threads,
        "DATA": None if limits.memory_bytes is None else limits.memory_bytes + _DATA_HEADROOM,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def threads_of(uid: int) -> int:
    """How many threads the processes of `uid` have, as far as /proc shows."""
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    # The second field from the right of the fixed part; the name before it may hold anything.
                    fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                    total += int(fields[17])
    return total


# ----------------------------------------------------------------------------------------------- memory


def _resident(pids: Iterable[int]) -> int:
    return sum(_rss(pid) for pid in pids)


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _proportional(pids: Iterable[int]) -> int:
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    """Proportional size. A process may hide it from us (PR_SET_DUMPABLE): then its resident size counts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
    except OSError:
        return _rss(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


async def _sleep(seconds: float) -> bool:
    await anyio.sleep(seconds)
    return False


class Watch:
    """Watches what one run uses, all its processes together; `peak` is the most memory that was seen, in bytes.

    With a cgroup, whose bounds hold anyhow, the kernel is asked for both. Else memory in tmpfs files is not seen: the
    size of each tmpfs bounds that.
    """

    def __init__(self, cgroup: Cgroup | None = None) -> None:
        self.peak = 0
        self.files = 0  # what files in memory had of it when a cgroup last said so
        self._cgroup = cgroup
        self._cpu_before: float | None = None  # what starting it has cost

    async def run(
        self,
        pid: int,
        limits: Limits,
        on_exceeded: Callable[[Literal["out_of_memory", "cpu"]], None],
        ends_within: Callable[[float], Awaitable[bool]] = _sleep,
    ) -> None:
        """Look at `pid` and its descendants ten times a second until it is gone, or until cancelled.

        The first look comes after a moment, and does not hold up the beginning. Above a limit calls `on_exceeded` once
        and returns. Looks are more frequent where the limit is near or the run grows fast; slow ones are made in a
        thread. `ends_within` waits so many seconds, or until the run ends if that is sooner; it gives which.
        """
        if self._cgroup is not None:
            await self._ask(self._cgroup, limits.cpu_seconds, on_exceeded, ends_within)
            return
        most, most_cpu = limits.memory_bytes, limits.cpu_seconds
        if self._cpu_before is None:
            self._cpu_before = 0.0 if most_cpu is None else cpu_seconds(tree(pid))
        slow, near, before = False, True, 0
        while not await ends_within(_NEAR_SECONDS if near else _FAR_SECONDS):
            began = time.monotonic()
            pids, used = await anyio.to_thread.run_sync(_look, pid) if slow else _look(pid)
            slow = time.monotonic() - began > _QUICK_SECONDS
            if used == 0:
                return
            growth, before = used - before, used
            if most is not None and used > most:
                used = await anyio.to_thread.run_sync(_proportional, pids, abandon_on_cancel=True)
            self.peak = max(self.peak, used)
            if most is not None and used > most:
                on_exceeded("out_of_memory")
                return
            if most_cpu is not None and cpu_seconds(pids) - self._cpu_before > most_cpu:
                on_exceeded("cpu")
                return
            near = most is not None and (used > most // 2 or growth > most // 8)

    async def _ask(
        self,
        cgroup: Cgroup,
        most_cpu: float | None,
        on_exceeded: Callable[[Literal["out_of_memory", "cpu"]], None],
        ends_within: Callable[[float], Awaitable[bool]],
    ) -> None:
        """The same where a cgroup bounds the run. It is stopped here while Linux only holds it up, for the place it is
        at; if it is too fast for that, Linux ends it."""
        if self._cpu_before is None:
            self._cpu_before = 0.0 if most_cpu is None else cgroup.cpu_seconds()
        near = False
        while not await ends_within(_NEAR_SECONDS if near else _FAR_SECONDS):
            used = cgroup.used()
            self.peak, self.files, near = max(self.peak, used.bytes), used.files, used.near
            if used.short:
                on_exceeded("out_of_memory")
                return
            if most_cpu is not None and cgroup.cpu_seconds() - self._cpu_before > most_cpu:
                on_exceeded("cpu")
                return


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of `pids` and of their children that have ended and were waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def _look(pid: int) -> tuple[list[int], int]:
    pids = tree(pid)
    return pids, _resident(pids)


def oom_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory since it was started."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/vmstat").read_text().partition("\noom_kill ")[2].split("\n")[0])
    return 0


# ------------------------------------------------------------------------------------------ cause of death

_WORDS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed",
    signal.SIGSYS: "forbidden system call",
    signal.SIGTERM: "terminated",
    signal.SIGTRAP: "trace trap",
    signal.SIGXCPU: "CPU time limit",
    signal.SIGXFSZ: "file size limit",
}


def describe_exit(returncode: int) -> str:
    """How a process of the sandbox ended, in words.

    Takes -n (Popen) and 128+n (bwrap, our supervisor, shells) for signal n. Sandboxed code can choose its
    status freely, so this describes and proves nothing.
    """
    number = -returncode if returncode < 0 else returncode - 128
    if not 0 < number < signal.NSIG:
        return f"exit status {returncode}"
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"killed by signal {number}"
    words = _WORDS.get(known)
    return f"killed by {known.name} ({words})" if words else f"killed by {known.name}"
