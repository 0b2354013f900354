"""The rooms and their order: who may import whom, and who may read what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "prims"
INSIDE = PACKAGE / "kernel" / "inside"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if INSIDE not in path.parents]

# From the ground up: a room may import from its own floor and from those below. The pure modules at the bottom
# are values, errors, settings and small tools that every room may use.
FLOORS = [
    ["errors", "model", "hosts", "beneath", "trees", "tasks", "stopping", "state"],
    ["config"],
    ["requirements", "policy", "feedback"],
    ["isolation"],
    ["kernel"],
    ["engine"],
    ["session"],
    ["server"],
    ["notebook_file"],
    ["run", "doctor"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# The libraries that only one room may know, as paths from the package.
OWNERS = {
    "mcp": ["server/"],
    "starlette": ["server/"],
    "uvicorn": ["server/"],
    "jwt": ["server/auth.py"],
    "httpx2": ["session/"],
    "zmq": ["kernel/inside/"],
    "jupyter_client": ["kernel/"],
    "ipykernel": ["kernel/inside/"],
    "IPython": ["kernel/inside/"],
    "virtualenv": ["kernel/venv.py"],
    "uv": ["kernel/uv.py", "doctor.py"],
    "nbformat": ["session/notebook.py", "session/page.py", "notebook_file.py"],
    "nbconvert": ["session/page.py"],
    "bleach": ["session/page.py"],
}

# Importing what a client waits for must not load what only a run needs.
HEAVY = (
    "zmq", "jupyter_client", "IPython", "ipykernel", "virtualenv", "uv", "packaging", "matplotlib", "pandas",
    "nbformat", "nbconvert",
)  # fmt: skip


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Each module that a file imports, anywhere in it, with the line; relative imports made absolute."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(ROOT).with_suffix("").parts[: -node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_room_has_its_floor() -> None:
    assert {room(path) for path in FILES} - {"__init__"} == set(FLOOR)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_arrows_point_down(path: Path) -> None:
    if room(path) == "__init__":
        assert not [module for module, _ in imports(path) if module.startswith("prims")]
        return
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] == "prims" and len(parts) > 1 and parts[1] != "__version__":
            assert FLOOR[parts[1]] <= FLOOR[room(path)], f"{name(path)}:{line} imports {module}, which is above it"


@pytest.mark.parametrize("path", [*FILES, *sorted(INSIDE.rglob("*.py"))], ids=name)
def test_each_library_is_known_to_its_own_room_only(path: Path) -> None:
    for module, line in imports(path):
        owners = OWNERS.get(module.split(".")[0])
        assert owners is None or name(path).startswith(tuple(owners)), f"{name(path)}:{line} imports {module}"


def test_each_library_is_used_where_it_may_be() -> None:
    used = {module.split(".")[0] for path in PACKAGE.rglob("*.py") for module, _ in imports(path)}
    assert {"mcp", "zmq", "jupyter_client", "ipykernel", "virtualenv", "uv"} <= used


@pytest.mark.parametrize("path", sorted(INSIDE.rglob("*.py")), ids=name)
def test_what_runs_inside_the_sandbox_knows_nothing_of_the_server(path: Path) -> None:
    assert not [module for module, _ in imports(path) if module.split(".")[0] == "prims"]


def test_the_wrapper_uses_the_standard_library_only() -> None:
    modules = {module.split(".")[0] for module, _ in imports(PACKAGE / "isolation" / "wrapper.py")}
    assert modules <= {*sys.stdlib_module_names, "__future__"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    # The wrapper is a program of its own: it hands on what is in the environment that it was started with.
    if name(path) in ("config.py", "isolation/wrapper.py"):
        return
    words = {"environ", "environb", "getenv"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        read = isinstance(node, ast.Attribute) and node.attr in words
        read |= isinstance(node, ast.ImportFrom) and bool(words & {alias.name for alias in node.names})
        assert not read, f"{name(path)}:{node.lineno} reads the environment"


def test_a_server_starts_without_loading_what_only_runs_need() -> None:
    program = f"import sys, prims.server.stdio; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line_loads_no_room_before_it_knows_which() -> None:
    program = "import sys, prims.cli; print(sorted(m for m in sys.modules if m.startswith('prims.')))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(["prims.cli", "prims.config", "prims.errors", "prims.model"])


def test_the_map_has_each_module_in_its_own_words() -> None:
    page = " ".join((ROOT / "docs" / "map.md").read_text("utf-8").split())
    modules = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    for path in modules:
        about = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
        assert f"- `{name(path)}`: {re.split(r'(?<=[.]) ', about)[0]}" in page
    assert page.count("- `") == len(modules)
