"""Servers of another user: root's test run also looks at what an ordinary user gets."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp.client.stdio import StdioServerParameters

from tests import kit

STRANGER = 54321
"""A uid without an account, which is the harder case."""

KINDS = ("root", "user") if os.geteuid() == 0 else ("user",)

_BECOME = "import os, sys; n = int(sys.argv[1]); os.setgroups([]); os.setresgid(n, n, n); os.setresuid(n, n, n); "
_CHECKOUT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs servers, with folders of its own below `base`, which everybody may pass."""

    uid: int | None  # to become; None for the user of the tests
    python: str
    base: Path
    caches: Path | None = None  # folders for packages that every uid may pass; None for those of the tests' user

    @property
    def home(self) -> Path:
        """The home directory of its servers."""
        return self.base / "homes" / "person"

    def folder(self, path: Path) -> Path:
        """Make a private folder of this user."""
        path.mkdir(mode=0o700 if self.caches is None or self.uid is not None else 0o711)
        self.give(path)
        return path

    def give(self, path: Path) -> None:
        """Hand a file or folder over to this user."""
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)

    def server(self, state: Path, *arguments: str, env: Mapping[str, str] | None = None) -> StdioServerParameters:
        """How a client starts a server of this user. `state` is a folder that it has made."""
        command = [self.python, "-m", "prims", "serve", *arguments]
        own = {"HOME": str(self.home)}
        if self.uid is not None:
            program = _BECOME + "os.execv(sys.argv[2], sys.argv[2:])"
            command = [sys.executable, "-c", program, str(self.uid), *command]
        if self.caches is not None:
            own["PRIMS_CACHE_DIR"] = str(self.caches / "cache")
            own["UV_CACHE_DIR"] = str(self.caches / "uv")
        else:
            # A home of its own would mean a cache of its own, and minutes until that is filled.
            own["PRIMS_CACHE_DIR"] = os.environ.get("PRIMS_CACHE_DIR", str(_default_cache()))
        environment = {k: v for k, v in kit.server_environment(state).items() if not k.startswith("XDG_")}
        return StdioServerParameters(
            command=command[0], args=command[1:], env={**environment, **own, **(env or {})}, cwd=str(self.base)
        )


@contextmanager
def owner(kind: str, *, open_ways: bool = False) -> Iterator[Owner]:
    """A user of servers: "root", or "user", an unprivileged one. All of its folders go at the end.

    With `open_ways` any uid may pass to its Python, its packages and its folders: for walls that give the uids of a
    root server's code no view of their own.
    """
    base = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        base.chmod(0o755)
        uid = STRANGER if kind == "user" and os.geteuid() == 0 else None
        if uid is None and not (open_ways and os.geteuid() == 0):
            who = Owner(uid, sys.executable, base)
        else:
            who = Owner(uid, _readable_python(), base, _caches(uid))
        (base / "homes").mkdir()
        who.folder(who.home)
        yield who
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", "--", base], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--", base], check=True)


def _default_cache() -> Path:
    from prims import config

    return config.load({}, {}).cache_dir


@functools.cache
def _readable_python() -> str:
    """A Python with PRIMS that a stranger can run: the tests' own, or one made of the system's."""
    if _can_run(sys.executable):
        return sys.executable
    system = "/usr/bin/python3"
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not Path(system).exists() or subprocess.run([system, "-c", check], check=False).returncode:
        pytest.skip(f"{sys.executable} cannot be run by another user, and {system} is not there or older than 3.11")
    folder = Path(tempfile.mkdtemp(prefix="pt-python-"))
    _made.append(folder)
    folder.chmod(0o755)
    uv = [sys.executable, "-m", "uv"]
    venv = str(folder / "venv")
    _run([*uv, "venv", "--python", system, venv])
    _run([*uv, "pip", "install", "--link-mode", "copy", "--python", f"{venv}/bin/python", str(_CHECKOUT)])
    python = f"{venv}/bin/python"
    assert _can_run(python)
    return python


@functools.cache
def _caches(uid: int | None) -> Path:
    """Folders for packages, shared by all owners of one uid: to fill them takes longer than most tests."""
    base = Path(tempfile.mkdtemp(prefix="pt-caches-"))
    _made.append(base)
    base.chmod(0o755)
    for name in ("cache", "uv"):
        (base / name).mkdir(mode=0o755)
        if uid is not None:
            os.chown(base / name, uid, uid)
    return base


_made: list[Path] = []


def clean_up() -> None:
    """Remove what owners share; called when the tests end."""
    for folder in _made:
        shutil.rmtree(folder)
    _made.clear()
    _readable_python.cache_clear()
    _caches.cache_clear()


def _can_run(python: str) -> bool:
    try:
        subprocess.run(
            [python, "-c", "import prims.server.stdio"],
            env={"PATH": os.environ["PATH"]}, cwd="/", check=True, capture_output=True, timeout=60,
            user=STRANGER, group=STRANGER, extra_groups=[],
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
