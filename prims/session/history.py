"""What a session has run, for its notebook: one private file a run, bounded in all. Blocking: called in threads."""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prims.model import CodeError, Output, RunRequest, RunResult, Text

# What makes room first: outputs above this many bytes, of the oldest run that has any.
_LARGE_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as it was. `ended` is seconds since the epoch, `seconds` those of each phase."""

    number: int
    code: str
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    status: str
    cause: str
    error: CodeError | None
    outputs: tuple[Output, ...]
    seconds: dict[str, float]
    ended: float


def past_run(number: int, request: RunRequest, result: RunResult, ended: float) -> PastRun:
    """The part of a run that is kept."""
    seconds: dict[str, float] = {str(phase): took for phase, took in result.seconds.items()}
    return PastRun(
        number, request.code, request.requirements, result.packages, result.status, result.cause, result.error,
        tuple(output for cell in result.cells for output in cell.outputs), seconds, ended,
    )  # fmt: skip


class History:
    """The runs of one session in `folder`, which nobody else may write; safe for several threads.

    At most `most` bytes are kept: large outputs of the oldest runs go first, then the oldest runs.
    """

    def __init__(self, folder: Path, most: int | None) -> None:
        self._folder = folder
        self._most = most
        self._sizes: dict[int, int] = {}
        self._added: list[PastRun] = []
        self._closed = False
        self._lock = threading.Lock()
        self.forgotten = 0

    def add(self, run: PastRun) -> None:
        """Keep a run; `write` must follow. Returns at once."""
        self._added.append(run)

    def write(self) -> None:
        """Write what was added, at the cost of older runs if need be."""
        with self._lock:
            while self._added and not self._closed:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                self._write(self._added.pop(0))
                self._make_room()

    def runs(self) -> list[PastRun]:
        """All that are kept, in the order in which they began."""
        self.write()
        with self._lock:
            return [self._read(number) for number in sorted(self._sizes)]

    def close(self) -> None:
        """Write nothing any more: the folder is to be removed."""
        with self._lock:
            self._closed = True

    def _make_room(self) -> None:
        for make_room in (self._thin, self._forget):
            for number in sorted(self._sizes):
                if self._most is None or sum(self._sizes.values()) <= self._most:
                    return
                make_room(number)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _write(self, run: PastRun) -> None:
        data = json.dumps(run, default=_fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        self._path(run.number).write_bytes(data)
        self._sizes[run.number] = len(data)

    def _read(self, number: int) -> PastRun:
        found = json.loads(self._path(number).read_bytes())
        found["outputs"] = tuple(map(_output, found["outputs"]))
        found["error"] = found["error"] and CodeError(**found["error"])
        found |= {name: tuple(found[name]) for name in ("requirements", "packages")}
        return PastRun(**found)

    def _thin(self, number: int) -> None:
        if self._sizes[number] > _LARGE_BYTES:
            run = self._read(number)
            self._write(replace(run, outputs=tuple(map(_thinned, run.outputs))))

    def _forget(self, number: int) -> None:
        self._path(number).unlink()
        del self._sizes[number]
        self.forgotten += 1


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _output(found: dict[str, Any]) -> Output:
    return Output(**{**found, "left_out": tuple(found["left_out"]), "text": found["text"] and Text(**found["text"])})


def _thinned(output: Output) -> Output:
    """An output without what is large in it."""
    if output.text is not None:
        text, keep = output.text, _LARGE_BYTES // 4
        if len(text.head) + len(text.tail) <= _LARGE_BYTES:
            return output
        return replace(output, text=replace(text, head=text.head[:keep], tail=(text.tail or text.head)[-keep:]))
    if output.content["output_type"] == "error":
        traceback = output.content["traceback"] if _size(output.content["traceback"]) <= _LARGE_BYTES else []
        return replace(output, content={**output.content, "traceback": traceback})
    data = output.content["data"]
    large = {mime: size for mime, value in data.items() if (size := _size(value)) > _LARGE_BYTES}
    content = {**output.content, "data": {mime: value for mime, value in data.items() if mime not in large}}
    notes = tuple(f"{mime} of {size:,} bytes" for mime, size in large.items())
    return replace(output, content=content, left_out=(*output.left_out, *notes))


def _size(value: Any) -> int:
    return len(json.dumps(value))
