"""The shell of one run: a notebook cell that also behaves as the script `main.py` in the working directory."""

from __future__ import annotations

import ast
import asyncio
import bdb
import codeop
import errno
import os
import sys
import threading
import tokenize
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import ipykernel.zmqshell
import IPython.core.interactiveshell
from ipykernel.compiler import XCachingCompiler
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from traitlets import Type

from prims_kernel import streams, twins

SCRIPT = "main.py"
_OUTER_FRAMES, _INNER_FRAMES = 10, 20
_LONGEST_LINE = 500


def script_path() -> str:
    """Where the code would lie if it were a file: in the folder that the kernel was started in."""
    return os.path.join(_start_folder, SCRIPT)


_start_folder = ""
_pid = 0
shared = False
_cells = 0


def begin() -> None:
    """Look at the process that this is: a forked kernel is another one than that which has imported this."""
    global _start_folder, _pid
    _start_folder, _pid = os.getcwd(), os.getpid()


def share() -> None:
    """From now on several cells are run, each with a name of its own."""
    global shared
    shared = True


def _code_name() -> str:
    return f"Cell In[{_cells}]" if shared else script_path()


def _folder_of(module_file: str | None) -> str:
    return os.path.dirname(os.path.abspath(module_file or "")) + os.sep


# Frames of these are machinery around the code, not part of what the user wrote or called.
_machinery = tuple(map(_folder_of, (ipykernel.zmqshell.__file__, sys.modules["IPython"].__file__, __file__)))
_outermost = (*_machinery, codeop.__file__, threading.__file__, _folder_of(asyncio.__file__), "<frozen")


def _warn(message: Any, *args: Any, **kwargs: Any) -> None:
    """IPython's warnings, but for the one that tells people how to leave a terminal."""
    if not str(message).startswith("To exit: use"):
        _warnings_warn(message, *args, **kwargs)


