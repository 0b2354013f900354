"""One kernel, one run: start, execute, settle, interrupt, die.

A run is over when its own `execute_reply` and its own `idle` have come, or when the process ends, the time is up or
somebody asks it to stop. Whichever it is, everything that was written until then is read before the kernel is closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.session import DELIM

from prims.beneath import open_file
from prims.errors import KernelStartError
from prims.isolation.cgroups import Cgroup
from prims.isolation.limits import Watch, describe_exit, oom_kills, tree
from prims.isolation.network import Proxy, start_proxy
from prims.isolation.walls import Box, Walls
from prims.kernel.channels import Channel
from prims.kernel.forkserver import ForkedProcess, ForkServer, pidfd_of
from prims.kernel.provisioner import Launch, SandboxProvisioner, kernelspec_folder
from prims.kernel.relay import Relay, Stream
from prims.kernel.text import CODE_FILE, plain
from prims.model import Cell, binary
from prims.stopping import Stop, StopReason
from prims.trees import MOST_COUNTED, usage

_log = logging.getLogger(__name__)

START_SECONDS = 60.0
# How long code has to react to an interrupt before everything is killed.
GRACE_SECONDS = 2.0
_MARK = re.compile(rb"\x1b\]prims;(\d{1,18})\x07")
_MARK_BEGIN = b"\x1b]prims;"
_CUT_MARK = re.compile(rb"\x1b(?:\](?:p(?:r(?:i(?:m(?:s(?:;\d{0,18})?)?)?)?)?)?)?\Z")
# Messages with more values than these take Python up to a second to read: all else waits for it.
_MOST_VALUES = 500_000
_LARGE_MESSAGE = 64 << 10
# What a kernel can write ahead of us, where the system lets a pipe hold that much.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 256 * 1024
# After so many small pieces in a row, what follows is given this time to become a larger one: each piece has its cost.
_FEW_PIECES, _GATHER_SECONDS = 1, 0.05
_FEW_MARKS = 100
_DRAIN_SECONDS = 1.0  # for what a kernel that has ended had still sent
_DISK_SECONDS = 0.5  # between two looks at temporary files


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: by itself (`reply`), by the end of its process, or because it was stopped.

    `reply` is "ok" or "error", from the kernel; `exit` says in words how the process ended; `where` holds what could
    be learnt of the place it was at, innermost frame last. Of the peak of memory, `file_bytes` were files. `blocked`
    are places in the network that were not reached, as the proxy or the code says. `oom_kills` counts what the kernel
    killed meanwhile for want of the machine's memory; `network_full` says that no more bytes could be sent or received.
    """

    reply: str | None = None
    stopped: StopReason | None = None
    exit: str | None = None
    where: str = ""
    peak_bytes: int = 0
    file_bytes: int = 0
    blocked: tuple[str, ...] = ()
    oom_kills: int = 0
    network_full: bool = False


@functools.cache
def _specs() -> KernelSpecManager:
    """Only our own kernelspec: one of the same name elsewhere on the machine must not take its place."""
    return KernelSpecManager(kernel_dirs=[str(kernelspec_folder())], ensure_native_kernel=False)


class _Manager(AsyncKernelManager):  # type: ignore[misc]
    """Starts a kernel, and connects to none of its sockets: libzmq would read, without a bound, what is hostile."""

    def _connect_control_socket(self) -> None:
        pass


