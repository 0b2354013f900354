"""What a run can import: layers of packages, resolved with the kernel's own needs, made once and kept.

A layer is an immutable directory; the throw-away venv of a run gets a few of them on its path
(`prims.kernel.venv`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from anyio import to_thread

from prims.config import Settings
from prims.errors import ConfigError, InstallError, Refused
from prims.isolation.walls import base_python
from prims.kernel.builds import Builds, Tell
from prims.kernel.layers import Resolution, Scratch, Store, put_stand_ins, remove_stand_ins
from prims.kernel.uv import Installer, Pins, Uv, index_settings
from prims.kernel.venv import prewarm
from prims.requirements import name_of, parse

if TYPE_CHECKING:
    from prims.kernel.sdists import SourceBuilder

KERNEL = "ipykernel>=7,<8"

# After the index could not be reached, how long uv's cache is asked first.
_AWAY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages of a run: picklable, valid as long as the layers exist."""

    layers: tuple[Path, ...]  # immutable directories, in sys.path order
    packages: tuple[str, ...]  # "name==version" of all that the layers hold, sorted
    kernel_moved: bool = False  # the call's pins replaced packages of the kernel layer
    notes: tuple[str, ...] = ()  # plain hints for the caller


@dataclass(frozen=True, slots=True)
class Base:
    """What every run starts from: the pins of the kernel layer, and of the default layer beside it."""

    kernel: tuple[str, ...]
    default: tuple[str, ...]
    hashes: Pins = field(default_factory=dict)

    @property
    def pins(self) -> tuple[str, ...]:
        """Both, sorted."""
        return tuple(sorted((*self.kernel, *self.default)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Which layers serve a resolution, each as its pins, in sys.path order; empty ones are left out."""

    layers: tuple[tuple[str, ...], ...]
    kernel_moved: bool


def plan(base: Base, pins: Sequence[str]) -> Plan:
    """Use each base layer whose pins all still hold; the rest goes into a layer of the call's own."""
    wanted = set(pins)
    kernel_holds = wanted.issuperset(base.kernel)
    default_holds = wanted.issuperset(base.default)
    shared = (base.default if default_holds else (), base.kernel if kernel_holds else ())
    own = tuple(sorted(wanted.difference(*shared)))
    return Plan(tuple(layer for layer in (own, *shared) if layer), not kernel_holds)


class Environments:
    """Environments for runs: single flight, remembered on disk, built in tasks that this object owns.

    Use it as `async with`; leaving ends what is being built. Safe for any number of tasks of one event
    loop, and of processes that share `settings.cache_dir`.
    """

    def __init__(
        self,
        settings: Settings,
        tool_env: Mapping[str, str],
        *,
        installer: Installer | None = None,
        builder: SourceBuilder | None = None,
    ) -> None:
        try:
            self._default = parse(settings.default_packages).requirements
        except Refused as e:
            raise ConfigError(f"default_packages: {e}") from e
        # The base interpreter, never a venv's: sandboxes see its files, and user code cannot change them.
        self.python = base_python().executable
        self._seconds = settings.install_seconds
        self._cache = settings.cache_dir
        self._env = dict(tool_env)
        self._uv: Installer = installer or Uv(settings.cache_dir, self.python, self._env)
        self._builder = builder
        self._store: Store | None = None
        self._base: Base | None = None
        self._builds: Builds[Environment] = Builds()
        self._away_until = -math.inf
        self._completed: set[Path] = set()  # layers of calls that were seen to, behind their first use

    async def __aenter__(self) -> Self:
        await self._builds.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._builds.__aexit__(kind, value, trace)

    @property
    def app_data(self) -> Path:
        """Where virtualenv keeps what it knows about interpreters; give it to `create_venv`."""
        return self._cache / "virtualenv"

    async def base(self, tell: Tell = lambda text: None) -> Environment:
        """The kernel layer and the default layer: made on first use, then remembered, made again if lost.

        `tell` gets short texts for people. A cancelled or late caller does not stop the work, which ends by
        itself within `install_seconds`.

        Raises:
            InstallError: the packages could not be had within `install_seconds`; the next call tries again.
            ShuttingDown: this object is being closed.
        """
        return (await self._base_now(tell))[1]

    async def for_requirements(self, requirements: tuple[str, ...], tell: Tell = lambda text: None) -> Environment:
        """The base and what `requirements` (as `prims.requirements.parse` gives them) need, within
        `install_seconds`.

        Calls for the same requirements share the work; when the last of them is cancelled, it ends.

        Raises:
            InstallError: `reason` says of which kind; nothing half-made is left behind.
            ShuttingDown: this object is being closed.
        """
        started = time.monotonic()
        base, environment = await self._base_now(tell)
        if not requirements:
            return environment
        left = max(0.1, self._seconds - (time.monotonic() - started))
        make = partial(self._make_call, base, requirements)
        try:
            return await self._builds.shared(("call", *base.pins, *requirements), make, tell, left)
        except TimeoutError:
            raise self._late() from None

    # -------------------------------------------------------------------------------------- the base

    async def _base_now(self, tell: Tell) -> tuple[Base, Environment]:
        self._builds.check_open()
        if self._base is not None:
            base, store = self._base, await self._opened()
            pins = plan(base, base.pins).layers
            layers = [store.present(pin) for pin in pins]  # two calls of stat: a thread's turn takes longer
            if all(layers):
                return base, Environment(tuple(p for p in layers if p), base.pins)
        try:
            environment = await self._builds.shared(("base",), self._make_base, tell, self._seconds, keep=True)
        except TimeoutError:
            raise self._late() from None
        assert self._base is not None  # set by the build that has just succeeded
        return self._base, environment

    async def _make_base(self, tell: Tell) -> Environment:
        with anyio.fail_after(self._seconds):
            with _disk(self._cache):
                await to_thread.run_sync(prewarm, self.python, self.app_data)
            question = ("base", KERNEL, *self._default)
            found = await self._resolved(question, self._resolve_base, tell)
            hashes = {pin: found.hashes.get(pin, ()) for pin in found.pins}
            base = Base(found.kernel, tuple(p for p in found.pins if p not in found.kernel), hashes)
            environment = await self._built(base, found, tell)
            for layer in environment.layers:
                await self._compile(layer)
        self._base = base
        return environment

    async def _resolve_base(self, offline: bool, patient: bool) -> Resolution:
        """One resolution for all, so that the layers agree; then the part of it that the kernel needs."""
        async with self._scratch() as scratch:
            resolve = partial(self._uv.resolve, scratch=scratch.path, offline=offline, patient=patient)
            pins = await resolve((KERNEL, *self._default))
            kernel = await resolve((KERNEL,), constraints=tuple(pins)) if self._default else pins
        return Resolution(tuple(pins), kernel=tuple(kernel), hashes=pins)

    # ------------------------------------------------------------------------------------- the calls

    async def _make_call(self, base: Base, requirements: tuple[str, ...], tell: Tell) -> Environment:
        question = ("call", KERNEL, *self._default, "--", *requirements, "--", *base.pins)
        try:
            found = await self._resolved(question, partial(self._resolve_call, base, requirements, tell), tell)
        except InstallError as problem:
            if problem.reason != "no-wheel" or self._builder is None:
                raise
            return await self._from_source(self._builder, base, requirements, tell)
        environment = await self._built(base, found, tell)
        self._complete(base, question, found, environment.layers)
        return environment

    async def _from_source(
        self, builder: SourceBuilder, base: Base, requirements: tuple[str, ...], tell: Tell
    ) -> Environment:
        """The call's environment with packages that have to be built. No call without such has its layer."""
        store = await self._opened()
        question = ("built", KERNEL, *self._default, "--", *requirements, "--", *base.pins)
        known = await to_thread.run_sync(store.recall, question)
        if known and known.fresh:
            layers = [_own(pins, base) for pins in plan(base, known.resolution.pins).layers]
            present = [await to_thread.run_sync(store.present, pins) for pins in layers]
            if all(present):
                return _environment(base, known.resolution, tuple(p for p in present if p))
        tell("building packages from source")
        async with builder.room() as room:
            pins = await room.resolve((*requirements, KERNEL, *self._default), base.pins)
            found = Resolution(tuple(pins), hashes=pins)
            made: list[Path] = []
            for wanted in plan(base, found.pins).layers:
                if wanted in (base.kernel, base.default):
                    made.append(await self._layer({p: pins[p] for p in wanted}, tell))
                    continue
                async with self._scratch() as scratch:
                    target = scratch.path / "layer"
                    await room.install({p: pins[p] for p in wanted}, target)
                    own = dict.fromkeys(_own(wanted, base), ()) | {p: pins[p] for p in wanted}
                    made.append(await to_thread.run_sync(store.adopt, target, own, scratch, self.python))
        with _disk(self._cache):
            await to_thread.run_sync(store.remember, question, found)
        self._complete(base, question, found, made)
        return _environment(base, found, tuple(made))

    async def _resolve_call(
        self, base: Base, requirements: tuple[str, ...], tell: Tell, offline: bool, patient: bool
    ) -> Resolution:
        """What serves `requirements`, beside the base where that can be; then it is installed too.

        Else everything is resolved together. Default packages that contradict the call give way: uv's proof names them.
        """
        store = await self._opened()
        kept = self._default
        async with self._scratch() as scratch:
            # All that the base needs is in the base: where its pins can be kept, what comes to them is the answer.
            tell(_installing(requirements))
            target = scratch.path / "layer"
            there = [store.layer(pins) for pins in plan(base, base.pins).layers]
            stand_ins = await to_thread.run_sync(put_stand_ins, there, target)
            try:
                added = await self._uv.add(requirements, target, scratch.path, offline=offline, patient=patient)
            except InstallError as e:
                if e.reason not in ("conflict", "no-wheel"):
                    raise
                added = None
            names = {name_of(pin) for pin in base.pins}
            if added is not None and names.isdisjoint(map(name_of, added)):
                if added:
                    await to_thread.run_sync(remove_stand_ins, stand_ins)
                    await to_thread.run_sync(store.adopt, target, dict.fromkeys(added, ()), scratch, self.python)
                    self._completed.discard(store.layer(added))
                return Resolution(tuple(sorted({*base.pins, *added})), hashes=base.hashes)
            tell("resolving packages")
            while True:
                try:
                    pins = await self._uv.resolve(
                        (*requirements, KERNEL, *kept), scratch.path, prefer=base.pins,
                        offline=offline, patient=patient,
                    )  # fmt: skip
                except InstallError as e:
                    blamed = _named(kept, e.log) if e.reason in ("conflict", "no-wheel") else ()
                    if not blamed:
                        raise
                    kept = tuple(p for p in kept if p not in blamed)
                else:
                    # One that came back as a dependency of something else is not left out.
                    here = {name_of(pin) for pin in pins}
                    out = tuple(p for p in self._default if p not in kept and name_of(p) not in here)
                    return Resolution(tuple(pins), left_out=out, hashes=pins)

    # --------------------------------------------------------------------------------- shared pieces

    async def _resolved(
        self, question: tuple[str, ...], ask: Callable[[bool, bool], Awaitable[Resolution]], tell: Tell
    ) -> Resolution:
        """The remembered answer while it is fresh, else the index's, else an older one, else uv's cache's."""
        store = await self._opened()
        known = await to_thread.run_sync(store.recall, question)
        away = time.monotonic() < self._away_until
        if known and (known.fresh or away):
            return known.resolution
        tell("resolving packages")
        if away:
            try:
                return await ask(True, False)
            except InstallError:
                pass  # the index may be back by now
        try:
            found = await ask(False, known is None)
        except InstallError as e:
            if e.reason != "network":
                raise
            self._away_until = time.monotonic() + _AWAY_SECONDS
            if known:
                return known.resolution
            try:
                return await ask(True, False)
            except InstallError:
                raise e from None
        with _disk(self._cache):
            await to_thread.run_sync(store.remember, question, found)
        return found

    async def _built(self, base: Base, found: Resolution, tell: Tell) -> Environment:
        wanted = plan(base, found.pins)
        layers = tuple([await self._layer({p: found.hashes.get(p, ()) for p in pins}, tell) for pins in wanted.layers])
        return _environment(base, found, layers)

    async def _layer(self, pins: Pins, tell: Tell) -> Path:
        """The layer of `pins`, made now if need be."""
        store = await self._opened()
        if present := await to_thread.run_sync(store.present, tuple(pins)):
            return present
        tell(_installing([name_of(pin) for pin in pins]))
        async with self._scratch() as scratch:
            target = scratch.path / "layer"
            await self._uv.install(pins, target, scratch.path)
            self._completed.discard(store.layer(tuple(pins)))
            return await to_thread.run_sync(store.adopt, target, pins, scratch, self.python)

    def _complete(self, base: Base, question: tuple[str, ...], found: Resolution, layers: Sequence[Path]) -> None:
        """Behind the call: hashes that are not known yet, and bytecode. The first run compiles what it imports."""
        new = [layer for layer in layers if layer not in self._completed]
        if new:
            self._completed.update(new)
            self._builds.behind(partial(self._complete_now, base, question, found, new))

    async def _complete_now(
        self, base: Base, question: tuple[str, ...], found: Resolution, layers: Sequence[Path]
    ) -> None:
        store = await self._opened()
        with suppress(InstallError):
            own = plan(base, found.pins).layers[0]
            if unknown := [pin for pin in own if not found.hashes.get(pin)]:
                async with self._scratch() as scratch:
                    hashes = {**found.hashes, **await self._uv.hashes(unknown, scratch.path)}
                    await to_thread.run_sync(store.remember, question, replace(found, hashes=hashes))
                    kept = {pin: hashes.get(pin, ()) for pin in own}
                    await to_thread.run_sync(store.keep_hashes, store.layer(own), kept)
        for layer in layers:
            await self._compile(layer)

    async def _compile(self, layer: Path) -> None:
        store = await self._opened()
        if not await to_thread.run_sync(store.compiled, layer):
            await self._uv.compile(layer)
            await to_thread.run_sync(store.note_compiled, layer)

    async def _opened(self) -> Store:
        if self._store is None:
            self._store = await to_thread.run_sync(self._open)
        return self._store

    def _open(self) -> Store:
        with _disk(self._cache):
            store = Store(self._cache, index_settings(self._env))
            store.sweep()
        return store

    @asynccontextmanager
    async def _scratch(self) -> AsyncIterator[Scratch]:
        """A private directory, removed in every case."""
        store = await self._opened()
        with _disk(self._cache):
            scratch = await to_thread.run_sync(store.scratch)
            try:
                yield scratch
            finally:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(scratch.remove)

    def _late(self) -> InstallError:
        return InstallError(
            f"The packages were not installed within {self._seconds:g} s (install_seconds). Ask for fewer or "
            "smaller packages, or try again: what was downloaded whole is kept. Or the package index does not answer.",
            reason="timeout",
        )


def _own(pins: tuple[str, ...], base: Base) -> tuple[str, ...]:
    """What names a layer of a call that builds: another one than where all came from wheels."""
    return pins if pins in (base.kernel, base.default) else (*pins, "built from source")


def _environment(base: Base, found: Resolution, layers: tuple[Path, ...]) -> Environment:
    return Environment(layers, tuple(sorted(found.pins)), plan(base, found.pins).kernel_moved, _notes(found))


def _installing(names: Sequence[str]) -> str:
    return "installing " + (", ".join(names) if len(names) <= 4 else f"{len(names)} packages")


def _named(packages: Sequence[str], text: str) -> tuple[str, ...]:
    """Those of `packages` whose name stands in `text`, as a word."""
    return tuple(p for p in packages if re.search(rf"(?<![\w.-]){re.escape(name_of(p))}(?![\w-])", text))


def _notes(found: Resolution) -> tuple[str, ...]:
    if not found.left_out:
        return ()
    return (
        f"Default packages left out of this run, because they conflict with its requirements: "
        f"{', '.join(found.left_out)}.",
    )


@contextmanager
def _disk(cache: Path) -> Iterator[None]:
    """Trouble with the cache's disk becomes an InstallError."""
    try:
        yield
    except OSError as e:
        raise InstallError(
            f"The package cache {cache} cannot be used: {e.strerror or e}. It must be writable and have free space.",
            reason="other",
        ) from e
