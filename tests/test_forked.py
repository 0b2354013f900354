"""Forked kernels: as alone as started ones, as fresh, and nothing depends on their parent."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from prims import config
from prims.engine.parents import Parents
from prims.errors import ConfigError, KernelStartError
from prims.isolation import bubblewrap, wrapper
from prims.kernel.folders import make_box, make_session_folder
from prims.kernel.forkserver import ForkServer
from tests import kit, probes, users
from tests.engines import IS_FORKED, Session, engine_of_one_session
from tests.processes import alive, named, until
from tests.test_probes import WALLS, Outside, all_said, is_about, serving, stdout, world_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed"),
]

# No spare: each run is a fork of its own, and each fails loudly if it is not.
BARE = ("--default-packages", "", "--spare-kernels", "0")


def parents_of(pid: int) -> list[int]:
    """The parents of kernels of the server `pid`: what its bubblewraps have started and what is no kernel."""
    return [
        innermost(command)
        for outer in wrapper.children(pid)
        for first in wrapper.children(outer)
        for command in wrapper.children(first)
        if b"prims_kernel/parent.py" in Path(f"/proc/{command}/cmdline").read_bytes()
    ]


def innermost(command: int) -> int:
    """The parent itself: under a root server it is a child of the process that was started as one."""
    status = Path(f"/proc/{command}/status").read_text()
    outside = re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)
    assert outside is not None
    if os.geteuid() != 0 or int(outside[1]) == users.STRANGER:
        return command
    return wrapper.children(command)[0]


def pid_of(parent: ForkServer) -> int:
    """The process of a parent, inside of bubblewrap's two."""
    (first,) = wrapper.children(parent._process.pid)
    (command,) = wrapper.children(first)
    return innermost(command)


async def run(client: Client, code: str, **arguments: Any) -> str:
    """What the code prints, when it ends well."""
    result = await kit.run_code(client, code, **arguments)
    assert not result.is_error, kit.text_of(result)
    return stdout(result)


async def until_forked(client: Client) -> None:
    """Until the session's kernels are forked: the first ones are started, while the parent comes up."""
    with anyio.fail_after(60):
        while await run(client, f"print({IS_FORKED})") != "True\n":
            pass


@dataclass(frozen=True, slots=True)
class Served:
    """A server whose kernels are forked."""

    client: Client
    pid: int
    files: Path


