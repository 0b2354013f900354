"""The notebooks of notebooks/: they run as they are, show what was committed, and tell nothing of the machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from prims.isolation import bubblewrap
from tests import kit

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
demo = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def shapes(notebook: Any) -> list[list[Any]]:
    """For each code cell the kinds of its outputs, streams joined."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kinds = [o.get("name") or sorted(o.get("data", {"error": 1})) for o in cell.outputs]
            found.append([kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]])
    return found


@demo
def test_a_demo_is_committed_as_it_was_run_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == ("prims" if path.stem == "prims_kernel" else "python3")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert sum(bool(cell.outputs) for cell in code) >= len(code) - 2


@demo
def test_a_demo_tells_nothing_of_the_machine_that_ran_it(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"(?:/root|/home/\w+|/Users/\w+|/tmp/\w+|/var/folders|/opt/\w+|/mnt/\w+)", text)
    assert str(ROOT) not in text
    assert sys.prefix not in text
    assert path.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed")
@demo
def test_a_demo_runs_and_shows_what_was_committed(path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMS_STATE_DIR", str(state))
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=kit.SECONDS, startup_timeout=kit.SECONDS, resources=resources).execute()
    assert shapes(notebook) == shapes(committed)
    assert not kit.processes_with(str(state))


def test_the_readme_names_each_demo() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(f"notebooks/{path.name}" in readme for path in NOTEBOOKS)
    assert len(NOTEBOOKS) == 3
