"""Cgroups of version 2: each run in one of its own, where Linux bounds the memory and the processes of all of it.

They need a cgroup that is this server's to divide. That is the one it was started in, where a service manager or a
container engine has delegated it; else a scope that systemd is asked to make around the server. Processes may not be in
a cgroup that is divided, so the server first moves to a leaf of it, with whatever is beside it there. Where nothing of
this can be had, `find` says why, and the server watches the memory of runs itself (`limits.Watch`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from prims.config import tool_environment
from prims.isolation import wrapper
from prims.model import Limits

_LEAF = "prims-server"
_RUN = re.compile(r"prims-(\d+)-[0-9a-f]+")  # the server's pid
_BESIDE = 2  # processes of the walls themselves, which no limit of processes is meant for
_SYSTEMD_SECONDS = 5.0
_REMOVE_SECONDS = 5.0
# Units that only hold what somebody has started from a desktop or a terminal: a server may leave them.
_TO_BE_LEFT = re.compile(r".+\.scope|app-.+\.service")
# Enters the cgroup whose list of processes is $0, and becomes the command; outside it, if need be: `holds` tells.
_ENTER = '{ echo 0 >"$0"; } 2>/dev/null; exec "$@"'


class NoCgroups(Exception):
    """There are none for runs; `advice` says what to do about it."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


_VERSION_1 = (
    "For bounds that Linux enforces, boot with cgroups of version 2 (option `systemd.unified_cgroup_hierarchy=1`), or "
    "start the server in a container with a memory limit"
)
_NO_MEMORY = "Boot with `cgroup_enable=memory`, or let what started this server have the memory controller"
_NOT_OURS = (
    "Start the server as a systemd service with `Delegate=yes`, by a user with a systemd manager of their own "
    "(`loginctl enable-linger USER`), or in a container in which /sys/fs/cgroup can be written"
)


@dataclass(frozen=True, slots=True)
class Used:
    """Bytes of memory that Linux could not take back, and how many of them are files in memory. `short` is that it
    already holds the run up for want of more."""

    bytes: int
    files: int = 0
    near: bool = False
    short: bool = False


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one run. Memory counts what its processes have, their files in tmpfs, and what Linux holds for
    them; files on a disk that Linux keeps in memory count too, but are given up when memory is short."""

    path: Path
    memory_bytes: int | None

    def entering(self, argv: Sequence[str]) -> list[str]:
        """The command line that is `argv` inside this cgroup."""
        return ["/bin/sh", "-c", _ENTER, str(self.path / "cgroup.procs"), *argv]

    def door(self) -> int:
        """A descriptor for somebody who may not open it: "0", written to it, takes the writer in."""
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def holds(self, pid: int) -> bool:
        """Whether the process `pid` is in here."""
        with suppress(OSError):
            return str(pid) in (self.path / "cgroup.procs").read_text().split()
        return False

    def used(self) -> Used:
        """What is in use now. Cheap while that is far from the limit; then what Linux could take back counts too."""
        most = self.memory_bytes
        try:
            used = int((self.path / "memory.current").read_text())
            if most is None or used <= most // 2:
                return Used(used)
            told = _table(self.path / "memory.stat")
            used -= told["active_file"] + told["inactive_file"] + told.get("slab_reclaimable", 0)
            slowed = _table(self.path / "memory.events")["high"] > 0
        except (OSError, ValueError, KeyError):
            return Used(0)
        return Used(used, files=told["shmem"], near=True, short=slowed and used > most - 2 * _margin(most))

    def peak(self) -> int:
        """The most bytes of memory at any time; 0 before Linux 5.19, which does not tell."""
        with suppress(OSError, ValueError):
            return int((self.path / "memory.peak").read_text())
        return 0

    def cpu_seconds(self) -> float:
        """Processor time of all that are and were in here."""
        with suppress(OSError, KeyError, ValueError):
            return _table(self.path / "cpu.stat")["usage_usec"] / 1e6
        return 0.0

    def killed(self) -> Literal["limit", "machine"] | None:
        """For the want of whose memory Linux has killed what was in here, if it has: the run's own, or that of the
        machine or whatever else the server is in."""
        with suppress(OSError, ValueError):
            events = _table(self.path / "memory.events")
            if events.get("oom_kill", 0):
                return "limit" if events.get("oom", 0) else "machine"
        return None

    def remove(self) -> None:
        """Remove it and whatever is in it; what cannot be is left to the next server. Blocks for seconds at most."""
        until = time.monotonic() + _REMOVE_SECONDS
        while time.monotonic() < until:
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                with suppress(OSError):
                    (self.path / "cgroup.kill").write_text("1")
                time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Makes the cgroups of this server's runs, side by side below `base`."""

    base: Path

    def make(self, limits: Limits) -> Cgroup:
        """A new cgroup with these limits. Raises OSError."""
        cgroup = Cgroup(self.base / f"prims-{os.getpid()}-{secrets.token_hex(4)}", limits.memory_bytes)
        cgroup.path.mkdir()
        try:
            if (most := limits.memory_bytes) is not None:
                _set(cgroup.path, "memory.max", most)
                _set(cgroup.path, "memory.oom.group", 1)
                if (cgroup.path / "memory.swap.max").exists():  # not where Linux knows no swap
                    _set(cgroup.path, "memory.swap.max", 0)
                # From here on the run is held up, so that there is a moment to ask it where it is.
                (cgroup.path / "memory.high").write_text(str(most - _margin(most)))
            if limits.processes is not None and (cgroup.path / "pids.max").exists():
                _set(cgroup.path, "pids.max", limits.processes + _BESIDE)
        except BaseException:
            cgroup.remove()
            raise
        return cgroup


