"""Sandboxes as children of this process: environment → kernel → run → nothing left but the result."""

from __future__ import annotations

import itertools
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Hashable, Iterator
from compileall import compile_dir
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import anyio
import anyio.to_thread

from prims.config import Settings, tool_environment
from prims.engine.leftovers import Leftovers
from prims.engine.parents import Parents
from prims.engine.spares import Spares
from prims.errors import InstallError, IsolationUnavailable, KernelStartError
from prims.isolation import cgroups, probe
from prims.isolation.cgroups import Cgroup, Cgroups, NoCgroups
from prims.isolation.network import unavailable
from prims.isolation.uids import give_uid_back, take_uid
from prims.isolation.walls import Box, ForkingWalls, Walls
from prims.kernel import looking
from prims.kernel.environment import Environment, Environments
from prims.kernel.folders import KERNEL_FILES, fits, make_box, make_session_folder, view
from prims.kernel.fonts import LIST_FONTS, Fonts
from prims.kernel.forkserver import ForkServer, start_parent
from prims.kernel.kernel import Ending, Kernel, start_kernel
from prims.kernel.looking import Look
from prims.kernel.pictures import attached, plan
from prims.kernel.provisioner import kernel_environment
from prims.kernel.relay import Relay
from prims.kernel.sdists import SourceBuilder
from prims.kernel.text import CODE_FILE
from prims.kernel.venv import create_venv, join_venv
from prims.model import (
    Cell,
    CodeError,
    Display,
    Emit,
    Limits,
    Phase,
    PhaseEvent,
    Picture,
    RunRequest,
    RunResult,
    SandboxSpec,
    Status,
    binary,
)
from prims.stopping import Stop, StopReason
from prims.trees import remove_tree

_log = logging.getLogger(__name__)
_LOOKS_AT_ONCE = 4
# What the confined helper has, whatever the operator's default packages are: it opens pictures and draws SVG.
_HELPERS = ("pillow", "resvg-py")
_HELPERS_SECONDS, _HELPERS_AGAIN_SECONDS = 15.0, 60.0
# How many ended sandboxes may still be there when the next run begins.
_MOST_LEFTOVERS = 4
_GONE_SECONDS = 5.0  # a run does not wait longer for the end of those before it; it needs some 5 ms
# A run has the machine to itself for this long before the spare for the next one is made.
_ALONE_SECONDS = 0.1

# By the reason why a run was stopped: its status, and the name of the error that it ends in.
_STOPPED: dict[StopReason, tuple[Status, str]] = {
    "timeout": ("timeout", "TimeoutError"),
    "cancelled": ("cancelled", "Cancelled"),
    "shutdown": ("shutdown", "Shutdown"),
    "out_of_memory": ("out_of_memory", "MemoryError"),
    "cpu": ("limit", "ProcessorTimeExceeded"),
    "output": ("limit", "OutputLimitExceeded"),
    "disk": ("limit", "WorkspaceFull"),
    "files": ("limit", "WorkspaceFull"),
}


@dataclass(frozen=True, slots=True)
class _Key:
    """Whose sandbox: a session's folder and uid."""

    folder: Path
    uid: int | None


@dataclass(frozen=True, slots=True)
class _Sandbox:
    """A kernel that is ready for one run, and the environment that it was made with."""

    kernel: Kernel
    box: Box
    environment: Environment


