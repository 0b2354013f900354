"""uv, the installer, behind two verbs: resolve names to pins, and install pins into a directory. Then a third: compile.

uv runs as a child of the server, outside the sandbox, so it may never run a package's own code: wheels
only, and never pointed at an environment that user code could have touched. Its words are read here and
nowhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import ByteReceiveStream, Process

from prims.errors import InstallError
from prims.kernel.uv_words import explain

_COMPILER = str(Path(__file__).with_name("bytecode.py"))
# What is kept of each of uv's streams. Even a resolution of hundreds of packages is some 20 KB.
_OUTPUT_BYTES = 1 << 20
_KILL_SECONDS = 5.0

# ipykernel imports debugpy when it is there, which makes every start about a third longer. uv has no "leave
# out" in the older versions we accept, but an override whose marker never holds does just that.
_LEFT_OUT = "debugpy"
OVERRIDES = f'{_LEFT_OUT}; python_version < "0"'

_WHEELS = ("--only-binary", ":all:")
# What uv prints of it is in its file too, and may be megabytes.
_HASHED = ("--no-header", "--no-annotate", "--generate-hashes", "--quiet", *_WHEELS)
_INTO = (*_WHEELS, "--link-mode", "hardlink", "--target")

# uv looks for configuration in its working directory and all above. An empty file ends that search, so that
# no project's settings get in by accident; the user's and the machine's own settings stay in force.
_NO_PROJECT = "# Ends uv's search for a project's settings here.\n"

# Settings of a person's own uv work that would turn our calls into something else.
_NOT_OURS = {
    "UV_COMPILE_BYTECODE", "UV_LINK_MODE", "UV_NO_VERIFY_HASHES", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON", "UV_REQUIRE_HASHES", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_WORKING_DIR",
    "UV_WORKING_DIRECTORY", "FORCE_COLOR", "CLICOLOR_FORCE", "RUST_LOG",
}  # fmt: skip
# Settings that change how uv works but never what it finds.
_NO_MATTER = ("UV_CACHE_DIR", "UV_CONCURRENT_", "UV_HTTP_", "UV_NO_PROGRESS", "UV_REQUEST_TIMEOUT", "UV_RUN_")

# One package of uv's answer, with what stands in the lines below it.
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+)(.*(?:\n[ \t].*)*)", re.M)
_HASH = re.compile(r"--hash=(sha(?:256|384|512):[0-9a-f]{64,128})")

Pins = Mapping[str, tuple[str, ...]]
"""Packages as "name==version", sorted, each with the hashes that the index gives for its files ("sha256:...")."""


class Installer(Protocol):
    """What environments need of an installer. `scratch` is a private directory that the caller removes.

    Both raise InstallError; when cancelled, both have ended their process before they return.
    """

    async def resolve(
        self,
        requirements: Sequence[str],
        scratch: Path,
        *,
        prefer: Sequence[str] = (),
        constraints: Sequence[str] = (),
        offline: bool = False,
        patient: bool = True,
    ) -> Pins:
        """Pins that satisfy `requirements` and `constraints`.

        `prefer` are pins to keep where they fit. Not `patient`: give up at the first network failure.
        """
        ...

    async def add(
        self, requirements: Sequence[str], target: Path, scratch: Path, *, offline: bool = False, patient: bool = True
    ) -> tuple[str, ...] | None:
        """Resolve `requirements` beside what the directory `target` holds, and install what is missing, in one go.

        The pins of that, sorted. None when something that was there had to be replaced.
        """
        ...

    async def hashes(self, pins: Sequence[str], scratch: Path) -> Pins:
        """The hashes that the index gives for the files of `pins`."""
        ...

    async def install(self, pins: Pins, target: Path, scratch: Path) -> None:
        """Put exactly `pins` into the new directory `target`. A file that has none of the hashes of its pin is an
        error."""
        ...

    async def compile(self, folder: Path) -> None:
        """Compile what is in `folder` to bytecode. What cannot be compiled stays as it is; nothing is raised for it."""
        ...


@dataclass(frozen=True, slots=True)
class Uv:
    """The installer that is used: uv's own program, for the interpreter `python` (never a venv's).

    `folder` is its working directory; `env` its whole environment, `PYTHON*` and a few others left out.
    """

    folder: Path
    python: str
    env: Mapping[str, str]

    async def resolve(
        self,
        requirements: Sequence[str],
        scratch: Path,
        *,
        prefer: Sequence[str] = (),
        constraints: Sequence[str] = (),
        offline: bool = False,
        patient: bool = True,
    ) -> Pins:
        # uv keeps the pins that it finds in its own output file, where they still fit.
        kept = await _write(scratch / "kept.txt", prefer)
        words = ["pip", "compile", await _write(scratch / "wanted.txt", requirements), "-o", kept, *_HASHED]
        words += ["-c", await _write(scratch / "bound.txt", constraints)]
        words += ["--override", await _write(scratch / "without.txt", _overrides(requirements))]
        await self._run(words, requirements, offline=offline, patient=patient)
        return pins_in(await anyio.Path(kept).read_text())

    async def add(
        self, requirements: Sequence[str], target: Path, scratch: Path, *, offline: bool = False, patient: bool = True
    ) -> tuple[str, ...] | None:
        words = ["pip", "install", "-r", await _write(scratch / "wanted.txt", requirements), *_INTO, str(target)]
        words += ["--override", await _write(scratch / "without.txt", _overrides(requirements))]
        said = await self._run(words, requirements, offline=offline, patient=patient)
        if re.search(r"^ [-~] ", said, re.M):
            return None
        return tuple(sorted(re.findall(r"^ \+ ([a-z0-9-]+==\S+)", said, re.M)))

    async def hashes(self, pins: Sequence[str], scratch: Path) -> Pins:
        found = str(scratch / "hashed.txt")
        words = ["pip", "compile", await _write(scratch / "pins.txt", pins), "-o", found, *_HASHED, "--no-deps"]
        await self._cached(words, pins)
        return pins_in(await anyio.Path(found).read_text())

    async def install(self, pins: Pins, target: Path, scratch: Path) -> None:
        wanted = await _write(scratch / "pins.txt", listing(pins))
        await self._cached(["pip", "install", "-r", wanted, *_INTO, str(target), "--no-deps"], list(pins))

    async def _cached(self, words: Sequence[str], pins: Sequence[str]) -> None:
        """Run uv with pins. Of those the cache holds either the very files or not: when it does, not asking the index
        for each of them again is several times faster; when it does not, this has cost some 30 ms."""
        try:
            await self._run(words, pins, offline=True)
        except InstallError:
            await self._run(words, pins)

    async def compile(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            process = await anyio.open_process(
                [self.python, "-I", "-S", _COMPILER, str(os.getpid()), str(folder)],
                stdin=subprocess.DEVNULL, cwd="/", env={}, start_new_session=True, umask=0o022,
            )  # fmt: skip
            await _finish(process)

    async def _run(
        self, words: Sequence[str], asked: Sequence[str], *, offline: bool = False, patient: bool = True
    ) -> str:
        """Run uv to its end: what it said, or that as an InstallError."""
        await anyio.Path(self.folder / "uv.toml").write_text(_NO_PROJECT)
        command = [program(), *words, "--python", self.python, "--color", "never", "--no-progress"]
        command += ["--no-python-downloads"] + (["--offline"] if offline else [])
        env = {k: v for k, v in self.env.items() if not k.startswith("PYTHON") and k not in _NOT_OURS}
        if not patient:
            env["UV_HTTP_RETRIES"] = "0"
            env.setdefault("UV_HTTP_TIMEOUT", "10")
        try:
            process = await anyio.open_process(
                [sys.executable, "-I", "-S", "-c", _ENDS_WITH_US, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=env,
                start_new_session=True,
                # Runs may have a uid of their own and must be able to read what is installed.
                umask=0o022,
            )
        except OSError as e:
            raise InstallError(f"The package installer uv did not start: {e}.", reason="other") from e
        out, err = await _finish(process)
        said = (err + out).decode("utf-8", "replace")
        if process.returncode != 0:
            raise explain(said, asked, code=process.returncode)
        return said


def pins_in(text: str) -> Pins:
    """The packages in what uv has resolved."""
    return {pin: tuple(sorted(_HASH.findall(rest))) for pin, rest in sorted(_PIN.findall(text))}


def listing(pins: Pins) -> list[str]:
    """Pins as lines of a file of requirements, with their hashes."""
    return [" ".join([pin, *(f"--hash={one}" for one in hashes)]) for pin, hashes in pins.items()]


# Becomes the command after it has asked the kernel to be killed with its parent: a server that is killed must not
# leave an installer behind that waits for its network for minutes.
_ENDS_WITH_US = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def index_settings(env: Mapping[str, str]) -> str:
    """A digest of all that decides which packages uv finds: its variables and its settings files.

    Reads a few small files, so not for the event loop. A digest, because index URLs may hold passwords.
    """
    words = [
        f"{k}={v}" for k, v in sorted(env.items())
        if k.startswith("UV_") and k not in _NOT_OURS and not k.startswith(_NO_MATTER)
    ]  # fmt: skip
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config")
    machine = [Path(p) for p in env.get("XDG_CONFIG_DIRS", "").split(":") if p]
    files = [home / "uv/uv.toml", *(p / "uv/uv.toml" for p in machine), Path("/etc/uv/uv.toml")]
    if env.get("UV_CONFIG_FILE"):
        files = [Path(env["UV_CONFIG_FILE"])]
    for file in files:
        try:
            words.append(file.read_text(errors="replace"))
        except OSError:
            continue
    return hashlib.sha256("\0".join(words).encode(errors="replace")).hexdigest()


def program() -> str:
    """The path of uv. Raises InstallError when it is not there."""
    from uv import find_uv_bin  # here, so that a server start does not pay for it

    try:
        return os.fspath(find_uv_bin())
    except FileNotFoundError as e:
        raise InstallError(
            "The program of the package uv is missing; reinstall it with: pip install --force-reinstall uv",
            reason="other",
        ) from e


async def _write(path: Path, lines: Sequence[str]) -> str:
    await anyio.Path(path).write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def _overrides(requirements: Sequence[str]) -> Sequence[str]:
    by_name = any(re.fullmatch(rf"{_LEFT_OUT}([^a-z0-9-].*)?", r) for r in requirements)
    return () if by_name else (OVERRIDES,)


async def _finish(process: Process) -> tuple[bytes, bytes]:
    """Both outputs of a process, each cut to a cap, once it has ended.

    When it has not ended by itself its whole group is killed: uv compiles in children that would go on.
    """
    out, err = bytearray(), bytearray()
    drained = False
    try:
        async with anyio.create_task_group() as readers:
            readers.start_soon(_drain, process.stdout, out)
            readers.start_soon(_drain, process.stderr, err)
        drained = True
        await process.wait()
    finally:
        with anyio.move_on_after(_KILL_SECONDS, shield=True):
            if process.returncode is None or not drained:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await process.aclose()
    return bytes(out), bytes(err)


async def _drain(stream: ByteReceiveStream | None, into: bytearray) -> None:
    """Read to the end, so that the writer never blocks, and keep the first bytes."""
    assert stream is not None  # both were asked for as pipes
    async for chunk in stream:
        into += chunk[: max(0, _OUTPUT_BYTES - len(into))]
