"""Packages that have no wheel, built from source: uv and every build script run in walls of their own.

In there is nothing of any session, and of the network the package index only. What comes out is copied file by file by
the server, which runs nothing of it. An index that needs credentials is refused, because a build script would see them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from prims.beneath import FILE, FOLDER
from prims.errors import InstallError
from prims.hosts import host_and_port, spelled
from prims.isolation.limits import Watch
from prims.isolation.network import start_proxy, unavailable
from prims.isolation.uids import uid_for
from prims.isolation.walls import Box, Walls, base_python, empty_box
from prims.kernel.folders import KERNEL_FILES
from prims.kernel.looking import read_pipe
from prims.kernel.uv import OVERRIDES, Pins, listing, pins_in, program
from prims.kernel.uv_words import explain
from prims.model import Limits
from prims.trees import MOST_COUNTED, remove_tree, usage

_OUTPUT_BYTES = 8 << 20
_MOST_FILES, _MOST_DEEP = 100_000, 40
_TMP_BYTES = 1 << 30
_DISK_SECONDS, _MOST_BYTES = 1.0, 8 << 30
_PYPI = "https://pypi.org/simple"
_FILES_OF_PYPI = "https://files.pythonhosted.org/"
# What tells uv where packages are, and which of them to take.
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")
_KEPT = (*_INDEXES, "UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_INDEX_STRATEGY", "UV_SYSTEM_CERTS",
         "UV_NATIVE_TLS", "SSL_CERT_FILE", "SSL_CERT_DIR")  # fmt: skip


class SourceBuilder:
    """Makes rooms to build in. `state` is a private folder with a short path; `env` is the environment of uv."""

    def __init__(
        self, walls: Callable[[], Awaitable[Walls]], state: Path, limits: Limits, env: Mapping[str, str]
    ) -> None:
        self._walls = walls
        self._state = state
        self._limits = limits
        self._env = env

    @asynccontextmanager
    async def room(self) -> AsyncIterator[Room]:
        """A room for one call's packages, removed with all that is in it.

        Raises:
            InstallError: nothing can be built here; the message says why.
        """
        walls = await self._walls()
        if reason := unavailable("allow-list", walls.name):
            raise InstallError(f"Packages cannot be built from source here: {reason}", reason="no-wheel")
        hosts = await anyio.to_thread.run_sync(index_hosts, self._env)
        limits = replace(
            self._limits,
            network="allow-list",
            network_hosts=hosts,
            network_bytes=None,
            tmp_bytes=max(_TMP_BYTES, self._limits.tmp_bytes),
        )
        folder = Path(tempfile.mkdtemp(prefix="b", dir=self._state))
        try:
            with uid_for(walls) as uid:
                box = await anyio.to_thread.run_sync(_make_box, folder, limits, uid)
                async with start_proxy(box):
                    yield Room(walls, box, self._env)
        except OSError as problem:
            raise InstallError(f"Packages could not be built from source: {problem}", reason="other") from problem
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, folder)


class Room:
    """Where uv runs with the right to build."""

    def __init__(self, walls: Walls, box: Box, env: Mapping[str, str]) -> None:
        self._walls = walls
        self._box = box
        self._places = walls.places(box)
        self._env = {k: env[k] for k in _KEPT if k in env}

    async def resolve(self, requirements: Sequence[str], prefer: Sequence[str]) -> Pins:
        """See `prims.kernel.uv.Installer.resolve`. Call it first: nothing has run here yet that could plant links."""
        self._put("wanted", requirements)
        self._put("without", [OVERRIDES])
        (self._box.workspace / "kept.txt").write_text("".join(f"{pin}\n" for pin in prefer))
        if self._box.uid is not None:
            os.chown(self._box.workspace / "kept.txt", self._box.uid, self._box.uid)
        inputs = [f"{self._places.mounts}/wanted.txt", "--override", f"{self._places.mounts}/without.txt"]
        words = ["pip", "compile", *inputs, "-o", "kept.txt", "--no-header", "--no-annotate", "--generate-hashes"]
        return pins_in(await self._uv(words, requirements))

    async def install(self, pins: Pins, target: Path) -> None:
        """See `prims.kernel.uv.Installer.install`; modes and links of what is installed are not kept."""
        self._put("pins", listing(pins))
        words = ["pip", "install", "-r", f"{self._places.mounts}/pins.txt", "--target", "layer", "--no-deps"]
        await self._uv([*words, "--link-mode", "copy"], list(pins))
        most = self._box.limits.file_bytes
        await anyio.to_thread.run_sync(_copy, self._box.workspace / "layer", target, most)

    def _put(self, name: str, lines: Sequence[str]) -> None:
        (self._box.mounts / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))

    async def _uv(self, words: Sequence[str], asked: Sequence[str]) -> str:
        """Run uv inside; its standard output. Raises InstallError when it fails."""
        places, box = self._places, self._box
        python = base_python().executable
        command = [python, "-I", "-S", f"{places.kernel}/build.py", places.venv, f"{places.mounts}/uv", *words]
        command += ["--python", python, "--color", "never", "--no-progress", "--no-python-downloads"]
        env = {
            **self._env,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": places.home,
            "TMPDIR": places.tmp,
            "LANG": "C.UTF-8",
            "UV_CACHE_DIR": f"{places.workspace}/cache",
            "UV_NO_CONFIG": "1",
        }
        process = self._walls.spawn(box, command, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        out, err, trouble = bytearray(), bytearray(), ""

        def exceeded(reason: str) -> None:
            nonlocal trouble
            trouble = f"error: building takes too much {'disk' if reason == 'disk' else 'memory or time'}\n"
            self._walls.kill(process)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(Watch().run, process.pid, box.limits, exceeded)
                group.start_soon(self._watch_disk, exceeded)
                async with anyio.create_task_group() as readers:
                    readers.start_soon(read_pipe, process.stderr.fileno(), err, _OUTPUT_BYTES)
                    readers.start_soon(read_pipe, process.stdout.fileno(), out, _OUTPUT_BYTES)
                await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                self._walls.kill(process)
                await anyio.to_thread.run_sync(process.wait)
                process.stdout.close()
                process.stderr.close()
        text = out.decode("utf-8", "replace")
        if process.returncode != 0:
            raise explain(trouble + err.decode("utf-8", "replace") + text, asked, code=process.returncode)
        return text

    async def _watch_disk(self, on_exceeded: Callable[[str], None]) -> None:
        while True:
            await anyio.sleep(_DISK_SECONDS)
            used = await anyio.to_thread.run_sync(usage, self._box.workspace)
            if used.bytes > _MOST_BYTES or used.files >= MOST_COUNTED:
                on_exceeded("disk")


def _make_box(folder: Path, limits: Limits, uid: int | None) -> Box:
    box = replace(empty_box(folder, limits, uid), kernel=KERNEL_FILES)
    uv = box.mounts / "uv"
    shutil.copyfile(program(), uv)
    uv.chmod(0o755)
    return box


def index_hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    """The package indexes, as entries of an allow-list, with the addresses that they have from here.

    Raises:
        InstallError: they need credentials, or are not told by the environment.
    """
    no = "Packages are built from source only with an index that needs no credentials and is named by UV_DEFAULT_INDEX"
    urls = [word.rpartition("=")[2] if "://" in word.rpartition("=")[2] else word.partition("=")[2] or word
            for name in _INDEXES for word in env.get(name, "").split()]  # fmt: skip
    if any("@" in url for url in urls) or any(re.fullmatch(r"UV_INDEX_.+_(?:USERNAME|PASSWORD)", name) for name in env):
        raise InstallError(f"{no}: here it has some.", reason="no-wheel")
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config")
    files = (home / "uv/uv.toml", Path("/etc/uv/uv.toml"), Path(env.get("UV_CONFIG_FILE") or "/nonexistent"))
    if any(file.exists() for file in files):
        raise InstallError(f"{no}: here uv has a settings file.", reason="no-wheel")
    if not (env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL")):
        urls.append(_PYPI)
    if _PYPI in urls:
        urls.append(_FILES_OF_PYPI)
    found: list[str] = []
    for url in urls:
        match = re.fullmatch(r"(https?)://([^/?#]+).*", url)
        place = host_and_port(match[2]) if match else None
        if match is None or place is None:
            raise InstallError(f"{no}: {url[:200]} is no https URL.", reason="no-wheel")
        port = place[1] or (443 if match[1] == "https" else 80)
        with contextlib.suppress(OSError):
            addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(place[0], port, type=socket.SOCK_STREAM)}
            found += [spelled(address, port) for address in sorted(addresses)]
        found.append(spelled(place[0], port))
    return tuple(found)


def _copy(source: Path, target: Path, most_bytes: int | None) -> None:
    """Copy plain files and folders out of a folder that hostile code has filled.

    Raises:
        InstallError: there is something else in it, or too much.
    """
    left = _MOST_FILES

    def copy(folder: int, into: Path, depth: int) -> None:
        nonlocal left
        into.mkdir(mode=0o755)
        for name in os.listdir(folder):
            left -= 1
            if left < 0 or depth > _MOST_DEEP:
                raise InstallError("What was built holds too many files or too deep folders.", reason="other")
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(name, FOLDER, dir_fd=folder)
                try:
                    copy(inner, into / name, depth + 1)
                finally:
                    os.close(inner)
                continue
            descriptor = os.open(name, FILE, dir_fd=folder)
            with open(descriptor, "rb") as reader:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise InstallError("What was built holds something else than plain files.", reason="other")
                if most_bytes is not None and status.st_size > most_bytes:
                    raise InstallError("What was built holds a file that is too large (file_bytes).", reason="other")
                with (into / name).open("xb") as writer:
                    shutil.copyfileobj(reader, writer, 1 << 20)
            (into / name).chmod(0o755 if status.st_mode & 0o100 else 0o644)

    try:
        top = os.open(source, FOLDER)
        try:
            copy(top, target, 0)
        finally:
            os.close(top)
    except OSError as problem:
        raise InstallError(f"What was built cannot be taken: {problem.strerror}.", reason="other") from problem
