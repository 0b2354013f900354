"""The values that cross rooms. Frozen, picklable, without behaviour beyond small derived facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal[
    "ok",  # the code ran to its end
    "error",  # the code raised
    "timeout",  # the run's time was up
    "died",  # the kernel's process ended by itself: exit, signal
    "out_of_memory",  # the run used more memory than its limit and was stopped
    "limit",  # another limit stopped the run (output bytes); `cause` names it
    "cancelled",  # the client, or the person at the terminal, stopped it
    "shutdown",  # the server went down while it ran
]

Network = Literal[
    "none",  # no network, but the sandbox's own loopback
    "allow-list",  # HTTP(S) to hosts that the operator has named
    "full",  # HTTP(S) to all public hosts
]

Phase = Literal["queue", "environment", "start", "run"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use. `None` means unlimited."""

    run_seconds: float | None = 100.0
    memory_bytes: int | None = 2 << 30
    cpu_seconds: float | None = None
    processes: int | None = 256
    open_files: int | None = 1024
    file_bytes: int | None = 1 << 30
    output_bytes: int | None = 512 << 20
    tmp_bytes: int = 256 << 20
    network: Network = "none"
    network_hosts: tuple[str, ...] = ()  # as `prims.hosts.Reachable` reads them
    network_bytes: int | None = 1 << 30


def binary(count: int | None) -> str:
    """A number of bytes for people: 2 GiB, 1.5 MiB."""
    if count is None:
        return "unlimited"
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.3g} {unit}"
    return f"{count} bytes"


@dataclass(frozen=True, slots=True)
class Cell:
    """Code that shares its kernel with other cells; those after it run when it fails and `may_fail`."""

    code: str
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One call of run_code, as admitted by the policy.

    `code` is cleaned (fences, common indentation, line ends) with its line numbers kept; `requirements` are
    normalised PEP 508 strings, sorted, without options, paths or URLs. `cells`, when there are any, are run in its
    place, one after the other in one kernel and each with all the time that a run has; `code` is then all of them.
    """

    code: str
    requirements: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class PictureBudget:
    """What pictures of one reply may take: the longer edge in pixels, bytes of each, bytes of all."""

    edge: int = 1568
    each: int = 150_000
    all: int = 500_000


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything an engine needs to run one request: picklable, no live objects.

    `folder` is the session's folder on this machine: `files/` is the kernel's working directory, `mounts/` its
    read-only inputs. `spool` is an empty private folder for what is too large to be returned. `uid` is the
    unprivileged uid of the session when the server is root. `keep_chars` bounds what is kept in memory of each text
    (head and tail), `pictures` what is returned of all that was drawn, `record_bytes` what is kept of all outputs for
    a notebook.
    """

    request: RunRequest
    folder: Path
    spool: Path
    keep_chars: int
    pictures: PictureBudget = PictureBudget()
    record_bytes: int = 0
    uid: int | None = None


# ---------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """A run entered a phase; `detail` is a short text for people ("installing six")."""

    phase: Phase
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text as it came, already free of control codes. At most some 64 KB."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class DisplayEvent:
    """Something rich was shown; `text` is its plain form."""

    text: str


@dataclass(frozen=True, slots=True)
class CellEvent:
    """A cell has come to its end; `number` counts from 0."""

    number: int
    result: CellResult


Event = PhaseEvent | TextEvent | DisplayEvent | CellEvent
Emit = Callable[[Event], None]


# ---------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Text:
    """Text within a budget: `head` and `tail` of `chars` characters (`lines` lines) in all.

    When nothing was left out, `head` is everything and `tail` is empty. `path` is the workspace file
    that holds the whole text, when there is one.
    """

    head: str = ""
    tail: str = ""
    chars: int = 0
    lines: int = 0
    path: str | None = None

    @property
    def whole(self) -> bool:
        """Whether `head` is the entire text."""
        return len(self.head) == self.chars

    def __bool__(self) -> bool:
        return self.chars > 0


@dataclass(frozen=True, slots=True)
class CodeError:
    """An error of the user's code (or the end of its kernel), in the user's own line numbers."""

    name: str
    value: str
    traceback: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as it goes with a reply: encoded bytes of type `mime`, and pixels where they are known."""

    data: bytes
    mime: str
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """One stored form of something that was shown. `path` is the workspace file that holds it (posix, relative)."""

    mime: str
    size: int
    name: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Display(Form):
    """One thing that the code showed, in the form that tells a person most; `alternatives` are its other stored forms.

    `path` is the workspace file that holds the form `mime` (posix, relative), `width` and `height` are pixels. Texts
    and markdown have no file: `text` is all of them, as it is the plain form of all else, for a reader without eyes.
    `told` says that this text stands in the story, or in the result, already; then the files are for programs only, and
    lie in a folder that nobody is told of. `is_result` marks the value of the last expression. `after` is how many
    characters of standard output came before. `inline` is what goes with the reply of a picture, `trouble` says
    why nothing does.
    """

    text: str = ""
    width: int | None = None
    height: int | None = None
    alternatives: tuple[Form, ...] = ()
    told: bool = False
    is_result: bool = False
    after: int = 0
    inline: Picture | None = None
    trouble: str = ""


def stored(display: Display) -> tuple[Form, ...]:
    """All forms of a display that have a file in the workspace."""
    forms: tuple[Form, ...] = (display, *display.alternatives)
    return tuple(form for form in forms if form.path)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file under output/ that the run made or changed. `relative_path` is posix, from the workspace."""

    name: str
    relative_path: str
    size: int
    mime: str


@dataclass(frozen=True, slots=True)
class Output:
    """One output as a notebook has it. `content` is valid for the notebook format, but that a stream's is in `text`.

    `left_out` names what is not in it, because it was too large or no data of its type. `path` is the workspace file
    that holds it whole, when there is one.
    """

    content: dict[str, Any]
    text: Text | None = None
    path: str | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell has shown, and when it ran, in seconds since the epoch."""

    outputs: tuple[Output, ...] = ()
    begun: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """All that one run gave, whichever way it ended.

    `story` is standard output with what was displayed as text in its place. From an engine, texts and displays name
    files in the spool by `path`; the session moves them to output/. `cells` is what a notebook shows of the run, one
    for each cell that was begun. `cause` says in words why a run that is neither ok nor error ended. `blocked` are
    places in the network that the code wanted to reach and did not: partly the code's own word, so for advice only.
    """

    status: Status
    isolation: str
    stdout: Text = field(default_factory=Text)
    story: Text = field(default_factory=Text)
    stderr: Text = field(default_factory=Text)
    result: Text = field(default_factory=Text)
    error: CodeError | None = None
    cause: str = ""
    displays: tuple[Display, ...] = ()
    displays_left_out: int = 0
    artifacts: tuple[Artifact, ...] = ()
    artifacts_left_out: int = 0
    cells: tuple[CellResult, ...] = ()
    packages: tuple[str, ...] = ()
    seconds: dict[Phase, float] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    feedback: tuple[str, ...] = ()
