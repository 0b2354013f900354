"""One plain line of advice for what commonly goes wrong, only where it applies. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prims.config import Settings
from prims.model import Limits, RunRequest, RunResult, binary
from prims.requirements import distribution_for

_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
    r"Max retries exceeded|NameResolutionError|ConnectError|Connection refused"
)

_MOST_BLOCKED = 10

_AFTER_LIMIT = {
    "WorkspaceFull": "Remove files that are no longer needed; the session goes on.",
    "OutputLimitExceeded": "Print less, or write the data to a file in output/.",
}

# What systems, shells and libraries say when a limit of the sandbox is met.
_NO_SPACE = re.compile(r"No space left on device")
_FULL = re.compile(
    r"\[(/tmp|/dev/shm|/home/sandbox) is full\]|['\": ](/tmp|/dev/shm|/home/sandbox)/[^\n]{0,300}No space left"
)
_FILE_SIZE = re.compile(r"\[Errno 27\]|File too large|File size limit exceeded")
_OPEN_FILES = re.compile(r"\[Errno 24\]|Too many open files")
_PROCESSES = re.compile(
    r"can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|(?:Cannot|can't) fork"
    r"|pthread_create failed|Thread creation failed"
    r"|(?:fork|Popen|spawn)[^\0]{0,2000}\[Errno 11\] Resource temporarily unavailable"
)
_MEMORY = re.compile(r"\bMemoryError\b|Unable to allocate|Cannot allocate memory|bad_alloc")

# How curl, git and urllib3 say that a name was not found.
_HOSTS = re.compile(
    r"Could not resolve host: ([\w.-]{1,250})|NameResolutionError\(.{0,20}host='([\w.-]{1,250})', port=(\d{1,5})"
)

_MISSING = re.compile(r"No module named '([\w.]+)'(?!.*is not a package)")
# How pandas and others ask for what only some of their functions need.
_OPTIONAL = re.compile(
    r"(?:Missing optional dependency '|to install the |accessor requires |string requires ')([\w.-]+)"
)
# How what was built for NumPy 1 fails beside NumPy 2.
_OLD_NUMPY = re.compile(r"numpy\.dtype size changed|numpy\.core\.multiarray failed to import|_ARRAY_API not found")
_NAME = re.compile(r"name '(\w+)' is not defined|Can't get attribute '(\w+)' on <module '__main__'")
_DEFINED = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|^[ \t]*(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::[^=\n]{1,100})?=(?!=)"
    r"|^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+([^\n#;]{1,500})",
    re.M,
)
_USUAL = {"np": "import numpy as np", "pd": "import pandas as pd", "plt": "import matplotlib.pyplot as plt",
          "sns": "import seaborn as sns", "px": "import plotly.express as px", "pl": "import polars as pl",
          "go": "import plotly.graph_objects as go", "sp": "import sympy as sp", "tf": "import tensorflow as tf",
          "nx": "import networkx as nx", "alt": "import altair as alt"}  # fmt: skip
_SHELL = re.compile(
    r"[ \t]*(?:pip3?|uv|conda|apt|apt-get|npm|cd|ls|cat|mkdir|cp|mv|rm|curl|wget|git|echo|python3?)[ \t]+[-\w./~$]"
)
_NO_FILE = re.compile(r"No such file or directory(?: \(os error 2\))?[:'\" ]+([^'\"\n]{1,500})")
_NO_PROGRAM = re.compile(
    r"_execute_child[^\0]*No such file or directory: (?:PosixPath\()?'([^'/\n]{1,100})'"
    r"|MovieWriter \((\w+)\) not available"
)
_NO_BROWSER = re.compile(r"[Kk]aleido|Chrome|playwright install|[Cc]hromedriver|[Ss]elenium|geckodriver")
_READ_ONLY = re.compile(r"\[Errno (?:13|30)\] [^\n]{1,100}: '(?:\./|/workspace/|/)?mounts/")
_SERVES = re.compile(r"(?:Running|running|Serving|Listening|server at|URL:)[^\n]{0,40}(?:http://|port )")
_CUT_TABLE = re.compile(r"^\[[1-9]\d* rows x \d+ columns\]$", re.M)
_MOST_NAMES = 2000
# What is made for somebody to look at, rather than for code to go on with.
_RESULTS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf", ".html", ".csv", ".xlsx", ".docx", ".pptx",
            ".mp4", ".wav", ".mp3", ".zip")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a run's session: names that earlier runs defined, with the run's number, and its files.

    `beside` are files that this run has written, but not to output/.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


def defined_in(code: str) -> set[str]:
    """The names that a piece of code binds, as far as can be seen at a glance."""
    found: set[str] = set()
    for one, several, imported in _DEFINED.findall(code):
        found.update(re.findall(r"\w+", one or several))
        found.update(part.split()[-1].split(".")[0] for part in imported.strip("() ").split(",") if part.split())
        if len(found) > _MOST_NAMES:
            break
    return found


def wants_files(result: RunResult) -> bool:
    """Whether advice on this result is better with the names of the session's files."""
    return result.error is not None and _NO_FILE.search(result.error.value) is not None


