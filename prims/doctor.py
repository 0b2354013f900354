"""`prims doctor`: what holds on this machine, found out by trying to break it, and what to do about what does not."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import anyio

from prims.config import Settings, tool_environment
from prims.engine.local import LocalEngine
from prims.errors import IsolationUnavailable, PrimsError
from prims.isolation import cgroups, probe
from prims.isolation.cgroups import NoCgroups
from prims.isolation.network import unavailable
from prims.isolation.probe import Check
from prims.isolation.self_protection import protect_server
from prims.isolation.walls import base_python
from prims.kernel.environment import Environments
from prims.model import RunRequest, RunResult
from prims.session.table import SessionTable
from prims.state import state_folder

_WORDS = {True: "holds", False: "DOES NOT", None: "cannot tell"}
_TIERS = ("bubblewrap", "landlock")

Report = dict[str, list[Check]]
"""Checks by what they are about, in the order in which they are told."""


def doctor(settings: Settings, *, as_json: bool = False) -> int:
    """Print all checks; gives 0 when all that is needed holds, else 1."""
    protect_server()
    report = anyio.run(_examine, settings)
    bad = [check for checks in report.values() for check in checks if check.needed and check.ok is False]
    if as_json:
        told = {about: [asdict(check) for check in checks] for about, checks in report.items()}
        print(json.dumps({"ok": not bad, "checks": told}, indent=2))
        return 1 if bad else 0
    width = max(len(check.name) for checks in report.values() for check in checks)
    for about, checks in report.items():
        print(about)
        for check in checks:
            print(f"  {_WORDS[check.ok]:<11}  {check.name:<{width}}  {check.detail}")
            if check.advice and not check.ok:
                print(f"  {'':<11}  {'':<{width}}  -> {check.advice}")
    print("This machine can run code." if not bad else "Not all that is needed holds: see what DOES NOT.")
    return 1 if bad else 0


async def _examine(settings: Settings) -> Report:
    report: Report = {"this machine": [_python(), _uv(), _cgroups(settings)]}
    try:
        with state_folder(settings.state_dir) as state:
            report["this machine"].append(Check("sessions", True, f"below {settings.state_dir}"))
            chosen = await _walls(settings, state, report)
            packages = await _packages(settings)
            report["this machine"].append(packages)
            if chosen == "none":
                report["limits"] = [Check("limits", None, "not tried: without walls, code can lift them", needed=False)]
            elif chosen and packages.ok:
                report["limits"] = await _limits(settings, state)
    except PrimsError as problem:
        report["this machine"].append(Check("sessions", False, str(problem)))
    return report


# --------------------------------------------------------------------------------------------- the machine


def _python() -> Check:
    base = base_python()
    return Check("python", sys.version_info >= (3, 11), f"{platform.python_version()}, based on {base.executable}")


def _uv() -> Check:
    try:
        import uv

        path = uv.find_uv_bin()
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (ImportError, OSError, subprocess.SubprocessError) as problem:
        return Check("uv", False, f"cannot be run: {problem}", "Install the package uv beside PRIMS.")
    return Check("uv", True, f"{done.stdout.strip()} at {path}")


def _cgroups(settings: Settings) -> Check:
    """Whether runs get cgroups. This process may move to another one, as a server would."""
    watched = "the server itself looks at the memory of runs, several times a second"
    if settings.cgroups == "off":
        return Check("cgroups", None, f"turned off; {watched}", "Leave out `--cgroups off`", needed=False)
    try:
        found = cgroups.find()
    except NoCgroups as reason:
        return Check("cgroups", None, f"{reason}; {watched}", reason.advice, needed=False)
    return Check(
        "cgroups", True, f"version 2: Linux bounds each run in one of its own, below {found.base}", needed=False
    )


async def _packages(settings: Settings) -> Check:
    names = ", ".join(settings.default_packages) or "none"
    try:
        async with Environments(settings, tool_environment()) as environments:
            base = await environments.base(lambda text: print(f"prims: {text} ...", file=sys.stderr, flush=True))
    except PrimsError as problem:
        return Check("packages", False, str(problem), "See that this machine reaches a package index.")
    return Check("packages", True, f"{len(base.packages)} ready in {settings.cache_dir} (default: {names})")


# ----------------------------------------------------------------------------------------------- the walls


async def _walls(settings: Settings, state: Path, report: Report) -> str | None:
    """Try every kind of walls; gives the name of those that runs would get, if any."""
    asked = settings.isolation
    chosen: str | None = None
    for name in _TIERS if asked == "auto" else (asked,):
        try:
            tried = await probe.prove(probe.find(name), state)
        except IsolationUnavailable as problem:
            tried = [Check("start", False, str(problem))]
        if chosen is None and all(check.ok for check in tried if check.needed):
            chosen = name
        # Another kind that does not hold is told, and is no fault of a machine that has one that does.
        report[name] = [replace(check, needed=check.needed and asked != "auto") for check in tried]
    if chosen == "none":
        report["walls"] = [Check("walls", False, "none: code can do whatever this user can", needed=False)]
    else:
        report["walls"] = [Check("walls", chosen is not None, chosen or "none of the above holds")]
    if chosen is not None and settings.network != "none":
        reason = unavailable(settings.network, chosen)
        report["walls"].append(Check("network", reason is None, settings.network, reason or ""))
    return chosen


# ------------------------------------------------------------------------------------------------- the limits

_MEMORY, _PROCESSES, _FILES = 400 << 20, 64, 256
_SMALL, _OUTPUT, _WORKSPACE = 4 << 20, 1 << 20, 16 << 20
_BUSY_SECONDS = 90.0

_BREAK_SMALL_ONES = f"""
import os, signal
def held(name, attempt):
    try: attempt()
    except OSError as error: print(name, "holds:", error.strerror)
    except MemoryError: print(name, "holds:", "MemoryError")
    else: print(name, "open:", "nothing stopped it")
