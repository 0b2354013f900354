"""Walls of Linux namespaces, built by the system's bubblewrap: own files, own processes, no network.

Two variants. An ordinary user's server builds them in a user namespace. A root server builds them as real
root *without* one, and the wrapper drops to a uid of the run's own: inside a user namespace of root, files
such as /proc/sys/kernel/core_pattern would still be root's to write.

Three rules hold the list of arguments together. bwrap starts with an empty environment, because its pid 1
keeps what it was started with for the code to read. No destination lies below a directory that the code can
write, because bwrap before 0.12 follows symlinks planted there. Every parent of a destination is made 0755
first, because bwrap makes implied ones 0700, and a dropped uid could not pass.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from prims.isolation import wrapper
from prims.isolation.limits import rlimits, threads_of
from prims.isolation.walls import (
    WRAPPER,
    Box,
    Places,
    after_the_server,
    base_python,
    kill_namespace,
    server_homes,
    wrapped,
)

INNER_UID = 1000  # inside a user namespace; without one the code sees the uid of its run
WRAPPER_INSIDE = "/run/wrapper.py"

_HOME = "/home/sandbox"
# Where a parent sees the folders of its sandboxes, which do not see it.
_ALL_RUNS = "/runs"
_RUNS, _RUNS_READ_ONLY = f"{_ALL_RUNS}/own", f"{_ALL_RUNS}/read-only"
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND = 1, 2, 4, 8, 4096
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs look up in /etc and /sys and what holds no secret: the loader's cache, certificates (not
# keys), time zone, fonts, tables of names, and the number of CPUs.
LOOKED_UP = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates/extracted",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/crypto-policies/back-ends/opensslcnf.config",
    "/etc/fonts",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/sys/devices/system/cpu",
)


def find(path: str | None = None) -> Bubblewrap | None:
    """The system's bubblewrap on `path` (default: PATH); None when there is none. Runs `bwrap --version`."""
    executable = shutil.which("bwrap", path=path)
    return Bubblewrap(executable) if executable else None


