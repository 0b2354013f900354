"""The kernel application: ipykernel with the parts that a throw-away run needs exchanged."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import zmq
from ipykernel.control import ControlThread
from ipykernel.displayhook import ZMQDisplayHook
from ipykernel.iostream import IOPubThread
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.profiledir import ProfileDir
from traitlets import Type, default
from traitlets.config import Config

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
    # ipykernel sleeps before each reply, for text that is still on its way: here that is in pipes by then.
    _execute_sleep = 0.0

    @property
    def _supports_kernel_subshells(self) -> bool:
        return bool(self.shell_channel_thread)

    def raw_input(self, prompt: str = "") -> str:
        raise _no_input("input()")

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        raise _no_input("getpass()")

    async def interrupt_request(self, *args: Any) -> None:
        await super().interrupt_request(*args)
        self.io_loop.add_callback(int)  # a loop that waits is not woken by what it is told in a signal handler

    async def execute_request(self, *args: Any) -> None:
        try:
            await super().execute_request(*args)
        except asyncio.CancelledError:
            print("The code has cancelled the tasks that run it: cancel none but its own.", file=sys.stderr)
            streams.flush()
            os._exit(1)
        except Exception:
            # Without an answer the server would wait until the time is up.
            traceback.print_exc()
            streams.flush()
            os._exit(1)

    def _publish_status(self, status: str, *args: Any, **kwargs: Any) -> None:
        """Say that a cell has ended. That it has begun is known to who sent it."""
        if status != "busy":
            super()._publish_status(status, *args, **kwargs)

    def _publish_execute_input(self, *args: Any, **kwargs: Any) -> None:
        """Say where the outputs of a cell begin, if there are several."""
        if shell.shared:
            super()._publish_execute_input(*args, **kwargs)

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not silent:
            streams.begin()
        before = asyncio.all_tasks()
        reply: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
        if not silent and not shell.shared:
            end = asyncio.ensure_future(once.finish_tasks(before, wait=reply["status"] == "ok"))
            with self._cancel_on_sigint(end):
                if await end:
                    self.shell.events.trigger("post_execute")  # where figures are shown
            once.finish()
        streams.mend()
        return reply


class _NoSubshells:
    """In the place of the thread that hands requests to subshells: one thread less on a request's way.

    ipykernel asks whether there is one, but for its parent also where there is none.
    """

    def __init__(self) -> None:
        self.parent_thread = threading.current_thread()

    def __bool__(self) -> bool:
        return False


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

    def get_ready(self) -> None:
        """The first half of `initialize`, without command line and configuration files."""
        self.init_crash_handler()
        self.init_profile_dir()
        self.init_pdb()
        IOPubThread._setup_pipe_in = _no_pipe  # for displays of forked children, which are text here
        self.shell = OnceShell.instance(
            parent=self, profile_dir=self.profile_dir, user_ns={}, compiler_class=ScriptCompiler
        )

    def connect(self, connection_file: str) -> None:
        """The second half, in the process that will run the code."""
        # What the first half did for its own process.
        self.shell.init_environment()
        home: str = os.environ["IPYTHONDIR"]
        if self.shell.ipython_dir != home:  # it had a home of its own, where there is no other view
            app: Any = self
            app.ipython_dir = self.shell.ipython_dir = home
            self.shell.home_dir = os.environ["HOME"]
            app.profile_dir = self.shell.profile_dir = ProfileDir(location=f"{home}/profile_default")
        os.makedirs(self.profile_dir.location, exist_ok=True)
        self.profile_dir.check_dirs()
        self.connection_file = connection_file
        self.init_connection_file()
        self.init_sockets()
        self.log_connection_info()
        self.init_io()
        self.init_signal()
        self.init_kernel()
        self.shell.kernel = self.kernel
        self.init_path()
        self.init_shell()
        self.init_gui_pylab()
        self.init_extensions()

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Interrupts come here. The debugger's socket is there because a stream wants one."""
        self.control_socket = context.socket(zmq.ROUTER)
        self.control_port = self._bind_socket(self.control_socket, self.control_port)  # type: ignore[has-type]
        self.debugpy_socket = context.socket(zmq.STREAM)
        self.control_thread = ControlThread(daemon=True)
        self.shell_channel_thread = _NoSubshells()

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


def ready() -> OnceApp:
    """Make all of a run's kernel that needs no connection, thread or descriptor: a parent does it before it forks."""
    config = Config()
    # A notebook's user may ask for what was typed before; nobody asks a single run, and the database costs it time.
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.Application.log_level = "CRITICAL"
    app: OnceApp = OnceApp.instance(kernel_class=OnceKernel, config=config)
    app.log.setLevel("CRITICAL")  # not only what shows it: making each message has its price too
    app.get_ready()
    return app


def main(argv: list[str]) -> None:
    """Run the kernel until it is shut down or killed."""
    os.umask(0o022)
    order.begin()
    shell.begin()
    connection_file = argv[argv.index("-f") + 1]
    network.begin(os.path.dirname(os.path.abspath(connection_file)))
    if "--once" in argv:
        app = OnceApp.instance() if OnceApp.initialized() else ready()
        app.connect(connection_file)
        once.prepare(app.shell)
    else:
        app = App.instance()
        config = ["--HistoryManager.hist_file=:memory:", "--InteractiveShell.colors=nocolor", "--log-level=CRITICAL"]
        app.initialize([*argv, *config])
        once.add_working_directory()
    app.start()