@pytest.fixture(scope="module", params=users.KINDS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    with users.owner(request.param) as who:
        async with serving(who, "s", *BARE) as (client, state, pid):
            await until_forked(client)
            (files,) = state.glob("*/w1/files")
            yield Served(client, pid, files)


@pytest.fixture(scope="module", params=[(w, k) for w in WALLS for k in users.KINDS], ids="-".join)
async def outside(request: pytest.FixtureRequest) -> AsyncIterator[Outside]:
    walls, kind = request.param
    async with world_of(kind, "--spare-kernels", "0", "--isolation", walls) as outside:
        await until_forked(outside.client)
        yield outside


# --------------------------------------------------------------------------------------------- alone


@pytest.fixture(scope="module")
async def said(outside: Outside) -> dict[str, str]:
    return await all_said(outside, forked=True)


@pytest.mark.parametrize("probe", probes.PROBES, ids=lambda probe: probe.name)
async def test_there_is_no_way_out_of_a_forked_kernel_by(
    probe: probes.Probe, outside: Outside, said: dict[str, str]
) -> None:
    if not is_about(probe, outside.isolation):
        pytest.skip(f"is about {probe.needs or probe.only}")
    assert said[probe.name].split()[:1] == [probe.expected_in(outside.isolation)], said[probe.name]


LEFT = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.execv("/bin/sleep", ["sleep", MARKER])
        os._exit(0)
    os.wait()
print(FORKED, flush=True)
"""


@pytest.mark.parametrize(("ending", "status"), [("", "ok"), ("os._exit(3)", "died"), ("time.sleep(600)", "timeout")])
async def test_nothing_is_left_of_a_forked_run_however_it_ends(outside: Outside, ending: str, status: str) -> None:
    marker = f"{600 + os.getpid() / 1e7:.7f}"
    code = LEFT.replace("MARKER", repr(marker)).replace("FORKED", IS_FORKED) + ending
    seconds = 5 if status == "timeout" else 60
    result = await kit.run_code(outside.client, code, timeout_seconds=seconds)
    assert result.structured_content is not None
    assert (result.structured_content["status"], stdout(result)) == (status, "True\n"), kit.text_of(result)
    assert "exit status 3" in kit.text_of(result) or status != "died"
    await until(lambda: named(marker) == [], 60, "what the run has left is gone")


async def test_a_forked_run_has_a_home_and_an_interpreter_of_its_own(outside: Outside) -> None:
    code = f"""
import os, site, subprocess, sys, sysconfig, tempfile
own = os.path.dirname(os.environ["HOME"])
shell = get_ipython()
places = [shell.ipython_dir, shell.home_dir, shell.profile_dir.location, tempfile.gettempdir(), site.getuserbase()]
print([place for place in places if not place.startswith((own, "/tmp"))])
prefixes = sys.prefix, sys.exec_prefix, os.environ["VIRTUAL_ENV"], sysconfig.get_paths()["data"]
print({IS_FORKED}, len(set(prefixes)), sys.executable == sys.prefix + "/bin/python")
asked = [sys.executable, "-c", "import sys, IPython; print(sys.prefix)"]
print(subprocess.check_output(asked, text=True).strip() == sys.prefix)
os.mkdir(shell.ipython_dir + "/mine"); open(tempfile.gettempdir() + "/mine", "x").close()
"""
    for _ in range(2):
        assert stdout(await kit.run_code(outside.client, code)) == "[]\nTrue 1 True\nTrue\n"


ONE = """
import os, socket, time
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
    open(folder + "/mark", "w").close()
tcp = socket.create_server(("127.0.0.1", 4567))
local = socket.socket(socket.AF_UNIX)
local.bind("\\0mark")
local.listen()
pty = os.openpty()
with open("one.tmp", "w") as file: file.write(os.listdir("/run/prims")[0])
os.rename("one.tmp", "one")
until = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < until: time.sleep(0.02)
print("unharmed", FORKED)
"""
ANOTHER = """
import errno, os, signal, socket
def error(action):
    try: action()
    except OSError as problem: return errno.errorcode.get(problem.errno)
    return "it worked"
def connect(family, address):
    with socket.socket(family) as s: s.settimeout(1); s.connect(address)
folders = ("/tmp", "/dev/shm", os.path.expanduser("~"))
print("marks", [f for f in folders if os.path.exists(f + "/mark")])
print("tcp", error(lambda: connect(socket.AF_INET, ("127.0.0.1", 4567))))
print("abstract", error(lambda: connect(socket.AF_UNIX, "\\0mark")))
print("ptys", os.listdir("/dev/pts"))
print("sockets", len(os.listdir("/run/prims")), os.path.exists("/run/prims/" + open("one").read()))
print("processes", sorted(int(n) for n in os.listdir("/proc") if n.isdigit()))
own = set(map(int, os.listdir("/proc/self/task")))
print("signals", {error(lambda: os.kill(pid, signal.SIGKILL)) for pid in range(2, 5000) if pid not in own})
print("all", error(lambda: os.kill(-1, signal.SIGKILL)))
print("runs", [name for _, _, names in os.walk("/runs") for name in names])
print("forked", FORKED)
"""


async def test_two_runs_of_a_session_share_their_files_and_nothing_else(served: Served) -> None:
    said: list[str] = []

    async def one() -> None:
        said.append(await run(served.client, ONE.replace("FORKED", IS_FORKED)))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        try:
            await until((served.files / "one").exists, 60, "the first run has begun")
            seen = await run(served.client, ANOTHER.replace("FORKED", IS_FORKED))
        finally:
            (served.files / "go").touch()
    assert seen.splitlines() == [
        "marks []",
        "tcp ECONNREFUSED",
        "abstract ECONNREFUSED",
        "ptys ['ptmx']",
        "sockets 1 False",
        "processes [1, 2]",
        "signals {'ESRCH'}",
        "all ESRCH",
        "runs []",
        "forked True",
    ]
    assert said == ["unharmed True\n"]


async def test_what_a_run_left_in_its_own_places_is_gone_in_the_next(served: Served) -> None:
    leave = """
import os
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~"), "/run/prims", "/run/prims/" + os.listdir("/run/prims")[0]):
    with open(folder + "/left", "w") as file: file.write("x")
"""
    await run(served.client, leave)
    look = """
import subprocess
print(subprocess.run("find / -xdev -name left; find /tmp /dev/shm /home /run -name left", shell=True,
                     capture_output=True, text=True).stdout)
"""
    assert (await run(served.client, look)).strip() == ""


WRITERS = """
import multiprocessing, os, subprocess, sys, threading
def write(name):
    with open(name, "ab", buffering=0) as file:
        while True: file.write(b"x")
START
while not os.path.exists("growing") or not os.path.getsize("growing"): pass
print("begun", FORKED)
"""
SHELL = "while :; do printf x >> growing; done"


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=write, args=('growing',), daemon=True).start()",
        "multiprocessing.get_context('fork').Process(target=write, args=('growing',), daemon=True).start()",
        f"subprocess.Popen(['sh', '-c', {SHELL!r}], start_new_session=True)",
        f"subprocess.run(['sh', '-c', {f'({SHELL}) & exit'!r}])",
        "pid = os.fork()\nif not pid and not os.fork(): write('growing')\nif not pid: os._exit(0)\nos.waitpid(pid, 0)",
    ],
    ids=["thread", "child", "daemon", "orphan", "grandchild"],
)
async def test_nothing_is_written_any_more_when_a_run_has_returned(served: Served, start: str) -> None:
    """The reply does not wait for the end of the kernel's process: but for the end of all that it may do."""
    growing = served.files / "growing"
    for _ in range(3):
        growing.unlink(missing_ok=True)
        assert await run(served.client, WRITERS.replace("START", start).replace("FORKED", IS_FORKED)) == "begun True\n"
        size = growing.stat().st_size
        await run(served.client, "print(1)")
        assert growing.stat().st_size == size > 0


async def test_the_locks_of_a_run_are_free_in_the_next(served: Served) -> None:
    code = f"""
import fcntl, sqlite3
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
base = sqlite3.connect("base", timeout=0)
base.execute("begin exclusive")
print("free", {IS_FORKED})"""
    for _ in range(5):
        assert await run(served.client, code) == "free True\n"


async def test_all_that_was_written_up_to_the_end_is_read(served: Served) -> None:
    code = f"""
import atexit, ctypes, os, sys
atexit.register(lambda: os.write(2, b"e" * 60_000 + b"end of errors"))
print({IS_FORKED}, "o" * 60_000)
ctypes.CDLL(None).puts(b"c" * 3000 + b"end of C")"""
    for _ in range(3):
        result = await kit.run_code(served.client, code)
        assert result.structured_content is not None
        said = result.structured_content
        assert said["stdout"].startswith("True oo") and said["stdout"].endswith("ccend of C\n"), said["stdout"][-50:]
        assert said["stderr"].endswith("eeend of errors"), said["stderr"][-50:]


async def test_the_parent_and_the_first_process_cannot_be_reached(served: Served) -> None:
    (parent,) = parents_of(served.pid)
    code = """
import ctypes, os, signal
C = ctypes.CDLL(None, use_errno=True)
reached = []
def attempt(name, action):
    try: action()
    except OSError: return
    reached.append(name)
def call(number, *arguments):
    if C.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "refused")
links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")]
reached += [link for link in links if "ns" in link.split(":")[0] or "pidfd" in link]
for number in set(signal.Signals):
    os.kill(1, number)  # ours, so allowed; and deaf
for part in ("mem", "environ", "maps", "fd/3", "root/", "cwd/"):
    attempt(part, lambda: os.open("/proc/1/" + part, os.O_RDONLY))
if os.uname().machine == "x86_64":
    attempt("ptrace", lambda: call(101, 16, 1, 0, 0))
    attempt("pidfd_getfd", lambda: call(438, os.pidfd_open(1), 3, 0))
    for place in (b"/proc", b"/tmp", b"/venv", b"/run/prims"):
        attempt("umount " + place.decode(), lambda: call(166, place, 2))
reached += [f for f in ("/proc/%d" % PARENT, "/proc/2/task/1") if os.path.exists(f)]
print(reached)
"""
    assert await run(served.client, code.replace("PARENT", str(parent))) == "[]\n"
    assert await run(served.client, f"print({IS_FORKED})") == "True\n"
    assert parents_of(served.pid) == [parent]


async def test_a_forked_kernel_looks_like_a_started_one(served: Served) -> None:
    code = """
import gc, json, os, signal, subprocess, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
kept = "Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Threads SigBlk SigIgn SigCgt NSpid NSpgid NSsid"
seen = json.dumps({
    "status": {name: status[name].strip() for name in kept.split()},
    "modules": sorted(name for name in sys.modules if not name.startswith("prims_kernel.twins.")),
    "path": sys.path, "argv": sys.argv, "flags": str(sys.flags),
    "orig_argv": [word for word in sys.orig_argv if "kernel.json" not in word],
    "prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.executable], "env": dict(os.environ),
    "limits": open("/proc/self/limits").read(), "umask": os.umask(0o22), "cwd": os.getcwd(),
    "oom": open("/proc/self/oom_score_adj").read(), "nice": os.nice(0), "gc": [gc.isenabled(), gc.get_threshold()],
    "names": sorted(name for name in globals() if name not in ("status", "kept")),
    "builtins": sorted(dir(__builtins__)),
    "child": subprocess.run([sys.executable, "-c", "import sys; print(sys.prefix, sys.path)"],
                            capture_output=True, text=True).stdout,
    "places": {place: sorted(os.listdir(place)) for place in ("/tmp", "/dev", "/dev/pts", "/dev/shm", "/run", "/etc")},
    "forked": FORKED,
})
with open("seen.json", "w") as file: file.write(seen)
""".replace("FORKED", IS_FORKED)
    kind = "root" if os.stat(f"/proc/{served.pid}").st_uid == 0 else "user"
    await run(served.client, code)
    forked = json.loads((served.files / "seen.json").read_text())
    with users.owner(kind) as who:
        async with serving(who, "c", *BARE, "--fork-kernels", "off") as (client, state, pid):
            await run(client, code)
            await run(client, code)
            (seen,) = state.glob("*/w1/files/seen.json")
            started = json.loads(seen.read_text())
            assert parents_of(pid) == []
    assert (forked.pop("forked"), started.pop("forked")) == (True, False)
    assert {key: value for key, value in forked.items() if value != started[key]} == {}


async def test_the_processes_of_one_run_do_not_count_for_another(served: Served) -> None:
    fill = """
import os, signal, time
pids = []
while len(pids) < 180:
    if (pid := os.fork()) == 0: signal.pause(); os._exit(0)
    pids.append(pid)
"""
    wait = """
open("full", "w").close()
until = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < until: time.sleep(0.02)
"""
    async with anyio.create_task_group() as group:
        group.start_soon(run, served.client, fill + wait)
        try:
            await until((served.files / "full").exists, 60, "one run has its processes")
            assert await run(served.client, f"{fill}print(len(pids), {IS_FORKED})") == "180 True\n"
        finally:
            (served.files / "enough").touch()


# --------------------------------------------------------------------------------------------- fresh


async def test_runs_of_one_parent_have_other_random_numbers(served: Served) -> None:
    code = """
import multiprocessing.process, os, random, secrets, tempfile, uuid
print(random.random(), random.Random().random(), secrets.token_hex(), uuid.uuid4(), uuid.uuid1(), tempfile.mktemp(),
      multiprocessing.process.current_process().authkey.hex(), get_ipython().kernel.session.key, sep="\\n")
"""
    (first, second, third) = [(await run(served.client, code)).splitlines() for _ in range(3)]
    for values in zip(first, second, third, strict=True):
        assert len(set(values)) == 3, values


async def test_interpreters_and_workers_that_a_run_starts_work(served: Served) -> None:
    code = """
import multiprocessing, os, subprocess, sys
for method in ("fork", "spawn", "forkserver"):
    with multiprocessing.get_context(method).Pool(2) as pool: print(pool.map(abs, [-1, 2]))
print(subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True).returncode)
child = ["python", "-c", "import sys, IPython; print(sys.prefix)"]
print(subprocess.run(child, capture_output=True, text=True).stdout, end="")
"""
    assert await run(served.client, code) == "[1, 2]\n[1, 2]\n[1, 2]\n0\n/venv\n"


async def test_packages_join_a_forked_kernel_and_moved_pins_are_started(served: Served) -> None:
    six = f"import six; print(six.__file__.startswith('/layers/'), {IS_FORKED})"
    assert await run(served.client, six, requirements=["six"]) == "True True\n"
    click = "import click, subprocess, sys; subprocess.run([sys.executable, '-c', 'import click; print(1)'])"
    assert await run(served.client, f"{click}; print({IS_FORKED})", requirements=["click"]) == "1\nTrue\n"
    moved = f"import traitlets; print(traitlets.__version__, {IS_FORKED})"
    assert await run(served.client, moved, requirements=["traitlets==5.14.3"]) == "5.14.3 False\n"


# --------------------------------------------------------------------------------- ends of all kinds


async def test_a_killed_parent_is_replaced_and_the_next_call_works(served: Served) -> None:
    (parent,) = parents_of(served.pid)
    os.kill(parent, signal.SIGKILL)
    assert await run(served.client, "print(1)") == "1\n"
    await until_forked(served.client)
    (other,) = parents_of(served.pid)
    assert other != parent


async def test_a_run_is_interrupted_at_its_time_and_killed_if_that_does_not_help(served: Served) -> None:
    for code, last in (("", "time.sleep(600)"), ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "while True: pass")):
        program = f"import signal, time\nprint({IS_FORKED}, flush=True)\n{code}\n{last}"
        result = await kit.run_code(served.client, program, timeout_seconds=1)
        assert result.structured_content is not None
        assert (result.structured_content["status"], stdout(result)) == ("timeout", "True\n"), kit.text_of(result)
        assert "line 4" in kit.text_of(result) or '"line": 4' in json.dumps(result.structured_content)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
