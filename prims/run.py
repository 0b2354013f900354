"""`prims run`: a file through the same path as a client's call, for a person at a terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import anyio
import anyio.to_thread

from prims import policy
from prims.config import Settings
from prims.engine.local import LocalEngine
from prims.errors import Refused
from prims.isolation.self_protection import protect_server
from prims.model import CellEvent, DisplayEvent, Event, PhaseEvent, RunResult, TextEvent, stored
from prims.notebook_file import NotebookFile, Step, write_whole
from prims.policy import Admitted
from prims.server.render import count_bytes, render
from prims.session.notebook import FORMS, export
from prims.session.table import Mounted, Session, SessionTable, open_file
from prims.session.workspace import checked_parts
from prims.state import state_folder, sweep

_EXIT = {"ok": 0, "error": 1, "timeout": 124, "cancelled": 130}


def run_file(settings: Settings, options: argparse.Namespace) -> int:
    """Run `options.file`; gives the exit status: 0 ok, 1 error, 124 timeout, 130 interrupted, 70 anything else."""
    protect_server()
    return anyio.run(_run, settings, options)


async def _run(settings: Settings, options: argparse.Namespace) -> int:
    work = await anyio.to_thread.run_sync(_prepare, settings, options)
    if len(work.admitted) == 1:
        # One run only: what is made ahead for the next would be in its way.
        settings = replace(settings, spare_kernels=0, fork_kernels="off")
    terminal = _Terminal(quiet=options.json)
    loop = asyncio.get_running_loop()

    def on_interrupt(act: Callable[[], None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, act)

    with anyio.CancelScope() as scope:
        on_interrupt(scope.cancel)
        await anyio.to_thread.run_sync(sweep, settings.state_dir)
        with state_folder(settings.state_dir) as state:
            async with (
                LocalEngine(settings, state) as engine,
                SessionTable(settings, engine, state) as table,
            ):
                session = await table.create()
                await anyio.to_thread.run_sync(_mount, session, options.mount)
                for number, admitted in enumerate(work.admitted):
                    run = table.start(session, admitted.request, partial(work.emit, number, terminal))
                    # From here on an interrupt ends the run and not us: what it gave until then is told and saved.
                    stop = partial(run.stop.set, "cancelled")
                    terminal.on_closed = stop
                    on_interrupt(stop)
                    result = await run.wait()
                    result = replace(result, feedback=(*admitted.notes, *result.feedback))
                    saved = await anyio.to_thread.run_sync(_save, session, result, options.output)
                    if not options.json:
                        terminal.conclude(result, saved)
                    await anyio.to_thread.run_sync(work.keep, number, session, result)
                    expected = result.status == "ok" or work.goes_on(number, result)
                    if not expected:
                        break
                if options.json:
                    structured = render(result, session.id, settings).structured
                    terminal.say(json.dumps(structured, ensure_ascii=False, indent=2) + "\n")
                if work.advice and not options.json:
                    terminal.say(f"hint:    {work.advice}\n", sys.stderr)
        return 0 if expected else _EXIT.get(result.status, 70)
    print("prims: interrupted before the code was run", file=sys.stderr)
    return _EXIT["cancelled"]


class _Work:
    """What is run, one after the other, and the notebook that is made of it, if one is."""

    def __init__(self, settings: Settings, admitted: Sequence[Admitted], target: Path | None) -> None:
        self.settings = settings
        self.admitted = admitted
        self.target = target

    def emit(self, number: int, terminal: _Terminal, event: Event) -> None:
        """Something happened in the run of that number."""
        terminal.emit(event)

    def keep(self, number: int, session: Session, result: RunResult) -> None:
        """Write down what a run gave."""
        if self.target is not None:
            write_whole(self.target, export(session, self.settings.default_packages, self.target.suffix[1:]))

    def goes_on(self, number: int, result: RunResult) -> bool:
        """Whether a run that failed may do so, and what follows is run."""
        return False

    @property
    def advice(self) -> str:
        """What to say at the end, if anything."""
        return ""


class _NotebookWork(_Work):
    """The steps of a notebook."""

    def __init__(
        self, settings: Settings, admitted: Sequence[Admitted], target: Path | None, file: NotebookFile,
        steps: Sequence[Step],
    ) -> None:  # fmt: skip
        super().__init__(settings, admitted, target)
        self._file = file
        self._steps = steps

    def emit(self, number: int, terminal: _Terminal, event: Event) -> None:
        if isinstance(event, CellEvent) and self.target is not None and self.target.suffix == ".ipynb":
            self._file.put(self._steps[number], event.number, event.result)
            # What cannot be written now is tried again at the end, and said then.
            with contextlib.suppress(Refused):
                self._file.write(self.target)
        super().emit(number, terminal, event)

    def keep(self, number: int, session: Session, result: RunResult) -> None:
        for at, cell in enumerate(result.cells):
            last = at == len(result.cells) - 1
            self._file.put(self._steps[number], at, cell, result if last else None)
        if self.target is not None:
            self._file.write(self.target)

    def goes_on(self, number: int, result: RunResult) -> bool:
        step = self._steps[number]
        return step.fresh and step.cells[0].may_fail and result.status not in ("cancelled", "shutdown")

    @property
    def advice(self) -> str:
        return "" if self.target else "The outputs are not kept; --notebook FILE or --inplace writes them."


def _prepare(settings: Settings, options: argparse.Namespace) -> _Work:
    """Read what is to be run; nothing is run yet that would be refused later."""
    path = Path(options.file)
    is_notebook = path.suffix == ".ipynb"
    if not is_notebook and (options.inplace or options.parameter):
        raise Refused(f"{options.file} is no notebook (.ipynb): --inplace and --parameter are for those.")
    if options.inplace and options.notebook:
        raise Refused("Give --inplace or --notebook, not both.")
    target = path if options.inplace else Path(options.notebook) if options.notebook else None
    if target is not None and target.suffix.removeprefix(".") not in FORMS:
        raise Refused(f"{target} cannot be written: a notebook ends in {', '.join(f'.{suffix}' for suffix in FORMS)}.")
    if target is not None and not os.access(target.absolute().parent, os.W_OK):
        raise Refused(f"{target} cannot be written: its folder is not there, or not yours.")
    output = Path(options.output).absolute()
    there = next(folder for folder in (output, *output.parents) if folder.exists())
    if not there.is_dir():
        raise Refused(f"{options.output} cannot be the folder for files (--output): {there} is no folder.")
    if not is_notebook:
        code = _read(options.file)
        return _Work(settings, [policy.admit(settings, code, options.requirements, options.timeout)], target)
    file = NotebookFile(path)
    file.set_parameters(options.parameter)
    steps = file.steps()
    admitted = [
        policy.admit(
            settings, step.cells[0].code, (*step.requirements, *options.requirements), options.timeout,
            cells=() if step.fresh else step.cells,
        )
        for step in steps
    ]  # fmt: skip
    if not steps:
        raise Refused(f"{path} has no code to run.")
    return _NotebookWork(settings, admitted, target, file, steps)


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        # As Python reads it: a first line may name another encoding than UTF-8.
        coding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(coding)
    except (OSError, UnicodeDecodeError, SyntaxError) as problem:
        raise Refused(f"{file} cannot be read: {problem}") from problem


def _mount(session: Session, paths: list[str]) -> None:
    """Copy local files to where the code finds them as mounts/NAME, read-only."""
    for text in paths:
        path = Path(text)
        target = session.folder / "mounts" / path.name
        if target.exists():
            raise Refused(f"two files named {path.name} cannot both be mounted")
        try:
            shutil.copyfile(path, target)
            target.chmod(0o444)
            with target.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            session.mounted[path.name] = Mounted(path.absolute().as_uri(), target.stat().st_size, digest, None)
        except OSError as problem:
            raise Refused(f"{path} cannot be mounted: {problem}") from problem


def _save(session: Session, result: RunResult, output: str) -> dict[str, Path]:
    """Copy what the run left in output/ to the person's folder; workspace path → where it is now."""
    saved: dict[str, Path] = {}
    shown = [form.path for d in result.displays if not d.told for form in stored(d)]
    wanted = [path for path in shown if path] + [a.relative_path for a in result.artifacts]
    for relative in dict.fromkeys(wanted):
        target = Path(output).absolute().joinpath(*checked_parts(relative)[1:])
        try:
            source = open_file(session, relative)
        except Refused:
            continue  # gone or exchanged since it was listed
        with os.fdopen(source, "rb") as reader:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as writer:
                    shutil.copyfileobj(reader, writer, 1 << 20)
            except OSError as problem:
                print(f"prims: {target} cannot be written: {problem.strerror}", file=sys.stderr)
                continue
        saved[relative] = target
    return saved


