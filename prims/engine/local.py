"""Sandboxes as children of this process: environment → kernel → run → nothing left but the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import anyio
import anyio.to_thread

from prims.config import Settings, tool_environment
from prims.isolation import probe
from prims.isolation.walls import Walls, base_python
from prims.kernel.environment import Environment, Environments, create_venv
from prims.kernel.folders import make_box, make_session_folder, view
from prims.kernel.kernel import Ending, start_kernel
from prims.kernel.relay import Relay
from prims.model import CodeError, Emit, Phase, PhaseEvent, RunResult, SandboxSpec, Status
from prims.stopping import Stop
from prims.tasks import alongside
from prims.trees import remove_tree

_STATUS: dict[str, Status] = {
    "timeout": "timeout",
    "cancelled": "cancelled",
    "shutdown": "shutdown",
    "out_of_memory": "out_of_memory",
    "output": "limit",
}


class LocalEngine:
    """Runs sandboxes on this machine, below the private folder `state`.

    `prepare` does ahead what every run needs; without it the first run does it. Use as `async with`.
    """

    def __init__(self, settings: Settings, state: Path) -> None:
        self._settings = settings
        self._state = state
        self._stack = AsyncExitStack()
        self._environments = Environments(settings, tool_environment())
        self._walls: Walls | None = None
        self._choosing = anyio.Lock()
        self._uids: set[int] = set()

    async def __aenter__(self) -> LocalEngine:
        await self._stack.enter_async_context(self._environments)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def walls(self) -> Walls:
        """The walls of this machine, proven once.

        Raises:
            IsolationUnavailable: none that the settings allow can be built; asked again, it looks again.
        """
        async with self._choosing:
            if self._walls is None:
                self._walls = await probe.choose(self._settings.isolation, self._state)
            return self._walls

    async def make_session_folder(self, folder: Path) -> int | None:
        """A new session's folder, as the walls show it to code; gives the uid that the session's code will have."""
        walls = await self.walls()
        uid = probe.pick_uid(self._uids) if walls.drops_uid else None
        if uid is not None:
            self._uids.add(uid)
        mounts = walls.places(view(folder, folder)).mounts
        await anyio.to_thread.run_sync(make_session_folder, folder, mounts, uid)
        return uid

    async def prepare(self) -> None:
        """Prove the walls and build the base layers. Raises what `run` would raise."""
        await self.walls()
        await self._environments.base()

    async def run(self, spec: SandboxSpec, emit: Emit, stop: Stop) -> RunResult:
        """See `prims.engine.base.Engine.run`."""
        clock = _Clock(emit)
        walls = await self.walls()
        folder = self._state / spec.name
        folder.mkdir(mode=0o700)
        relay = Relay(spec.spool, emit, keep=spec.keep_chars, inline=spec.image_bytes)
        packages: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        ending = Ending(stopped=stop.reason)
        try:
            with clock.phase("environment"):
                environment = await alongside(lambda: self._environment(spec, clock), stop.wait)
            if environment is not None:
                packages, notes = environment.packages, environment.notes
                with clock.phase("environment"):
                    box = make_box(folder, spec.folder, environment.layers, spec.request.limits, spec.uid)
                    layers = walls.places(box).layers
                    python, app_data = base_python().executable, self._environments.app_data
                    await anyio.to_thread.run_sync(
                        lambda: create_venv(box.venv, layers, python=python, app_data=app_data)
                    )
                with clock.phase("start"):
                    async with AsyncExitStack() as stack:
                        kernel = await alongside(
                            lambda: stack.enter_async_context(start_kernel(walls, box, folder)), stop.wait
                        )
                        if kernel is not None:
                            with clock.phase("run"):
                                ending = await kernel.execute(
                                    spec.request.code, relay, stop, seconds=spec.request.limits.run_seconds
                                )
            if stop.reason and ending == Ending():
                ending = Ending(stopped=stop.reason)
            await relay.finish()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, folder)
        status, error, cause = _judge(ending, relay.error, spec)
        return RunResult(
            status=status,
            isolation=walls.name,
            stdout=relay.stdout,
            story=relay.story,
            stderr=relay.stderr,
            result=relay.result,
            error=error,
            cause=cause,
            displays=relay.displays,
            displays_left_out=relay.dropped_displays,
            packages=packages,
            seconds=clock.seconds,
            feedback=notes,
        )

    async def _environment(self, spec: SandboxSpec, clock: _Clock) -> Environment:
        tell = clock.tell
        if spec.request.requirements:
            return await self._environments.for_requirements(spec.request.requirements, tell)
        return await self._environments.base(tell)


class _Clock:
    """Seconds by phase; tells of each phase when it starts."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._phase: Phase = "environment"
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        outer, self._phase = self._phase, phase
        self._emit(PhaseEvent(phase))
        begun = time.monotonic()
        before = sum(self.seconds.values())
        try:
            yield
        finally:
            # A phase within another counts for itself only.
            inner = sum(self.seconds.values()) - before
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - begun - inner
            self._phase = outer

    def tell(self, detail: str) -> None:
        """Something that takes long has begun, in words."""
        self._emit(PhaseEvent(self._phase, detail))


def _judge(ending: Ending, error: CodeError | None, spec: SandboxSpec) -> tuple[Status, CodeError | None, str]:
    """Status, error and cause of an ending. What a kernel could have forged is never the reason for a status
    that only we can know: those come from what was recorded before the kernel was killed."""
    limits = spec.request.limits
    traceback = ending.where or (error.traceback if error else "")
    line = _last_line(ending.where) or (error.line if error else None)
    if ending.stopped is not None:
        causes = {
            "timeout": f"stopped after {limits.run_seconds or 0:g} s, the time limit of this run",
            "cancelled": "stopped because the call was cancelled",
            "shutdown": "stopped because the server is shutting down",
            "out_of_memory": f"out of memory: stopped at its limit of {_size(limits.memory_bytes)}",
            "output": f"stopped because it wrote more than {_size(limits.output_bytes)} of output",
        }
        names = {
            "timeout": "TimeoutError", "cancelled": "Cancelled", "shutdown": "Shutdown",
            "out_of_memory": "MemoryError", "output": "OutputLimitExceeded",
        }  # fmt: skip
        cause = causes[ending.stopped]
        return _STATUS[ending.stopped], CodeError(names[ending.stopped], cause, traceback, line), cause
    if ending.reply is None:
        used = ""
        if limits.memory_bytes and ending.peak_bytes > limits.memory_bytes // 2:
            used = f"; it had used {_size(ending.peak_bytes)} of {_size(limits.memory_bytes)} memory"
        cause = f"the kernel ended: {ending.exit}{used}"
        return "died", CodeError("KernelDied", cause, traceback, line), cause
    if ending.reply == "error" or error is not None:
        return "error", error or CodeError("Error", "the code failed without saying how"), ""
    return "ok", None, ""


def _last_line(where: str) -> int | None:
    for text in reversed(where.splitlines()):
        if '/main.py", line ' in text:
            return int(text.split(", line ")[1].split(",")[0])
    return None


def _size(count: int | None) -> str:
    if count is None:
        return "unlimited"
    for unit, step in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= step:
            return f"{count / step:.3g} {unit}"
    return f"{count} bytes"
