"""Layers and remembered resolutions on disk: immutable, named by content, shared by any number of processes.

Only bytecode is added to a layer later, file by file.

Everything here is synchronous file work; callers run it in a thread. A directory becomes visible only by a
rename of the finished whole, so a reader never sees half of one, and two builders of one layer do each
other no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FRESH_SECONDS = 24 * 3600.0

_MARKER = ".prims-layer.json"
HASHES = ".prims-hashes.json"
_COMPILED = ".prims-compiled"
_LOCK = ".lock"
_FORMAT = 1  # of layers and resolutions; a change leaves the old ones unused


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a question was resolved to: pins ("name==version", sorted).

    `kernel` are those of them that the kernel itself needs (known for the base only), `left_out` the default
    packages that had to give way. `hashes` are those that the index gave for the files of each pin.
    """

    pins: tuple[str, ...]
    kernel: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A resolution of earlier; `fresh` says whether the index need not be asked again yet."""

    resolution: Resolution
    fresh: bool


class Scratch:
    """A private directory beside the layers, removed by `remove`, or by any later process if we die first.

    The sign of life is a locked file beside it: the kernel drops the lock with its process, however that
    ends.
    """

    def __init__(self, parent: Path) -> None:
        while True:
            self.path = parent / secrets.token_hex(8)
            self._lock = Path(f"{self.path}{_LOCK}")
            self._fd = os.open(self._lock, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            # A sweeper may have taken the file for a dead one's between the two calls.
            if _is_same_file(self._lock, self._fd):
                break
            os.close(self._fd)
        self.path.mkdir()
        # Runs may have a uid of their own, and a layer is renamed out of here with its mode.
        self.path.chmod(0o755)

    def remove(self) -> None:
        """Delete it with all that is in it. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd >= 0:
            self._lock.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