async def test_how_a_forked_kernel_died_is_told(served: Served, code: str, words: str) -> None:
    result = await kit.run_code(served.client, f"import os, signal\nprint({IS_FORKED}, flush=True)\n{code}")
    assert result.structured_content is not None
    assert (result.structured_content["status"], stdout(result)) == ("died", "True\n")
    assert words in kit.text_of(result)


SERVER = """
import sys, tempfile
from pathlib import Path
import anyio
from prims import config
from tests.engines import engine_of_one_session
async def main():
    async with engine_of_one_session() as session:
        await session.until_forked()
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "import subprocess, time; subprocess.Popen(['sleep', '600'], "
                "start_new_session=True); open('begun', 'w').close(); time.sleep(600)")
            while not (session.folder / "files" / "begun").exists(): await anyio.sleep(0.02)
            print("begun", flush=True)
            await anyio.sleep(600)
anyio.run(main)
"""


@pytest.mark.parametrize("kind", users.KINDS)
async def test_nothing_outlives_a_server_that_is_killed(kind: str) -> None:
    with users.owner(kind) as who:
        state = who.folder(who.base / "state")
        parameters = who.server(state)
        command = [parameters.command, *parameters.args[: parameters.args.index("-m")], "-c", SERVER]
        environment = {**(parameters.env or {}), "PYTHONPATH": str(Path(__file__).parents[1])}
        async with await anyio.open_process(command, env=environment, cwd=state, stderr=None) as server:
            assert server.stdout is not None
            with anyio.fail_after(120):
                assert await server.stdout.receive() == b"begun\n"
            pids = wrapper.tree(server.pid)
            assert len(pids) >= 7  # the server; bwrap, its first process and the parent; a run with its child
            server.kill()
            await server.wait()
            await until(lambda: alive(pids) == [], 60, "the end of everything")


