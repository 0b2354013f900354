"""Fresh kernels by fork: a trusted parent in the session's walls that has imported all that a kernel needs.

To the rest it is walls like others, with kernels that take a third of the time. The parent never runs user code;
`inside/prims_kernel/parent.py` is its half of this.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from prims.errors import KernelStartError
from prims.isolation import wrapper
from prims.isolation.walls import Box, ForkingWalls, Places

_READY_SECONDS = 30.0
_FORK_SECONDS = 10.0
_ANSWER_BYTES = 2000
_STOP_SECONDS = 0.005  # a kernel that waits for its next request is stopped after a tenth of that
_SUPERVISOR_SECONDS = 0.5  # how long one may take to clean up; it needs some 10 ms


class ForkedProcess:
    """The first process of a forked sandbox, as far as the server needs it to be a `Popen`.

    It is pid 1 of its namespace, or where there are none the supervisor of what is below it: it ends when the kernel
    has ended, and all others in there before it. `pid` and `kernel_pid` are the host's. Its descriptors are closed when
    its end has been seen.
    """

    def __init__(self, handle: int, kernel: int, answers: socket.socket, *, supervises: bool) -> None:
        self._handle = handle
        self._kernel = kernel
        self._supervises = supervises
        self._answers = answers
        self.pid, self.kernel_pid = _pid_of(handle), _pid_of(kernel)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status when it has ended, a signal as Popen or as a shell would have it."""
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        code = self._poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked kernel", timeout or 0)
        return code

    def _poll(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if poll.poll(None if seconds is None else seconds * 1000):
                self.returncode = self._status()
                os.close(self._handle)
                os.close(self._kernel)
                self._answers.close()
        return self.returncode

    def _status(self) -> int:
        said = b""
        with contextlib.suppress(OSError):
            while part := self._answers.recv(_ANSWER_BYTES):
                said = part
        match = re.fullmatch(rb"exit (\d{1,3})", said)
        return int(match[1]) if match else -signal.SIGKILL

    def pidfd(self) -> int:
        """A new descriptor that is readable when it has ended. Raises ProcessLookupError when that was seen."""
        if self.returncode is not None:
            raise ProcessLookupError
        return os.dup(self._handle)

    def kill(self) -> None:
        """SIGKILL all of the sandbox."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self._supervises:  # only it can find them all, so it gets the first chance
                    signal.pidfd_send_signal(self._handle, signal.SIGTERM)
                    if self._poll(_SUPERVISOR_SECONDS) is not None:
                        return
                    wrapper.kill_below(self.pid)
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def stop(self) -> bool:
        """End the kernel; gives whether nothing in here can run a line of code, or make a system call, any more.

        It is stopped before it is killed: what sees the end of the kernel, such as a process that cleans up behind it,
        must not have time to act on it. Then its end, most of which goes into giving back memory, may take as long as
        it likes. Looks for that moment, blocking. False: that is not known, so `kill` and wait.
        """
        if self._supervises or self.poll() is not None:
            return self.returncode is not None
        pause = _STOP_SECONDS / 100
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._kernel, signal.SIGSTOP)
        while not wrapper.stopped(self.kernel_pid):
            if pause > _STOP_SECONDS:
                return False
            time.sleep(pause)  # it may have to stop on this processor
            pause *= 2
        # In this order: the kernel starts nothing any more, and what it leaves goes to pid 1, all at once.
        others = wrapper.children(self.kernel_pid) or wrapper.children(self.pid) != [self.kernel_pid]
        ended = select.poll()
        ended.register(self._kernel, select.POLLIN)
        if others or ended.poll(0):  # if it has ended, its pid may have been another's
            return False
        with contextlib.suppress(OSError):
            os.sched_setscheduler(self.kernel_pid, os.SCHED_IDLE, os.sched_param(0))  # its end is not urgent
        signal.pidfd_send_signal(self._kernel, signal.SIGKILL)  # now, as something could make it go on
        return True


Process = subprocess.Popen[bytes] | ForkedProcess
"""What the server holds of a sandbox."""


def pidfd_of(process: Process) -> int:
    """A descriptor that is readable when the process has ended. Raises ProcessLookupError when it is gone."""
    return process.pidfd() if isinstance(process, ForkedProcess) else os.pidfd_open(process.pid)


class ForkServer:
    """A running parent, and the walls of what it forks. Made by `start_parent`.

    `runs` is the folder below which the folders of its sandboxes must lie; it sees no others.
    """

    def __init__(self, walls: ForkingWalls, process: subprocess.Popen[bytes], channel: socket.socket, box: Box) -> None:
        self.name = walls.name
        self.drops_uid = walls.drops_uid
        self.runs = box.venv.parent
        self._walls = walls
        self._process = process
        self._channel = channel
        self._shared = _shared(box)
        self._supervised = not walls.parent_facts(box)["namespaces"]
        self._running: list[ForkedProcess] = []

    @property
    def alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    @property
    def busy(self) -> bool:
        """Whether a sandbox that it has forked still runs: it would end with it."""
        self._running = [process for process in self._running if process.poll() is None]
        return bool(self._running)

    def places(self, box: Box) -> Places:
        """See `Walls.places`."""
        return self._walls.places(box)

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start a sandbox beside the parent, see `Walls.spawn`."""
        return self._walls.spawn(box, argv, env, stdout=stdout, stderr=stderr)

    def inner_pid(self, process: Process) -> int | None:
        """See `Walls.inner_pid`."""
        if isinstance(process, ForkedProcess):
            return process.kernel_pid if process.poll() is None else None
        return self._walls.inner_pid(process)

    def kill(self, process: Process) -> None:
        """See `Walls.kill`."""
        process.kill() if isinstance(process, ForkedProcess) else self._walls.kill(process)

    async def fork(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> ForkedProcess:
        """Fork a sandbox that runs `argv`, a kernel's command line. When cancelled it is ended.

        Raises:
            KernelStartError: that did not work, for whatever reason.
        """
        if _shared(box) != self._shared:
            raise KernelStartError("No kernel could be forked: the parent was started with other folders")
        request = json.dumps(self._walls.fork_request(box, self.runs, argv, env)).encode()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said, handles = b"", list[int]()
        door: list[int] = []
        try:
            ours.setblocking(False)
            with theirs:
                door += [box.cgroup.door()] if box.cgroup is not None else []
                socket.send_fds(self._channel, [request], [stdout, stderr, theirs.fileno(), *door])
            with anyio.move_on_after(_FORK_SECONDS):
                await anyio.wait_readable(ours)
                said, handles, _, _ = socket.recv_fds(ours, _ANSWER_BYTES, 2)
        except OSError as problem:
            said = str(problem).encode()
        finally:
            for descriptor in door:
                os.close(descriptor)
            if len(handles) != 2:
                ours.close()  # what comes up later finds nobody to tell, and ends
                for handle in handles:
                    os.close(handle)
        if len(handles) != 2:
            raise KernelStartError(f"No kernel could be forked: {said.decode(errors='replace') or 'no answer'}")
        process = ForkedProcess(handles[0], handles[1], ours, supervises=self._supervised)
        self._running = [*(other for other in self._running if other.poll() is None), process]
        return process


@asynccontextmanager
async def start_parent(walls: ForkingWalls, box: Box, env: Mapping[str, str]) -> AsyncIterator[ForkServer]:
    """A parent that is ready to fork, in the walls of `box`; ended with all that it forked when the block is left.

    `box.venv` is one of its own without layers, and the folders of sandboxes will lie beside it.

    Raises:
        KernelStartError: it did not come up.
    """
    places = walls.places(box)
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    process: subprocess.Popen[bytes] | None = None
    try:
        channel.setblocking(False)
        told = {
            "control": theirs.fileno(),
            "kernel": places.kernel,
            "packages": places.layers[-1],
            **walls.parent_facts(box),
        }
        argv = [f"{places.venv}/bin/python", "-I", f"{places.kernel}/prims_kernel/parent.py", json.dumps(told)]
        try:
            process = walls.spawn_parent(box, box.venv.parent, argv, env, descriptor=theirs.fileno(), stderr=stderr)
        except OSError as problem:
            raise KernelStartError(f"The parent of kernels could not be started: {problem}") from problem
        finally:
            theirs.close()
            os.close(stderr)
        said = b""
        with anyio.move_on_after(_READY_SECONDS), contextlib.suppress(OSError):
            await anyio.wait_readable(channel)
            said = channel.recv(_ANSWER_BYTES)
        if said != b"ready":
            with contextlib.suppress(BlockingIOError):
                said = os.read(errors, _ANSWER_BYTES)
            why = said.decode(errors="replace").strip().splitlines()[-1:] or ["it did not answer"]
            raise KernelStartError(f"The parent of kernels did not come up: {why[0]}")
        yield ForkServer(walls, process, channel, box)
    finally:
        channel.close()
        os.close(errors)
        if process is not None:
            with anyio.CancelScope(shield=True):
                walls.kill(process)
                await _ended(process)


def _shared(box: Box) -> list[tuple[int, int]] | None:
    """What a sandbox has of its parent's view, by identity: a folder that was made anew is another one."""
    folders = (box.workspace, box.mounts, box.kernel, *([box.store] if box.store else []))
    try:
        return [(status.st_dev, status.st_ino) for status in map(os.stat, folders)]
    except OSError:
        return None


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child of ours that was killed, or has ended before."""
    if process.poll() is not None:
        return
    handle = os.pidfd_open(process.pid)
    try:
        with anyio.move_on_after(5):
            await anyio.wait_readable(handle)
            process.wait()
    finally:
        os.close(handle)


def _pid_of(handle: int) -> int:
    """The pid behind a pidfd, as this process's /proc counts."""
    with open(f"/proc/self/fdinfo/{handle}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