class Bubblewrap:
    """Walls made by the bwrap at `executable`. Raises OSError when that cannot be run."""

    name = "bubblewrap"

    def __init__(self, executable: str) -> None:
        self.executable = executable
        self.version = _version(executable)
        self.drops_uid = os.geteuid() == 0
        self._system = tuple(_system_mounts())
        self._interpreter = tuple(interpreter_mounts(base_python().prefix, sys.base_prefix, server_homes()))

    def places(self, box: Box) -> Places:
        return Places(
            workspace="/workspace",
            mounts="/mounts",
            venv="/venv",
            layers=tuple(f"/layers/{layer.name}" for layer in box.layers),
            kernel="/kernel",
            run="/run/prims",
            home=_HOME,
            tmp="/tmp",
        )

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        self._check_uid(box)
        command = wrapped(WRAPPER_INSIDE, {"env": sorted(env), **self._confined(box)}, argv)
        return self._start(box, command, env, stdout=stdout, stderr=stderr)

    def spawn_parent(
        self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str], *, descriptor: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        self._check_uid(box)
        return self._start(
            box, argv, env, stdout=subprocess.DEVNULL, stderr=stderr, runs=os.path.realpath(runs), keep=descriptor
        )

    def parent_facts(self, box: Box) -> dict[str, Any]:
        return {"wrapper": WRAPPER_INSIDE, "uid": box.uid, "namespaces": True}

    def fork_request(self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        self._check_uid(box)
        return {
            "argv": list(argv),
            "env": dict(env),
            "cwd": self.places(box).workspace,
            "view": _view(self.places(box), box, runs, locked=self.drops_uid),
            "hidden": [] if self.drops_uid else [_RUNS, _RUNS_READ_ONLY],
            "user": [INNER_UID if box.uid is None else box.uid, 0],
            "confine": {name: value for name, value in self._confined(box).items() if name != "uid"},
        }

    def _check_uid(self, box: Box) -> None:
        if self.drops_uid != (box.uid is not None):
            raise ValueError("Box.uid is given if and only if the walls drop the uid")

    def _confined(self, box: Box) -> dict[str, Any]:
        """The wrapper's steps for one sandbox."""
        config: dict[str, Any] = {
            "rlimits": rlimits(box.limits, other_threads=self._other_threads()),
            "confine": True,
            **after_the_server(),
        }
        if box.uid is not None:
            config["uid"] = box.uid
        return config

    def _start(
        self,
        box: Box,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        runs: str | None = None,
        keep: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start bwrap; with `runs`, for a parent, which inherits the descriptor `keep`."""
        with ExitStack() as files:
            descriptors: list[int] = [] if keep is None else [keep]

            def hold(content: bytes) -> str:
                descriptor = _memory_file(content)
                files.callback(os.close, descriptor)
                descriptors.append(descriptor)
                return str(descriptor)

            uid = INNER_UID if box.uid is None else box.uid
            data = {path: hold(content) for path, content in _generated(uid).items()}
            # By descriptor, so that /proc/1/cmdline inside tells no host path.
            words = self._arguments(box, env, data, runs)
            if any("\0" in word for word in words):  # would end the word and begin an option
                raise ValueError("a variable of the sandbox's environment contains a NUL character")
            arguments = hold(b"".join(os.fsencode(word) + b"\0" for word in words))
            return subprocess.Popen(
                box.entered([self.executable, "--args", arguments, "--", *argv]),
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=descriptors,
                start_new_session=True,
            )

    def inner_pid(self, process: subprocess.Popen[bytes]) -> int | None:
        # bwrap → its pid 1 inside → the command, the oldest child; adopted orphans queue up behind it.
        if process.poll() is None:
            for inside in wrapper.children(process.pid):
                return next(iter(wrapper.children(inside)), None)
        return None

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        kill_namespace(process)

    def _other_threads(self) -> int:
        # Since Linux 5.14 RLIMIT_NPROC counts per user namespace; a dropped uid is the run's own anyway.
        return 0 if self.drops_uid or _kernel() >= (5, 14) else threads_of(os.getuid())

    def _arguments(self, box: Box, env: Mapping[str, str], data: Mapping[str, str], runs: str | None) -> list[str]:
        """All options of bwrap for one sandbox, or for the parent of those whose folders lie below `runs`; `data` maps
        generated files to descriptors."""
        places = self.places(box)
        if len(set(places.layers)) != len(places.layers):
            raise ValueError("layers must differ in their last path component")
        size = str(box.limits.tmp_bytes)
        words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if runs is not None:
            words += self._parents_rights()
        elif not self.drops_uid:
            words += ["--unshare-user", "--uid", str(INNER_UID), "--gid", str(INNER_UID)]
            if self.version >= (0, 8):
                words.append("--disable-userns")  # else seccomp alone stands in the way
        words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
        for name, value in env.items():
            words += ["--setenv", name, value]
        words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc"]
        if self.drops_uid:
            words += ["--ro-bind", "/proc/sys", "/proc/sys"]
        words += ["--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
        words += ["--remount-ro", "/dev"]
        made = {"/"}
        for place in (places.tmp, places.home):
            words += _with_parents([("--perms", "1777", "--size", size, "--tmpfs", place)], made)
        # Its parents may be the server's home: they can be passed, but another uid cannot list them.
        words += _with_parents(self._interpreter, made, mode="0711")
        mounts: list[tuple[str, ...]] = [
            *self._system,
            *(("--perms", "0444", "--ro-bind-data", descriptor, path) for path, descriptor in data.items()),
            ("--ro-bind", WRAPPER, WRAPPER_INSIDE),
            ("--ro-bind", os.path.realpath(box.mounts), places.mounts),
            ("--ro-bind", os.path.realpath(box.venv), places.venv),
            *(
                [("--ro-bind", os.path.realpath(box.store), "/layers")]
                if box.store is not None
                else [
                    ("--ro-bind", os.path.realpath(layer), inside)
                    for layer, inside in zip(box.layers, places.layers, strict=True)
                ]
            ),
            ("--ro-bind", os.path.realpath(box.kernel), places.kernel),
            ("--bind", os.path.realpath(box.run), places.run),
            ("--bind", os.path.realpath(box.workspace), places.workspace),
        ]
        if runs is not None:
            mounts += [("--bind", runs, _RUNS), ("--ro-bind", runs, _RUNS_READ_ONLY)]
        words += _with_parents(mounts, made)
        words += ["--remount-ro", "/", "--chdir", "/" if runs is not None else places.workspace]
        return words

    def _parents_rights(self) -> list[str]:
        """What a parent keeps of the rights over its own namespaces, and nothing more."""
        if self.drops_uid:
            # Enough to become the session's uid, which then makes a user namespace like any other user.
            return ["--cap-drop", "ALL", *_each("--cap-add", ["CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID"])]
        kept = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"]  # namespaces and mounts; loopback; the bounding set
        # As uid 0 of a namespace that maps nobody else: /dev/pts can only be mounted where there is one. To map that
        # uid in a namespace below takes CAP_SETFCAP.
        return ["--unshare-user", "--uid", "0", "--gid", "0", *_each("--cap-add", [*kept, "CAP_SETFCAP"])]


def _each(option: str, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        yield from (option, value)


def _view(places: Places, box: Box, runs: Path, *, locked: bool) -> list[list[Any]]:
    """The mounts that make one sandbox's view of its parent's, as arguments of mount(2), in order.

    The run's own folders take the place of the parent's, and whatever code can write or that tells of others is
    made anew. All the rest is read-only, and shared.
    """
    folder = {part: str(getattr(box, part).relative_to(runs)) for part in ("venv", "run")}
    plain = _MS_NOSUID | _MS_NODEV
    memory = f"mode=1777,size={box.limits.tmp_bytes}"
    view: list[list[Any]] = [
        [f"{_RUNS_READ_ONLY}/{folder['venv']}", places.venv, "", _MS_BIND, ""],
        [f"{_RUNS}/{folder['run']}", places.run, "", _MS_BIND, ""],
        *(["tmpfs", place, "tmpfs", plain, memory] for place in (places.tmp, places.home, "/dev/shm")),
        ["devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"],
        ["proc", "/proc", "proc", plain | _MS_NOEXEC, ""],
    ]
    if locked:  # mounted by root, so not to be unmounted by anybody else
        view.append(["tmpfs", _ALL_RUNS, "tmpfs", plain | _MS_RDONLY, "mode=755,size=4k"])
    return view


def _with_parents(mounts: Iterable[tuple[str, ...]], made: set[str], *, mode: str = "0755") -> Iterator[str]:
    """The words of `mounts`, whose last word is the destination, with the parents of each made before it.

    `made` are the directories that are there; what is made is added.
    """
    for mount in mounts:
        for parent in reversed(PurePosixPath(mount[-1]).parents):
            if str(parent) not in made:
                made.add(str(parent))
                yield from ("--perms", mode, "--dir", str(parent))
        yield from mount


def _system_mounts() -> Iterator[tuple[str, ...]]:
    """What every sandbox sees of this machine besides /usr."""
    for name in SYSTEM:
        if Path(name).is_symlink():
            yield ("--symlink", str(Path(name).readlink()), name)
        elif Path(name).is_dir():
            yield ("--ro-bind", name, name)
    for name in LOOKED_UP:
        real = os.path.realpath(name)
        if Path(name).is_symlink() and real.startswith("/usr/"):
            yield ("--symlink", real, name)  # the name of the time zone is in the target of localtime
        elif Path(real).exists():
            yield ("--ro-bind", real, name)


def interpreter_mounts(prefix: str, alias: str, homes: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """What shows the base interpreter at `prefix` inside, and at `alias`, the name that venvs know it by.

    A prefix that contains one of `homes` (Python installed with --prefix=$HOME) is shown in its parts only,
    so that the home directory stays hidden.
    """
    if prefix == "/" or PurePosixPath(prefix).is_relative_to("/usr"):
        return  # in sight already
    if any(PurePosixPath(home).is_relative_to(prefix) for home in homes):
        parts = (f"{prefix}/{part}" for part in ("bin", "include", "lib", "lib64"))
        yield from (("--ro-bind", part, part) for part in parts if Path(part).is_dir())
        return
    yield ("--ro-bind", prefix, prefix)
    if alias != prefix and not PurePosixPath(alias).is_relative_to(prefix):
        yield ("--symlink", prefix, alias)


def _generated(uid: int) -> dict[str, bytes]:
    users = f"root:x:0:0:root:/:/bin/false\nsandbox:x:{uid}:{uid}:sandbox:{_HOME}:/bin/sh\n"
    nobody = "nobody:x:65534:65534:nobody:/:/bin/false\n"
    return {
        "/etc/passwd": (users + nobody).encode(),
        "/etc/group": f"root:x:0:\nsandbox:x:{uid}:\nnogroup:x:65534:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
    }


def _memory_file(content: bytes) -> int:
    """A descriptor at the start of a file in memory that holds `content`."""
    descriptor = os.memfd_create("prims")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _version(executable: str) -> tuple[int, ...]:
    command = [executable, "--version"]
    said = subprocess.run(command, env={}, capture_output=True, timeout=10, check=False)
    return tuple(map(int, re.findall(rb"\d+", said.stdout)))


def _kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
