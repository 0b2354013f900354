"""The throw-away virtualenv of a run: made in process, without seed packages, with the layers on its path."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prims.errors import InstallError
from prims.isolation.walls import base_python

_PIP_SCRIPT = "#!/usr/bin/env python3\nimport sys\n\nfrom pip import main\n\nsys.exit(main())\n"


@dataclass(frozen=True, slots=True)
class _Made:
    """One thing of a new virtualenv: a folder, a link (`link` says where to) or a file."""

    path: str
    mode: int
    link: str = ""
    content: bytes = b""

    def make(self, root: Path) -> None:
        path = root / self.path
        if stat.S_ISDIR(self.mode):
            path.mkdir(stat.S_IMODE(self.mode))
        elif self.link:
            path.symlink_to(self.link)
        else:
            path.write_bytes(self.content)
            path.chmod(stat.S_IMODE(self.mode))


def create_venv(path: Path, layers: Sequence[str], app_data: Path) -> None:
    """Make a virtualenv of the base interpreter at the new `path`, with `layers` importable.

    `layers` are directories as the run will see them, in `sys.path` order after the venv's own
    site-packages; the `.pth` files in them work. Nothing in the venv names `path`, so it may be mounted
    elsewhere. Its `pip` is a stand-in that says which packages are there and how to ask for more.

    Synchronous, about 1 ms once `prewarm` has run (some 300 ms before that): call it in a thread.
    `app_data` is where virtualenv remembers interpreters.

    Raises:
        InstallError: virtualenv cannot make one of this interpreter.
        OSError: it cannot be written.
    """
    for made in prewarm(base_python().executable, app_data):
        made.make(path)
    join_venv(path, layers, "prims.pth")


def join_venv(path: Path, layers: Sequence[str], name: str = "prims-joined.pth") -> None:
    """Add `layers` to a virtualenv that is in use, for the interpreters that will be started from it."""
    # addsitedir, and not plain paths, so that the .pth files of wheels take effect as in an ordinary venv.
    lines = [f"import site; site.addsitedir({layer!r})\n" for layer in layers]
    (_site(path) / name).write_text("".join(lines), encoding="utf-8")


@cache
def prewarm(python: str, app_data: Path) -> tuple[_Made, ...]:
    """All that is in a new virtualenv of `python`, as virtualenv makes it, and our stand-in for pip: looked at once,
    because it is the same for every run."""
    with tempfile.TemporaryDirectory(prefix="prims-") as folder:
        root = Path(folder) / "venv"
        _virtualenv(root, python, app_data)
        _add_pip(_site(root), root / "bin")
        return tuple(_look(root, path) for path in (root, *sorted(root.rglob("*"))))


def _look(root: Path, path: Path) -> _Made:
    mode = path.lstat().st_mode
    name = str(path.relative_to(root))
    if path.is_symlink():
        return _Made(name, mode, link=os.readlink(path))
    if path.is_dir():
        return _Made(name, mode)
    content = path.read_bytes()
    if path.name == "pyvenv.cfg":  # how it was made, and where
        content = re.sub(rb"^command = .*\n", b"", content, flags=re.MULTILINE)
    return _Made(name, mode, content=content)


def _site(path: Path) -> Path:
    return path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _virtualenv(path: Path, python: str, app_data: Path) -> None:
    from virtualenv.run import cli_run  # here, so that a server start does not pay for it

    words = ["--python", python, "--no-seed", "--activators", "", "--no-vcs-ignore", "--no-periodic-update"]
    words += ["--app-data", os.fspath(app_data)]
    # An environment of its own: a person's VIRTUALENV_* variables and virtualenv.ini are not for these.
    env = {"VIRTUALENV_CONFIG_FILE": os.devnull}
    try:
        cli_run([*words, os.fspath(path)], setup_logging=False, env=env)
    except (SystemExit, RuntimeError) as e:  # its ways to refuse an option, or an interpreter
        raise InstallError(f"virtualenv cannot make an environment of {python}: {e}", reason="other") from e


def _add_pip(site: Path, scripts: Path) -> None:
    package = site / "pip"
    package.mkdir()
    (package / "__init__.py").write_bytes(Path(__file__).with_name("pipstub.py").read_bytes())
    (package / "__main__.py").write_text(_PIP_SCRIPT)
    for name in ("pip", "pip3"):
        script = scripts / name
        script.write_text(_PIP_SCRIPT)
        script.chmod(0o755)
