"""`prims run`: a file through the same path as a client's call, for a person at a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from prims import policy
from prims.config import Settings
from prims.engine.local import LocalEngine
from prims.errors import Refused
from prims.isolation.probe import protect_server
from prims.model import DisplayEvent, Event, PhaseEvent, RunResult, TextEvent
from prims.server.render import render
from prims.session.state import state_folder, sweep
from prims.session.table import Session, SessionTable
from prims.session.workspace import checked_parts, open_beneath

_EXIT = {"ok": 0, "error": 1, "timeout": 124, "cancelled": 130}


def run_file(settings: Settings, options: argparse.Namespace) -> int:
    """Run `options.file`; gives the exit status: 0 ok, 1 error, 124 timeout, 130 interrupted, 70 anything else."""
    protect_server()
    return anyio.run(_run, settings, options)


async def _run(settings: Settings, options: argparse.Namespace) -> int:
    try:
        code = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8-sig")  # noqa: ASYNC240
    except (OSError, UnicodeDecodeError) as problem:
        raise Refused(f"{options.file} cannot be read: {problem}") from problem
    admitted = policy.admit(settings, code, options.requirements, options.timeout)
    terminal = _Terminal(quiet=options.json)
    await anyio.to_thread.run_sync(sweep, settings.state_dir)
    with state_folder(settings.state_dir) as state:
        async with (
            LocalEngine(settings, state) as engine,
            SessionTable(settings, engine, state, engine.make_session_folder) as table,
        ):
            session = await table.create()
            await anyio.to_thread.run_sync(_mount, session, options.mount)
            run = table.start(session, admitted.request, terminal.emit)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, run.stop.set, "cancelled")
            result = await run.wait()
            output = Path(options.output)
            saved = await anyio.to_thread.run_sync(_save, session, result, output)
            if options.json:
                print(json.dumps(render(result, session.id, settings).structured, ensure_ascii=False, indent=2))
            else:
                terminal.conclude(result, saved)
    return _EXIT.get(result.status, 70)


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
        except OSError as problem:
            raise Refused(f"{path} cannot be mounted: {problem}") from problem


def _save(session: Session, result: RunResult, output: Path) -> dict[str, Path]:
    """Copy what the run left in output/ to the person's folder; workspace path → where it is now."""
    saved: dict[str, Path] = {}
    wanted = [d.path for d in result.displays if d.path] + [a.relative_path for a in result.artifacts]
    for relative in dict.fromkeys(wanted):
        target = output.joinpath(*checked_parts(relative)[1:])
        try:
            source = open_beneath(session.files, relative)
        except Refused:
            continue  # gone or exchanged since it was listed
        with os.fdopen(source, "rb") as reader:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
        saved[relative] = target
    return saved


class _Terminal:
    """Prints a run as it goes: the code's own streams stay what they are, ours go to stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def emit(self, event: Event) -> None:
        if self._quiet:
            return
        match event:
            case TextEvent(stream, text):
                file = sys.stdout if stream == "stdout" else sys.stderr
                print(text, end="", file=file, flush=True)
            case DisplayEvent(text):
                print(text, flush=True)
            case PhaseEvent(_, detail) if detail:
                print(f"prims: {detail} ...", file=sys.stderr, flush=True)
            case _:
                pass

    def conclude(self, result: RunResult, saved: dict[str, Path]) -> None:
        if result.result:
            print(result.result.head, flush=True)
        if result.error is not None:
            error = result.error
            text = error.traceback
            if result.status != "error" or error.name not in text:
                text = f"{text}\n{error.name}: {error.value}".strip("\n")
            print(text, file=sys.stderr, flush=True)
        pictures = {d.path for d in result.displays if d.path}
        for display in result.displays:
            if display.path in saved:
                size = f" ({display.width}x{display.height})" if display.width else ""
                print(f"picture: {saved[display.path]}{size}", file=sys.stderr)
        for artifact in result.artifacts:
            if artifact.relative_path in saved and artifact.relative_path not in pictures:
                print(f"file:    {saved[artifact.relative_path]} ({artifact.size:,} bytes)", file=sys.stderr)
        for hint in result.feedback:
            print(f"hint:    {hint}", file=sys.stderr)
        took = sum(result.seconds.values())
        print(f"prims: {result.status} in {took:.1f} s, isolation {result.isolation}", file=sys.stderr, flush=True)
