"""The parts behind the tools, brought up in the background so that the first reply never waits for them."""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.to_thread

from prims.config import Settings
from prims.errors import PrimsError, ShuttingDown
from prims.session.table import Session, SessionTable
from prims.state import state_folder, sweep

_log = logging.getLogger(__name__)

# How long the preparation waits for a first request to be answered before it begins by itself.
_FIRST_REPLY_SECONDS = 2.0
_GONE_SECONDS = 1.0
PRINCIPAL = "prims.principal"
_SESSION_KEY = "prims.session"


class Host:
    """One server's sessions and engine. Everything slow happens after the first reply, or when it is needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._answered = anyio.Event()
        self._up = anyio.Event()
        self._closing = anyio.Event()
        self._calls = 0
        self._no_calls = anyio.Event()
        self._down = anyio.Event()
        self._table: SessionTable | None = None
        self._problem: PrimsError | None = None
        self._default: Session | None = None
        self._making = anyio.Lock()

    @staticmethod
    def principal(request: Any) -> str | None:
        """Who sent a request, as the HTTP face has found out; None on stdio and where nobody is asked."""
        found = None if request is None else request.scope.get(PRINCIPAL)
        return found if isinstance(found, str) else None

    @staticmethod
    async def until_gone(request: Any) -> None:
        """Until the client of an HTTP request has hung up; for ever on stdio."""
        if request is None:
            await anyio.sleep_forever()
        while not await request.is_disconnected():  # noqa: ASYNC110  (there is nothing else to wait for)
            await anyio.sleep(_GONE_SECONDS)

    async def transport_session(self, connection: Any, principal: str | None) -> Session:
        """The session of a stateful HTTP connection: it ends with the connection (DELETE, idle time, shutdown)."""
        table = await self.table()
        async with self._making:
            known = connection.state.get(_SESSION_KEY)
            if known is None:
                session = await table.create(principal, lasting=True)
                connection.state[_SESSION_KEY] = session.id
                connection.exit_stack.push_async_callback(table.end, session)
                return session
        return table.get(known, principal)

    def stop_runs(self) -> None:
        """Ask every run to end because the server does."""
        if self._table is not None:
            self._table.stop_runs()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call while it is under way."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._no_calls.set()
                self._no_calls = anyio.Event()

    async def until_no_calls(self) -> None:
        """Until no call is under way."""
        if self._calls:
            await self._no_calls.wait()

    def answered(self) -> None:
        """The first request has been answered: what is slow may begin."""
        self._answered.set()

    async def table(self) -> SessionTable:
        """The sessions, as soon as they are there.

        Raises:
            PrimsError: they cannot be had; the message says why.
        """
        self._answered.set()
        await self._up.wait()
        if self._problem is not None:
            raise self._problem
        if self._table is None:
            raise ShuttingDown("The server is shutting down.")
        return self._table

    async def process_session(self) -> Session:
        """The session of this process: the default of a client that has the server to itself."""
        table = await self.table()
        async with self._making:
            if self._default is None:
                self._default = await table.create(lasting=True)
            return self._default

    async def live(self) -> None:
        """Bring everything up, keep it until `close`, take it down; in one task, as what it opens must be."""
        # A cancelled server still takes everything down in order; `close` says when.
        with anyio.CancelScope(shield=True):
            await self._live()

    async def _live(self) -> None:
        with anyio.move_on_after(_FIRST_REPLY_SECONDS):
            await self._answered.wait()
        gc.freeze()
        gc.enable()
        try:
            # The imports are most of a second, and would hold up the first reply.
            local = await anyio.to_thread.run_sync(importlib.import_module, "prims.engine.local")
            await anyio.to_thread.run_sync(sweep, self.settings.state_dir)
            with state_folder(self.settings.state_dir) as state:
                async with (
                    local.LocalEngine(self.settings, state) as engine,
                    SessionTable(self.settings, engine, state) as table,
                ):
                    self._table = table
                    self._up.set()
                    await self._until_closed(engine.prepare)
                    self._table = None
        except PrimsError as problem:
            self._problem = problem
        except Exception:
            # Each call is told, where one that waits for ever would tell nothing.
            _log.exception("the server could not be brought up")
            self._problem = PrimsError("PRIMS could not be brought up on this machine; its log says how.")
        finally:
            self._up.set()
            self._down.set()

    async def _until_closed(self, prepare: Callable[[], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._prepare, prepare)
            await self._closing.wait()
            group.cancel_scope.cancel()

    async def _prepare(self, prepare: Callable[[], Awaitable[None]]) -> None:
        try:
            if self.settings.transport == "stdio":
                await self.process_session()
            await prepare()
            gc.freeze()  # what has been loaded stays: no collection need look at it again, for tens of milliseconds
        except PrimsError as problem:
            # Each call says it too, and may find that it has been mended.
            _log.warning("%s", problem)

    async def close(self) -> None:
        """End every run, remove every folder."""
        self._closing.set()
        self._answered.set()
        await self._down.wait()


@asynccontextmanager
async def running_host(settings: Settings) -> AsyncIterator[Host]:
    """A host whose parts come up in the background; leaving ends every run and removes every folder."""
    host = Host(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(host.live)
        try:
            yield host
        finally:
            with anyio.CancelScope(shield=True):
                await host.close()