def find() -> Cgroups:
    """Cgroups for the runs of this process, proven to work; moves it, if need be. Takes some 10 ms, with systemd 100.

    Raises:
        NoCgroups: there are none.
    """
    try:
        base = _own_to_divide()
        _divide(base)
        _sweep(base)
        found = Cgroups(base)
        _prove(found)
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        raise NoCgroups(f"version 2, but they cannot be used: {problem}", _NOT_OURS) from problem
    return found


def own(proc: Path = Path("/proc/self"), version_1: Path = Path("/sys/fs/cgroup/memory")) -> tuple[Path, bool]:
    """The cgroup that this process is in, and whether it is the topmost in sight from here; as `proc` tells.

    Raises:
        NoCgroups: it has none of version 2 with a memory controller.
    """
    member, there = (proc / "cgroup").read_text().splitlines(), "none"
    path = PurePosixPath(next((line[3:] for line in member if line.startswith("0::")), ""))
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split()[3:5]
        if not kind.startswith("cgroup2 "):
            continue
        there = "version 2, but this server's own is not in sight"
        if path.is_relative_to(root):
            found = point / path.relative_to(root)
            if "memory" in Path(found, "cgroup.controllers").read_text().split():
                return Path(found), str(path) == root
            if not version_1.exists():
                raise NoCgroups("version 2, without the memory controller", _NO_MEMORY)
    if version_1.exists() or there == "none":
        raise NoCgroups("version 1" if version_1.exists() else there, _VERSION_1)
    raise NoCgroups(there, _NOT_OURS)


def _own_to_divide() -> Path:
    """The cgroup below which those of runs may be made: that of this process, or the one whose leaf that is."""
    here, topmost = own()
    if here.name == _LEAF:
        return here.parent
    if topmost:  # a container's, or that of a machine without a service manager
        return here
    if Path("/run/systemd/system").is_dir():
        unit = here if here.suffix in (".scope", ".service") else here.parent
        if _delegated(unit):
            return unit
        if _TO_BE_LEFT.fullmatch(here.name):
            _ask_for_scope()
            return own()[0]
    elif os.access(here, os.W_OK) and set(map(int, (here / "cgroup.procs").read_text().split())) <= _family():
        return here  # somebody has made it for this server
    raise NoCgroups(f"version 2, but {here.name} was not delegated to this server", _NOT_OURS)