def advice(request: RunRequest, result: RunResult, settings: Settings, around: Surroundings | None = None) -> list[str]:
    """Hints for the reader of `result`, most useful first."""
    around = around or Surroundings()
    hints: list[str] = []
    error = result.error
    elsewhere = _elsewhere(around.beside)
    if result.status == "ok" and not (result.story or result.stderr or result.result or result.displays):
        if result.artifacts and not _saved_pictures(result):
            hints.append("The code printed nothing; its files are listed above.")
        elif not result.artifacts and not elsewhere:
            hints.append("The code finished without output. Use print(), or end with an expression, to see a value.")
    hints += _unseen(result)
    hints += elsewhere
    if result.result.head.startswith("<coroutine object "):
        hints.append("The value is a coroutine, which has not run: write await before the call.")
    if result.status == "timeout" and _SERVES.search(result.story.head + result.stderr.head):
        hints.append("Nobody can reach a server here, and it ends with its call: test it in the code, from a thread.")
    elif result.status == "timeout":
        most = settings.max_run_seconds
        allowed = "" if most is None else f" (up to {most:g})"
        if most is None or (request.limits.run_seconds or 0) < most:
            hints.append(f"Ask for more with timeout_seconds{allowed}, or split the work; files in output/ are kept.")
        else:
            hints.append("Split the work into several calls; files in output/ are kept between them.")
    if result.status == "out_of_memory":
        hints.append("Read less at once: chunks, fewer columns, smaller types.")
    if result.status == "limit" and error is not None:
        hints.append(_AFTER_LIMIT.get(error.name, "Do less at once."))
    blocked = result.blocked or _unreached(result)
    if blocked:
        hints.append(_blocked(request, blocked))
    hints += _limits_met(request.limits, result)
    if error is None:
        return hints
    text = f"{error.name}: {error.value}"
    if error.name == "ModuleNotFoundError" and (match := _MISSING.search(error.value)):
        name = _distribution(match[1], request.code)
        hints.append(f'Install it with the call: requirements=["{name}"].')
    elif error.name in ("ImportError", "AttributeError") and (match := _OPTIONAL.search(error.value)):
        hints.append(f'Install it with the call: requirements=["{distribution_for(match[1]) or match[1]}"].')
    elif _OLD_NUMPY.search(text):
        hints.append('A package was built for NumPy 1: add "numpy<2" to requirements, or take a newer version of it.')
    elif error.name == "SyntaxError" and re.search(r"^[ \t]*(?:```|~~~)", request.code, re.M):
        hints.append("Send the code alone: the text around it and its markdown fence (```) must go.")
    elif error.name == "SyntaxError" and (match := re.search(r"\n[ \t]*(%%\w{1,50})", request.code)):
        hints.append(f"{match[1]} can only stand in the first line, for all of the code: send it in a call of its own.")
    elif error.name == "SyntaxError" and _SHELL.match(_line(request.code, error.line)):
        hints.append("A line for a shell begins with !, and packages belong into requirements.")
    elif not request.cells and (match := _NAME.search(text)):
        hints += _lost_name(match[1] or match[2], around)
    elif match := _NO_PROGRAM.search(f"{error.traceback[-3000:]}\n{error.value}"):
        program = match[1] or match[2]
        brought = "imageio-ffmpeg brings it: imageio_ffmpeg.get_ffmpeg_exe() is its path" if program == "ffmpeg" else ""
        hints.append(f"There is no program {program} here; {brought or 'packages are all that can be added'}.")
    elif "no display name" in error.value:
        hints.append("There is no screen here: draw with matplotlib, whose figures are returned.")
    elif _NO_BROWSER.search(text):
        hints.append("There is no browser here: show() gives a figure itself, write_html() a file.")
    elif match := _NO_FILE.search(error.value):
        hints.append(lost_file(match[1], around.files))
    elif _READ_ONLY.search(error.value):
        hints.append("mounts/ is read-only: write to output/, or beside it.")
    elif (error.name == "EOFError" and "nobody" in error.value) or _gave_up_asking(result):
        hints.append("Nobody can type while code runs here.")
    elif "no running event loop" in text:
        hints.append("An event loop runs only beside a top-level await: write await, or asyncio.run(main()).")
    elif "asyncio.run() cannot be called" in text or "event loop is already running" in text:
        hints.append("This code has a top-level await, so a loop is running: use await instead of asyncio.run().")
    elif result.isolation == "landlock" and error.name in ("PermissionError", "OSError"):
        hints.append(
            "Code sees the machine's own paths here and may use few of them (isolation: landlock). Use tempfile for "
            "temporary files, and threads in place of multiprocessing; there are no sockets, and no /dev/shm."
        )
    if blocked:
        return hints
    if _NETWORK.search(text) or (error.traceback and _NETWORK.search(error.traceback[-2000:])):
        hints.append("Code has no network here. Give data as files, and packages in requirements.")
    return hints