class Store:
    """Layers and resolutions under `root`, for one interpreter and one set of index settings (`identity`)."""

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self._identity = (str(_FORMAT), interpreter(), identity)
        self._layers = root / "layers"
        # Apart from the layers, all of which are shown to code: it could lock what lies there.
        self._builds = root / "builds"
        self._resolutions = root / "resolutions"
        # Found whole, when they had last changed at their top.
        self._whole: dict[Path, int] = {}
        for folder in (self._layers, self._builds, self._resolutions):
            folder.mkdir(parents=True, exist_ok=True)

    def scratch(self) -> Scratch:
        """A new private directory on the layers' file system."""
        return Scratch(self._builds)

    def sweep(self) -> None:
        """Remove what builders of dead processes left."""
        for lock in self._builds.glob(f"*{_LOCK}"):
            with contextlib.suppress(OSError):
                _sweep_one(lock)
        for folder in self._builds.iterdir():
            if folder.suffix != _LOCK and not Path(f"{folder}{_LOCK}").exists():
                shutil.rmtree(folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------- layers

    def layer(self, pins: Sequence[str]) -> Path:
        """Where the layer of `pins` is, or would be."""
        return self._layers / self._key("layer", *sorted(pins))

    def present(self, pins: Sequence[str]) -> Path | None:
        """The finished layer of `pins`; None when there is none or files at its top have gone."""
        layer = self.layer(pins)
        try:
            changed = layer.stat().st_mtime_ns
            if self._whole.get(layer) != changed:
                whole = json.loads((layer / _MARKER).read_bytes())["entries"]
                # Cleaners of caches and temporary folders delete single files by age.
                if not set(whole) <= _entries(layer):
                    return None
                self._whole[layer] = changed
            return layer
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def compiled(self, layer: Path) -> bool:
        """Whether all bytecode of a layer is there."""
        return (layer / _COMPILED).exists()

    def note_compiled(self, layer: Path) -> None:
        """Keep in mind that all bytecode of a layer is there."""
        with contextlib.suppress(OSError):
            (layer / _COMPILED).touch()

    def keep_hashes(self, layer: Path, pins: Mapping[str, tuple[str, ...]]) -> None:
        """Write down beside a layer's packages what the index lists for their files."""
        fresh = layer / f".{secrets.token_hex(4)}"
        fresh.write_text(json.dumps(pins))
        fresh.replace(layer / HASHES)

    def adopt(self, built: Path, pins: Mapping[str, tuple[str, ...]], scratch: Scratch, python: str) -> Path:
        """Make `built` (inside `scratch`) the layer of `pins`, unless another process was first.

        The hashes that the files of each pin were checked against are kept with it. `python` is the interpreter that
        installed scripts name; they are made to run in any venv.
        """
        layer = self.layer(tuple(pins))
        (built / _LOCK).unlink(missing_ok=True)  # uv's own
        _free_scripts(built / "bin", python)
        self.keep_hashes(built, pins)
        entries = sorted(_entries(built))
        (built / _MARKER).write_text(json.dumps({"pins": sorted(pins), "entries": entries}))
        built.chmod(0o755)
        for _ in range(3):
            try:
                built.rename(layer)
                return layer
            except OSError:
                if self.present(tuple(pins)):
                    return layer
                # One is there, but damaged: out of the way with it. Whoever uses it keeps its open files.
                with contextlib.suppress(FileNotFoundError):
                    layer.rename(scratch.path / f"damaged-{secrets.token_hex(4)}")
        built.rename(layer)
        return layer

    # --------------------------------------------------------------------------------- resolutions

    def recall(self, question: Sequence[str]) -> Remembered | None:
        """What `question` was resolved to before, if anything that can be read."""
        try:
            data = json.loads(self._answer(question).read_bytes())
            hashes = {pin: tuple(found) for pin, found in data.get("hashes", {}).items()}
            found = Resolution(tuple(data["pins"]), tuple(data["kernel"]), tuple(data["left_out"]), hashes)
            age = time.time() - float(data["time"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Remembered(found, 0 <= age < FRESH_SECONDS)

    def remember(self, question: Sequence[str], resolution: Resolution) -> None:
        """Keep the answer for later calls and later processes."""
        data = {
            "time": time.time(),
            "question": list(question),
            "pins": resolution.pins,
            "kernel": resolution.kernel,
            "left_out": resolution.left_out,
            "hashes": dict(resolution.hashes),
        }
        fd, name = tempfile.mkstemp(dir=self._resolutions, prefix=".new-")
        with os.fdopen(fd, "w") as file:
            json.dump(data, file)
        Path(name).replace(self._answer(question))

    def _answer(self, question: Sequence[str]) -> Path:
        return self._resolutions / f"{self._key('resolution', *question)}.json"

    def _key(self, *words: str) -> str:
        return hashlib.sha256("\0".join((*self._identity, *words)).encode()).hexdigest()[:32]


def interpreter() -> str:
    """All that decides which wheels fit and whose bytecode is valid."""
    version = ".".join(str(part) for part in sys.version_info)
    words = (sys.implementation.name, version, sysconfig.get_platform(), sysconfig.get_config_var("SOABI"))
    return " ".join(str(word) for word in words)


def put_stand_ins(layers: Sequence[Path], target: Path) -> list[Path]:
    """Make the new directory `target` one in which the packages of `layers` seem to be installed: the folders that
    have to be removed in the end."""
    target.mkdir()
    made = []
    for metadata in (file for layer in layers for file in layer.glob("*.dist-info/METADATA")):
        folder = target / metadata.parent.name
        folder.mkdir()
        (folder / "METADATA").symlink_to(metadata)
        (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n{folder.name}/RECORD,,\n")
        made.append(folder)
    return made


def remove_stand_ins(folders: Sequence[Path]) -> None:
    """Leave only what was really installed beside them."""
    for folder in folders:
        shutil.rmtree(folder)


def _sweep_one(lock: Path) -> None:
    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its owner lives
        if _is_same_file(lock, fd):
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
    finally:
        os.close(fd)


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _free_scripts(folder: Path, python: str) -> None:
    """Let installed scripts find Python by PATH: the venv's comes first there, and it has the layers.

    A script may be a hard link into uv's cache, so it is replaced and never written to.
    """
    if not folder.is_dir():
        return
    direct = b"#!" + os.fsencode(python)
    for script in folder.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        with script.open("rb") as file:
            first, second = file.readline(4096), file.readline(4096)
            # Where the path is too long for the system or holds a blank, uv writes a shell line for it.
            by_shell = first.startswith(b"#!/bin/sh") and second.startswith(b"'''exec' ")
            if not by_shell and not first.startswith(direct):
                continue
            rest = file.read()
        body = rest.partition(b"\n")[2] if by_shell else second + rest
        fresh = script.with_name(f"{script.name}.new")
        fresh.write_bytes(b"#!/usr/bin/env python3\n" + body)
        fresh.chmod(0o755)
        fresh.replace(script)