class Kernel:
    """A started kernel. Made by `start_kernel`; runs code once."""

    def __init__(
        self, manager: AsyncKernelManager, launch: Launch, pipes: dict[Stream, int], proxy: Proxy | None
    ) -> None:
        self._manager = manager
        self._launch = launch
        self._pipes = pipes
        self._proxy = proxy
        self._session = manager.session
        self._shell, self._iopub, self._control = Channel("DEALER"), Channel("SUB"), Channel("DEALER")
        self._refused = 0  # messages that would have taken too long to read
        self._dead = anyio.Event()
        self._output_read = anyio.Event()  # to the end of iopub
        self._unheard = False  # whether it was ended because nothing of it can be heard
        self._started_as = b""
        self._cgroup: Cgroup | None = None
        self._still = False
        self._until_end = anyio.CancelScope()  # what the end of the process ends
        self._waits: dict[int, anyio.CancelScope] = {}
        self._watch = Watch()
        self._oom_kills: int | None = None

    @property
    def _provisioner(self) -> SandboxProvisioner:
        provisioner = self._manager.provisioner
        assert isinstance(provisioner, SandboxProvisioner)
        return provisioner

    @property
    def _process(self) -> Any:
        process = self._provisioner.process
        assert process is not None
        return process

    # ------------------------------------------------------------------------------------------ start

    async def _ready(self) -> None:
        """Until the kernel has answered and our subscription to its output stands.

        Raises:
            KernelStartError: it ended or did not answer in time.
        """
        with anyio.move_on_after(START_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_dead, group.cancel_scope)
                await self._connect(self._iopub, self._manager.iopub_port)
                await self._connect(self._shell, self._manager.shell_port)
                # Executing nothing, and not asking who it is: the code's way is warm then.
                request = self._request("pass", silent=True)
                with contextlib.suppress(anyio.EndOfStream):
                    # Whatever comes proves that the subscription stands. Its own welcome may not come: the kernel does
                    # not see that it is due when it publishes something at the same moment, which then is what comes.
                    await self._until(self._iopub, lambda m: True)
                    await self._until(self._shell, lambda m: m["parent_header"].get("msg_id") == request)
                    group.cancel_scope.cancel()
                    self._look_for_cgroup()
                    self._started_as = self._command()
                    return
        stderr = "".join(self._leftover(stream) for stream in ("stderr", "stdout"))
        if self._dead.is_set():
            raise KernelStartError(
                f"The kernel did not start ({self._exit}): {_last_lines(stderr)}",
                stderr=stderr,
            )
        raise KernelStartError(
            f"The kernel did not answer within {START_SECONDS:g} s. Is the machine overloaded? {_last_lines(stderr)}",
            stderr=stderr,
        )

    async def _connect(self, channel: Channel, port: int) -> None:
        sockets = Path(self._manager.ip)
        await channel.connect(self._launch.box.run, [sockets.parent.name, f"{sockets.name}-{port}"])

    def _look_for_cgroup(self) -> None:
        """A run that is not in the cgroup that was made for it is watched like any other."""
        cgroup = self._launch.box.cgroup
        if cgroup is not None and cgroup.holds(self._process.pid):
            self._cgroup = cgroup
            self._watch = Watch(cgroup)
        elif cgroup is not None:
            _log.warning("a run did not get into its cgroup, and is watched: %s", cgroup.path)

    async def _until_dead(self, scope: anyio.CancelScope) -> None:
        await self._wait_for_process()
        scope.cancel()

    async def _wait_for_process(self) -> None:
        """Wakes when the outermost process of the sandbox ends, without polling."""
        process = self._process
        if process.poll() is None:
            descriptor = pidfd_of(process)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            process.wait()
        self._dead.set()

    async def _until(self, channel: Channel, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that is `wanted`.

        Raises:
            anyio.EndOfStream: the kernel has ended.
        """
        while True:
            try:
                message = await self._receive(channel)
            except anyio.EndOfStream:
                await self._end_unheard()
                raise
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                if message is not None and wanted(message):
                    return message

    async def _end_unheard(self) -> None:
        """Until a kernel has ended that closed its connection, which mostly is how its end begins. One that lives on is
        ended, as it can say nothing any more; a program that code has put in its place says so by its own end."""
        with anyio.move_on_after(GRACE_SECONDS if self._command() == self._started_as else None):
            await self._wait_for_process()
        if not self._dead.is_set():
            self._unheard = True
            self.kill()
            await self._wait_for_process()

    def _command(self) -> bytes:
        """The kernel's command line, as far as it can be seen."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self._launch.walls.inner_pid(self._process)}/cmdline").read_bytes()
        return b""

    @property
    def _exit(self) -> str:
        """How its process ended, in words."""
        if self._unheard:
            return "the code closed its connection to the server"
        return describe_exit(self._process.returncode)

    def _leftover(self, stream: Stream) -> str:
        with contextlib.suppress(BlockingIOError, OSError):
            return plain(os.read(self._pipes[stream], _READ_BYTES).decode("utf-8", "replace"))
        return ""

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        process = self._provisioner.process
        return process is not None and process.poll() is None

    @property
    def still(self) -> bool:
        """Whether nothing in the sandbox can do anything any more, though it may not be gone yet."""
        return self._still

    async def gone(self) -> None:
        """Until nothing of a killed sandbox is left."""
        await self._wait_for_process()

    async def _stop(self) -> None:
        """End everything in the sandbox: until nothing in it can do anything any more.

        The end of its processes may come some milliseconds later: nobody needs to wait for that.
        """
        process = self._process
        if not (isinstance(process, ForkedProcess) and process.stop()):
            self.kill()
            await self._wait_for_process()
        self._still = True
        for wait in self._waits.values():
            wait.cancel()

    async def join(self, layers: Sequence[str]) -> None:
        """Make package layers importable, given by their places inside.

        Raises:
            KernelStartError: the kernel did not do so.
        """
        await self._ask(f"__import__('prims_kernel.once').once.join({list(layers)!r})")

    async def _ask(self, code: str) -> None:
        """Have the kernel do something for us.

        Raises:
            KernelStartError: it did not do so.
        """
        with anyio.move_on_after(START_SECONDS), contextlib.suppress(anyio.EndOfStream):
            if await self._reply(self._request(code, silent=True)) == "ok":
                return
        raise KernelStartError("The kernel could not be made ready for this call.")

    def _request(self, code: str, *, silent: bool, history: bool = False) -> str:
        """Have the kernel execute `code`; gives the id by which the answers are known."""
        content = {
            "code": code, "silent": silent, "store_history": history, "user_expressions": {},
            "allow_stdin": False, "stop_on_error": False,
        }  # fmt: skip
        message = self._session.msg("execute_request", content)
        self._shell.send(self._session.serialize(message))
        return str(message["msg_id"])

    async def _reply(self, request: str) -> str:
        """How the kernel says that a request ended, "ok" or "error". Raises what `_until` does."""
        message = await self._until(
            self._shell, lambda m: m["msg_type"] == "execute_reply" and m["parent_header"]["msg_id"] == request
        )
        content = message.get("content")
        return "ok" if isinstance(content, dict) and content.get("status") == "ok" else "error"

    # ------------------------------------------------------------------------------------------ execute

    async def execute(
        self, cells: Sequence[Cell], relay: Relay, stop: Stop, *, seconds: float | None, shared: bool = False
    ) -> Ending:
        """Run `cells` to their end, whichever that is. The kernel is of no more use afterwards.

        Each cell has `seconds`. They behave as those of a notebook when `shared`; else there is one, and it is a
        script too. Returns when everything that the run wrote has been relayed. Cancellation of the caller is not an
        end of a run: use `stop`.
        """
        order, requests = _Order(), _Requests()
        reply: str | None = None
        where = ""
        if shared:
            await self._ask("__import__('prims_kernel.once').once.share()")
        for stream in self._pipes:
            self._leftover(stream)  # what the start may have said does not belong to the run
        async with anyio.create_task_group() as readers:
            for stream, pipe in self._pipes.items():
                readers.start_soon(self._read_pipe, stream, pipe, relay, order, stop)
            readers.start_soon(self._read_output, requests, relay, order, stop)
            readers.start_soon(self._watch_temporary_files, stop)
            number = 0
            await relay.begin(number)
            for number, cell in enumerate(cells):
                reply, where = await self._run_cell(cell.code, number, requests, stop, seconds, history=shared)
                if reply == "error" and cell.may_fail and not stop.reason:
                    # What failed is in its outputs, and the run goes on.
                    reply, relay.error = "ok", None
                if stop.reason or self._dead.is_set() or reply != "ok":
                    break
            if shared and reply and not stop.reason:
                # The end of a script, which is that of the last cell here.
                finish = "__import__('prims_kernel.once').once.finish()"
                await self._run_cell(finish, None, requests, stop, seconds, history=False)
            if self._dead.is_set():
                with anyio.move_on_after(_DRAIN_SECONDS):
                    await self._output_read.wait()
            # What a kernel wrote that died at once is its last cell's, though the message of its begin was lost.
            await relay.begin(number)
            order.close()
            exit_text = self._exit if self._dead.is_set() else None
            with anyio.move_on_after(GRACE_SECONDS):
                await self._stop()
                await order.until_read(set(self._pipes))
                if reply is None and stop.reason != "output":
                    await self._output_read.wait()  # which may still hold what it has shown
            readers.cancel_scope.cancel()
        if self._dead.is_set() and not reply:
            where = where or self._crash_report()
        peak, killed = self._watch.peak, oom_kills() - (self._oom_kills or 0) if exit_text else 0
        if self._cgroup is not None and reply is None:
            by = self._cgroup.killed()
            if by == "limit":
                stop.set("out_of_memory")
            if stop.reason == "out_of_memory":
                peak = max(peak, self._cgroup.peak())
            killed = 1 if by == "machine" else 0
        relay.dropped_displays += self._refused + self._iopub.passed_over
        blocked, network_full = self._blocked()
        return Ending(
            reply=reply,
            stopped=stop.reason,
            exit=exit_text,
            where=where,
            peak_bytes=peak,
            file_bytes=self._watch.files,
            blocked=blocked,
            network_full=network_full,
            oom_kills=killed,
        )

    def _blocked(self) -> tuple[tuple[str, ...], bool]:
        """Places that were not reached, and whether the limit of bytes was."""
        noted = _read_small(self._launch.box.run, [Path(self._manager.ip).parent.name, "network.log"], 8 * 1024)
        told, full = self._proxy.blocked() if self._proxy is not None else ((), False)
        places = (*told, *noted.splitlines())
        return tuple(dict.fromkeys(place for place in map(plain, places) if 0 < len(place) < 300)), full

    def kill(self) -> None:
        """End everything in the sandbox, now."""
        self._launch.walls.kill(self._process)

    async def _watch_temporary_files(self, stop: Stop) -> None:
        """Stop a run that fills its own folder, which lies on the disk, or makes very many files in memory, whose size
        bounds what is in them and not what Linux notes of each."""
        walls, box, most = self._launch.walls, self._launch.box, self._launch.box.limits.tmp_bytes
        places = walls.places(box)
        in_memory = () if Path(places.tmp).is_relative_to(box.run) else (places.tmp, places.home, "/dev/shm")
        while True:
            await anyio.sleep(_DISK_SECONDS)
            used = await anyio.to_thread.run_sync(usage, box.run)
            files = used.files + _files_in(walls.inner_pid(self._process), in_memory)
            if used.bytes > most or files >= MOST_COUNTED:
                limit = binary(most) if used.bytes > most else f"{MOST_COUNTED:,} files"
                stop.set("disk", f"temporary files limit {limit} reached: {files:,} hold {binary(used.bytes)}")

    async def _run_cell(
        self, code: str, number: int | None, requests: _Requests, stop: Stop, seconds: float | None, *, history: bool
    ) -> tuple[str | None, str]:
        """Run one cell until it has ended, or its kernel has, or it was stopped. Code without a number is ours.

        Gives the kernel's reply, if there was one, and where the code was when it was stopped.
        """
        reply: str | None = None
        where = ""
        request = self._request(code, silent=number is None, history=history)
        idle = requests.add(request, number)
        if self._oom_kills is None:  # asked while the kernel works
            self._oom_kills = oom_kills()
        async with anyio.create_task_group() as watchers:
            with stop.scope() as self._until_end, anyio.move_on_after(seconds):
                watchers.start_soon(self._watch_process, stop)
                with contextlib.suppress(anyio.EndOfStream):
                    reply = await self._reply(request)
                    await self._output_of(idle)
            if reply is None and not self._dead.is_set():
                stop.set("timeout")  # unless there is another reason
                reply, where = await self._settle(stop, request, idle)
            watchers.cancel_scope.cancel()
        return reply, where

    async def _output_of(self, idle: anyio.Event) -> None:
        """All output comes before the idle; one that does not come (forged, dropped) is not waited for."""
        with anyio.move_on_after(1.0):
            await idle.wait()

    async def _watch_process(self, stop: Stop) -> None:
        """Watch what the run uses, and end the wait for its reply when it ends."""
        await self._watch.run(self._process.pid, self._launch.box.limits, stop.set, self._ends_within)
        await self._wait_for_process()
        self._until_end.cancel()

    async def _ends_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._wait_for_process()
        return self._dead.is_set()

    async def _settle(self, stop: Stop, request: str, idle: anyio.Event) -> tuple[str | None, str]:
        """Stop the code gently, then learn where it is if it goes on. Gives its reply, if any, and what was learnt."""
        reply: str | None = None
        if stop.reason in ("timeout", "cancelled", "shutdown"):
            # Only of a timeout does anybody still read what the code says when it is interrupted.
            grace = GRACE_SECONDS if stop.reason == "timeout" else GRACE_SECONDS / 4
            with anyio.move_on_after(grace) as self._until_end:
                await self._connect(self._control, self._manager.control_port)
                self._control.send(self._session.serialize(self._session.msg("interrupt_request", {})))
                with contextlib.suppress(anyio.EndOfStream):
                    reply = await self._reply(request)
                    await self._output_of(idle)
            if reply is not None or self._dead.is_set():
                return reply, ""
        if stop.reason == "out_of_memory":
            self._hold_others()
        await self._provisioner.send_signal(signal.SIGUSR2)
        for _ in range(20):
            if report := self._crash_report():
                return None, report
            await anyio.sleep(0.01)
        return None, ""

    def _hold_others(self) -> None:
        """Stop all processes but the kernel, so that they do not grow on while it is asked where it is."""
        kernel = self._launch.walls.inner_pid(self._process)
        for pid in tree(self._process.pid)[1:]:
            if pid != kernel:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)

    def _crash_report(self) -> str:
        """What the kernel's fault handler wrote, if it did: the frames of the user's code, outermost first."""
        text = _read_small(self._launch.box.run, [Path(self._manager.ip).parent.name, "crash.log"], 64 * 1024)
        frames = re.findall(r'File "([^"\n]+)", line (\d{1,9}) in ([^\n]{1,200})', text)
        outermost = max((i for i, (file, _, _) in enumerate(frames) if re.fullmatch(CODE_FILE, file)), default=-1)
        lines = [f'  File "{plain(f)}", line {n}, in {plain(where)}' for f, n, where in frames[: outermost + 1]]
        return "\n".join(reversed(lines[:30]))

    # ------------------------------------------------------------------------------------------ read

    async def _read_pipe(self, stream: Stream, pipe: int, relay: Relay, order: _Order, stop: Stop) -> None:
        """All that is written to one descriptor, up to its end."""
        limit = self._launch.box.limits.output_bytes
        rest, many = b"", 0
        # A writer must not wait for a pipe that is full while we wait for more.
        small = min(_READ_BYTES, fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2)
        while True:
            if many > _FEW_PIECES:
                await order.gather(stream)
            waited_since = time.monotonic()
            still = await self._readable(pipe)
            try:
                data = os.read(pipe, _READ_BYTES)
            except BlockingIOError:
                if not still:
                    continue
                data = b""  # nobody writes any more, though the other end may not be closed yet
            many = many + 1 if time.monotonic() - waited_since < _GATHER_SECONDS and len(data) < small else 0
            data, at = rest + data, 0
            for number, mark in enumerate(_MARK.finditer(data) if _MARK_BEGIN in data else (), 1):
                if number % _FEW_MARKS == 0:
                    await anyio.lowlevel.checkpoint()  # others have their turn, however many are forged
                await relay.text(stream, data[at : mark.start()])
                at = mark.end()
                await order.text_reached(stream, int(mark[1]))
            cut = _CUT_MARK.search(data, max(at, len(data) - 32))
            end = cut.start() if cut and len(data) > len(rest) else len(data)
            await relay.text(stream, data[at:end])
            if len(data) == len(rest):
                break
            rest = data[end:]
            if limit is not None and relay.bytes > limit:
                stop.set("output")
        order.ended(stream)

    async def _readable(self, pipe: int) -> bool:
        """Until there may be something to read; gives whether nobody can write any more."""
        if not self._still:
            with anyio.CancelScope() as self._waits[pipe]:
                await anyio.wait_readable(pipe)
        return self._still

    async def _read_output(self, requests: _Requests, relay: Relay, order: _Order, stop: Stop) -> None:
        """All iopub messages of this run."""
        limit = self._launch.box.limits.output_bytes
        while True:
            try:
                message = await self._receive(self._iopub)
            except anyio.EndOfStream:
                self._output_read.set()
                return
            if message is None:
                continue
            try:
                request = message["parent_header"].get("msg_id")
                if request not in requests.idle:
                    continue
                if message["msg_type"] == "status":
                    if message["content"].get("execution_state") == "idle":
                        requests.idle[request].set()
                    continue
                number = message["metadata"].get("prims_order")
            except (KeyError, TypeError, AttributeError):
                continue
            number = number if isinstance(number, int) and 0 < number < 10**18 else None
            if number is not None:
                await order.before_display(number)
            # A hostile message may break any code that looks at it; it must not take the others with it.
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                if message["msg_type"] == "execute_input":
                    await relay.begin(requests.numbers[request])
                else:
                    await relay.message(message)
            if number is not None:
                order.displayed(number)
            if limit is not None and relay.bytes > limit:
                stop.set("output")

    async def _receive(self, channel: Channel) -> dict[str, Any] | None:
        """The next message of a channel; None for one that is not a message, whatever is wrong with it.

        Raises:
            anyio.EndOfStream: none comes any more.
        """
        if await channel.wait() < _LARGE_MESSAGE:
            return self._read(channel.take())
        async with _large_messages.turn():
            return self._read(channel.take())

    def _read(self, frames: list[bytes]) -> dict[str, Any] | None:
        try:
            signature, *parts = frames[frames.index(DELIM) + 1 :][:5]
            if not compare_digest(self._session.sign(parts), signature):
                return None
            if max(map(_values_in, parts)) > _MOST_VALUES:
                self._refused += 1
                return None
            header, parent, metadata, content = (json.loads(part.decode("utf-8", "replace")) for part in parts)
            kind = header["msg_type"]
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        # Not by jupyter_client's own function: it looks for dates in all of it.
        return {"msg_type": kind, "parent_header": parent, "metadata": metadata, "content": content}

    async def close(self) -> None:
        """End the kernel and give back sockets and descriptors. Idempotent."""
        with anyio.CancelScope(shield=True):
            if self._provisioner.process is not None:
                self.kill()
                with anyio.move_on_after(5):
                    await self._wait_for_process()
            for channel in (self._shell, self._iopub, self._control):
                channel.close()
            for pipe in self._pipes.values():
                with contextlib.suppress(OSError):
                    os.close(pipe)
            self._pipes.clear()


