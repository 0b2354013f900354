"""Script habits around the one cell: who `__main__` is, workers that are started anew, and what runs at the end."""

from __future__ import annotations

import _io  # type: ignore[import-not-found, unused-ignore]
import ast
import asyncio
import atexit
import contextlib
import ctypes
import gc
import io
import os
import shlex
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from prims_kernel import figures, order, shell, streams
from prims_kernel.shell import SCRIPT, script_path

# How long threads that the code left running may go on before they are stopped with everything else.
THREAD_SECONDS = 5.0
# And exit functions after that.
EXIT_SECONDS = 2.0

_KERNELS_OWN = frozenset({"zmq", "ipykernel", "IPython", "tornado", "jupyter_client", "jupyter_core", "traitlets"})

_has_written = False  # whether any file was opened to be written
_own_threads: list[threading.Thread] = []
_own_finalizers: list[Any] = []
_at_exit: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []


def prepare(of: Any) -> None:
    """Make this process look like `python main.py` to the code that is about to run."""
    sys.argv = [SCRIPT]
    add_working_directory()
    main = sys.modules["__main__"]
    main.__dict__["__file__"] = script_path()
    # The name under which spawned workers know it. multiprocessing binds it when it is imported, which for a forked
    # kernel was in its parent.
    sys.modules["__mp_main__"] = main
    sys.breakpointhook = _no_breakpoint
    threading.excepthook = shell.tell_of_thread
    _own_threads.extend(threading.enumerate())
    _own_finalizers.extend(_finalizers())
    figures.seed_font_cache()
    of.register_magic_function(_pip_magic, "line", "pip")
    _record_at_exit()
    sys.addaudithook(_note_writing)
    _teach_multiprocessing(of)


def share() -> None:
    """Be a notebook's kernel, whose cells share what they define, and no script."""
    shell.share()
    order.ORDERED.add("execute_input")
    sys.modules["__main__"].__dict__.pop("__file__", None)


def join(layers: list[str]) -> None:
    """Add package layers to this interpreter, as the venv has them for those that are started from it."""
    for layer in layers:
        site.addsitedir(layer)
    os.environ["PATH"] = ":".join([*(f"{layer}/bin" for layer in layers), os.environ["PATH"]])


def add_working_directory() -> None:
    """Modules beside the code can be imported, but never in place of the standard library's."""
    at = next((i for i, path in enumerate(sys.path) if path.endswith("site-packages")), len(sys.path))
    sys.path.insert(at, os.getcwd())


def _pip_magic(line: str) -> None:
    """`%pip` without the advice to restart a kernel that is thrown away anyhow."""
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "pip", *shlex.split(line)], check=False)


def _no_breakpoint(*args: Any, **kwargs: Any) -> None:
    print("breakpoint() skipped: nobody can answer a debugger here", file=sys.stderr)


# ------------------------------------------------------------------------------------------ at the end


def _record_at_exit() -> None:
    # What the kernel registers, before this or later, never runs: the process is killed.
    register, unregister = atexit.register, atexit.unregister

    def record(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _KERNELS_OWN:
            return register(func, *args, **kwargs)
        _at_exit.append((func, args, kwargs))
        return func

    def forget(func: Callable[..., Any]) -> None:
        _at_exit[:] = [entry for entry in _at_exit if entry[0] != func]
        unregister(func)

    exits: Any = atexit
    exits.register, exits.unregister = record, forget


def finish() -> None:
    """What an interpreter does when its script has ended: wait for threads, then run the exit functions.

    All of it takes a bounded time: code that is over must not be told to have run out of its own.
    """
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, THREAD_SECONDS + EXIT_SECONDS)
    # Exception: the code may have put anything in the place of what is needed here.
    with contextlib.suppress(KeyboardInterrupt, Exception):
        _wait_for_threads()
        _at_exit.extend((f, (), {}) for f in _finalizers() if f.atexit and f not in _own_finalizers)
        while _at_exit:
            func, args, kwargs = _at_exit.pop()
            try:
                func(*args, **kwargs)
            except (KeyboardInterrupt, _TooLong):
                raise
            except SystemExit:
                pass
            except BaseException as problem:
                print("Exception in an exit function:", file=sys.stderr)
                print(*shell.format_error(type(problem), problem, problem.__traceback__), sep="\n", file=sys.stderr)
        _let_go()
    if _has_written:
        signal.setitimer(signal.ITIMER_REAL, EXIT_SECONDS)
        with contextlib.suppress(KeyboardInterrupt, _TooLong):
            _write_out_files()
    signal.setitimer(signal.ITIMER_REAL, 0)
    streams.flush()
    with contextlib.suppress(Exception):
        # What C code printed and did not flush, as at the end of any process.
        ctypes.CDLL(None).fflush(None)


def _finalizers() -> list[Any]:
    return list(weakref.finalize._registry)  # type: ignore[attr-defined]


def _let_go() -> None:
    """Have what the code still holds finalized, where that does something: a ZipFile has its end written then."""
    if len(threading.enumerate()) > len([t for t in _own_threads if t.is_alive()]):
        return  # threads still use what they are given
    names = sys.modules["__main__"].__dict__
    for name in list(names):
        if hasattr(type(names[name]), "__del__"):
            names[name] = None


