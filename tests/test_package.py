"""What is shipped: wheel and sdist build, the wheel alone works from a new venv, and each Python that we name works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import kit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SECONDS = 180.0
VERSIONS = ("3.11", "3.12", "3.13")

SMOKE = """
import sys
import matplotlib.pyplot as plt
print("hello from", "%d.%d" % sys.version_info[:2])
plt.plot([1, 3, 2])
plt.show()
"""


def run(command: list[str | Path]) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False,
        env={k: v for k, v in kit.server_environment(ROOT).items() if k != "PRIMS_STATE_DIR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def pins(lock: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / lock).read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if line[:1].isalnum()]
    return {canonicalize_name(pin.name): pin for pin in found}


def interpreter(version: str) -> str | None:
    """An interpreter of that version on this machine, by name or where version managers keep theirs."""
    manager = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted(map(str, manager.glob(f"versions/{version}.*/bin/python{version}")))
    for candidate in (which(f"python{version}"), *kept):
        if candidate:
            program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-c", program], capture_output=True, text=True, timeout=60, check=False)
            if done.stdout.strip() == version:
                return candidate
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    yield folder


def make_venv(python: str | Path, folder: Path, built: Path) -> Path:
    """A new venv with the wheel in `built` and its pinned dependencies; gives its folder of programs."""
    [wheel] = built.glob("*.whl")
    run([python, "-m", "venv", "--without-pip", folder])
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    run([*uv, "--constraint", ROOT / "requirements" / "run.txt", wheel])
    return folder / "bin"


async def smoke(programs: Path, state: Path) -> str:
    """A call over stdio of the installed server: it must print and plot."""
    sessions = state / "s"
    parameters = StdioServerParameters(
        command=str(programs / "prims"), args=["serve"], env=kit.server_environment(sessions), cwd=str(state)
    )
    with anyio.fail_after(SECONDS), (state / "stderr.log").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            result = await client.call_tool("run_code", {"code": SMOKE})
    assert not result.is_error, kit.text_of(result)
    assert [block.type for block in result.content][:2] == ["text", "image"]
    return str(result.structured_content["stdout"])


@pytest.mark.slow
def test_the_sdist_has_what_building_and_testing_need(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "kernelspecs/prims/kernel.json"} <= names
    assert {"prims/cli.py", "tests/kit.py", "examples/sales.csv", "scripts/test.sh", "requirements/test.txt"} <= names
    assert {"Dockerfile", ".dockerignore", "docs/containers.md", "examples/_server.py", "app/build.mjs"} <= names


@pytest.mark.slow
def test_the_wheel_has_types_licence_kernelspec_and_what_runs_inside(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
        licence = archive.read(next(n for n in names if n.endswith(".dist-info/licenses/LICENSE"))).decode()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {"prims/py.typed", "prims/kernel/inside/launch.py", "prims/kernel/pipstub.py"} <= set(names)
    assert {f"prims/server/app_view/{n}" for n in ("run.html", "plotly.js.gz", "vega.js.gz")} <= set(names)
    assert any(n.endswith(".dist-info/licenses/prims/server/app_view/LICENSES.txt") for n in names)
    assert any(n.endswith(".data/data/share/jupyter/kernels/prims/kernel.json") for n in names)
    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert licence.startswith("MIT License")
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/"))]
    assert not [n for n in names if "__pycache__" in n]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_wheel_alone_works_from_a_new_venv(version: str, built: Path, state: Path) -> None:
    python = await anyio.to_thread.run_sync(interpreter, version)
    if python is None:
        pytest.skip(f"there is no Python {version} with its venv module on this machine")
    programs = await anyio.to_thread.run_sync(make_venv, python, state / "venv", built)
    told = await anyio.to_thread.run_sync(run, [programs / "prims", "--version"])
    assert told == f"prims {PROJECT['project']['version']}\n"
    kernelspec = programs.parent / "share" / "jupyter" / "kernels" / "prims" / "kernel.json"
    assert await anyio.Path(kernelspec).is_file()
    assert await smoke(programs, state) == f"hello from {version}\n"


def test_the_interpreter_of_the_tests_is_one_of_those_that_are_tested() -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    assert interpreter(version) is not None or version not in VERSIONS


@pytest.mark.parametrize("lock", ["run.txt", "test.txt"])
def test_the_lock_pins_all_that_the_project_asks_for(lock: str) -> None:
    wanted = list(PROJECT["project"]["dependencies"]) + PROJECT["build-system"]["requires"]
    if lock == "test.txt":
        wanted += PROJECT["dependency-groups"]["dev"]
    pinned = pins(lock)
    for requirement in map(Requirement, wanted):
        pin = pinned[canonicalize_name(requirement.name)]
        [version] = [specifier.version for specifier in pin.specifier]
        assert requirement.specifier.contains(version, prereleases=True), f"{lock}: {pin} is not {requirement}"


def test_both_locks_agree() -> None:
    run_pins, test_pins = pins("run.txt"), pins("test.txt")
    assert {n: pin.specifier for n, pin in run_pins.items()} == {n: test_pins[n].specifier for n in run_pins}


def test_the_locks_name_no_place_to_get_packages_from() -> None:
    for lock in ("run.txt", "test.txt"):
        text = (ROOT / "requirements" / lock).read_text("utf-8")
        assert not re.search(r"://|^-", text, re.M)


def test_the_version_has_one_home() -> None:
    from prims import __version__

    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
