"""The kernel application: ipykernel with the parts that a throw-away run needs exchanged."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from typing import Any

import zmq
from ipykernel.displayhook import ZMQDisplayHook
from ipykernel.iostream import IOPubThread
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Type, default

from prims_kernel import figures, libraries, network, once, order, shell, streams
from prims_kernel.shell import OnceShell, ScriptCompiler

CRASH_FILE = "crash.log"


def _no_input(what: str) -> EOFError:
    return EOFError(f"{what} has nobody to ask here. Put the value into the code, or into a file that it reads.")


def _has_internet_sockets() -> bool:
    try:
        socket.socket(socket.AF_INET).close()
    except OSError:
        return False
    return True


def _no_pipe(thread: Any) -> None:
    thread._pipe_flag = False


class OnceKernel(IPythonKernel):  # type: ignore[misc]
    """A kernel that nobody can be asked for input and whose cell may start an event loop."""

    shell_class = Type(OnceShell)
    compiler_class = Type(ScriptCompiler)

    def raw_input(self, prompt: str = "") -> str:
        raise _no_input("input()")

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        raise _no_input("getpass()")

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        reply: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
        if not silent and not shell.shared:
            once.finish()
        return reply


class App(IPKernelApp):  # type: ignore[misc]
    """An ordinary notebook kernel, but for what must not be lost or leak."""

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        # A reader that is busy elsewhere must not lose output: no high-water mark, memory is bounded by the run's own.
        context.setsockopt(zmq.SNDHWM, 0)
        if not _has_internet_sockets():
            # By which forked children would send their displays; libzmq aborts where it cannot have one.
            IOPubThread._setup_pipe_in = _no_pipe
        super().init_iopub(context)

    def init_gui_pylab(self) -> None:
        # Instead of exporting MPLBACKEND, which other interpreters started from the code would trip over.
        figures.install(self.shell)


class OnceApp(App):
    """The kernel of one run: text goes straight to descriptors 1 and 2, which the server reads.

    So C code, child processes and Python share one ordered stream each, and what was written survives any death.
    """

    @default("session")  # type: ignore[untyped-decorator]
    def _session_default(self) -> order.OrderedSession:
        return order.OrderedSession(parent=self)

    def init_gui_pylab(self) -> None:
        super().init_gui_pylab()
        libraries.install()

    def init_io(self) -> None:
        streams.install()
        self.displayhook = sys.displayhook = ZMQDisplayHook(self.session, self.iopub_socket)
        self.patch_io()

    def init_signal(self) -> None:
        super().init_signal()
        # Where was it? Answered from the signal handler itself, so also while C code holds the GIL.
        crash = open(os.path.join(os.path.dirname(self.abs_connection_file), CRASH_FILE), "wb", 0)  # noqa: SIM115, PTH
        faulthandler.enable(crash, all_threads=False)
        faulthandler.register(signal.SIGUSR2, crash, all_threads=False)
        self._crash = crash


def main(argv: list[str]) -> None:
    """Run the kernel until it is shut down or killed."""
    run_once = "--once" in argv
    argv = [a for a in argv if a != "--once"]
    # A notebook's user may ask for what was typed before; nobody asks a single run, and the database costs it time.
    history = "--HistoryManager.enabled=False" if run_once else "--HistoryManager.hist_file=:memory:"
    config = [history, "--InteractiveShell.colors=nocolor", "--log-level=CRITICAL"]
    os.umask(0o022)
    order.begin()
    shell.begin()
    network.begin(os.path.dirname(os.path.abspath(argv[argv.index("-f") + 1])))
    app = OnceApp.instance(kernel_class=OnceKernel) if run_once else App.instance()
    app.initialize([*argv, *config])
    if run_once:
        once.prepare(app.shell)
    else:
        once.add_working_directory()
    app.start()
