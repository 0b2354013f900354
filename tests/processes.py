"""Looking at processes from outside: who lives, who is whose child. Every wait here is bounded."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] != b"Z"


def alive(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that run."""
    return [pid for pid in pids if is_alive(pid)]


def end(pids: Iterable[int], seconds: float) -> bool:
    """Whether all of `pids`, which need not be ours, end within `seconds`. (A pipe's end comes before its holder's.)"""
    until = time.monotonic() + seconds
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
        finally:
            os.close(descriptor)
    return True


def named(marker: str) -> list[int]:
    """Live processes whose command line or environment, as far as we may read it, holds `marker`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            seen = b""
            for part in ("cmdline", "environ"):
                try:
                    seen += (folder / part).read_bytes()
                except OSError:
                    continue
            if marker.encode() in seen and is_alive(int(folder.name)):
                found.append(int(folder.name))
    return found


async def until(met: Callable[[], bool], seconds: float, what: str) -> float:
    """Look until `met`, at most `seconds`; gives how long it took. Fails with `what` otherwise."""
    began = time.monotonic()
    with anyio.move_on_after(seconds):
        while not met():
            await anyio.sleep(0.02)
        return time.monotonic() - began
    raise AssertionError(f"not within {seconds:g} s: {what}")