def _distribution(module: str, code: str) -> str:
    """What to install for a module; the code tells more of one that is only the beginning of a name (google, azure)."""
    for dotted, name in re.findall(
        rf"^[ \t]*(?:from|import)[ \t]+({re.escape(module)}\.[\w.]+)(?:[ \t]+import[ \t]+(\w+))?", code, re.M
    ):
        if found := distribution_for(f"{dotted}.{name}" if name else dotted):
            return found
    return distribution_for(module) or module.split(".")[0]


def _elsewhere(beside: Sequence[str]) -> list[str]:
    """Of files that somebody will look for in vain among what is returned."""
    names = [name for name in beside if name.lower().endswith(_RESULTS) and len(name) < 100]
    if not names:
        return []
    more = f" and {len(names) - 5} more files" if len(names) > 5 else ""
    return [
        f"Not returned: {', '.join(names[:5])}{more}, saved in the working directory, where preview_file finds "
        "files. Save to output/ what is to be seen."
    ]


def _lost_name(name: str, around: Surroundings) -> Iterable[str]:
    if name in _USUAL:
        yield f"Each call needs its own imports: {_USUAL[name]}"
    elif name in around.names:
        yield (
            f"{name} was defined in an earlier call (run {around.names[name]}), and each call starts a fresh "
            "interpreter: only files stay. Define it again, or save it to a file and load that."
        )