# --------------------------------------------------------------------------------- the engine, from near


async def test_many_runs_leave_nothing_behind() -> None:
    async with engine_of_one_session() as session:
        parent = await session.until_forked()
        pid = pid_of(parent)

        def counted() -> tuple[int, ...]:
            places = (f"/proc/{os.getpid()}/fd", f"/proc/{pid}/fd", session.folder.parent, parent.runs)
            return (*(len(os.listdir(place)) for place in places), len(wrapper.tree(parent._process.pid)))

        await until(lambda: not parent.busy, 60, "the end of the runs before")
        before = counted()
        for _ in range(30):
            code = f"import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); print({IS_FORKED})"
            assert (await session.run(code)).stdout.head == "True\n"
        await until(lambda: all(now <= then for now, then in zip(counted(), before, strict=True)), 60, "what is left")


async def test_a_fork_that_fails_says_why_and_the_kernel_is_started() -> None:
    async with engine_of_one_session() as session:
        parent = await session.until_forked()
        environment = await session.engine._environments.base()
        folder = parent.runs / "k0"
        folder.mkdir()
        limits = session.settings.limits()
        box = make_box(folder, session.folder, environment.layers, limits, session.uid)
        with pytest.raises(KernelStartError, match="No such file or directory"):  # there is no venv
            await parent.fork(box, ["python", "-I", "x"], {}, stdout=1, stderr=2)
        await until(lambda: not parent.busy, 60, "the end of what was forked before")
        odd = replace(box, limits=replace(limits, tmp_bytes=-1))
        with pytest.raises(KernelStartError):
            await parent.fork(odd, ["python", "-I", "x"], {}, stdout=1, stderr=2)
        for path in (box.run, folder):
            path.rmdir()
        assert "True" in (await session.run(f"print({IS_FORKED})")).stdout.head
        # A parent that has gone between the look and the fork.
        pid = pid_of(parent)
        os.kill(pid, signal.SIGSTOP)
        async with anyio.create_task_group() as group:
            group.start_soon(_check_started, session)
            await until(lambda: len(list(parent.runs.glob("k*"))) == 1, 60, "the run has begun")
            os.kill(pid, signal.SIGKILL)


