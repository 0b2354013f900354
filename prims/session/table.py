"""Key → session: who may use which workspace, the queue before the machine, and the end of both."""

from __future__ import annotations

import logging
import os
import secrets
import time
import unicodedata
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from prims.config import Settings
from prims.engine.base import Engine
from prims.errors import Busy, NoSuchFile, PrimsError, Refused, ShuttingDown, UnknownSession
from prims.feedback import Surroundings, advice, defined_in, lost_file, wants_files
from prims.model import Display, Emit, Form, Output, PhaseEvent, RunRequest, RunResult, SandboxSpec, Text, binary
from prims.session.history import History, past_run
from prims.session.notebook import export
from prims.session.workspace import adopt, changes, checked_parts, list_folder, open_beneath, snapshot, written_beside
from prims.stopping import Stop
from prims.tasks import after_reply, alongside
from prims.trees import MOST_COUNTED, Usage, remove_large_tree, remove_tree, usage

if TYPE_CHECKING:
    from prims.kernel.looking import Look

_log = logging.getLogger(__name__)
Shown = TypeVar("Shown", Display, Form)

_MOST_ARTIFACTS = 100
_MOST_NAMES = 5000
_CLOSE_SECONDS = 1.5
_QUOTA_SECONDS = 1.0
_FEW_FILES, _FEW_SPOOLED = 50, 4
# What one run's outputs for the notebook may take of the server's memory.
_RECORD_BYTES = 8 << 20
_EXPORTS_AT_ONCE = 2
_UNLIMITED_BYTES = 1 << 40


class Run:
    """One run of a session. It belongs to the session: whoever asked for it may wait, stop it, or leave it."""

    def __init__(self, request: RunRequest, emit: Emit, asked: float) -> None:
        self.asked = asked
        self.request = request
        self.emit = emit
        self.stop = Stop()
        self._done = anyio.Event()
        self._result: RunResult | None = None
        self._problem: PrimsError | None = None

    async def wait(self) -> RunResult:
        """The result. Waiting may be cancelled; the run goes on.

        Raises:
            PrimsError: what kept the run from giving a result.
        """
        await self._done.wait()
        if self._problem is not None:
            raise self._problem
        assert self._result is not None
        return self._result

    def _finish(self, result: RunResult | None, problem: PrimsError | None = None) -> None:
        self._result, self._problem = result, problem
        self._done.set()


@dataclass(frozen=True, slots=True)
class Mounted:
    """A file that was put into mounts/: where it came from, and what it was."""

    url: str
    bytes: int
    sha256: str
    mime: str | None


class Session:
    """A workspace and its runs. `id` is a secret of the client it was made for.

    `principal` is who may use it, when clients have names. A `lasting` session ends with the server only.
    """

    def __init__(
        self, id: str, folder: Path, uid: int | None, principal: str | None, history: History, *, lasting: bool
    ) -> None:
        self.id = id
        self.folder = folder
        self.uid = uid
        self.principal = principal
        self.lasting = lasting
        self.history = history
        self.used = time.monotonic()
        self.mounting = anyio.Lock()
        self.mounted: dict[str, Mounted] = {}
        self.runs: set[Run] = set()
        self.made: set[str] = set()
        self.names: dict[str, int] = {}
        self.beside: set[str] = set()  # files of which was told that they are not returned
        self._numbers = 0

    def remember(self, number: int, code: str) -> None:
        """Note which names this run has defined: another that wants them is told that they are gone."""
        if len(self.names) < _MOST_NAMES:
            self.names |= dict.fromkeys(defined_in(code), number)

    @property
    def files(self) -> Path:
        """The working directory of the session's code."""
        return self.folder / "files"

    @property
    def mounts(self) -> Path:
        """The inputs, read-only for the code."""
        return self.folder / "mounts"

    def next_number(self) -> int:
        """A number for the next run, for people: 1, 2, …"""
        self._numbers += 1
        return self._numbers


def locate(session: Session, relative: str) -> tuple[Path, list[str], str]:
    """Where a path of a reader's lies: the folder to open it beneath, the parts below that, and its full name.

    Raises:
        Refused: it is not a path inside the workspace.
    """
    parts = checked_parts(relative)
    root, inside = (session.mounts, parts[1:]) if parts[0] == "mounts" else (session.files, parts)
    if not relative.isascii():
        # A name may be spelled in two ways that look alike: letters with their accents, or both apart.
        spellings = (inside, *([unicodedata.normalize(form, p) for p in inside] for form in ("NFC", "NFD")))
        inside = next((s for s in spellings if os.path.lexists(root.joinpath(*s))), inside)
    return root, inside, "/".join([*parts[: len(parts) - len(inside)], *inside])