class LocalEngine:
    """Runs sandboxes on this machine, below the private folder `state`.

    What every run needs is made ahead: `prepare` proves the walls and builds the base layers, and each session has a
    fresh kernel waiting. Use as `async with`.
    """

    def __init__(self, settings: Settings, state: Path) -> None:
        self._settings = settings
        self._state = state
        self._stack = AsyncExitStack()
        tools = tool_environment()
        builder = SourceBuilder(self.walls, state, settings.limits(), tools) if settings.allow_sdists else None
        self._environments = Environments(settings, tools, builder=builder)
        self._fonts = Fonts(settings.cache_dir)
        self._walls: Walls | None = None
        self._cgroups: Cgroups | None = None
        self._choosing = anyio.Lock()
        self._looking = anyio.Semaphore(_LOOKS_AT_ONCE)
        self._helpers_from = -math.inf  # when to ask for the helper's packages again
        self._ended: list[tuple[_Key, Kernel]] = []
        self._names = itertools.count(1)

    async def __aenter__(self) -> LocalEngine:
        await self._stack.enter_async_context(self._environments)
        group = await self._stack.enter_async_context(anyio.create_task_group())
        self._spares: Spares[_Sandbox] = Spares(group, self._make_spare, self._settings.spare_kernels)
        forks = self._settings.fork_kernels != "off"
        self._parents = Parents(group, self._make_parent, self._settings.concurrent_runs if forks else 0)
        self._leftovers = Leftovers(group, _MOST_LEFTOVERS)
        self._stack.callback(group.cancel_scope.cancel)
        self._stack.push_async_callback(self._parents.close)
        self._stack.push_async_callback(self._spares.close)
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
                walls = await probe.choose(self._settings.isolation, self._state)
                if reason := unavailable(self._settings.network, walls.name):
                    raise IsolationUnavailable(reason)
                self._cgroups = await self._find_cgroups()
                self._walls = walls
            return self._walls

    async def _find_cgroups(self) -> Cgroups | None:
        if self._settings.cgroups == "off":
            return None
        try:
            return await anyio.to_thread.run_sync(cgroups.find)
        except NoCgroups as reason:
            _log.info("runs are watched, and have no cgroups: %s", reason)
            return None

    async def open_session(self, folder: Path) -> int | None:
        """Make a session's folder as the walls show it to code, and begin to make its first kernel.

        Gives the uid that the session's code will have, when it has one of its own.
        """
        walls = await self.walls()
        uid = take_uid() if walls.drops_uid else None
        mounts = walls.places(view(folder, folder)).mounts
        await anyio.to_thread.run_sync(make_session_folder, folder, mounts, uid)
        self._spares.prepare(_Key(folder, uid))
        return uid

    async def close_session(self, folder: Path, uid: int | None) -> None:
        """End what was made ahead for a session."""
        await self._spares.drop(_Key(folder, uid))
        await self._leftovers.closed()
        await self._parents.drop(_Key(folder, uid))
        give_uid_back(uid)

    async def look(self, uid: int | None, root: Path, relative: str, want: str, offset: int, limit: int) -> Look:
        """See `prims.engine.base.Engine.look`."""
        walls = await self.walls()
        environment = await self._for_helper()
        async with self._looking:
            return await looking.look(
                walls,
                environment,
                self._state,
                root,
                relative,
                uid=uid,
                limits=self._settings.limits(),
                want=want,
                offset=offset,
                limit=limit,
                pictures=self._settings.pictures,
            )

    async def _for_helper(self) -> Environment:
        """What the confined helper has; where that cannot be had, the packages that runs have must do."""
        if time.monotonic() >= self._helpers_from:
            with suppress(InstallError), anyio.move_on_after(_HELPERS_SECONDS):
                return await self._environments.for_requirements(_HELPERS)
            self._helpers_from = time.monotonic() + _HELPERS_AGAIN_SECONDS
        return await self._environments.base()

    async def prepare(self) -> None:
        """Prove the walls and build the base layers. Raises what `run` would raise."""
        await self.walls()
        # Once for an installation: inside they are read-only, and every process would compile them for itself.
        await anyio.to_thread.run_sync(lambda: compile_dir(KERNEL_FILES, quiet=2))
        base = await self._environments.base()
        if self._fonts.wanted(base):
            await self._list_fonts(base)
        if any(package.startswith("pillow==") for package in base.packages):  # else when it is first needed
            with suppress(InstallError):
                await self._environments.for_requirements(_HELPERS)

    async def run(self, spec: SandboxSpec, emit: Emit, stop: Stop) -> RunResult:
        """See `prims.engine.base.Engine.run`."""
        clock = _Clock(emit)
        walls = await self.walls()
        key = _Key(spec.folder, spec.uid)
        relay = Relay(spec.spool, emit, keep=spec.keep_chars, record=spec.record_bytes)
        environment: Environment | None = None
        kernel: Kernel | None = None
        ending: Ending | None = None
        stack = AsyncExitStack()
        stack.callback(self._forget_the_gone)  # when all else is closed
        try:
            with clock.phase("environment"):
                await self._leftovers.room()
                with stop.scope():
                    environment = await self._environment(spec, clock)
            if environment is not None:
                with clock.phase("start"), stop.scope():
                    kernel = await self._kernel(key, spec, environment, clock, stack)
                # Made while this run goes on, if it does, so that the next one need not wait for it.
                self._spares.prepare(key, _ALONE_SECONDS)
                if kernel is not None:
                    await self._earlier_ones_gone(key)
                    with clock.phase("run"):
                        ending = await kernel.execute(
                            spec.request.cells or (Cell(spec.request.code),), relay, stop,
                            seconds=spec.request.limits.run_seconds, shared=bool(spec.request.cells),
                        )  # fmt: skip
                    self._ended.append((key, kernel))
                    if not kernel.still:  # killed, but it may still do something: until then this is no end
                        await stack.aclose()
            await relay.finish()
        finally:
            self._leftovers.close(stack)
            self._spares.prepare(key, _ALONE_SECONDS)
        displays = await self._with_pictures(relay.displays, spec) if relay.displays else ()
        status, error, cause = _judge(ending or Ending(stopped=stop.reason), relay.error, spec, stop.detail)
        return RunResult(
            status=status,
            isolation=walls.name,
            stdout=relay.stdout,
            story=relay.story,
            stderr=relay.stderr,
            result=relay.result,
            error=error,
            cause=cause,
            displays=displays,
            displays_left_out=relay.dropped_displays,
            cells=relay.recorder.cells,
            packages=environment.packages if environment else (),
            seconds=clock.seconds,
            blocked=ending.blocked if ending and walls.name != "none" else (),
            feedback=(*(environment.notes if environment else ()), *_network_met(ending, spec)),
        )

    async def _earlier_ones_gone(self, key: _Key) -> None:
        """Until Linux has taken down what ran in this session before, which may hold locks of its files until then."""
        with anyio.move_on_after(_GONE_SECONDS):
            for owner, kernel in list(self._ended):
                if owner == key and kernel.alive:
                    await kernel.gone()

    def _forget_the_gone(self) -> None:
        self._ended = [(owner, kernel) for owner, kernel in self._ended if kernel.alive]

    async def _with_pictures(self, displays: tuple[Display, ...], spec: SandboxSpec) -> tuple[Display, ...]:
        """The displays with their pictures, drawn anew by the confined helper where they are not fit to be sent."""
        planned = await anyio.to_thread.run_sync(plan, displays, spec.spool, spec.pictures)
        drawn: dict[str, Picture | str] = {}
        if planned.redrawn:
            walls, environment = await self.walls(), await self._for_helper()
            async with self._looking:
                drawn = await looking.redraw(
                    walls, environment, self._state, spec.spool, planned.redrawn,
                    uid=spec.uid, limits=spec.request.limits, edge=spec.pictures.edge,
                )  # fmt: skip
        return attached(displays, planned, drawn)

    async def _environment(self, spec: SandboxSpec, clock: _Clock) -> Environment:
        if spec.request.requirements:
            return await self._environments.for_requirements(spec.request.requirements, clock.tell)
        return await self._environments.base(clock.tell)

    async def _kernel(
        self, key: _Key, spec: SandboxSpec, environment: Environment, clock: _Clock, stack: AsyncExitStack
    ) -> Kernel:
        """A fresh kernel with this environment, closed by `stack`: the spare if it can serve, else one made now."""
        limits = spec.request.limits
        if (taken := await self._spares.take(key)) is not None:
            spare, closer = taken
            await stack.enter_async_context(closer)
            base = spare.environment.layers
            more = tuple(layer for layer in environment.layers if layer not in base)
            same = replace(spare.box.limits, run_seconds=None) == replace(limits, run_seconds=None)
            if spare.kernel.alive and same and not environment.kernel_moved and set(base) <= set(environment.layers):
                if more:
                    walls = await self.walls()
                    places = walls.places(replace(spare.box, layers=more)).layers
                    await anyio.to_thread.run_sync(join_venv, spare.box.venv, places)
                    await spare.kernel.join(places)
                return spare.kernel
        with clock.phase("environment"):
            sandbox = self._sandbox(key, environment, limits)
        return (await stack.enter_async_context(sandbox)).kernel

    @asynccontextmanager
    async def _sandbox(self, key: _Key, environment: Environment, limits: Limits) -> AsyncIterator[_Sandbox]:
        """A new venv and a kernel on it, in the session's walls: forked where that is possible, else started."""
        walls = await self.walls()
        parent = None if environment.kernel_moved else self._parents.get(key)
        async with AsyncExitStack() as stack:
            sandbox: _Sandbox | None = None
            if parent is not None:
                try:
                    sandbox = await stack.enter_async_context(
                        self._sandbox_in(parent, parent.runs, key, environment, limits)
                    )
                except KernelStartError as problem:
                    _log.warning("a kernel is started and not forked: %s", problem)
            if sandbox is None:
                sandbox = await stack.enter_async_context(
                    self._sandbox_in(walls, self._state, key, environment, limits)
                )
            if isinstance(walls, ForkingWalls):
                self._parents.prepare(key)
            yield sandbox

    @asynccontextmanager
    async def _sandbox_in(
        self, walls: Walls | ForkServer, below: Path, key: _Key, environment: Environment, limits: Limits
    ) -> AsyncIterator[_Sandbox]:
        async with self._folder(below, key.uid) as folder, self._cgroup(limits) as cgroup:
            box = replace(make_box(folder, key.folder, environment.layers, limits, key.uid), cgroup=cgroup)
            await anyio.to_thread.run_sync(self._make_venv, box, walls.places(box).layers, environment)
            async with start_kernel(walls, box, folder) as kernel:
                yield _Sandbox(kernel, box, environment)

    @asynccontextmanager
    async def _make_parent(self, key: Hashable) -> AsyncIterator[ForkServer]:
        assert isinstance(key, _Key)
        walls = await self.walls()
        assert isinstance(walls, ForkingWalls)
        layers = (await self._environments.base()).layers
        async with self._folder(self._state, key.uid) as folder:
            if not fits(folder / "k99999999"):
                raise KernelStartError(f"{folder} is too long for folders below it; set a shorter PRIMS_STATE_DIR")
            box = make_box(folder, key.folder, layers, self._settings.limits(), key.uid)
            await anyio.to_thread.run_sync(create_venv, box.venv, (), self._environments.app_data)
            async with start_parent(walls, box, kernel_environment(walls.places(box))) as parent:
                yield parent

    @asynccontextmanager
    async def _cgroup(self, limits: Limits) -> AsyncIterator[Cgroup | None]:
        """A new cgroup for a sandbox, where there are any; removed with all processes that are in it then."""
        cgroup: Cgroup | None = None
        if self._cgroups is not None:
            try:
                cgroup = self._cgroups.make(limits)
            except OSError as problem:
                _log.warning("a run gets no cgroup, and is watched: %s", problem)
        try:
            yield cgroup
        finally:
            if cgroup is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(cgroup.remove)

    @asynccontextmanager
    async def _folder(self, below: Path, uid: int | None) -> AsyncIterator[Path]:
        """A new private folder with a short name, removed whatever is in it then. A session's own uid may pass it."""
        folder = below / f"k{next(self._names)}"
        folder.mkdir(mode=0o700 if uid is None else 0o711)
        try:
            yield folder
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, folder)

    def _make_venv(self, box: Box, layers: tuple[str, ...], environment: Environment) -> None:
        create_venv(box.venv, layers, self._environments.app_data)
        self._fonts.give(environment, box.venv)

    @asynccontextmanager
    async def _make_spare(self, key: Hashable) -> AsyncIterator[_Sandbox]:
        assert isinstance(key, _Key)
        environment = await self._environments.base()
        async with self._sandbox(key, environment, self._settings.limits()) as sandbox:
            yield sandbox

    async def _list_fonts(self, base: Environment) -> None:
        """Let matplotlib list the machine's fonts once, inside the walls, for all runs to come."""
        folder = self._state / f"k{next(self._names)}"
        spool = folder / "spool"
        uid = await self.open_session(folder / "session")
        spool.mkdir()
        try:
            request = RunRequest(LIST_FONTS, limits=self._settings.limits())
            spec = SandboxSpec(request, folder / "session", spool, 1000, uid=uid)
            result = await self.run(spec, lambda event: None, Stop())
            if result.status == "ok":
                await anyio.to_thread.run_sync(self._fonts.keep, base, folder / "session" / "files")
        finally:
            with anyio.CancelScope(shield=True):
                await self.close_session(folder / "session", uid)
                await anyio.to_thread.run_sync(remove_tree, folder)


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