async def _check_started(session: Session) -> None:
    assert (await session.run(f"print({IS_FORKED})")).stdout.head == "False\n"


async def test_folders_that_were_made_anew_are_not_those_of_the_parent() -> None:
    async with engine_of_one_session() as session:
        await session.until_forked()
        files = session.folder / "files"
        files.rename(session.folder / "before")
        make_session_folder(session.folder / "again", "/mounts", session.uid)
        (session.folder / "again" / "files").rename(files)
        (files / "new").touch()
        code = f"import os; print(sorted(os.listdir()), {IS_FORKED})"
        assert (await session.run(code)).stdout.head == "['mounts', 'new', 'output'] False\n"


class Pretended:
    """Stands for a parent that runs, or has kernels that do."""

    alive = True
    busy = False


async def test_parents_are_bounded_and_one_with_kernels_stays() -> None:
    made: dict[object, Pretended] = {}
    ended: list[object] = []

    @asynccontextmanager
    async def make(key: object) -> AsyncIterator[Any]:
        made[key] = Pretended()
        try:
            yield made[key]
        finally:
            ended.append(key)

    async with anyio.create_task_group() as group:
        parents = Parents(group, make, 2)
        for key in "ab":
            parents.prepare(key)
            await anyio.wait_all_tasks_blocked()
        assert parents.get("a") is made["a"]  # used after b, which gives way
        parents.prepare("c")
        await anyio.wait_all_tasks_blocked()
        assert (ended, parents.get("b"), parents.get("c")) == (["b"], None, made["c"])
        made["a"].busy = made["c"].busy = True
        parents.prepare("d")
        await anyio.wait_all_tasks_blocked()
        assert (ended, parents.get("d")) == (["b"], None)
        made["a"].alive = made["a"].busy = False
        assert parents.get("a") is None
        parents.prepare("a")  # dead: another one
        await anyio.wait_all_tasks_blocked()
        assert parents.get("a") is not None
        await parents.close()
        assert sorted(map(str, ended)) == ["a", "a", "b", "c"]
        parents.prepare("e")
        await anyio.wait_all_tasks_blocked()
        assert "e" not in made


