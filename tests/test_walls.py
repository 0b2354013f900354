"""The walls, tried for real: every sandbox here is a real one, built as the user who runs the tests."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from prims.errors import IsolationUnavailable
from prims.isolation import bubblewrap, limits, probe, uids, wrapper
from prims.isolation.walls import Box, NoWalls, Walls, base_python
from prims.kernel.kernel import _files_in
from prims.model import Limits
from tests.processes import end
from tests.users import STRANGER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

PYTHON = base_python().executable
SECONDS = 60
DEFAULTS = Limits()
Make = Callable[..., Box]


@pytest.fixture
def bwrap() -> bubblewrap.Bubblewrap:
    found = bubblewrap.find()
    if found is None:
        pytest.skip("bubblewrap is not installed")
    return found


@pytest.fixture
def open_way() -> Iterator[Path]:
    """A folder that any uid may pass to; those of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    def make_box(walls: Walls, layers: tuple[Path, ...] = (), limits: Limits = DEFAULTS) -> Box:
        folders = {name: tmp_path / "box" / name for name in ("workspace", "mounts", "venv", "kernel", "run")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        uid = stack.enter_context(uids.uid_for(walls))
        if uid is not None:
            os.chown(folders["workspace"], uid, uid)
            os.chown(folders["run"], uid, uid)
        return Box(**folders, layers=layers, limits=limits, uid=uid)

    with ExitStack() as stack:
        yield make_box


def start(walls: Walls, box: Box, code: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    argv = [PYTHON, "-I", "-S", "-c", code]
    return walls.spawn(box, argv, env or {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def told_by(walls: Walls, box: Box, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """What `argv` prints inside; fails when it fails."""
    with walls.spawn(box, argv, env or {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr.decode()
    return stdout.decode().strip()


def run(walls: Walls, box: Box, code: str) -> str:
    """What `code` prints inside; fails when it fails."""
    return told_by(walls, box, [PYTHON, "-I", "-S", "-c", code])


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


# Leaves two daemons behind that ignore all polite signals, each below another parent, and says so.
DAEMONS = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"x"); time.sleep(600)
        os._exit(0)
    os.wait(); os.read(read, 1)
print("ready", flush=True)
"""


# ------------------------------------------------------------------------------------------ bubblewrap


def test_the_command_gets_exactly_its_environment_and_starts_in_the_workspace(
    bwrap: bubblewrap.Bubblewrap, make: Make
) -> None:
    env = {"HOME": "/home/sandbox", "GREETING": "ä b=c"}
    box = make(bwrap)
    lines = told_by(bwrap, box, ["/usr/bin/env"], env).splitlines()
    assert lines == [f"{name}={value}" for name, value in env.items()]
    assert told_by(bwrap, box, ["/bin/pwd"]) == "/workspace"


def test_every_role_is_where_places_says_and_only_workspace_run_home_and_tmp_are_writable(
    bwrap: bubblewrap.Bubblewrap, make: Make, tmp_path: Path
) -> None:
    (layer := tmp_path / "layer-1").mkdir()
    box = make(bwrap, layers=(layer,))
    (box.mounts / "data.csv").write_text("1")
    places = bwrap.places(box)
    roles = [places.workspace, places.mounts, places.venv, *places.layers, places.kernel, places.run]
    others = [places.home, places.tmp, "/", "/dev", "/etc", "/usr"]
    code = (
        f"import os; open('made', 'w').close(); print(os.listdir({places.mounts!r}), "
        f"[os.access(p, os.W_OK) for p in {[*roles, *others]!r}])"
    )
    writable = [True, False, False, False, False, True, True, True, False, False, False, False]
    assert run(bwrap, box, code) == f"['data.csv'] {writable}"
    made = (box.workspace / "made").stat()
    assert made.st_uid == (os.getuid() if box.uid is None else box.uid)
    assert stat.S_IMODE(made.st_mode) == 0o644


def test_the_servers_environment_descriptors_and_paths_are_not_inside(
    bwrap: bubblewrap.Bubblewrap, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIMS_TEST_SECRET", "hunter2")
    box = make(bwrap)
    code = """
import os
def look(path):
    try:
        with open(path, "rb") as file: return file.read()
    except OSError: return b""
seen = b"".join(look(f"/proc/{pid}/{name}") for pid in (1, "self") for name in ("environ", "cmdline"))
print(b"hunter" + b"2" in seen, HOST in seen, sorted(os.listdir("/proc/self/fd"))[:-1], os.path.exists(HOST))
"""
    # The command's own line holds this code, so the path is put together inside.
    path = os.fsencode(tmp_path).hex()
    code = code.replace("HOST", f"bytes.fromhex({path!r})")
    assert run(bwrap, box, code) == "False False ['0', '1', '2'] False"


def test_what_seccomp_forbids_fails_and_what_programs_need_works(
    bwrap: bubblewrap.Bubblewrap, make: Make
) -> None:
    code = """
import errno, os, socket, subprocess, threading, fcntl
def outcome(f, *a):
    try: f(*a)
    except OSError as e: return errno.errorcode[e.errno]
    return "ok"
m, s = os.openpty()
print(outcome(os.memfd_create, "x"), outcome(os.chroot, "/tmp"), outcome(socket.socket, 40),
      outcome(fcntl.ioctl, s, 0x5412, b"x"), outcome(socket.socket, socket.AF_INET6),
      outcome(socket.socketpair), outcome(fcntl.ioctl, s, 0x5413, bytes(8)), subprocess.call(["/bin/true"]))
threading.Thread(target=lambda: None).start()
"""
    assert run(bwrap, make(bwrap), code) == "EPERM EPERM EAFNOSUPPORT EPERM ok ok ok 0"


def test_locks_of_multiprocessing_work_and_each_tmpfs_ends_at_its_size(
    bwrap: bubblewrap.Bubblewrap, make: Make
) -> None:
    code = """
import multiprocessing, os
with multiprocessing.Lock(): pass
for place in ("/tmp", "/dev/shm", "/home/sandbox"):
    total = 0
    try:
        with open(place + "/fill", "wb", buffering=0) as file:
            while total < 64 << 20: total += file.write(bytes(1 << 20))
    except OSError as error: print(error.strerror, total <= 8 << 20)
"""
    limited = Limits(tmp_bytes=8 << 20)
    assert run(bwrap, make(bwrap, limits=limited), code).splitlines() == ["No space left on device True"] * 3


def test_files_in_memory_are_counted_from_outside(bwrap: bubblewrap.Bubblewrap, make: Make) -> None:
    code = "import time\nfor n in range(500): open(f'/tmp/{n}', 'w')\nprint('made', flush=True)\ntime.sleep(600)"
    process = start(bwrap, make(bwrap), code)
    assert line_of(process) == "made"
    assert 500 <= _files_in(bwrap.inner_pid(process), ("/tmp", "/dev/shm")) < 600
    bwrap.kill(process)
    process.communicate(timeout=SECONDS)


def test_processes_memory_and_open_files_are_limited(bwrap: bubblewrap.Bubblewrap, make: Make) -> None:
    code = """
import os, signal
pids = []
try:
    while len(pids) < 200:
        if (pid := os.fork()) == 0: signal.pause()
        pids.append(pid)
except BlockingIOError: print(20 < len(pids) < 40)
for pid in pids: os.kill(pid, 9)
try: bytearray(8 << 30)
except MemoryError: print("MemoryError")
files = []
try:
    while len(files) < 200: files.append(open("/dev/null"))
except OSError as error: print(error.strerror)
"""
    limited = Limits(processes=40, open_files=64, memory_bytes=1 << 30)
    told = run(bwrap, make(bwrap, limits=limited), code).splitlines()
    assert told == ["True", "MemoryError", "Too many open files"]


def test_no_right_of_the_servers_user_lets_code_come_before_others(bwrap: bubblewrap.Bubblewrap, make: Make) -> None:
    code = """
import json, os, resource
told = [os.getpriority(os.PRIO_PROCESS, 0), *map(resource.getrlimit, (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO))]
for action in (lambda: os.nice(-1), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: told.append(action())
    except PermissionError: told.append("refused")
print(json.dumps(told))
"""
    kinds = (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO)
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    try:
        with suppress(ValueError):  # as limits.conf does for some; not even root can everywhere
            for kind in kinds:
                resource.setrlimit(kind, (30, 30))
        told = json.loads(run(bwrap, make(bwrap), code))
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)
    assert told == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5), [0, 0], [0, 0], "refused", "refused"]


@pytest.mark.parametrize("ignored", [False, True], ids=["", "of a server in the background"])
def test_inner_pid_is_the_command_which_takes_an_interrupt(
    bwrap: bubblewrap.Bubblewrap, make: Make, ignored: bool
) -> None:
    code = """
import time
try:
    print("ready", flush=True)
    for _ in range(600): time.sleep(0.1)  # an interrupt that comes right before a sleep does not shorten it
except KeyboardInterrupt: print("interrupted")
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        process = start(bwrap, make(bwrap), code)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert line_of(process) == "ready"
        pid = bwrap.inner_pid(process)
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        assert process.communicate(timeout=SECONDS)[0] == b"interrupted\n"
    assert bwrap.inner_pid(process) is None


@pytest.mark.parametrize("at_once", [False, True])
def test_killing_bubblewrap_leaves_nothing_behind(
    bwrap: bubblewrap.Bubblewrap, make: Make, at_once: bool
) -> None:
    with start(bwrap, make(bwrap), DAEMONS + "time.sleep(600)") as process:
        if not at_once:
            assert line_of(process) == "ready"
            assert len(limits.tree(process.pid)) == 5  # bwrap, its pid 1, the command, two daemons
        pids = limits.tree(process.pid)
        bwrap.kill(process)
        process.wait(SECONDS)
        assert end(pids, SECONDS)
        bwrap.kill(process)  # harmless
        process.communicate(timeout=SECONDS)  # nobody holds the pipes any more


def test_a_signal_that_ended_the_command_is_in_the_exit_status(
    bwrap: bubblewrap.Bubblewrap, make: Make
) -> None:
    with start(bwrap, make(bwrap), "import os; os.abort()") as process:
        process.communicate(timeout=SECONDS)
    assert limits.describe_exit(process.returncode) == "killed by SIGABRT (aborted)"


def test_boxes_that_cannot_be_built_as_asked_are_refused(
    bwrap: bubblewrap.Bubblewrap, make: Make, tmp_path: Path
) -> None:
    box = make(bwrap)
    with pytest.raises(ValueError, match="NUL"):
        start(bwrap, box, "", {"A": "b\0--bind\0/\0/host"})
    with pytest.raises(ValueError, match="last path component"):
        start(bwrap, replace(box, layers=(tmp_path / "a" / "x", tmp_path / "b" / "x")), "")
    with pytest.raises(ValueError, match="if and only if"):
        start(bwrap, replace(box, uid=None if bwrap.drops_uid else 40_000), "")


def test_a_base_interpreter_around_the_home_directory_is_shown_in_parts_only(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / ".ssh").mkdir()
    prefix = str(tmp_path)
    show = bubblewrap.interpreter_mounts
    assert list(show(prefix, prefix, (prefix,))) == [("--ro-bind", f"{prefix}/lib", f"{prefix}/lib")]
    assert list(show("/usr/local", "/usr/local", ("/root",))) == []
    assert list(show("/opt/py3.1.2", "/opt/py3.1", ("/root",))) == [
        ("--ro-bind", "/opt/py3.1.2", "/opt/py3.1.2"),
        ("--symlink", "/opt/py3.1.2", "/opt/py3.1"),
    ]


# -------------------------------------------------------------------------------------------- landlock

# Another user's Python, which can be where the tests' own cannot be seen.
SYSTEM_PYTHON = "/usr/bin/python3"

ATTACKS = r"""
import ctypes, errno, fcntl, os, signal, socket, sys
victim, folder = int(sys.argv[1]), sys.argv[2]
C = ctypes.CDLL(None, use_errno=True)
def calls(name, *arguments):
    if getattr(C, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)
def sigio():
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, victim)
    fcntl.fcntl(ours, 10, signal.SIGKILL)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    theirs.send(b"x")
    raise PermissionError("sent; who watches the victim knows")
def own_child():
    child = os.fork()
    if child == 0: signal.pause()
    try: os.kill(child, signal.SIGTERM)
    except PermissionError: C.syscall(234, child, child, signal.SIGKILL); raise
    finally: os.waitpid(child, 0)
for name, attack in {
    "kill": lambda: os.kill(victim, signal.SIGKILL),
    "group": lambda: os.killpg(os.getpgid(victim), signal.SIGKILL),
    "supervisor": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "thread": lambda: calls("tgkill", os.getppid(), os.getppid(), signal.SIGKILL),
    "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL),
    "sigio": sigio,
    "child": own_child,
    "read": lambda: open("/etc/passwd").read(),
    "write": lambda: open("/tmp/evil", "w"),
    "workspace": lambda: open(folder + "/made", "w").close(),
    "rename": lambda: os.rename(folder + "/made", folder + "/sub/made"),
    "connect": lambda: socket.socket(socket.AF_UNIX).connect(folder + "/nowhere"),
    "dgram": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    "own group": lambda: (signal.signal(signal.SIGUSR1, signal.SIG_IGN), os.kill(0, signal.SIGUSR1)),
    "raise": lambda: (signal.signal(signal.SIGUSR2, signal.SIG_IGN), signal.raise_signal(signal.SIGUSR2)),
}.items():
    try: attack()
    except OSError as error: print(name, errno.errorcode.get(error.errno, "refused"))
    else: print(name, "done")
"""


def newest_landlock() -> int:
    try:
        return wrapper.landlock_abi()
    except OSError:
        return 0


@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"there is no {SYSTEM_PYTHON}")
@pytest.mark.parametrize("abi", range(1, newest_landlock() + 1))
def test_with_each_version_of_landlock_code_of_the_servers_own_uid_harms_nobody(abi: int, open_way: Path) -> None:
    me = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if os.geteuid() == 0 else {}
    (folder := open_way / "w").mkdir()
    (folder / "sub").mkdir()
    for made in (folder, folder / "sub"):
        made.chmod(0o777)
    system = [path for path in ("/usr", *bubblewrap.SYSTEM, "/etc/ld.so.cache", "/proc/self") if os.path.exists(path)]
    config = {
        "confine": True,
        "supervise": os.getpid(),
        "landlock": {
            "abi": abi, "same_uid": True, "read": [*system, wrapper.__file__],
            "write": [str(folder)], "devices": ["/dev/null"],
        },
    }  # fmt: skip
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True, **me) as victim:  # type: ignore[call-overload]
        python = [SYSTEM_PYTHON, "-I", "-S"]
        attack = [*python, "-c", ATTACKS, str(victim.pid), str(folder)]
        done = subprocess.run(
            [*python, wrapper.__file__, json.dumps(config), "--", *attack],
            capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder, **me,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
        assert victim.poll() is None
        victim.kill()
    blocked = ("kill", "group", "supervisor", "thread", "pidfd", "sigio", "read", "write", "connect", "dgram")
    assert [name for name in blocked if told.pop(name) == "done"] == []
    # Links and renames between folders only since version 2, signals to children only where Landlock judges signals.
    assert told == {
        "child": "done" if abi >= 6 else "EPERM",
        "workspace": "done", "own group": "done", "raise": "done", "rename": "done" if abi >= 2 else "EXDEV",
    }  # fmt: skip


@pytest.mark.skipif(newest_landlock() == 0, reason="this kernel has no Landlock")
def test_everything_in_landlock_walls_ends_when_the_server_dies(open_way: Path) -> None:
    system = [path for path in ("/usr", *bubblewrap.SYSTEM, "/etc/ld.so.cache", "/proc/self") if os.path.exists(path)]
    rules = {
        "abi": newest_landlock(), "same_uid": os.geteuid() != 0, "read": [*system, wrapper.__file__],
        "write": [str(open_way)], "devices": ["/dev/null"],
    }  # fmt: skip
    dropped = {"uid": STRANGER} if os.geteuid() == 0 else {}  # a change of uid makes a process forget who it dies with
    server = f"""
import json, os, subprocess
config = {{"confine": True, "supervise": os.getpid(), "landlock": {rules!r}, **{dropped!r}}}
read, write = os.pipe()
python = [{SYSTEM_PYTHON!r}, "-I", "-S"]
command = [*python, {wrapper.__file__!r}, json.dumps(config), "--", *python, "-c", {DAEMONS + "time.sleep(600)"!r}]
subprocess.Popen(command, stdout=write, start_new_session=True)
assert os.read(read, 5) == b"ready"
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run(
        [SYSTEM_PYTHON, "-c", server], stderr=subprocess.PIPE, timeout=SECONDS, check=False, cwd=open_way
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()  # stderr ended: so did all who held it


# ------------------------------------------------------------------------------------------------ none


def test_without_walls_the_command_still_has_its_environment_limits_and_private_home(make: Make) -> None:
    walls = NoWalls()
    box = make(walls, limits=Limits(open_files=77))
    code = (
        "import os, resource as r; print(os.getcwd(), r.getrlimit(r.RLIMIT_NOFILE), "
        f"os.path.isdir({walls.places(box).home!r}), os.path.isdir({walls.places(box).tmp!r}))"
    )
    assert run(walls, box, code) == f"{box.workspace} (77, 77) True True"
    assert told_by(walls, box, ["/usr/bin/env"], {"A": "b"}) == "A=b"


@pytest.mark.parametrize("ending", ["sys.exit(7)", "os.kill(os.getpid(), 11)"])
def test_without_walls_daemons_end_with_the_command(make: Make, ending: str) -> None:
    walls = NoWalls()
    box = make(walls)
    os.mkfifo(box.workspace / "go")
    with start(walls, box, DAEMONS + "open('go').read();" + ending) as process:
        assert line_of(process) == "ready"
        pids = limits.tree(process.pid)
        assert len(pids) == 4
        assert walls.inner_pid(process) == pids[1]
        (box.workspace / "go").write_text("")
        process.communicate(timeout=SECONDS)
    assert process.returncode == (7 if "exit" in ending else 128 + signal.SIGSEGV)
    assert end(pids, SECONDS)


@pytest.mark.parametrize("stopped", [False, True])
def test_without_walls_kill_ends_daemons_even_past_a_stopped_supervisor(make: Make, stopped: bool) -> None:
    walls = NoWalls()
    with start(walls, make(walls), DAEMONS + "time.sleep(600)") as process:
        assert line_of(process) == "ready"
        pids = limits.tree(process.pid)
        if stopped:
            process.send_signal(signal.SIGSTOP)
        walls.kill(process)
        process.communicate(timeout=SECONDS)  # the end of the pipe: every holder of it is gone
    assert end(pids, SECONDS)


def test_without_walls_everything_ends_when_the_server_dies(make: Make) -> None:
    walls = NoWalls()
    box = make(walls)
    server = f"""
import os, subprocess, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from prims.isolation.walls import Box, NoWalls
from prims.model import Limits
paths = [Path(p) for p in {[str(p) for p in (box.workspace, box.mounts, box.venv, box.kernel, box.run)]!r}]
box = Box(*paths[:3], (), *paths[3:], Limits())
read, write = os.pipe()
NoWalls().spawn(box, {[PYTHON, "-c", DAEMONS + "time.sleep(600)"]!r}, {{}}, stdout=write, stderr=2)
os.read(read, 5)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", server]
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()  # stderr ended: so did all who held it


# ---------------------------------------------------------------------------------------------- seccomp


def verdict(program: bytes, number: int, arch: int, *arguments: int) -> int:
    """What the kernel would make of one system call: the few BPF instructions that we use, interpreted."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        op: int
        k: int
        op, yes, no, k = code[at]
        at += 1
        match op:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, k)
            case 0x06:
                return k
            case _:
                held = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[op]
                at += yes if held else no


ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x50000


@pytest.mark.parametrize(
    ("machine", "arch", "calls"),
    [
        ("x86_64", 0xC000003E, (1, 56, 435, 16, 41, 165, 285)),
        ("aarch64", 0xC00000B7, (64, 220, 435, 29, 198, 40, 47)),
    ],
)
def test_the_filter_judges_calls_as_it_should_on(machine: str, arch: int, calls: tuple[int, ...]) -> None:
    program = wrapper.seccomp_program(machine)
    names = ("write", "clone", "clone3", "ioctl", "socket", "mount", "fallocate")
    numbers = dict(zip(names, calls, strict=True))

    def judge(name: str, *arguments: int) -> int:
        return verdict(program, numbers[name], arch, *arguments)

    assert judge("write") == ALLOW
    assert judge("mount") == ERRNO | 1
    assert judge("clone3") == ERRNO | 38
    assert [judge("clone", flags) for flags in (17, 0x3D0F00, 0x10000011)] == [ALLOW, ALLOW, ERRNO | 1]
    assert judge("fallocate") == ERRNO | 95
    assert [judge("ioctl", 0, call) for call in (0x5413, 0x5412, 0x541C, 0x5423)] == [ALLOW, *[ERRNO | 1] * 3]
    families = [judge("socket", family) for family in (1, 2, 10, 16, 40, 38)]
    assert families == [ALLOW] * 4 + [ERRNO | 97] * 2
    # Ordinary sockets, those of routes; SCTP, multipath TCP, netfilter.
    asked = ((2, 1, 0), (10, 1, 6), (2, 2, 17), (16, 3, 0), (2, 1, 132), (10, 1, 262), (16, 3, 12))
    assert [judge("socket", *one) for one in asked] == [ALLOW] * 4 + [ERRNO | 93] * 3
    assert verdict(program, numbers["write"], 0x40000003) == KILL
    if machine == "x86_64":
        assert verdict(program, 0x40000000 | 1, arch) == ERRNO | 38


@pytest.mark.parametrize(
    ("machine", "arch", "calls"),
    [
        ("x86_64", 0xC000003E, (1, 42, 91, 302, 141, 41, 53, 62, 56)),
        ("aarch64", 0xC00000B7, (64, 203, 52, 261, 140, 198, 199, 129, 220)),
    ],
)
def test_without_namespaces_the_filter_is_stricter_on(machine: str, arch: int, calls: tuple[int, ...]) -> None:
    names = ("write", "connect", "fchmod", "prlimit64", "setpriority", "socket", "socketpair", "kill", "clone")
    numbers = dict(zip(names, calls, strict=True))

    def judge(name: str, *arguments: int, abi: int = 7, same_uid: bool = True) -> int:
        rules = {"abi": abi, "same_uid": same_uid, "guarded": [100, 200]}
        return verdict(wrapper.seccomp_program(machine, rules), numbers[name], arch, *arguments)

    assert judge("write") == ALLOW
    assert judge("connect") == ERRNO | 13
    assert [judge("fchmod", same_uid=same) for same in (True, False)] == [ERRNO, ALLOW]
    assert [judge("prlimit64", pid) for pid in (0, 1)] == [ALLOW, ERRNO | 1]
    assert [judge("setpriority", *who) for who in ((0, 0), (0, 9), (2, 0))] == [ALLOW, ERRNO | 1, ERRNO | 1]
    for call in ("socket", "socketpair"):
        asked = ((1, 1), (1, 0o2004001), (1, 2), (1, 5), (2, 1), (16, 3))
        kinds = [judge(call, family, kind) for family, kind in asked]
        assert kinds == [ALLOW] * 2 + [ERRNO | 97] * 4
    assert [judge("kill", 9, abi=abi) for abi in (5, 6)] == [ERRNO | 1, ALLOW]
    assert [judge("kill", 0, abi=5), judge("kill", 9, abi=5, same_uid=False)] == [ALLOW, ALLOW]
    assert [judge("clone", flags) for flags in (17, 0x10000011)] == [ALLOW, ERRNO | 1]


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="riscv64"):
        wrapper.seccomp_program("riscv64")


# ----------------------------------------------------------------------------------------------- limits


def test_limits_that_are_none_are_not_set() -> None:
    free = Limits(memory_bytes=None, processes=None, open_files=None, file_bytes=None)
    assert set(limits.rlimits(free)) == {"CORE", "MEMLOCK", "MSGQUEUE", "SIGPENDING", "NICE", "RTPRIO"}
    assert limits.rlimits(Limits(processes=10), other_threads=5)["NPROC"] == 15


def test_the_threads_of_this_process_count_for_its_user() -> None:
    assert limits.threads_of(os.getuid()) >= 1
    assert limits.threads_of(2_100_000_000) == 0


SHARED = """
import os, sys
held = bytearray(60 << 20)
for _ in range(4):
    if os.fork() == 0: break
os.write(1, b"ready\\n")  # one write, because five processes share the pipe
sys.stdin.read()
"""


@pytest.fixture
def sharing() -> Iterator[subprocess.Popen[bytes]]:
    """Five processes that share 60 MB, of which the first is ours."""
    with subprocess.Popen([PYTHON, "-c", SHARED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for _ in range(5):
            assert line_of(process) == "ready"
        yield process
        process.communicate(timeout=SECONDS)


def test_memory_that_processes_share_counts_once_when_it_matters(sharing: subprocess.Popen[bytes]) -> None:
    pids = limits.tree(sharing.pid)
    assert len(pids) == 5
    assert limits._resident(pids) > 280 << 20
    assert 60 << 20 < limits._proportional(pids) < 150 << 20


def test_the_memory_watch_calls_once_above_the_limit_and_not_below(sharing: subprocess.Popen[bytes]) -> None:
    exceeded: list[str] = []

    async def watch(limit: int | None) -> int:
        watching = limits.Watch()
        with anyio.move_on_after(0.5):
            await watching.run(sharing.pid, Limits(memory_bytes=limit), exceeded.append)
        return watching.peak

    assert anyio.run(watch, None) > 280 << 20
    assert anyio.run(watch, 200 << 20) < 200 << 20
    assert exceeded == []
    assert anyio.run(watch, 50 << 20) > 50 << 20
    assert exceeded == ["out_of_memory"]


def test_the_memory_watch_ends_with_the_process() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait(SECONDS)

    async def watch() -> None:
        with anyio.fail_after(SECONDS):
            await limits.Watch().run(process.pid, Limits(), lambda reason: pytest.fail(reason))

    anyio.run(watch)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exit status 0"),
        (7, "exit status 7"),
        (128, "exit status 128"),
        (255, "exit status 255"),
        (-11, "killed by SIGSEGV (segmentation fault)"),
        (139, "killed by SIGSEGV (segmentation fault)"),
        (137, "killed by SIGKILL (killed)"),
        (152, "killed by SIGXCPU (CPU time limit)"),
        (-1, "killed by SIGHUP"),
        (128 + 40, "killed by signal 40"),
    ],
)
def test_an_exit_status_is_described(returncode: int, words: str) -> None:
    assert limits.describe_exit(returncode) == words


# ------------------------------------------------------------------------------------------------ proof


def refusal(isolation: str, scratch: Path, path: str | None = None) -> str:
    async def ask() -> None:
        await probe.choose(isolation, scratch, path=path)

    with pytest.raises(IsolationUnavailable) as refused:
        anyio.run(ask)
    return str(refused.value)


def test_the_walls_hold_on_this_machine(bwrap: bubblewrap.Bubblewrap, tmp_path: Path) -> None:
    async def ask() -> Walls:
        return await probe.choose("auto", tmp_path)

    assert anyio.run(ask).name == bwrap.name
    assert list(tmp_path.iterdir()) == []


def test_a_proof_of_walls_that_do_not_hold_fails(tmp_path: Path) -> None:
    class Paper(NoWalls):
        name = "paper"

    checks = anyio.run(probe.prove, Paper(), tmp_path)
    failed = {check.name for check in checks if not check.ok}
    assert failed >= {"files outside", "loopback network", "abstract sockets", "seccomp", "other processes"}


def test_no_walls_are_built_only_when_they_are_named(tmp_path: Path) -> None:
    async def ask() -> Walls:
        return await probe.choose("none", tmp_path)

    assert anyio.run(ask).name == "none"
    said = refusal("bubblewrap", tmp_path, path=str(tmp_path))
    assert "apt-get install bubblewrap" in said
    assert "--isolation none" in said


def test_without_bubblewrap_auto_is_landlock_or_says_what_stands_in_the_way_of_both(
    open_way: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> Walls:
        return await probe.choose("auto", open_way, path=str(open_way))

    try:
        assert anyio.run(ask).name == "landlock"
    except IsolationUnavailable as refused:
        assert "apt-get install bubblewrap" in str(refused)
        assert "landlock walls do not hold" in str(refused) or "Landlock is not to be had" in str(refused)
    else:
        assert "apt-get install bubblewrap" in caplog.text


def test_the_words_of_a_failing_bwrap_are_in_the_refusal(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    said = refusal("bubblewrap", tmp_path, path=str(tmp_path))
    assert "setting up uid map: Permission denied" in said
    assert "bwrap-userns-restrict" in said


@pytest.mark.parametrize(
    ("stderr", "container", "advice"),
    [
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", False, "apparmor_parser"),
        ("bwrap: No permissions to create new namespace, likely because", True, "seccomp=unconfined"),
        ("bwrap: No permissions to create new namespace, likely because", False, "max_user_namespaces"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", True, "systempaths=unconfined"),
        ("bwrap: Unknown option --size", False, "too old"),
        ("bwrap: something else", False, "--isolation none"),
    ],
)
def test_the_advice_fits_what_bwrap_said(stderr: str, container: bool, advice: str) -> None:
    assert advice in probe.advice_for(stderr, container=container, root=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its code uids")
def test_no_two_servers_of_a_machine_have_one_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range((first := uids.take_uid()), first + 3)
    uids.give_uid_back(first)
    monkeypatch.setattr(uids, "_RANGES", (few,))
    server = f"""
from prims.isolation import uids
uids._RANGES = ({few!r},)
for _ in range(2): print(uids.take_uid(), flush=True)
input()
"""
    own = uids.take_uid()
    with subprocess.Popen([sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert {own, *(int(line_of(other)) for _ in range(2))} == set(few)
        with pytest.raises(IsolationUnavailable, match="no free uid"):
            uids.take_uid()
        uids.give_uid_back(own)
        assert uids.take_uid() == own
        other.kill()
    assert {uids.take_uid(), uids.take_uid(), own} == set(few)
    for uid in few:
        uids.give_uid_back(uid)


def test_root_without_the_right_to_a_network_is_told_which_capability_is_missing() -> None:
    said = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
    assert "NET_ADMIN" in probe.advice_for(said, container=True, root=True)