def lost_file(path: str, files: tuple[str, ...]) -> str:
    """The names nearest to one that does not exist, else what there is."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(file.rpartition("/")[2].lower(), []).append(file)
    near = by_name.get(name) or [by_name[n][0] for n in difflib.get_close_matches(name, by_name, 3, 0.6)]
    if name == "main.py" and not near:
        return "The code of a call is no file; write what must be one first, as with %%writefile."
    if near:
        return f"The workspace has {', '.join(near[:3])}."
    if path.startswith(("/tmp/", "/dev/shm/", "/home/sandbox/")):
        return "Each call has a /tmp and a home of its own: files for later calls go to the working directory."
    if not files:
        return "The workspace has no files yet: mount inputs first (mount_file, or files of this call)."
    inputs = sorted(files, key=lambda file: not file.startswith("mounts/"))
    more = f" and {len(inputs) - 8} more" if len(inputs) > 8 else ""
    return f"The working directory is the session's workspace, which has {', '.join(inputs[:8])}{more}."


def _line(code: str, number: int | None) -> str:
    lines = code.splitlines()
    return lines[number - 1] if number is not None and 0 < number <= len(lines) else ""


def _gave_up_asking(result: RunResult) -> bool:
    """Whether a prompt of click or Typer found nobody: they only say that they were aborted."""
    error = result.error
    if error is None or error.name not in ("Abort", "SystemExit"):
        return False
    said = ((text.tail or text.head).rstrip() for text in (result.story, result.stderr))
    return error.name == "Abort" or any(text.endswith(("Aborted!", "Aborted.")) for text in said)


def _saved_pictures(result: RunResult) -> list[str]:
    """Pictures that the run has saved, when it has shown none."""
    if any(d.mime.startswith("image/") for d in result.displays):
        return []
    return [a.relative_path for a in result.artifacts if a.mime.startswith("image/")]


def _unseen(result: RunResult) -> Iterable[str]:
    """What the code has made and not shown, or shown in part."""
    if (pictures := _saved_pictures(result)) and result.status == "ok":
        them = pictures[0] if len(pictures) == 1 else f"{pictures[0]} and {len(pictures) - 1} more pictures"
        yield f"{them} saved and not shown: leave out plt.close(), or look at it with preview_file."
    texts = (result.story.head, result.story.tail, result.result.head)
    if any(_CUT_TABLE.search(text) for text in texts):
        yield "A table is shown in part. Print the rows and columns you need, or write it to output/ as CSV."


def _limits_met(limits: Limits, result: RunResult) -> list[str]:
    """Errors of the code, or of what it started, that come from a limit of the sandbox: which, and how much it is."""
    error = result.error
    text = result.stderr.head[-4000:] + "\n" + result.stderr.tail[-4000:]
    if error is not None and result.status in ("error", "died"):
        text += f"\n{error.traceback[-8000:]}\n{error.name}: {error.value}"
    met: list[str] = []
    if _NO_SPACE.search(text) and result.isolation == "bubblewrap":
        place = _FULL.search(text)
        where = f"in {place[1] or place[2]}" if place else "in /tmp, /dev/shm or the home directory"
        met.append(f"out of space {where} (limit {binary(limits.tmp_bytes)}); the working directory has more")
    if limits.file_bytes is not None and _FILE_SIZE.search(text):
        met.append(f"file too large (limit {binary(limits.file_bytes)})")
    if limits.open_files is not None and _OPEN_FILES.search(text):
        met.append(f"too many open files (limit {limits.open_files} in one process)")
    if limits.processes is not None and _PROCESSES.search(text):
        met.append(f"too many processes (limit {limits.processes}, threads included)")
    if limits.memory_bytes is not None and _MEMORY.search(text):
        met.append(f"out of memory (limit {binary(limits.memory_bytes)} for all processes of a run)")
    if error is not None and error.name == "KernelDied" and "SIGBUS" in error.value:
        met.append(f"memory that is a file in /dev/shm or /tmp fails so when that is full ({binary(limits.tmp_bytes)})")
    return [f"{words}." for words in met]


def _unreached(result: RunResult) -> tuple[str, ...]:
    """Hosts that programs which the code started did not find, as far as they say so."""
    if result.isolation == "none":
        return ()
    said = _HOSTS.findall(result.stderr.head[-4000:] + "\n" + result.stderr.tail[-4000:])
    return tuple(dict.fromkeys(one or f"{host}:{port}" for one, host, port in said))


def _blocked(request: RunRequest, blocked: tuple[str, ...]) -> str:
    """What the code wanted of the network and did not get, in one line."""
    places = ", ".join(blocked[:_MOST_BLOCKED])
    more = len(blocked) - _MOST_BLOCKED
    places += f" and {more} more" if more > 0 else ""
    match request.limits.network:
        case "none":
            return f"network is off; blocked: {places}. Give data as files, and packages in requirements."
        case "allow-list":
            hosts = ", ".join(request.limits.network_hosts[:_MOST_BLOCKED])
            return f"network is limited; blocked: {places}. HTTP and HTTPS reach {hosts}; nothing else goes out."
        case _:
            return f"network is limited; blocked: {places}. HTTP and HTTPS reach public hosts; nothing else goes out."
