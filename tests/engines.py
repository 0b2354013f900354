"""An engine in this process, with one session. Imports nothing of the test framework: servers of others use it too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from prims import config
from prims.engine.local import LocalEngine, _Key
from prims.kernel.forkserver import ForkServer
from prims.model import RunRequest, RunResult, SandboxSpec
from prims.stopping import Stop

IS_FORKED = "__import__('gc').get_freeze_count() > 0"
"""Code that says of a run whether its kernel was forked: the parent has frozen what it had."""


@dataclass(frozen=True, slots=True)
class Session:
    """An engine in this process and one session of it."""

    engine: LocalEngine
    settings: config.Settings
    folder: Path
    uid: int | None

    @property
    def key(self) -> _Key:
        return _Key(self.folder, self.uid)

    async def run(self, code: str) -> RunResult:
        spool = tempfile.mkdtemp(dir=self.folder.parent)
        try:
            request = RunRequest(code, limits=self.settings.limits())
            spec = SandboxSpec(request, self.folder, Path(spool), 1000, 1000, uid=self.uid)
            return await self.engine.run(spec, lambda event: None, Stop())
        finally:
            os.rmdir(spool)

    async def until_forked(self) -> ForkServer:
        with anyio.fail_after(90):
            while "True" not in (await self.run(f"print({IS_FORKED})")).stdout.head:
                pass
        parent = self.engine._parents.get(self.key)
        assert parent is not None
        return parent


@asynccontextmanager
async def engine_of_one_session(**settings: str) -> AsyncIterator[Session]:
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        chosen = config.load({"default_packages": "", "spare_kernels": "0", **settings})
        async with LocalEngine(chosen, Path(folder)) as engine:
            session = Path(folder) / "w1"
            uid = await engine.open_session(session)
            yield Session(engine, chosen, session, uid)
            await engine.close_session(session, uid)
            assert engine._parents.get(_Key(session, uid)) is None
            assert os.listdir(folder) == ["w1"]
