"""The port to what stands around a sandbox, and the walls that are no walls."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from prims.isolation import wrapper
from prims.isolation.cgroups import Cgroup
from prims.isolation.limits import rlimits, threads_of
from prims.model import Limits

WRAPPER = os.path.realpath(wrapper.__file__)
_OOM_SCORE_ADJ = 800  # the kernel's OOM killer takes a sandbox before it takes the server
_NICER = 5  # than the server: a third of the processors against it, and all of them when nobody else wants any

_SUPERVISOR_SECONDS = 0.5  # how long `kill` lets the supervisor clean up; it needs some 10 ms


@dataclass(frozen=True, slots=True)
class Box:
    """What one sandbox may see and use: host directories by role.

    With walls that drop the uid, `uid` is the unprivileged uid of the run and the caller has made `workspace`
    and `run` that uid's own; everything else need only be readable to others.
    """

    workspace: Path  # writable inside, the working directory
    mounts: Path  # read-only inside
    venv: Path  # read-only inside
    layers: tuple[Path, ...]  # read-only inside, named by their last component, which must differ
    kernel: Path  # our own files for the kernel, read-only inside
    run: Path  # sockets and connection files, writable inside
    limits: Limits
    uid: int | None = None
    store: Path | None = None  # the folder of all layers, shown whole so that more can be used later
    cgroup: Cgroup | None = None

    def entered(self, argv: Sequence[str]) -> list[str]:
        """The command line that is `argv` in the box's cgroup, if it has one."""
        return list(argv) if self.cgroup is None else self.cgroup.entering(argv)


