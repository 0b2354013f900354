"""The throw-away virtualenv of a run: made in process, without seed packages, with the layers on its path."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prims.errors import InstallError

_PIP_SCRIPT = "#!/usr/bin/env python3\nimport sys\n\nfrom pip import main\n\nsys.exit(main())\n"


def create_venv(path: Path, layers: Sequence[str], *, python: str, app_data: Path | None = None) -> None:
    """Make a virtualenv of the interpreter `python` at the new `path`, with `layers` importable.

    `layers` are directories as the run will see them, in `sys.path` order after the venv's own
    site-packages; the `.pth` files in them work. Nothing in the venv names `path`, so it may be mounted
    elsewhere. Its `pip` is a stand-in that says which packages are there and how to ask for more.

    Synchronous, some 10 ms once `prewarm` has run (some 300 ms before that): call it in a thread.
    `app_data` is where virtualenv remembers interpreters, its usual place when None.

    Raises:
        InstallError: virtualenv cannot make one of this interpreter.
        OSError: it cannot be written.
    """
    _virtualenv(path, python, app_data)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = path / "lib" / version / "site-packages"
    # addsitedir, and not plain paths, so that the .pth files of wheels take effect as in an ordinary venv.
    lines = [f"import site; site.addsitedir({layer!r})\n" for layer in layers]
    (site / "prims.pth").write_text("".join(lines), encoding="utf-8")
    _add_pip(site, path / "bin")


def join_venv(path: Path, layers: Sequence[str]) -> None:
    """Add `layers` to a virtualenv that is in use, for the interpreters that will be started from it."""
    site = next((path / "lib").glob("python3*")) / "site-packages"
    lines = [f"import site; site.addsitedir({layer!r})\n" for layer in layers]
    (site / "prims-joined.pth").write_text("".join(lines), encoding="utf-8")


def prewarm(python: str, app_data: Path) -> None:
    """Do once what makes the first `create_venv` slow: imports, and asking the interpreter about itself."""
    with tempfile.TemporaryDirectory(prefix="prims-") as folder:
        _virtualenv(Path(folder) / "venv", python, app_data)


def _virtualenv(path: Path, python: str, app_data: Path | None) -> None:
    from virtualenv.run import cli_run  # here, so that a server start does not pay for it

    words = ["--python", python, "--no-seed", "--activators", "", "--no-vcs-ignore", "--no-periodic-update"]
    if app_data is not None:
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
    (package / "__init__.py").write_bytes(_pip_source())
    (package / "__main__.py").write_text("import sys\n\nfrom pip import main\n\nsys.exit(main())\n")
    for name in ("pip", "pip3"):
        script = scripts / name
        script.write_text(_PIP_SCRIPT)
        script.chmod(0o755)


def _pip_source() -> bytes:
    return Path(__file__).with_name("pipstub.py").read_bytes()