def _note_writing(event: str, args: tuple[Any, ...]) -> None:
    global _has_written
    if event == "open" and not _has_written and isinstance(args[2], int):
        _has_written = args[2] & os.O_ACCMODE != os.O_RDONLY


def _write_out_files() -> None:
    """What was written to files that are still open: the process is killed, and does not come to its own end."""
    files: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), _io._IOBase)]
    texts = [file for file in files if isinstance(file, io.TextIOWrapper)]
    # Compressed files and the like, which have an end that is written when they are closed.
    others = [file for file in files if type(file).__module__ != "_io" and file not in texts]
    # Text goes through the others, and they through what is beneath.
    for write_out in (*(f.flush for f in texts), *(f.close for f in others), *(f.flush for f in files)):
        try:
            write_out()
        except _TooLong:
            raise
        except Exception:  # closed, or only to be read
            continue


class _TooLong(Exception):
    """The time for the end of a run is up."""


def _too_long(*args: Any) -> None:
    raise _TooLong


async def finish_tasks(before: set[asyncio.Task[Any]], wait: bool) -> bool:
    """Let tasks go on that were begun since and that the code, at its end, does not await; tell what came of them.

    Gives whether there were any.
    """
    begun = False
    until = time.monotonic() + THREAD_SECONDS
    with contextlib.suppress(Exception, asyncio.CancelledError):
        mine = {*before, asyncio.current_task()}
        while (left := asyncio.all_tasks() - mine) and wait and (room := until - time.monotonic()) > 0:
            begun = True
            await asyncio.wait(left, timeout=room)
        if left and wait:
            names = [getattr(task.get_coro(), "__qualname__", task.get_name()) for task in left]
            _tell_stopped("task(s)", names, "await them, or asyncio.gather() of them")
    every: Any = getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", ())
    for task in list(every):
        if task.done() and task._log_traceback:
            task.__del__()  # where it tells of an error that nobody has looked at
    return begun


def _tell_stopped(what: str, names: list[str], advice: str) -> None:
    if names:
        print(
            f"{len(names)} {what} still running {THREAD_SECONDS:g} s after the end of the code were stopped "
            f"({', '.join(names[:3])}); {advice}",
            file=sys.stderr,
        )


def _wait_for_threads() -> None:
    # As `threading._shutdown` does before it joins: pools wake and end their own threads here.
    for function in reversed(getattr(threading, "_threading_atexits", [])):
        with contextlib.suppress(Exception):
            function()
    pool: Any = sys.modules.get("concurrent.futures.thread")
    if pool is not None:
        # As the interpreter does at its end: idle workers go, queued work is done first.
        pool._shutdown = True
        for work in list(pool._threads_queues.values()):
            work.put(None)
    until = time.monotonic() + THREAD_SECONDS
    me = threading.get_ident()  # libraries may have put a thread of their own in the place of the main one
    left = [t for t in threading.enumerate() if not t.daemon and t not in _own_threads and t.ident != me]
    for thread in left:
        thread.join(max(0.0, until - time.monotonic()))
    _tell_stopped("thread(s)", [t.name for t in left if t.is_alive()], "call join() to wait for them")


# ------------------------------------------------------------------------------------------ spawned workers


def _teach_multiprocessing(shell: Any) -> None:
    """Workers of the spawn and forkserver methods import the main file: give them one when they ask."""
    import multiprocessing.spawn as spawn

    prepare_data = spawn.get_preparation_data
    made: list[str] = []

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = prepare_data(name)
        if data.get("init_main_from_path") == script_path():
            if not made:
                made.append(_write_main(shell))
            data["init_main_from_path"] = made[0]
        return data

    spawn.get_preparation_data = get_preparation_data


def _write_main(shell: Any) -> str:
    folder = tempfile.mkdtemp(prefix="main-")
    path = os.path.join(folder, SCRIPT)
    with open(path, "w", encoding="utf-8") as file:
        file.write(main_for_workers(shell.source, shell.transform_cell))
    return path


def main_for_workers(source: str, transform: Callable[[str], str]) -> str:
    """The code as a worker may run it, with its line numbers kept.

    Code with an `if __name__ == "__main__"` is written for this and taken whole, but for notebook-only statements.
    Of other code a worker gets what defines things (imports, functions, classes, plain values), not what acts.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        source = transform(source)
        try:
            tree = ast.parse(source, mode="exec")
        except SyntaxError:
            return ""
    guarded = any(isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in tree.body)
    kept: set[int] = set()
    for node in tree.body:
        if _portable(node) and (guarded or _defines(node)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            kept.update(range(first, (node.end_lineno or node.lineno) + 1))
    return "".join(line if n in kept else "\n" for n, line in enumerate(source.splitlines(True), 1))


def _portable(node: ast.stmt) -> bool:
    """Whether a statement means something outside of a notebook."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    top_await = any(isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for n in ast.walk(node))
    return not top_await and not names & {"get_ipython", "display", "In", "Out"}


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return node.value is None or not any(isinstance(n, (ast.Call, ast.Await)) for n in ast.walk(node.value))
    if isinstance(node, (ast.If, ast.Try)):
        inner = [*node.body, *node.orelse, *getattr(node, "finalbody", [])]
        inner += [s for h in getattr(node, "handlers", []) for s in h.body]
        return all(_defines(n) or isinstance(n, ast.Pass) for n in inner)
    return False
