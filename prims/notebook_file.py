"""A notebook on disk that is run: which of its cells, with which parameters, and their outputs back in their places."""

from __future__ import annotations

import contextlib
import json
import keyword
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prims.errors import Refused
from prims.model import Cell, CellResult, RunResult
from prims.requirements import inline, name_of
from prims.session.notebook import convert, outputs_of


@dataclass(frozen=True, slots=True)
class Step:
    """What is run at once: these code cells of the notebook, by index, and the packages that they need.

    A `fresh` step is one cell that is run as a call's code is; else they share a notebook's kernel.
    """

    indices: tuple[int, ...]
    cells: tuple[Cell, ...]
    requirements: tuple[str, ...]
    fresh: bool = False


class NotebookFile:
    """A notebook that was read from `path`.

    Raises:
        Refused: it cannot be read, or is not one of Python.
    """

    def __init__(self, path: Path) -> None:
        import nbformat

        self._counts: dict[int, int] = {}
        try:
            text = _completed(path.read_text("utf-8-sig"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that cells have no ids, or the same: they get new ones
                self.notebook: Any = nbformat.reads(text, as_version=4)
                nbformat.validate(self.notebook)
        except OSError as problem:
            raise Refused(f"{path} cannot be read: {problem}") from problem
        except (
            nbformat.ValidationError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as problem:
            words = str(problem).strip().split("\n")[0][:300]
            raise Refused(f"{path} cannot be read as a notebook: {words or type(problem).__name__}") from problem
        metadata = self.notebook.metadata
        language = _get(metadata, "kernelspec", "language") or _get(metadata, "language_info", "name") or "python"
        if language != "python":
            raise Refused(f"{path} is a notebook of {language}; only Python is run here.")
        for cell in self._code_cells(skipped=False):
            cell.outputs, cell.execution_count = [], None

    def set_parameters(self, given: Sequence[tuple[str, str]]) -> None:
        """Put a cell that sets names after the one tagged `parameters`, or first; values are read as papermill does.

        Raises:
            Refused: a name is none of Python.
        """
        if not given:
            return
        if self._is_fresh:
            raise Refused("This notebook is that of a session: its runs share nothing, so parameters reach none.")
        lines = ["# Parameters"]
        for name, text in given:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise Refused(f"{name!r} cannot be the name of a parameter.")
            lines.append(f"{name} = {_value(text)}")
        cells = self.notebook.cells
        cells[:] = [cell for cell in cells if "injected-parameters" not in _tags(cell)]
        at = next((i + 1 for i, cell in enumerate(cells) if "parameters" in _tags(cell)), 0)
        import nbformat.v4

        cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})
        if (self.notebook.nbformat, self.notebook.nbformat_minor) < (4, 5):
            del cell["id"]
        cells.insert(at, cell)

    def steps(self) -> list[Step]:
        """What is to be run, in order: all code cells in one kernel, or each in its own, as the notebook says.

        Cells without code and those tagged `skip-execution` are left out.
        """
        header = [r for cell in self._code_cells(skipped=True) for r in inline(cell.source)]
        found = [(i, cell) for i, cell in enumerate(self.notebook.cells) if _is_run(cell) and cell.source.strip()]
        self._counts = {index: count for count, (index, _) in enumerate(found, 1)}
        if not self._is_fresh:
            indices = tuple(index for index, _ in found)
            return [Step(indices, tuple(_cell(cell) for _, cell in found), tuple(header))] if found else []
        # Each run had what all have, and what itself has asked for.
        asked = {name_of(r) for _, cell in found for r in _texts(cell, "requirements")}
        common = [r for r in header if name_of(r) not in asked]
        return [Step((index,), (_cell(cell),), (*common, *_own(cell)), fresh=True) for index, cell in found]

    def put(self, step: Step, number: int, result: CellResult, ended: RunResult | None = None) -> None:
        """Give a cell of a step its outputs; `ended` is the run that ended in it, when one did."""
        index = step.indices[number]
        cell, count = self.notebook.cells[index], self._counts[index]
        cell.outputs = outputs_of(result.outputs, count, ended.error if ended is not None else None)
        cell.execution_count = count
        times = {"iopub.execute_input": result.begun, "shell.execute_reply": result.ended}
        cell.metadata["execution"] = {key: datetime.fromtimestamp(at, UTC).isoformat() for key, at in times.items()}
        if ended is not None and step.fresh and "prims" in cell.metadata:
            cell.metadata["prims"] |= {"status": ended.status, "seconds": dict(ended.seconds)}

    def write(self, path: Path) -> None:
        """Write the notebook as the suffix of `path` says, in one step: never half, never nothing.

        Raises:
            Refused: it cannot be written.
        """
        if path.suffix != ".ipynb":
            write_whole(path, convert(self.notebook, path.suffix.removeprefix(".")))
            return
        import nbformat

        # In lines, as notebooks that are edited and compared are written.
        text = nbformat.writes(nbformat.from_dict(self.notebook))
        write_whole(path, (text.rstrip("\n") + "\n").encode("utf-8", "replace"))

    @property
    def _is_fresh(self) -> bool:
        return _get(self.notebook.metadata, "prims", "fresh") is True

    def _code_cells(self, *, skipped: bool) -> Iterator[Any]:
        return (cell for cell in self.notebook.cells if _is_run(cell) or (skipped and cell.cell_type == "code"))


def _completed(text: str) -> str:
    """A notebook of the format 4 with what programs and people that write one by hand leave out: it says nothing."""
    notebook = json.loads(text)
    if not isinstance(notebook, dict):
        raise ValueError("it is no JSON object")
    if notebook.get("nbformat") != 4:
        return text
    for part in (notebook, *(c for c in notebook.get("cells") or () if isinstance(c, dict))):
        part.setdefault("metadata", {})
        if "cell_type" in part:
            part["source"] = part.get("source") or ""
        if part.get("cell_type") == "code":
            part["outputs"], part["execution_count"] = part.get("outputs") or [], part.get("execution_count")
    return json.dumps(notebook)


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` into the place of a file, of which until then nothing is lost.

    Raises:
        Refused: it cannot be written.
    """
    path = path.resolve()
    try:
        descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, scratch)
            else:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(scratch, 0o666 & ~umask)
            os.replace(scratch, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise
    except OSError as problem:
        raise Refused(f"{path} cannot be written: {problem.strerror or problem}") from problem


def _is_run(cell: Any) -> bool:
    return cell.cell_type == "code" and "skip-execution" not in _tags(cell)


def _cell(cell: Any) -> Cell:
    return Cell(cell.source, may_fail="raises-exception" in _tags(cell))


def _own(cell: Any) -> list[str]:
    """What a run asked for, as the versions that it had."""
    pins = {name_of(pin): pin for pin in _texts(cell, "packages")}
    return [pins.get(name_of(r), r) for r in _texts(cell, "requirements")]


def _texts(cell: Any, name: str) -> list[str]:
    found = _get(cell.metadata, "prims", name)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _tags(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags", [])
    return tags if isinstance(tags, list) else []


def _get(metadata: Any, *names: str) -> Any:
    for name in names:
        metadata = metadata.get(name) if isinstance(metadata, dict) else None
    return metadata


def _value(text: str) -> str:
    """A parameter from the command line as Python has it."""
    if text in ("True", "False", "None"):
        return text
    with contextlib.suppress(ValueError):
        return repr(int(text))
    with contextlib.suppress(ValueError):
        value = float(text)
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    return repr(text)