@asynccontextmanager
async def start_kernel(walls: Walls | ForkServer, box: Box, private: Path) -> AsyncIterator[Kernel]:
    """A kernel that is ready for one run; ended, with all it started, when the block is left.

    Raises:
        KernelStartError: it did not come up.
    """
    pipes: dict[Stream, int] = {}
    writers: list[int] = []
    kernel: Kernel | None = None
    stack = AsyncExitStack()
    streams: tuple[Stream, Stream] = ("stdout", "stderr")
    try:
        for stream in streams:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            os.fchmod(writer, 0o622)  # /dev/stdout can be opened by the run, which may be another user
            with contextlib.suppress(OSError):
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            pipes[stream] = reader
            writers.append(writer)
        launch = Launch(walls, box, private, stdout=writers[0], stderr=writers[1])
        manager = _Manager(kernel_name="prims", kernel_spec_manager=_specs(), transport="ipc")
        try:
            proxy = await stack.enter_async_context(start_proxy(box))
            await manager.start_kernel(prims_launch=launch)
        except OSError as problem:
            raise KernelStartError(f"The sandbox could not be started: {problem}") from problem
        kernel = Kernel(manager, launch, pipes, proxy)
        while writers:
            os.close(writers.pop())
        await kernel._ready()
        yield kernel
    finally:
        for descriptor in writers:
            os.close(descriptor)
        if kernel is not None:
            await kernel.close()
        else:
            for descriptor in pipes.values():
                os.close(descriptor)
        await stack.aclose()