def empty_box(folder: Path, limits: Limits, uid: int | None) -> Box:
    """A box of new empty folders below `folder`, a new and private one: for a program of ours, not for a session."""
    folder.chmod(0o700 if uid is None else 0o711)
    workspace, mounts, venv, kernel, run = paths = [folder / n for n in ("files", "mounts", "venv", "kernel", "s")]
    for path in paths:
        path.mkdir(mode=0o755)
    if uid is not None:
        for path in (workspace, run):
            os.chown(path, uid, uid)
    return Box(workspace, mounts, venv, (), kernel, run, limits, uid)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the roles of a box appear to the command inside."""

    workspace: str
    mounts: str
    venv: str
    layers: tuple[str, ...]
    kernel: str
    run: str
    home: str
    tmp: str


class Walls(Protocol):
    """One way to wall a command in. Objects are stateless and may be shared by all runs."""

    @property
    def name(self) -> str:
        """What settings and results call it: bubblewrap, landlock, none."""

    @property
    def drops_uid(self) -> bool:
        """Whether `Box.uid` must be given (and must not be given otherwise)."""

    def places(self, box: Box) -> Places:
        """Where the parts of `box` appear inside. Pure."""

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start `argv` (as seen inside) with exactly the variables of `env`; do not wait for it.

        `stdout` and `stderr` are descriptors or `subprocess.PIPE`/`DEVNULL`. Call it in a thread that lives
        as long as the sandbox, such as the event loop's: the sandbox ends with the thread that started it.
        What goes wrong inside is told on stderr and by the exit status: 1 when the walls cannot be built,
        126 when the wrapper refused. An OSError means that nothing was started.
        """

    def inner_pid(self, process: subprocess.Popen[bytes]) -> int | None:
        """The host's pid of the command itself, for signals; None when it does not (or no longer) run.

        Until the command has been heard from it may still be the wrapper, which dies of most signals.
        """

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL everything of the sandbox; harmless when it has ended. Wait for `process` afterwards.

        When that wait returns nothing of the sandbox is left, daemons included.
        """


@runtime_checkable
class ForkingWalls(Walls, Protocol):
    """Walls in which a trusted parent can fork sandboxes, each as walled in as one that is started."""

    def spawn_parent(
        self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str], *, descriptor: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start the parent `argv` in the walls of `box`, with the rights to make namespaces and mounts inside.

        It sees the host's folder `runs`, below which the folders of its sandboxes will be made, and inherits
        `descriptor`. Trusted code only. See `spawn` for the thread to call it in.
        """

    def parent_facts(self, box: Box) -> dict[str, Any]:
        """What a parent in `box` must know of these walls: `wrapper`, where that lies for it; `uid`, which it must
        become by itself, or None; `namespaces`, whether it makes them for what it forks. Pure."""

    def fork_request(self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        """What the parent must do to fork `argv` with the view of `box`, as the kernel's `parent.py` reads it. Pure."""


@dataclass(frozen=True, slots=True)
class BasePython:
    """The interpreter that venvs are made from and that runs the wrapper: real paths, without symlinks."""

    executable: str
    prefix: str


def base_python() -> BasePython:
    """The base interpreter of the server's own Python."""
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return BasePython(os.path.realpath(executable), os.path.realpath(sys.base_prefix))


def server_homes() -> tuple[str, ...]:
    """The home directories of the server's user: of the account and of the environment, where they differ."""
    homes = [os.path.expanduser("~")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(sorted({os.path.realpath(home) for home in homes if home.startswith("/")}))


def wrapped(wrapper_path: str, config: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    """The command line that takes the steps of `config` (see wrapper.py) and then becomes `argv`."""
    return [base_python().executable, "-I", "-S", wrapper_path, json.dumps(config), "--", *argv]


def after_the_server() -> dict[str, int]:
    """The wrapper's steps by which a sandbox comes after the server where memory or processors are short."""
    return {"oom_score_adj": _OOM_SCORE_ADJ, "nice": min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)}


class Supervised:
    """What walls without namespaces share: real paths, and a supervisor that stands between the server and the command.

    The supervisor adopts what the command leaves behind and ends it.
    """

    def places(self, box: Box) -> Places:
        return Places(
            workspace=str(box.workspace),
            mounts=str(box.mounts),
            venv=str(box.venv),
            layers=tuple(map(str, box.layers)),
            kernel=str(box.kernel),
            run=str(box.run),
            home=str(box.run / "home"),
            tmp=str(box.run / "tmp"),
        )

    def _start(
        self,
        box: Box,
        config: Mapping[str, Any],
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        keep: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start `argv` after the wrapper's steps of `config`, which a supervisor and these come before."""
        places = self.places(box)
        for folder in (places.home, places.tmp):
            make_private(folder, box.uid)
        steps = {"env": sorted(env), "supervise": os.getpid(), **after_the_server(), **config}
        return subprocess.Popen(
            box.entered(wrapped(WRAPPER, steps, argv)),
            env=dict(env),
            cwd=box.workspace,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=keep,
            start_new_session=True,
        )

    def inner_pid(self, process: subprocess.Popen[bytes]) -> int | None:
        # The command is the supervisor's oldest child: what it adopts is younger or queues up behind.
        return next(iter(wrapper.children(process.pid)), None) if process.poll() is None else None

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        # Only the supervisor sees orphans and can wait for them, so it gets the first chance. Code may have
        # stopped it; then we do what can be done from outside.
        if process.poll() is not None:
            return
        process.terminate()
        if not _ended_within(process.pid, _SUPERVISOR_SECONDS):
            wrapper.kill_below(process.pid)
            process.kill()


def make_private(folder: str, uid: int | None) -> None:
    """A folder that is there for `uid`, or for the server's own."""
    Path(folder).mkdir(mode=0o700, exist_ok=True)
    if uid is not None:
        os.chown(folder, uid, uid, follow_symlinks=False)


class NoWalls(Supervised):
    """No isolation: the command may do what the server's user may do. Limits per process, and a clean end.

    Code that kills the supervisor itself escapes that; these are not walls.
    """

    name = "none"
    drops_uid = False

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        if box.uid is not None:
            raise ValueError("without walls the uid stays; Box.uid must be None")
        config = {"rlimits": rlimits(box.limits, other_threads=threads_of(os.getuid()))}
        return self._start(box, config, argv, env, stdout=stdout, stderr=stderr)


def _ended_within(pid: int, seconds: float) -> bool:
    """Whether our unreaped child `pid` ends within `seconds`. Blocks for that long at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def kill_namespace(process: subprocess.Popen[bytes]) -> None:
    """Kill a sandbox whose first process is pid 1 of a pid namespace and a child of `process`.

    The kernel lets that pid 1 end only after all others in its namespace, and `process` only then ends with
    it: so waiting for `process` means waiting for all. Before there is a pid 1 the group of `process` is
    killed at one stroke, which leaves no moment in which a child could slip away.
    """
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if inside := wrapper.children(process.pid):
            os.kill(inside[0], signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
