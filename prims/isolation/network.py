"""What network a sandbox has: none of its own, and, where it is allowed, a proxy that stands outside.

The proxy (`proxy.py`) is a process beside the sandbox. Its socket lies in the run's venv, which the code sees and
cannot write; the kernel (`inside/prims_kernel/network.py`) hands it the listening end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from prims.isolation.walls import Box

SOCKET = "proxy.sock"
_TOLD_BYTES = 64 << 10


def unavailable(network: str, tier: str) -> str | None:
    """Why walls of this name cannot give that network; None when they can."""
    if network == "none" or tier == "bubblewrap":
        return None
    if tier == "none":
        return (
            f"`--network {network}` cannot be held without walls: with `--isolation none` code has all of this "
            "machine's network. Leave --network out, or choose walls."
        )
    return (
        f"`--network {network}` needs bubblewrap: the {tier} walls keep code from opening any connection, so it cannot "
        "reach a proxy either. Leave --network out, or install bubblewrap."
    )


class Proxy:
    """The running proxy of one sandbox."""

    def __init__(self, told: int) -> None:
        self._told = told

    def blocked(self) -> tuple[tuple[str, ...], bool]:
        """What was refused until now, each place once, and whether the limit of bytes was reached. Call it once."""
        told: list[list[str]] = []
        with contextlib.suppress(BlockingIOError, ValueError):
            told = [json.loads(line) for line in os.read(self._told, _TOLD_BYTES).splitlines()]
        return tuple(words[1] for words in told if words[0] == "blocked"), ["bytes"] in told


@asynccontextmanager
async def start_proxy(box: Box) -> AsyncIterator[Proxy | None]:
    """The proxy that `box.limits` ask for, ended with the block; None when they ask for no network.

    `box.venv` exists; whoever starts a kernel in it need not wait. Raises OSError when it cannot be started.
    """
    limits = box.limits
    if limits.network == "none":
        yield None
        return
    told, telling = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(told, False)
    process: subprocess.Popen[bytes] | None = None
    try:
        with socket.socket(socket.AF_UNIX) as door:
            path = box.venv / SOCKET
            door.bind(str(path))
            path.chmod(0o666)  # the venv is the run's own
            door.listen(4)
            config = {
                "server": os.getpid(),
                "socket": door.fileno(),
                "uid": box.uid,
                "entries": limits.network_hosts,
                "every": limits.network == "full",
                "most_bytes": limits.network_bytes,
            }
            process = _spawn(json.dumps(config), telling, door.fileno())
        yield Proxy(told)
    finally:
        os.close(telling)
        os.close(told)
        if process is not None:
            process.kill()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.wait)


def _spawn(config: str, stdout: int, keep: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "prims.isolation.proxy", config],
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        pass_fds=[keep],
        start_new_session=True,
    )