class _Turns:
    """What takes long is done by one at a time, and all else has as much time between."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._from = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A turn; its block does not wait."""
        async with self._lock:
            await anyio.sleep(max(0.0, self._from - time.monotonic()))
            began = time.monotonic()
            yield
            ended = time.monotonic()
            self._from = ended + (ended - began)


_large_messages = _Turns()


class _Requests:
    """The cells that were sent: the number of each, counted from 0, and whether the kernel is done with it."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.idle: dict[str, anyio.Event] = {}

    def add(self, request: str, number: int | None) -> anyio.Event:
        """A cell was sent."""
        if number is not None:
            self.numbers[request] = number
        self.idle[request] = anyio.Event()
        return self.idle[request]


class _Order:
    """Where two pipes and iopub meet, at numbered marks (see `inside/prims_kernel/order.py`).

    Every wait is bounded: a kernel that forges marks only slows itself.
    """

    _SECONDS = 2.0

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._arrived = self._displayed = 0
        self._ended: set[str] = set()
        self._closed = False
        self._wake = anyio.Event()

    async def text_reached(self, stream: str, number: int) -> None:
        """The text before mark `number` is relayed; what follows comes after the display of that number."""
        self._at[stream] = max(number, self._at.get(stream, 0))
        self._notify()
        await self._until(lambda: self._arrived > number or self._displayed >= number)

    async def before_display(self, number: int) -> None:
        """A display came; the text before it must be relayed first."""
        self._arrived = max(self._arrived, number)
        self._notify()
        await self._until(lambda: all(s in self._ended or self._at.get(s, 0) >= number for s in ("stdout", "stderr")))

    def displayed(self, number: int) -> None:
        """The display is relayed."""
        self._displayed = max(self._displayed, number)
        self._notify()

    def ended(self, stream: str) -> None:
        """The pipe is read to its end."""
        self._ended.add(stream)
        self._notify()

    def close(self) -> None:
        """No display comes any more: nobody waits for one."""
        self._closed = True
        self._notify()

    async def gather(self, stream: str) -> None:
        """Let text gather, unless somebody waits for what has been written."""
        with anyio.move_on_after(_GATHER_SECONDS):
            while not self._closed and self._arrived <= self._at.get(stream, 0):
                await self._wake.wait()

    async def until_read(self, streams: set[Stream]) -> None:
        """Until these pipes are read to their ends."""
        while not streams <= self._ended:
            await self._wake.wait()

    def _notify(self) -> None:
        self._wake.set()
        self._wake = anyio.Event()

    async def _until(self, met: Callable[[], bool]) -> None:
        with anyio.move_on_after(self._SECONDS):
            while not self._closed and not met():
                await self._wake.wait()


def _values_in(frame: bytes) -> int:
    """How many values a text of JSON holds, about, at little cost. What stands in strings is not counted."""
    count = _marks_in(frame)
    if count > _MOST_VALUES:
        strings = frame.replace(b"\\\\", b"").replace(b'\\"', b"")
        if strings.count(b'"') <= _MOST_VALUES:
            count = sum(map(_marks_in, strings.split(b'"')[::2]))
    return count


def _marks_in(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _files_in(pid: int | None, places: Sequence[str]) -> int:
    """How many files there are in the file systems that this process sees at `places`, as far as we may look."""
    count = 0
    for place in places if pid is not None else ():
        with contextlib.suppress(OSError):
            system = os.statvfs(f"/proc/{pid}/root{place}")
            count += system.f_files - system.f_ffree
    return count


def _read_small(root: Path, parts: list[str], most: int) -> str:
    """A small file that hostile code could have exchanged for anything; empty when it is not one."""
    try:
        descriptor = open_file(root, parts)
    except OSError:
        return ""
    try:
        return os.read(descriptor, most).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _last_lines(text: str, lines: int = 5) -> str:
    return " / ".join(text.strip().splitlines()[-lines:]) or "it wrote nothing"
