"""`prims doctor`: what this machine has for PRIMS, and what to do about what is missing."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from prims.config import Settings, tool_environment
from prims.errors import PrimsError
from prims.isolation import probe
from prims.isolation.probe import Check
from prims.isolation.walls import base_python
from prims.kernel.environment import Environments
from prims.state import state_folder


def doctor(settings: Settings) -> int:
    """Print one line a check; gives 0 when code can be run, 1 when something is missing."""
    checks = anyio.run(_checks, settings)
    for check in checks:
        print(f"{'ok     ' if check.ok else 'MISSING'} {check.name}: {check.detail}")
        if check.advice and not check.ok:
            print(f"        {check.advice}")
    good = all(check.ok for check in checks)
    print("This machine can run code." if good else "This machine cannot run code yet: see what is MISSING.")
    return 0 if good else 1


async def _checks(settings: Settings) -> list[Check]:
    base = base_python()
    checks = [
        Check("python", sys.version_info >= (3, 11), f"{platform.python_version()}, based on {base.executable}"),
        _uv(),
    ]
    try:
        with state_folder(settings.state_dir):
            checks.append(Check("sessions", True, f"below {settings.state_dir}"))
    except PrimsError as problem:
        checks.append(Check("sessions", False, str(problem)))
    checks += await _isolation(settings)
    checks.append(await _packages(settings))
    return checks


def _uv() -> Check:
    try:
        import uv

        path = uv.find_uv_bin()
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (ImportError, OSError, subprocess.SubprocessError) as problem:
        return Check("uv", False, f"cannot be run: {problem}", "Install the package uv beside PRIMS.")
    return Check("uv", True, f"{done.stdout.strip()} at {path}")


async def _isolation(settings: Settings) -> list[Check]:
    with tempfile.TemporaryDirectory(prefix="prims-doctor-") as scratch:
        try:
            walls = await probe.choose(settings.isolation, Path(scratch))
        except PrimsError as problem:
            return [Check("isolation", False, str(problem))]
        checks = [Check("isolation", True, walls.name)]
        if walls.name == "none":
            checks = [Check("isolation", True, "none: code can do whatever this user can")]
        return checks + await probe.prove(walls, Path(scratch))


async def _packages(settings: Settings) -> Check:
    names = ", ".join(settings.default_packages) or "none"
    try:
        async with Environments(settings, tool_environment()) as environments:
            base = await environments.base(lambda text: print(f"prims: {text} ...", file=sys.stderr, flush=True))
    except PrimsError as problem:
        return Check("packages", False, str(problem), "See that this machine reaches a package index.")
    return Check("packages", True, f"{len(base.packages)} ready in {settings.cache_dir} (default: {names})")