def _judge(
    ending: Ending, error: CodeError | None, spec: SandboxSpec, detail: str
) -> tuple[Status, CodeError | None, str]:
    """Status, error and cause of an ending. What a kernel could have forged is never the reason for a status
    that only we can know: those come from what was recorded before the kernel was killed. `detail` are the words of
    who stopped it, if any."""
    limits = spec.request.limits
    traceback = ending.where or (error.traceback if error else "")
    line = _last_line(ending.where) or (error.line if error else None)
    if ending.stopped is not None:
        causes = {
            "timeout": f"time limit {limits.run_seconds or 0:g} s reached",
            "cancelled": "stopped because the call was cancelled",
            "shutdown": "stopped because the server is shutting down",
            "out_of_memory": f"memory limit {binary(limits.memory_bytes)} reached; peak {binary(ending.peak_bytes)}",
            "cpu": f"processor time limit {limits.cpu_seconds or 0:g} s reached",
            "output": f"output limit {binary(limits.output_bytes)} reached",
        }
        if limits.memory_bytes and ending.file_bytes > limits.memory_bytes // 8:
            causes["out_of_memory"] += f", {binary(ending.file_bytes)} of it files in memory, such as those in /tmp"
        cause = detail or causes[ending.stopped]
        status, name = _STOPPED[ending.stopped]
        return status, CodeError(name, cause, traceback, line), cause
    if ending.reply is None:
        used = ""
        if limits.memory_bytes and ending.peak_bytes > limits.memory_bytes // 2:
            used = f"; memory peak {binary(ending.peak_bytes)} of {binary(limits.memory_bytes)}"
        if ending.oom_kills > 0 and "SIGKILL" in (ending.exit or ""):
            used += "; probably by Linux, because the machine or container was out of memory"
        cause = f"the kernel ended: {ending.exit}{used}"
        return "died", CodeError("KernelDied", cause, traceback, line), cause
    if ending.reply == "error" or error is not None:
        return "error", error or CodeError("Error", "the code failed without saying how"), ""
    return "ok", None, ""


def _network_met(ending: Ending | None, spec: SandboxSpec) -> tuple[str, ...]:
    if ending is None or not ending.network_full:
        return ()
    return (f"network limit {binary(spec.request.limits.network_bytes)} reached, sent and received.",)


def _last_line(where: str) -> int | None:
    lines = re.findall(rf'File "{CODE_FILE}", line (\d+)', where)
    return int(lines[-1]) if lines else None
