"""The parent of a session's kernels: imports once what a kernel needs, then forks a fresh one for each request.

It lives inside the session's walls as trusted code, because it keeps the right to make namespaces and mounts. So it
runs nothing of the user's, not even the `.pth` files of packages, and reads nothing that the user's code could have
written. Its one channel is a socket whose other end only the server holds; no kernel inherits it.

A request is one message: JSON, with three descriptors: stdout, stderr, and a socket for the answers about this one run;
and a fourth where the run has a cgroup, by which its first process enters that.
What is done to a kernel is data that the walls have written (see `prims.isolation.bubblewrap`); the steps that give up
rights are those of the wrapper, taken by the first process of the run's namespace before it forks the kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib.util
import json
import os
import random
import signal
import site
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_PRIVATE_ALL = 0x40000 | 0x4000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LARGEST_REQUEST = 128 * 1024
_ANSWERS = 3  # the descriptor by which the first process of a run tells how it goes
_DESCRIPTORS = 4096  # above any that this process has open

_libc = ctypes.CDLL(None, use_errno=True)


def main(told: dict[str, Any]) -> Callable[[], None]:
    """Serve requests until the server closes the channel. Returns only in a kernel's process: what that is to do."""
    control = socket.socket(fileno=told["control"])
    wrapper = _load(told["wrapper"])
    if told["uid"] is not None:
        _leave_root(told["uid"], wrapper)
    sys.path.append(told["packages"])
    sys.path.insert(0, told["kernel"])
    _preload()
    from prims_kernel.app import main as run
    from prims_kernel.app import ready

    ready()
    del sys.path[0]
    sys.path.remove(told["packages"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is left of a run that has ended
    gc.collect()
    gc.freeze()  # no collection in a child writes to pages that it shares with this process
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("a module that kernels load has started a thread: this process must not fork")
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if told["namespaces"] else None
    control.send(b"ready")
    while True:
        message, descriptors, flags, _ = socket.recv_fds(control, _LARGEST_REQUEST, 4)
        if not message:
            sys.exit(0)
        if len(descriptors) in (3, 4) and not flags & socket.MSG_TRUNC:
            request = json.loads(message)
            if _fork(namespace, request, wrapper, *descriptors):
                return partial(_kernel, request, run)
        for descriptor in descriptors:
            os.close(descriptor)


def _load(path: str) -> Any:
    """The wrapper, which belongs to no package here. Neither it nor what it imports stays in `sys.modules`."""
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location("prims_wrapper", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in set(sys.modules) - before:
        del sys.modules[name]
    return module


def _call(name: str, *arguments: Any) -> None:
    """A function of the C library that gives -1 and errno when it fails."""
    if getattr(_libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _leave_root(uid: int, wrapper: Any) -> None:
    """Become an ordinary user's parent before a line of any package has run. Returns in a process of its own.

    What bubblewrap has covered in /proc as root would forbid others to mount one: so there is a plain one first.
    """
    _call("mount", b"proc", b"/proc", b"proc", 2 | 4 | 8, None)
    wrapper.drop_to(uid)
    wrapper.prctl(_PR_SET_DUMPABLE, 1)  # else its own /proc/self would not be its own
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID)
    _map(0, uid)
    child = os.fork()
    if child:
        os.closerange(3, _DESCRIPTORS)
        os.waitpid(child, 0)
        os._exit(1)
    wrapper.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# ------------------------------------------------------------------------------------------ preloading


def _preload() -> None:
    """Import what a kernel imports: a throw-away child starts one and tells."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with open(writer, "w") as told:
                told.write("\n".join(_modules_of_a_kernel()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        names = answer.read().split()
    os.waitpid(child, 0)
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def _modules_of_a_kernel() -> list[str]:
    import asyncio

    from prims_kernel import app
    from prims_kernel.twins import bundles, figures, media, plots, specs, tables  # noqa: F401 (a first use)

    folder = tempfile.mkdtemp()
    ports = {f"{name}_port": n for n, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
    with open(f"{folder}/kernel.json", "w") as file:
        json.dump({**ports, "transport": "ipc", "ip": f"{folder}/s", "key": "none"}, file)
    kernel_app: Any = app.OnceApp
    kernel_app.start = lambda self: None
    app.main(["-f", f"{folder}/kernel.json", "--once"])
    asyncio.get_event_loop().run_until_complete(kernel_app.instance().kernel.do_execute("1+1", False))
    return [name for name, module in sys.modules.items() if getattr(module, "__spec__", None) is not None]


# --------------------------------------------------------------------------------------------- forking


def _fork(
    namespace: int | None,
    request: dict[str, Any],
    wrapper: Any,
    stdout: int,
    stderr: int,
    answers: int,
    cgroup: int | None = None,
) -> bool:
    """Fork the first process of a run, in a new PID namespace where `namespace` is the own. True in the kernel's."""
    pid = -1
    try:
        if namespace is not None:
            _call("unshare", _CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            if pid != 0 and namespace is not None:
                _call("setns", namespace, _CLONE_NEWPID)
    except OSError as problem:
        _answer(answers, f"error {problem}")
        return False
    if pid == 0:
        if cgroup is not None:
            with suppress(OSError):  # the server looks whether this is in it
                os.write(cgroup, b"0")
        # None of the three is 1 or 2, and 3 comes last.
        for number, descriptor in ((1, stdout), (2, stderr), (_ANSWERS, answers)):
            os.dup2(descriptor, number)
        os.closerange(_ANSWERS + 1, _DESCRIPTORS)
        try:
            (_first if namespace is not None else _supervisor)(request, wrapper)
        except BaseException as problem:
            _answer(_ANSWERS, f"error {type(problem).__name__}: {problem}")
            os._exit(1)
        return True
    return False


def _answer(answers: int, text: str) -> None:
    with suppress(OSError):
        os.write(answers, text.encode()[:1000])


def _first(request: dict[str, Any], wrapper: Any) -> None:
    """The first process of a run: makes its view, gives up all rights, forks the kernel. Returns in the kernel only."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _call("unshare", _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNET)
    _loopback_up()
    _make_view(request["view"], request["hidden"])
    _new_user_namespace(*request["user"])
    wrapper.empty_bounding_set()
    wrapper.confine(request["confine"])
    status = _check()
    # A login lists the user's own group among the others too; those that are mapped to nobody give nothing.
    others = set(status["Groups"]) - {"65534", status["Gid"][0]}
    if os.getpid() != 1 or int(status["CapBnd"][0], 16) or others:
        raise PermissionError("a forked kernel kept capabilities or groups, or has no pids of its own")
    wrapper.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    wrapper.prctl(_PR_SET_DUMPABLE, 0)  # what this process holds is not for the code to see
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process gets no signal of its run that it does not handle
    kernel = os.fork()
    if kernel == 0:
        os.close(_ANSWERS)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        wrapper.prctl(_PR_SET_DUMPABLE, 1)  # as after an exec: its /proc/self is its own
        return
    _tell(kernel, lambda: _ended(kernel))


def _supervisor(request: dict[str, Any], wrapper: Any) -> None:
    """The first process where there are no namespaces: forks the kernel, adopts and ends what that leaves behind.

    Returns in the kernel only, which has given up all rights then.
    """
    os.setsid()
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # taken by sigwait, never between two lines
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wrapper.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wrapper.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    wrapper.prctl(_PR_SET_DUMPABLE, 0)
    supervisor = os.getpid()
    kernel = os.fork()
    if kernel == 0:
        os.close(_ANSWERS)
        os.setsid()
        wrapper.die_with(supervisor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        wrapper.prctl(_PR_SET_DUMPABLE, 1)
        wrapper.confine(request["confine"])
        _check()
        return
    _tell(kernel, lambda: wrapper.tend(kernel, signals))


def _tell(kernel: int, ended: Callable[[], int]) -> NoReturn:
    """Hand over handles to this process, which is the whole run, and to the kernel, then the exit status. If nobody is
    there to take them, this raises and all ends."""
    os.closerange(0, _ANSWERS)
    with socket.socket(fileno=_ANSWERS) as channel:
        socket.send_fds(channel, [b"up"], [os.pidfd_open(os.getpid()), os.pidfd_open(kernel)])
        channel.send(b"exit %d" % ended())
    os._exit(0)


def _ended(kernel: int) -> int:
    """Reap all that end here, up to the kernel; gives its status as a shell would."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == kernel:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def _make_view(mounts: list[list[Any]], hidden: list[str]) -> None:
    """What this run sees in another way than its parent. Each mount is the arguments of mount(2)."""
    _call("mount", b"none", b"/", None, _MS_PRIVATE_ALL, None)
    for source, target, kind, flags, data in mounts:
        _call("mount", *(os.fsencode(text) for text in (source, target, kind)), flags, os.fsencode(data))
    for target in hidden:
        _call("umount2", os.fsencode(target), _MNT_DETACH)


def _new_user_namespace(inside: int, outside: int) -> None:
    """One that owns nothing of what was made before it: even all rights in it would open no way out.

    Limits of processes are counted in it, so each run has its own; and there is no other below it.
    """
    _call("unshare", _CLONE_NEWUSER)
    _map(inside, outside)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def _map(inside: int, outside: int) -> None:
    """One uid, with the gid of the same number, is all that this user namespace knows."""
    only = f"{inside} {outside} 1"
    for name, text in (("uid_map", only), ("setgroups", "deny"), ("gid_map", only)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _check() -> dict[str, list[str]]:
    """Raise unless everything that matters was given up; what is wrong here must not become a kernel.

    Gives what the system says of this process.
    """
    with open("/proc/self/status") as file:
        status = {name: value.split() for name, _, value in (line.partition(":") for line in file)}
    wrong = [name for name in ("CapInh", "CapPrm", "CapEff", "CapAmb") if int(status[name][0], 16)]
    wrong += [name for name, wanted in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status[name] != [wanted]]
    wrong += [name for name in ("Uid", "Gid") if "0" in status[name]]
    if wrong:
        raise PermissionError(f"a forked kernel kept rights: {', '.join(wrong)}")
    return status


# ------------------------------------------------------------------------------------------ the kernel


def _kernel(request: dict[str, Any], run: Callable[[list[str]], None]) -> NoReturn:
    """Become what a started kernel is, as far as the code can tell, and run it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    random.seed()
    _forget_the_parent()
    if (venv := request["env"]["VIRTUAL_ENV"]) != sys.prefix:
        _move_to(venv)
    sys.argv = request["argv"][2:]
    sys.orig_argv = request["argv"]
    # Only now, without rights: these run the `.pth` files of the run's layers.
    for folder in [path for path in sys.path if path.endswith("site-packages")]:
        site.addsitedir(folder)
    code: Any = 0
    try:
        run(request["argv"][3:])
    except SystemExit as asked:
        code = asked.code
    sys.exit(code)


def _move_to(venv: str) -> None:
    """Be the interpreter of another virtualenv: where there are no mounts, each run's has a path of its own."""
    old = sys.prefix
    sys.prefix = sys.exec_prefix = venv
    sys.executable = f"{venv}/bin/python"
    sys.path[:] = [venv + path.removeprefix(old) if path.startswith(f"{old}/") else path for path in sys.path]
    site.PREFIXES[:] = [venv if prefix == old else prefix for prefix in site.PREFIXES]
    sys.modules.pop("sysconfig", None)  # keeps paths below the prefix that it found
    if (spawn := sys.modules.get("multiprocessing.spawn")) is not None:
        spawn.set_executable(sys.executable)
    site.USER_BASE = site.USER_SITE = None


def _forget_the_parent() -> None:
    """What modules have kept of the process that imported them."""
    sys.path_importer_cache.clear()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        current: Any = process.current_process()
        current.authkey = os.urandom(32)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))()