def processes():
    pids = []
    try:
        while len(pids) < {20 * _PROCESSES}:
            if (pid := os.fork()) == 0: signal.pause()
            pids.append(pid)
    finally:
        for pid in pids: os.kill(pid, 9)
        for pid in pids: os.waitpid(pid, 0)
def files():
    opened = []
    try:
        while len(opened) < {_FILES}: opened.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for number in opened: os.close(number)
def size():
    try:
        with open("large", "wb") as file: file.truncate({_SMALL} + 1)
    finally: os.unlink("large")
held("processes", processes)
held("open-files", files)
held("file-size", size)
held("memory-of-one-process", lambda: bytearray(40 << 30))
"""

# What ends a run, by name: code, and the words in the cause that show it was that limit.
_BREAK_LARGE_ONES = {
    "memory of a run": (
        f"""
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(b"x") * {_MEMORY // 5}
        time.sleep(20)
time.sleep(20)""",
        "memory limit",
    ),
    # Counts its own processor time: on a busy machine, seconds that pass say nothing.
    "processor time": (
        "import time\nwhile time.process_time() < 5: pass\nprint('nothing stopped it')",
        "processor time limit",
    ),
    "output": (f"for _ in range(40): print('x' * {_OUTPUT // 10})\nimport time; time.sleep(20)", "output limit"),
    "temporary files": (
        f"""
import tempfile, time
for number in range(8):
    with open(tempfile.gettempdir() + "/fill%d" % number, "wb") as file: file.write(bytes({_SMALL} // 2))
time.sleep(20)""",
        "temporary files limit",
    ),
    "bytes of a session": (
        f"""
import time
for number in range(8):
    with open(str(number), "wb") as file: file.write(bytes({_SMALL} - 1))
time.sleep(20)""",
        "workspace limit",
    ),
    "files of a session": (
        "import time\nfor n in range(300): open(str(n), 'w').close()\ntime.sleep(20)",
        "files reached",
    ),
    "time": ("import time; time.sleep(20)", "time limit"),
}


async def _limits(settings: Settings, state: Path) -> list[Check]:
    """Break each limit in a run of its own, by the same way that a client's calls take."""
    small = replace(
        settings,
        memory_bytes=_MEMORY, processes=_PROCESSES, open_files=_FILES, file_bytes=_SMALL, tmp_bytes=_SMALL,
        output_bytes=_OUTPUT, workspace_bytes=_WORKSPACE, workspace_files=200,
        run_seconds=20.0, spare_kernels=0, fork_kernels="off", concurrent_runs=3,
    )  # fmt: skip
    results: dict[str, RunResult | PrimsError] = {}

    async def run(table: SessionTable, name: str, code: str) -> None:
        limits = small.limits()
        if not name:  # may start very many processes, where all of a busy user are counted together
            limits = replace(limits, memory_bytes=4 * _MEMORY)
        if name == "time":
            limits = replace(limits, run_seconds=1.0)
        if name == "processor time":
            limits = replace(limits, cpu_seconds=1.0, run_seconds=_BUSY_SECONDS)
        try:
            session = await table.create()
            results[name] = await table.start(session, RunRequest(code, limits=limits), lambda event: None).wait()
        except PrimsError as problem:
            results[name] = problem

    async with LocalEngine(small, state) as engine, SessionTable(small, engine, state) as table:
        # Alone: where runs share a uid, one that tries for processes leaves none for others that begin.
        await run(table, "", _BREAK_SMALL_ONES)
        async with anyio.create_task_group() as group:
            for name, (code, _) in _BREAK_LARGE_ONES.items():
                group.start_soon(run, table, name, code)
    return [*_small_ones(results[""]), *(_large_one(name, results[name]) for name in _BREAK_LARGE_ONES)]


def _small_ones(result: RunResult | PrimsError) -> list[Check]:
    if isinstance(result, PrimsError):
        return [Check("runs", False, str(result))]
    found = re.findall(r"^(\S+) (holds|open): (.*)$", result.stdout.head, re.MULTILINE)
    checks = [Check(name.replace("-", " "), held == "holds", what) for name, held, what in found]
    if result.status != "ok":
        checks.append(Check("runs", False, result.cause or result.stderr.head[-300:]))
    return checks


def _large_one(name: str, result: RunResult | PrimsError) -> Check:
    if isinstance(result, PrimsError):
        return Check(name, None, str(result))
    # A tmpfs that is full is an error that code sees, and no end of the run.
    full = name == "temporary files" and result.error is not None and "No space left" in result.error.value
    said = result.error.value if full and result.error else result.cause
    holds: bool | None = full or _BREAK_LARGE_ONES[name][1] in said
    if name == "processor time" and result.status == "timeout":
        holds = None  # others had the machine
    return Check(name, holds, said or f"the run ended: {result.status}")