def _format_warning(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """As Python does, but for a place that is none of the code's."""
    if filename.startswith(_machinery):
        return f"{category.__name__}: {message}\n"
    return _warnings_format(message, category, filename, lineno, line)


def _show_warning(message: warnings.WarningMessage) -> None:
    """As Python does, but what a loop brings about time and again is told once, and that it came again."""
    key = f"{message.filename}:{message.lineno}: {message.category.__name__}: {message.message}"
    _warned[key] = times = 1 if shared else _warned.get(key, 0) + 1
    if times == 1:
        _warnings_show(message)
    elif times == 2:
        text: Any = "the same as before; it is not told again"
        place = (message.filename, message.lineno, message.file, "")
        _warnings_show(warnings.WarningMessage(text, message.category, *place))


_warned: dict[str, int] = {}
_warnings_show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
warnings._showwarnmsg_impl = _show_warning  # type: ignore[attr-defined]
_warnings_format = warnings.formatwarning
warnings.formatwarning = _format_warning
_warnings_warn = IPython.core.interactiveshell.warn
IPython.core.interactiveshell.warn = _warn


class ScriptCompiler(XCachingCompiler):  # type: ignore[misc]
    """Names the code as a script, so that tracebacks, `inspect` and `__file__` agree."""

    def __init__(self) -> None:
        super().__init__()
        # No more comes: Python says what is missing, and not only that the code is incomplete.
        self.flags &= ~codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return _code_name()


@contextmanager
def _no_running_loop() -> Iterator[None]:
    """Hide the kernel's own event loop, so that `asyncio.run` and friends work as in a script."""
    running = asyncio._get_running_loop()
    mine = asyncio.new_event_loop()
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(mine)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
        asyncio.set_event_loop(running)
        if not mine.is_running():
            mine.close()


class _Stack(traceback.StackSummary):
    """Frames of which a reader sees at most some: recursion over several functions has hundreds."""

    def format(self, **kwargs: Any) -> list[str]:
        lines = super().format(**kwargs)
        left_out = len(lines) - _OUTER_FRAMES - _INNER_FRAMES
        if left_out <= 1:
            return lines
        return [*lines[:_OUTER_FRAMES], f"  [{left_out} frames left out]\n", *lines[-_INNER_FRAMES:]]


def _user_frames(error: traceback.TracebackException, seen: set[int]) -> None:
    """Drop the machinery's frames from an exception and all that it chains to."""
    if id(error) in seen:
        return
    seen.add(id(error))
    stack = error.stack
    while stack and stack[0].filename.startswith(_outermost):
        del stack[0]
    error.stack = _Stack(_with_short_line(frame) for frame in stack if not frame.filename.startswith(_machinery))
    text, offset = getattr(error, "text", None), getattr(error, "offset", None) or 1
    if text and len(text) > _LONGEST_LINE:
        error.text, begin = _around(text, offset)
        error.offset = error.end_offset = offset - begin
    for other in (error.__cause__, error.__context__, *(error.exceptions or ())):
        if other is not None:
            _user_frames(other, seen)


def _with_short_line(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    if not frame.line or len(frame.line) <= _LONGEST_LINE:
        return frame
    line, _ = _around(frame.line, frame.colno or 0)
    return traceback.FrameSummary(frame.filename, frame.lineno, frame.name, lookup_line=False, line=line)


def _around(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around a column, and how much further left that column then is."""
    begin = max(0, min(column, len(line)) - _LONGEST_LINE // 2)
    part = line[begin : begin + _LONGEST_LINE]
    dots = "..." if begin else ""
    return f"{dots}{part}{'...' if begin + len(part) < len(line) else ''}", begin - len(dots)


def tell_of_thread(args: Any) -> None:
    """As `threading.excepthook` does, but with the lines of the code, which is no file that C code could read."""
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread else threading.get_ident()
        lines = format_error(args.exc_type, args.exc_value, args.exc_traceback)
        print(f"Exception in thread {name}:", *lines, sep="\n", file=sys.stderr)


def format_error(
    kind: type[BaseException], value: BaseException, tb: types.TracebackType | None, line: int | None = None
) -> list[str]:
    """The traceback as Python prints it, without our frames. Never raises, whatever the exception's own code does.

    `line` is that of the code which is to be named when none of its frames is in the traceback.
    """
    try:
        _note_full_place(value)
        error = traceback.TracebackException(kind, value, tb, compact=True)
        _user_frames(error, set())
        if line is not None and not error.stack:
            error.stack.append(traceback.FrameSummary(_code_name(), line, "<module>"))
        return ["".join(error.format()).rstrip("\n")]
    except BaseException as problem:
        return [f"{kind.__name__}: (the error's own text could not be made: {type(problem).__name__})"]


def _note_full_place(value: BaseException) -> None:
    """Say which of the private folders has no room: the system's error mostly does not, and nobody outside can see."""
    chain: BaseException | None = value
    for _ in range(10):
        if chain is None:
            return
        if isinstance(chain, OSError) and chain.errno == errno.ENOSPC:
            for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
                if os.statvfs(folder).f_bavail == 0:
                    value.add_note(f"[{folder} is full]")
            return
        chain = chain.__cause__ or chain.__context__


def _met_before_compiling(tb: types.TracebackType | None) -> bool:
    """Whether an error comes from the look for magics, which has another name for the code."""
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(tb)}
    return tokenize.__file__ in files and _code_name() not in files


def _walk_stack(f: types.FrameType | None) -> Iterator[tuple[types.FrameType, int]]:
    """As Python does, up to the outermost frame of the code: for `traceback.print_stack`, logging and the like."""
    for at, line in _traceback_walk_stack(f):
        if f is None and at.f_code.co_filename == traceback.__file__:
            continue
        yield at, line
        if at.f_code.co_name == "<module>" and at.f_code.co_filename == _code_name():
            return


_traceback_walk_stack = traceback.walk_stack
traceback.walk_stack = _walk_stack


def _text(value: BaseException) -> str:
    try:
        return str(value)
    except BaseException as problem:
        return f"(the error's own text could not be made: {type(problem).__name__})"


def _brief(value: BaseException) -> str:
    return " ".join(f"{type(value).__name__}: {_text(value)}".split())[:300]


class QuietDisplayHook(ipykernel.zmqshell.ZMQShellDisplayHook):  # type: ignore[misc]
    """Shows no value behind which a semicolon stands, as notebooks do."""

    def quiet(self) -> bool:
        return bool(self.semicolon_at_end_of_expression(self.shell.source))

    def finish_displayhook(self) -> None:
        streams.mend()
        super().finish_displayhook()


class _DisplayPublisher(ipykernel.zmqshell.ZMQDisplayPublisher):  # type: ignore[misc]
    def _flush_streams(self) -> None:
        streams.flush()


# What a thread could not show of the value that it is formatting: exceptions with their tracebacks.
_formatting = threading.local()


class TellingFormatter(DisplayFormatter):  # type: ignore[misc]
    """Puts what a value shows into words too, where its own text says little."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        # A form that cannot be made is no failure of the code as long as there is another.
        failed: list[Any] = []
        before = getattr(_formatting, "failed", None)
        _formatting.failed = failed
        try:
            with twins.around(obj) as drawn:
                data, metadata = super().format(obj, include, exclude)
        finally:
            _formatting.failed = before
        for kind, value, tb in failed:
            if value is not None and "text/plain" in data:
                print(f"{type(obj).__name__} cannot be shown in every form: {_brief(value)}", file=sys.stderr)
            else:
                self.parent.showtraceback((kind, value, tb), of_value=True)
        twin = (twins.of(obj) or drawn.twin) if data else None
        if twin is not None:
            twins.add(twin, data, metadata)
        return data, metadata


# The class keeps its well-known name: libraries look at it to learn that they run in a notebook.
class ZMQInteractiveShell(ipykernel.zmqshell.ZMQInteractiveShell):  # type: ignore[misc]
    """See the module. One cell, then the process is thrown away."""

    displayhook_class = Type(QuietDisplayHook)
    display_pub_class = Type(_DisplayPublisher)
    source = ""
    _told = False

    def init_display_formatter(self) -> None:
        self.display_formatter = TellingFormatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_environment(self) -> None:
        # Loguru would tell of each exception with all frames of the kernel below it.
        os.environ.update(TERM="dumb", NO_COLOR="1", PAGER="cat", GIT_PAGER="cat", LOGURU_BACKTRACE="0")

    def init_user_ns(self) -> None:
        super().init_user_ns()
        # The ways of a script to end itself, not IPython's, which only note the wish and go on.
        self.user_ns["exit"] = self.user_ns["quit"] = _Exit()
        self.user_ns["__file__"] = script_path()
        self.user_ns["__builtins__"] = sys.modules["builtins"]

    def init_builtins(self) -> None:
        super().init_builtins()
        self.builtin_trap.auto_builtins.update(exit=_Exit(), quit=_Exit())

    # `!cmd` writes to descriptors 1 and 2 like any other child, and needs no terminal.
    def system(self, cmd: str) -> None:
        self.system_raw(cmd)

    def enable_matplotlib(self, gui: Any = None) -> Any:
        # Whatever window is asked for, what is drawn comes with the result.
        return super().enable_matplotlib("inline")

    def payloadpage_page(self, strg: Any, *args: Any, **kwargs: Any) -> None:
        """`name?` and the like: there is no pager to show it."""
        print(strg.get("text/plain", "") if isinstance(strg, dict) else strg)

    def _tee(self, channel: str) -> AbstractContextManager[None]:
        """No copy of all output in memory, as IPython's history keeps one."""
        return nullcontext()

    def run_cell(self, raw_cell: str, *args: Any, cell_id: Any = None, cell_meta: Any = None, **kwargs: Any) -> Any:
        with nullcontext() if shared else _no_running_loop():
            result = self._without_clean_exit(super().run_cell(raw_cell, *args, **kwargs))
        if os.getpid() != _pid:
            # A forked child has come to the end of the code: as a script it ends here.
            _leave_child(None if result.success else 1)
        return result

    async def run_cell_async(
        self, raw_cell: str, *args: Any, cell_id: Any = None, cell_meta: Any = None, **kwargs: Any
    ) -> Any:
        global _cells
        self.source, self._told = raw_cell, False
        _cells = self.execution_count
        return self._without_clean_exit(await super().run_cell_async(raw_cell, *args, **kwargs))

    def _without_clean_exit(self, result: Any) -> Any:
        """A script that ends itself with status 0 has succeeded."""
        error = result.error_in_exec
        untold = error or result.error_before_exec
        if isinstance(error, SystemExit) and error.code in (None, 0, False):
            result.error_in_exec = None
        elif isinstance(error, bdb.BdbQuit):
            text = "a debugger has nobody to ask here"
            self._tell(bdb.BdbQuit, bdb.BdbQuit(text), [f"BdbQuit: {text}"])
        elif untold is not None:
            if not self._told:  # the code shows errors in a way of its own
                self._tell(type(untold), untold, format_error(type(untold), untold, untold.__traceback__))
            if error is not None:
                result.error_in_exec = _shown(error)
        return result

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        kind, value, tb = exc_tuple if exc_tuple is not None else sys.exc_info()
        if kind is None or value is None:
            return
        failed = getattr(_formatting, "failed", None)
        if failed is not None:
            failed.append((kind, value, tb))
            return
        if isinstance(value, SyntaxError) and _met_before_compiling(tb):
            value.filename, tb = _code_name(), None
        if isinstance(value, SyntaxError) and value.text is None and value.filename == _code_name():
            lines = self.source.splitlines()
            if value.lineno is not None and 0 < value.lineno <= len(lines):
                value.text = lines[value.lineno - 1]
        if isinstance(value, SystemExit):
            self._show_exit(value)
        elif isinstance(value, UsageError):
            self._tell(kind, value, [f"UsageError: {_text(value)}"])
        else:
            line = self._last_line() if kwargs.get("of_value") else None
            self._showtraceback(kind, value, format_error(kind, value, tb, line))

    def _last_line(self) -> int | None:
        """Where the last statement of the code begins, whose value is shown."""
        try:
            code: str = self.transform_cell(self.source)
            return ast.parse(code).body[-1].lineno
        except (SyntaxError, ValueError, IndexError):
            return None

    def showsyntaxerror(self, *args: Any, **kwargs: Any) -> None:
        self.showtraceback()

    def showindentationerror(self) -> None:
        self.showtraceback()

    def show_usage_error(self, exc: BaseException) -> None:
        self._tell(type(exc), exc, [f"UsageError: {_text(exc)}"])

    def _show_exit(self, value: SystemExit) -> None:
        code = value.code
        if code in (None, 0, False):
            return
        if os.getpid() != _pid:
            _leave_child(code)
        text = f"exit status {int(code)}" if isinstance(code, int) else f"{code}"
        self._tell(SystemExit, SystemExit(text), [f"SystemExit: {text}"])

    def _showtraceback(self, kind: Any, value: Any, lines: list[str]) -> None:
        self._tell(kind, value, lines)

    def _tell(self, kind: Any, value: Any, lines: list[str]) -> None:
        if os.getpid() != _pid:
            print(*lines, sep="\n", file=sys.stderr)
            return
        streams.mend()
        self._told = True
        super()._showtraceback(kind, _shown(value), lines)


OnceShell = ZMQInteractiveShell


def _leave_child(code: Any) -> NoReturn:
    """End a forked child as a script would end with this code of `SystemExit`."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    streams.flush()
    os._exit(int(code or 0) & 0xFF)


def _shown(error: BaseException) -> BaseException:
    """Stands in for an exception whose own `__str__` must not be called again."""
    stand_in: BaseException = type(type(error).__name__, (Exception,), {})(_text(error))
    return stand_in


class _Exit:
    """`exit` and `quit` of a script."""

    def __repr__(self) -> str:
        return "Use exit() to end the run."

    def __call__(self, code: Any = None) -> None:
        raise SystemExit(code)