def open_file(session: Session, relative: str) -> int:
    """A descriptor of a regular file of the workspace; the caller closes it.

    Raises:
        Refused: there is no such plain file.
    """
    root, parts, name = locate(session, relative)
    try:
        return open_beneath(root, parts, name)
    except NoSuchFile as problem:
        raise NoSuchFile(f"{problem} {lost_file(relative, _names_of_files(session))}") from None


class SessionTable:
    """All sessions of this server. Use as `async with`; leaving ends every run and removes every folder.

    Args:
        state: this server's own folder, removed by its owner.
    """

    def __init__(self, settings: Settings, engine: Engine, state: Path) -> None:
        self._settings = settings
        self._engine = engine
        self._state = state
        self._sessions: dict[str, Session] = {}
        self._turns = anyio.Semaphore(settings.concurrent_runs)
        self._exports = anyio.Semaphore(_EXPORTS_AT_ONCE)
        self._waiting = 0
        self._closing = False
        self._opening = 0
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None
        self._names = 0
        self._spools: list[Path] = []  # empty ones, for the next runs

    async def __aenter__(self) -> SessionTable:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        self._group.start_soon(self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            self.stop_runs()
            await _ended([run for session in self._sessions.values() for run in session.runs], _CLOSE_SECONDS)
        # Outside of that scope: a task group is left in the reverse order of how scopes were entered.
        assert self._group is not None
        self._group.cancel_scope.cancel()
        await self._stack.aclose()
        with anyio.CancelScope(shield=True):
            for session in list(self._sessions.values()):
                await self._remove(session)

    async def create(self, principal: str | None = None, *, lasting: bool = False) -> Session:
        """A new session with an empty workspace and an unguessable id.

        Raises:
            Busy: there are as many as the operator allows.
        """
        if self._closing:
            raise ShuttingDown("The server is shutting down.")
        if len(self._sessions) + self._opening >= self._settings.sessions:
            raise Busy(
                f"This server has its {self._settings.sessions} sessions, all in use within the last "
                f"{self._settings.session_idle_seconds / 60:g} minutes. Use the session_id of one, or try again later."
            )
        self._names += 1
        folder = self._state / f"w{self._names}"
        self._opening += 1
        try:
            uid = await self._engine.open_session(folder)
        finally:
            self._opening -= 1
        history = History(folder / "history", self._settings.notebook_bytes)
        session = Session("s_" + secrets.token_hex(16), folder, uid, principal, history, lasting=lasting)
        self._sessions[session.id] = session
        return session

    def get(self, id: str, principal: str | None = None) -> Session:
        """The session of that id, if it is this principal's.

        Raises:
            UnknownSession: there is none, or no longer, or it is somebody else's: which of these is not told.
        """
        session = self._sessions.get(id)
        if session is None or session.principal != principal:
            raise UnknownSession(
                "This session_id is unknown here, or its session has ended and its files are gone. "
                "Leave session_id out to go on in a valid session."
            )
        session.used = time.monotonic()
        return session

    def stop_runs(self) -> None:
        """Take no new runs, and ask those under way to end because the server does."""
        self._closing = True
        for session in self._sessions.values():
            for run in session.runs:
                run.stop.set("shutdown")

    async def look(self, session: Session, root: Path, relative: str, want: str, offset: int, limit: int) -> Look:
        """What a file of the workspace is, found out in a confined process; see `prims.kernel.looking.look`."""
        session.used = time.monotonic()
        return await self._engine.look(session.uid, root, relative, want, offset, limit)

    async def export(self, session: Session, suffix: str) -> bytes:
        """The session as a notebook, or another of `prims.session.notebook.FORMS`.

        Raises:
            Refused: it cannot be made a page.
        """
        async with self._exports:
            return await anyio.to_thread.run_sync(export, session, self._settings.default_packages, suffix)

    async def end(self, session: Session) -> None:
        """End a session: its runs are stopped, its files removed. May be called again."""
        if self._sessions.pop(session.id, None) is None:
            return
        for run in session.runs:
            run.stop.set("shutdown")
        with anyio.CancelScope(shield=True):
            await _ended(list(session.runs), _CLOSE_SECONDS * 2)
            await self._remove(session)

    async def _expire(self) -> None:
        """End sessions that nobody has used for the time that the operator gives them."""
        idle = self._settings.session_idle_seconds
        while True:
            await anyio.sleep(min(30.0, idle / 4))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if not session.lasting and not session.runs and now - session.used > idle:
                    await self.end(session)

    async def _remove(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        await self._engine.close_session(session.folder, session.uid)
        await anyio.to_thread.run_sync(session.history.close)
        await anyio.to_thread.run_sync(remove_large_tree, session.folder)

    def start(self, session: Session, request: RunRequest, emit: Emit, *, asked: float | None = None) -> Run:
        """Begin a run, now or when its turn comes. `asked` is the monotonic time since when its caller waits.

        Raises:
            Busy: as many calls are waiting as the operator allows.
            ShuttingDown: no new runs are taken.
        """
        if self._closing or self._group is None:
            raise ShuttingDown("The server is shutting down.")
        if self._turns.value == 0 and self._waiting >= self._settings.queued_runs:
            raise Busy(
                f"{self._settings.concurrent_runs} runs are under way and {self._waiting} more are waiting, "
                "which is all this server takes. Try again in a moment."
            )
        run = Run(request, emit, time.monotonic() if asked is None else asked)
        session.runs.add(run)
        self._group.start_soon(self._work, session, run)
        return run

    async def _work(self, session: Session, run: Run) -> None:
        try:
            run._finish(await self._turn(session, run))
        except PrimsError as problem:
            run._finish(None, problem)
        except Exception:
            # The outermost line of a run: a bug of ours must not take the other runs with it.
            _log.exception("a run failed inside PRIMS")
            run._finish(None, PrimsError("PRIMS failed while running this code; its log says how."))
        except BaseException:
            run._finish(None, ShuttingDown("The server was shut down while this call was running."))
            raise
        finally:
            session.runs.discard(run)
            session.used = time.monotonic()
        await after_reply()
        try:
            await anyio.to_thread.run_sync(session.history.write)
        except Exception:
            _log.exception("a run could not be kept for its session's notebook")

    async def _turn(self, session: Session, run: Run) -> RunResult:
        """Wait for a turn, then run."""
        if self._turns.value == 0:
            run.emit(PhaseEvent("queue", f"{self._waiting} ahead"))
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            queued = time.monotonic() - run.asked
            return await self._run(session, run, queued)
        finally:
            self._turns.release()

    async def _run(self, session: Session, run: Run, queued: float) -> RunResult:
        number, begun = session.next_number(), time.time()
        self._names += 1
        if self._spools:
            spool = self._spools.pop()
        else:
            spool = self._state / f"p{self._names}"
            spool.mkdir(mode=0o700)
        as_new = False
        try:
            before = await snapshot(session.files)
            spec = SandboxSpec(
                request=run.request,
                folder=session.folder,
                spool=spool,
                keep_chars=self._settings.reply_chars,
                pictures=self._settings.pictures,
                record_bytes=_record_bytes(self._settings, run.request),
                uid=session.uid,
            )
            watch = partial(self._watch_quota, session, run)
            ran = await alongside(lambda: self._engine.run(spec, run.emit, run.stop), watch)
            assert ran is not None
            few = sum(1 for _ in islice(spool.iterdir(), _FEW_SPOOLED)) < _FEW_SPOOLED
            if few:  # a thread's turn would take longer
                result, made = _move_in(session, number, spool, run.request, ran)
            else:
                result, made = await anyio.to_thread.run_sync(_move_in, session, number, spool, run.request, ran)
            # What was displayed may have been opened to the helper that draws it.
            as_new = few and not ran.displays and not any(spool.iterdir())
            after = await snapshot(session.files)
        finally:
            if as_new:
                self._spools.append(spool)
            else:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_tree, spool)
        # What other runs of the session were given meanwhile is theirs.
        files = [f for f in changes(before, after) if f.relative_path in made or f.relative_path not in session.made]
        feedback = list(result.feedback)
        if after.nameless > before.nameless:
            feedback.append(
                f"{after.nameless - before.nameless} new files in output/ have names with control or invalid "
                "characters, which cannot be told; rename them."
            )
        if not after.complete:
            feedback.append("output/ holds more files than are looked at; the list is not complete.")
        result = replace(
            result,
            artifacts=tuple(files[:_MOST_ARTIFACTS]),
            artifacts_left_out=max(0, len(files) - _MOST_ARTIFACTS),
            seconds={"queue": queued, **result.seconds},
        )
        names = await anyio.to_thread.run_sync(_names_of_files, session) if wants_files(result) else ()
        beside = [name for name in written_beside(session.files, begun) if name not in session.beside]
        if len(session.beside) < _MOST_NAMES:
            session.beside.update(beside)
        around = Surroundings(session.names, names, tuple(beside))
        result = replace(result, feedback=(*feedback, *advice(run.request, result, self._settings, around)))
        session.remember(number, run.request.code)
        return result

    async def _watch_quota(self, session: Session, run: Run) -> None:
        """Stop a run that fills its workspace past the operator's bound (or past what it found, if that was more)."""
        settings = self._settings
        most = Usage(settings.workspace_bytes or 0, settings.workspace_files or 0)
        first = usage(session.files, _FEW_FILES)
        if first.files >= _FEW_FILES:  # of few, a look takes less time than a thread's turn
            first = await anyio.to_thread.run_sync(usage, session.files)
        while True:
            await anyio.sleep(_QUOTA_SECONDS)
            now = await anyio.to_thread.run_sync(usage, session.files)
            if settings.workspace_bytes is not None and now.bytes > max(most.bytes, first.bytes):
                most_bytes = binary(settings.workspace_bytes)
                run.stop.set("disk", f"workspace limit {most_bytes} reached; it holds {binary(now.bytes)}")
            if settings.workspace_files is not None and now.files > max(most.files, first.files):
                holds = f"it holds {now.files} files and folders"
                if now.files >= MOST_COUNTED:
                    holds = "it holds more files, or deeper folders, than are counted"
                run.stop.set("files", f"workspace limit {settings.workspace_files} files reached; {holds}")


async def _ended(runs: list[Run], seconds: float) -> None:
    """Until these runs have ended, for so long at most."""
    with anyio.move_on_after(seconds):
        for run in runs:
            await run._done.wait()


def _record_bytes(settings: Settings, request: RunRequest) -> int:
    """How much of a run's outputs is kept for a notebook: of one of many runs a part, of a whole notebook all."""
    most = _UNLIMITED_BYTES if settings.notebook_bytes is None else settings.notebook_bytes
    return most if request.cells else min(_RECORD_BYTES, most)


def _names_of_files(session: Session) -> tuple[str, ...]:
    """Files of the workspace, from its root, two folders deep."""
    found: list[str] = []
    for root, shown in ((session.mounts, "mounts"), (session.files, "")):
        folders: list[list[str]] = [[]]
        while folders and len(found) < _MOST_NAMES:
            parts = folders.pop(0)
            with suppress(Refused):
                for entry in list_folder(root, parts, "/".join(filter(None, (shown, *parts))))[0]:
                    if entry.type == "file" and len(entry.path) < 200:
                        found.append(entry.path)
                    elif entry.type == "directory" and len(parts) < 2 and len(folders) < 50 and entry.name[0] != ".":
                        folders.append([*parts, entry.name])
    return tuple(found)


def _move_in(
    session: Session, number: int, spool: Path, request: RunRequest, result: RunResult
) -> tuple[RunResult, set[str]]:
    """Give the session what the engine spooled: its place in output/ becomes the path that readers are told.

    Also gives the paths of what was moved. The run is part of the session's history now.
    """
    ended = time.time()
    moved: dict[str, str | None] = {}

    def place(path: str | None, hidden: bool = False) -> str | None:
        if path is None:
            return None
        if path not in moved:
            moved[path] = adopt(session.files, spool / path, f"run{number}-{path}", session.uid, hidden=hidden)
        return moved[path]

    def text(value: Text) -> Text:
        return replace(value, path=place(value.path))

    def form(value: Shown, hidden: bool) -> Shown:
        path = place(value.path, hidden)
        return replace(value, path=path, name=path.rsplit("/", 1)[-1] if path else value.name)

    def output(value: Output) -> Output:
        return replace(value, path=place(value.path), text=value.text and text(value.text))

    displays = [
        replace(form(d, d.told), alternatives=tuple(form(other, d.told) for other in d.alternatives))
        for d in result.displays
    ]
    result = replace(
        result,
        stdout=text(result.stdout),
        story=text(result.story),
        stderr=text(result.stderr),
        result=text(result.result),
        displays=tuple(displays),
        cells=tuple(replace(cell, outputs=tuple(map(output, cell.outputs))) for cell in result.cells),
    )
    made = {path for path in moved.values() if path}
    session.made |= made
    session.history.add(past_run(number, request, result, ended))
    return result, made