class _Terminal:
    """Prints a run as it goes: the code's own streams stay what they are, ours go to stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._closed = False
        self._line_open = False
        self.on_closed: Callable[[], None] = lambda: None

    def emit(self, event: Event) -> None:
        if self._quiet:
            return
        match event:
            case TextEvent(stream, text):
                self.say(text, sys.stdout if stream == "stdout" else sys.stderr)
            case DisplayEvent(text):
                self.say(text + "\n")
            case PhaseEvent(_, detail) if detail:
                self.say(f"prims: {detail} ...\n", sys.stderr)
            case _:
                pass

    def say(self, text: str, file: TextIO | None = None) -> None:
        """Write at once. Nobody reading any more (`prims run ... | head`) ends the run, not this program."""
        file = file or sys.stdout
        if self._closed or not text:
            return
        try:
            # Characters that this terminal does not know must not end the run.
            file.write(text.encode(file.encoding, "replace").decode(file.encoding))
            file.flush()
            self._line_open = not text.endswith("\n")
        except BrokenPipeError:
            self._closed = True
            # What is still buffered would fail again when the interpreter flushes it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            self.on_closed()

    def conclude(self, result: RunResult, saved: dict[str, Path]) -> None:
        """What is told at the end: the error, where pictures and files are, hints, and one line of ours."""
        if self._line_open and sys.stdout.isatty():
            self.say("\n", sys.stderr)
        lines = []
        if result.error is not None:
            error = result.error
            text = error.traceback
            if result.status != "error" or error.name not in text:
                text = f"{text}\n{error.name}: {error.value}".strip("\n")
            lines.append(text)
        pictures = {d.path for d in result.displays if d.path}
        for display in result.displays:
            if display.path in saved:
                size = f" ({display.width}x{display.height})" if display.width else ""
                kind = "picture:" if display.mime.startswith("image/") else "shown:  "
                lines.append(f"{kind} {saved[display.path]}{size}")
        for artifact in result.artifacts:
            if artifact.relative_path in saved and artifact.relative_path not in pictures:
                lines.append(f"file:    {saved[artifact.relative_path]} ({count_bytes(artifact.size)})")
        lines += [f"hint:    {hint}" for hint in result.feedback]
        took = sum(result.seconds.values())
        lines.append(f"prims: {result.status} in {took:.1f} s, isolation {result.isolation}")
        self.say("\n".join(lines) + "\n", sys.stderr)
