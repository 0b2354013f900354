"""A session as a notebook: every run a cell with its real outputs, what it needs in its first cell.

The session's id is in none of them: it is a secret of the client, and notebooks are shared.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prims.kernel.text import shorten
from prims.requirements import name_of
from prims.session.page import as_page

if TYPE_CHECKING:
    from prims.model import CodeError, Output
    from prims.session.history import PastRun
    from prims.session.table import Mounted, Session

_TEXT_CHARS = 400_000


@dataclass(frozen=True, slots=True)
class Form:
    """A form in which a session can be had, and what readers are told about it."""

    mime: str
    title: str
    description: str


FORMS = {
    "ipynb": Form("application/x-ipynb+json", "A session as a notebook", "Each run a cell with its outputs."),
    "py": Form("text/x-python", "A session as a script", "The code of all runs, and the packages that it needs."),
    "html": Form("text/html", "A session as a page", "Each run with its outputs, in one file for a browser."),
}


def export(session: Session, defaults: Sequence[str], suffix: str) -> bytes:
    """The session in one of `FORMS`; `defaults` are the packages that every run has. Blocking, a page for seconds.

    Raises:
        Refused: it cannot be made a page.
    """
    notebook = as_notebook(session.history.runs(), session.mounted, defaults, forgotten=session.history.forgotten)
    return convert(notebook, suffix)


def convert(notebook: dict[str, Any], suffix: str) -> bytes:
    """A valid notebook of format 4 in one of `FORMS`."""
    if suffix == "py":
        return as_script(notebook).encode("utf-8", "replace")
    # A cell a line. Texts in lines, as nbformat writes them, take it half a minute for what a session may hold.
    cells = ",\n".join(_json(cell) for cell in notebook["cells"])
    rest = _json({name: value for name, value in notebook.items() if name != "cells"})
    data = f'{{"cells": [\n{cells}\n],\n{rest[1:]}\n'.encode("utf-8", "replace")
    return as_page(data) if suffix == "html" else data


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_notebook(
    runs: Sequence[PastRun], mounted: Mapping[str, Mounted], defaults: Sequence[str], *, forgotten: int = 0
) -> dict[str, Any]:
    """A notebook of format 4.5; every code cell but the first is a run.

    That first one holds the requirements as PEP 723 metadata: comments, which `prims run` and `uv run` read.
    """
    header = script_header(dependencies(runs, defaults))
    cells = [
        _cell("code", "requirements", header, {"tags": ["skip-execution"], "jupyter": {"source_hidden": True}}),
    ]
    files = [_mounted(name, file) for name, file in sorted(mounted.items())]
    if files:
        cells.append(_cell("markdown", "mounts", _files_text(files), {}))
    if forgotten:
        text = f"*The first {forgotten} runs are left out here: the session's notebook has a bound (`notebook_bytes`).*"
        cells.append(_cell("markdown", "forgotten", text, {}))
    packages = set(runs[0].packages).intersection(*(run.packages for run in runs)) if runs else set()
    cells += [_run_cell(run, packages) for run in runs]
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "file_extension": ".py", "version": platform.python_version()},
            # Each run had a kernel of its own, and has one again when `prims run` runs this notebook.
            "prims": {"fresh": True, "mounts": files, "packages": sorted(packages)},
        },
        "cells": cells,
    }


def _cell(kind: str, id: str, source: str, metadata: dict[str, Any]) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": id, "metadata": metadata, "source": source}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell


def _run_cell(run: PastRun, common: set[str]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "status": run.status,
        "seconds": {phase: round(took, 4) for phase, took in run.seconds.items()},
        "requirements": list(run.requirements),
        "packages": [pin for pin in run.packages if pin not in common],
    }
    if run.cause:
        about["cause"] = run.cause
    begun = run.ended - run.seconds.get("run", 0.0)
    metadata: dict[str, Any] = {
        "prims": about,
        # Where JupyterLab looks for the time that a cell took.
        "execution": {"iopub.execute_input": _time(begun), "shell.execute_reply": _time(run.ended)},
    }
    if run.status != "ok":
        metadata["tags"] = ["raises-exception"]
    cell = _cell("code", f"run{run.number}", run.code, metadata)
    return {**cell, "execution_count": run.number, "outputs": outputs_of(run.outputs, run.number, run.error)}


def outputs_of(outputs: Iterable[Output], number: int, error: CodeError | None) -> list[dict[str, Any]]:
    """The outputs of a cell as the notebook format has them, with the error that it ended in."""
    found = [_output(output, number) for output in outputs]
    if error is not None and not any(output["output_type"] == "error" for output in found):
        # The end of its kernel, which only we know of.
        lines = [line for line in (error.traceback, f"{error.name}: {error.value}") if line]
        found.append({"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": lines})
    return found


def _output(output: Output, number: int) -> dict[str, Any]:
    """An output with what was left out of it said in words."""
    content = dict(output.content)
    if output.text is not None:
        content["text"] = shorten(output.text, _TEXT_CHARS)
    if content["output_type"] == "execute_result":
        content["execution_count"] = number
    if output.left_out:
        where = f"; it is in {output.path}" if output.path else ""
        note = f"[{', '.join(output.left_out)} left out of this notebook{where}]"
        data = content["data"]
        content["data"] = {**data, "text/plain": f"{_joined(data.get('text/plain', ''))}\n{note}".strip()}
    return content


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else "".join(text)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# ------------------------------------------------------------------------------------------ what it needs


def dependencies(runs: Iterable[PastRun], defaults: Sequence[str]) -> list[str]:
    """What the runs asked for and what all runs have, as the pins that the last run of each had."""
    pins: dict[str, str] = {}
    asked: dict[str, str] = {}
    for run in runs:
        pins |= {name_of(pin): pin.partition("==")[2] for pin in run.packages}
        for requirement in (*defaults, *run.requirements):
            # With its extras, which a pin does not tell.
            match = re.match(r"\s*([\w.-]+(?:\[[^\]]*\])?)", requirement)
            if match:
                asked[name_of(requirement)] = match[1]
    return sorted(f"{text}=={pins[name]}" for name, text in asked.items() if name in pins)


def script_header(requirements: Sequence[str]) -> str:
    """PEP 723 metadata: what a script needs, in comments."""
    lines = [f"#   {json.dumps(requirement)}," for requirement in requirements]
    version = f">={sys.version_info[0]}.{sys.version_info[1]}"
    return "\n".join(["# /// script", f'# requires-python = "{version}"', "# dependencies = [", *lines, "# ]", "# ///"])


def _mounted(name: str, file: Mounted) -> dict[str, Any]:
    found: dict[str, Any] = {"path": f"mounts/{name}", "bytes": file.bytes, "sha256": file.sha256}
    parts = urlsplit(file.url)
    if parts.scheme in ("http", "https") and parts.hostname:
        # Without its query, in which presigned links carry their secrets.
        found["source"] = f"{parts.scheme}://{parts.hostname}{parts.path}"
    return found


def _files_text(files: Sequence[dict[str, Any]]) -> str:
    rows = [f"| {_code(file['path'])} | {file['bytes']:,} | `{file['sha256']}` |" for file in files]
    return "\n".join(["Files that the code was given:", "", "| file | bytes | sha256 |", "|---|--:|---|", *rows])


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


# ------------------------------------------------------------------------------------------ as a script


def as_script(notebook: Mapping[str, Any]) -> str:
    """The notebook's code in the percent format, with its requirements where `uv run` finds them."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append("# %% [markdown]\n" + _commented(cell["source"]))
        elif cell["cell_type"] == "code" and not parts and cell["source"].startswith("# /// script"):
            parts.append(cell["source"])
        elif cell["cell_type"] == "code":
            status = (cell["metadata"].get("prims") or {}).get("status")
            title = f" {cell['id']}: {status}" if status else ""
            # A script has one block of metadata; what its own runs asked for is in it.
            source = re.sub(r"^# ///", "## ///", cell["source"], flags=re.M)
            parts.append(f"# %%{title}\n" + _plain_python(source))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _plain_python(code: str) -> str:
    """Code that a file can hold: what only a notebook knows becomes a comment."""
    if _parses(code):
        return code
    if code.lstrip().startswith("%%"):
        return _commented(code)
    lines = ["# " + line if re.match(r"\s*[%!]", line) else line for line in code.split("\n")]
    text = "\n".join(lines)
    return text if _parses(text) else "# This is no plain Python:\n" + _commented(code)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))


def _parses(code: str) -> bool:
    try:
        # More than `ast.parse`, which takes an `await` outside of a function.
        compile(code, "code", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