async def test_parents_that_do_not_come_up_are_given_up() -> None:
    tried_to: list[object] = []

    @asynccontextmanager
    async def make(key: object) -> AsyncIterator[Any]:
        tried_to.append(key)
        raise KernelStartError("no")
        yield

    async with anyio.create_task_group() as group:
        parents = Parents(group, make, 2)
        for _ in range(5):
            parents.prepare("a")
            await anyio.wait_all_tasks_blocked()
    assert tried_to == ["a"] * 3


async def test_a_session_that_closes_takes_its_parent_along() -> None:
    async with engine_of_one_session() as session:
        pids = wrapper.tree((await session.until_forked())._process.pid)
        assert len(pids) >= 3
        await session.engine.close_session(session.folder, session.uid)
        assert alive(pids) == []


async def test_without_walls_and_when_told_so_nothing_is_forked() -> None:
    for settings in ({"fork_kernels": "off"}, {"isolation": "none"}):
        async with engine_of_one_session(**settings) as session:
            for _ in range(2):
                assert (await session.run("print(1)")).stdout.head == "1\n"
                assert session.engine._parents._entries == {}


def test_the_setting_knows_two_words() -> None:
    assert config.load({"fork_kernels": "off"}, {}).fork_kernels == "off"
    with pytest.raises(ConfigError, match="auto, off"):
        config.load({"fork_kernels": "perhaps"}, {})