def _delegated(path: Path) -> bool:
    """Whether systemd says that a unit's cgroup is its processes' to divide. Where it is not, systemd may stop the unit
    when Linux kills something in there."""
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            return os.getxattr(path, name) == b"1"
    # The systemd of a user does not leave such a note.
    if path.suffix != ".service" or os.geteuid() == 0 or not os.access(path, os.W_OK):
        return False
    return _systemd(["systemctl", "--user", "show", "--property=Delegate", "--value", path.name]) == "yes"


def _family() -> set[int]:
    """This process, all below it, and those that it comes from."""
    found, pid = set(wrapper.tree(os.getpid())), os.getppid()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _ask_for_scope() -> None:
    """Have systemd put this process in a scope of its own that is delegated to it: the user's systemd, or root's."""
    name, pid = f"prims-{os.getpid()}-{secrets.token_hex(2)}.scope", str(os.getpid())
    manager = "--system" if os.geteuid() == 0 else "--user"
    properties = [
        *("Description", "s", "PRIMS and the code that it runs"),
        *("PIDs", "au", "1", pid),
        *("Delegate", "b", "true"),
        *("CollectMode", "s", "inactive-or-failed"),
    ]
    call = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    call += ["StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", "4", *properties, "0"]
    _systemd(["busctl", manager, "call", *call])
    until = time.monotonic() + _SYSTEMD_SECONDS
    while own()[0].name != name:
        if time.monotonic() > until:
            raise NoCgroups("version 2, but systemd did not put this server in its scope", _NOT_OURS)
        time.sleep(0.01)


def _systemd(command: Sequence[str]) -> str:
    """What a tool of systemd answers. Raises OSError with what it says else."""
    # Clients start servers with few variables.
    env = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **tool_environment()}
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SYSTEMD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200])
    return done.stdout.strip()


def _divide(base: Path) -> None:
    """Move all that is in `base` to a leaf of it, and give controllers to what is below. Not from the machine's root,
    which may have both."""
    if (base / "cgroup.type").exists():
        leaf = base / _LEAF
        leaf.mkdir(exist_ok=True)
        for _ in range(20):  # others may be starting more
            pids = (base / "cgroup.procs").read_text().split()
            for pid in pids:
                try:
                    (leaf / "cgroup.procs").write_text(pid)
                except OSError as problem:
                    if problem.errno != errno.ESRCH:
                        raise
            if not pids:
                break
    (base / "cgroup.subtree_control").write_text("+memory")
    with suppress(OSError):
        (base / "cgroup.subtree_control").write_text("+pids")


def _sweep(base: Path) -> None:
    """Remove the cgroups of servers that are gone."""
    for path in base.iterdir():
        owner = _RUN.fullmatch(path.name)
        if owner and not Path("/proc", owner[1]).exists():
            Cgroup(path, None).remove()


def _prove(cgroups: Cgroups) -> None:
    """See that a program can be put in a cgroup with limits. Raises OSError."""
    cgroup = cgroups.make(Limits())
    try:
        command = cgroup.entering(["cat", "/proc/self/cgroup"])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True)
        if not done.stdout.strip().endswith(f"/{cgroup.path.name}"):
            raise OSError(f"a program could not enter {cgroup.path}")
    finally:
        cgroup.remove()


def _margin(limit: int) -> int:
    return limit // 64


def _set(path: Path, name: str, value: int) -> None:
    """Set a limit and read it back. Raises OSError."""
    (path / name).write_text(str(value))
    # Memory comes in whole pages.
    if not 0 <= value - int(read := (path / name).read_text()) < os.sysconf("SC_PAGE_SIZE"):
        raise OSError(f"{path / name} was set to {value} and is {read.strip()}")


def _table(path: Path) -> dict[str, int]:
    """A file of names and numbers."""
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
