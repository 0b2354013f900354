"""Starting, stopping, being stopped: whatever ends a server or a run, nothing of it is left; and limits are limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import prims
from prims.isolation import bubblewrap
from prims.isolation.limits import tree
from tests import kit
from tests.processes import alive, named, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed"),
]

END_SECONDS = 60.0
"""Bound of what must come soon: far from it on a quiet machine, and sooner than what waits here would end by itself."""

BARE = ("--default-packages", "")


class RawServer:
    """A server as a process, and requests as lines of JSON: to stop it in ways in which no client of the SDK does."""

    def __init__(self, process: Process, state: Path) -> None:
        assert process.stdout is not None
        self.process = process
        self.state = state
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._number = 0
        self._replies: dict[int, dict[str, Any]] = {}

    async def send(self, method: str, params: dict[str, Any] | None = None, *, reply: bool = True) -> int:
        """Send a request (or a notification) and give its id."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if reply:
            self._number += 1
            message["id"] = self._number
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(message).encode() + b"\n")
        return self._number

    async def reply(self, number: int, seconds: float = kit.SECONDS) -> dict[str, Any]:
        """The result of a request. Raises EndOfStream when the server ends before."""
        with anyio.fail_after(seconds):
            while number not in self._replies:
                message = json.loads(await self._lines.receive_until(b"\n", 1 << 24))
                if "id" in message and "method" not in message:
                    self._replies[message["id"]] = message
        answer = self._replies.pop(number)
        return answer.get("result") or answer

    async def begin(self, code: str, **arguments: Any) -> int:
        """Call run_code and do not wait."""
        return await self.send("tools/call", {"name": "run_code", "arguments": {"code": code, **arguments}})

    async def run(self, code: str, **arguments: Any) -> dict[str, Any]:
        """Call run_code; gives the structured result, or {"text": ...} of a refusal."""
        result = await self.reply(await self.begin(code, **arguments))
        text = "\n".join(block.get("text", "") for block in result["content"])
        return {**(result.get("structuredContent") or {}), "text": text, "is_error": result.get("isError", False)}

    async def begun(self, code: str, **arguments: Any) -> int:
        """Call run_code and wait until `code` is running."""
        mark = f"begun-{time.monotonic_ns()}"
        number = await self.begin(f"open({mark!r}, 'w').close()\n{code}", **arguments)

        async def answered() -> None:
            raise AssertionError(f"the run did not stay: {await self.reply(number)}")

        async with anyio.create_task_group() as group:
            group.start_soon(answered)
            await until(lambda: bool(list(self.state.glob(f"*/w*/files/{mark}"))), kit.SECONDS, "the code runs")
            group.cancel_scope.cancel()
        return number

    def signal(self, number: int) -> None:
        """Send the server, and nobody else, a signal."""
        os.kill(self.process.pid, number)

    async def close_stdin(self) -> None:
        """What a client does that goes away."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()

    def tree(self) -> list[int]:
        """The server and all its descendants now."""
        return tree(self.process.pid)

    async def ended(self, seconds: float = END_SECONDS) -> float:
        """Wait for the end; gives how long it took."""
        began = time.monotonic()
        with anyio.fail_after(seconds):
            await self.process.wait()
        return time.monotonic() - began


@asynccontextmanager
async def raw(state: Path, *arguments: str, env: dict[str, str] | None = None) -> AsyncIterator[RawServer]:
    """A server that has shaken hands. It is killed at the end if it still runs."""
    command = [sys.executable, "-m", "prims", "serve", *arguments]
    (tmp := state.parent / f"{state.name}-tmp").mkdir(exist_ok=True)
    environment = {**kit.server_environment(state), "TMPDIR": str(tmp), **(env or {})}
    with (state.parent / f"{state.name}.log").open("ab") as log:
        process = await anyio.open_process(command, env=environment, stderr=log, start_new_session=True)
    try:
        server = RawServer(process, state)
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await server.reply(await server.send("initialize", hello))
        await server.send("notifications/initialized", reply=False)
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()


@pytest.fixture
def place(state: Path) -> Path:
    """The state folder of a server, alone in a folder of its own."""
    (place := state / "s").mkdir(mode=0o700)
    return place


def files_in(place: Path) -> Path:
    """The working directory of a server's only session."""
    (files,) = place.glob("*/w1/files")
    return files


def left_in(place: Path) -> list[str]:
    """What a server left in its state folder and in its temporary folder."""
    return [str(path) for folder in (place, place.parent / f"{place.name}-tmp") for path in folder.iterdir()]


@pytest.fixture
def silent_index() -> Iterator[dict[str, str]]:
    """The environment in which packages come from an index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/simple"
        yield {"UV_DEFAULT_INDEX": url, "UV_HTTP_RETRIES": "0"}


def uv_below(pid: int) -> list[int]:
    """Live uv processes below `pid`."""
    found = []
    for child in tree(pid)[1:]:
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if line.split(b"\0")[0].endswith(b"/uv"):
            found.append(child)
    return found


# ------------------------------------------------------------------------------------- the end of a server

# Ignores whatever can be ignored, itself and in a daemon.
STUBBORN = """
import os, signal, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
print("up to here", flush=True)
while True:
    try: time.sleep(600)
    except BaseException: pass
"""


async def idle(server: RawServer) -> None:
    assert (await server.run("1"))["status"] == "ok"


async def running(server: RawServer) -> None:
    await server.begun(STUBBORN)


async def queued(server: RawServer) -> None:
    await server.begun("import time; time.sleep(600)")
    for _ in range(3):
        await server.begin("import time; time.sleep(600)")


async def installing(server: RawServer) -> None:
    await server.begin("1", requirements=["six"])
    await until(lambda: bool(uv_below(server.process.pid)), END_SECONDS, "uv runs")


async def untouched(server: RawServer) -> None:
    """Nothing but the handshake has happened."""


BUSY = {
    "idle": (idle, ()),
    "during_a_run": (running, ()),
    "while_runs_are_queued": (queued, ("--concurrent-runs", "1")),
    "during_an_installation": (installing, ()),
    "right_after_the_handshake": (untouched, ()),
}
WAYS: dict[str, Callable[[RawServer], Awaitable[None]]] = {}


def way(function: Callable[[RawServer], Awaitable[None]]) -> Callable[[RawServer], Awaitable[None]]:
    WAYS[function.__name__] = function
    return function


@way
async def end_of_stdin(server: RawServer) -> None:
    await server.close_stdin()


@way
async def sigterm(server: RawServer) -> None:
    server.signal(signal.SIGTERM)


@way
async def sigint(server: RawServer) -> None:
    server.signal(signal.SIGINT)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("when", BUSY)
async def test_a_server_ends_promptly_and_leaves_nothing(
    place: Path, silent_index: dict[str, str], when: str, how: str
) -> None:
    make_busy, arguments = BUSY[when]
    env = silent_index if make_busy is installing else {}
    async with raw(place, *BARE, *arguments, env=env) as server:
        await make_busy(server)
        pids = server.tree()
        await WAYS[how](server)
        await server.ended()
        await until(lambda: alive(pids) == [], END_SECONDS, "all its processes are gone")
        assert left_in(place) == []


async def test_a_second_signal_does_not_cut_the_end_short(place: Path) -> None:
    async with raw(place, *BARE) as server:
        await running(server)
        pids = server.tree()
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)
        await server.close_stdin()
        server.signal(signal.SIGTERM)
        await server.ended()
        await until(lambda: alive(pids) == [], END_SECONDS, "all its processes are gone")
        assert left_in(place) == []


async def test_a_workspace_full_of_traps_does_not_hold_up_the_end(place: Path) -> None:
    traps = """
import os
for n in range(1000): open(f"output/{n}", "w").close()
os.mkdir("locked"); open("locked/x", "w").close(); os.chmod("locked", 0)
print("planted", flush=True)
for _ in range(3000): os.mkdir("d"); os.chdir("d")
"""
    async with raw(place, *BARE) as server:
        assert (await server.run(traps))["stdout"] == "planted\n"
        await server.close_stdin()
        await server.ended()
        assert left_in(place) == []


async def test_a_run_that_the_shutdown_stops_still_answers(place: Path) -> None:
    async with raw(place, *BARE) as server:
        number = await server.begun("import time; print('up to here', flush=True); time.sleep(600)")
        server.signal(signal.SIGTERM)
        result = await server.reply(number, END_SECONDS)
        assert result["structuredContent"]["status"] == "shutdown"
        assert result["structuredContent"]["stdout"] == "up to here\n"


async def test_after_a_kill_everything_ends_by_itself_and_the_next_start_sweeps(place: Path) -> None:
    async with raw(place, *BARE) as server:
        await running(server)
        pids = server.tree()
        assert len(pids) >= 4  # the server, the sandbox's two processes, the kernel
        server.signal(signal.SIGKILL)
        await server.ended()
        await until(lambda: alive(pids) == [], END_SECONDS, "all its processes are gone")
        (left,) = left_in(place)
    async with raw(place, *BARE) as server:
        assert (await server.run("1"))["status"] == "ok"
        assert left not in left_in(place)
        await server.close_stdin()
        await server.ended()
        assert left_in(place) == []


async def test_a_living_servers_folder_is_not_swept_by_another(place: Path) -> None:
    async with raw(place, *BARE) as first, raw(place, *BARE) as second:
        assert (await first.run("open('kept', 'w').close()"))["status"] == "ok"
        assert (await second.run("1"))["status"] == "ok"
        assert (await first.run("import os; print(os.listdir())"))["stdout"].count("kept") == 1


async def test_a_kill_during_an_installation_leaves_no_installer(place: Path, silent_index: dict[str, str]) -> None:
    async with raw(place, *BARE, env=silent_index) as server:
        await installing(server)
        pids = server.tree()
        server.signal(signal.SIGKILL)
        await server.ended()
        await until(lambda: alive(pids) == [], END_SECONDS, "all its processes are gone")


# ---------------------------------------------------------------------------------------- the end of a run


async def test_a_cancelled_call_stops_its_run_and_the_server_goes_on(place: Path) -> None:
    async with raw(place, *BARE) as server:
        number = await server.begun(
            "import subprocess; subprocess.Popen(['/bin/sleep', '98765.4321'], start_new_session=True)\n" + STUBBORN
        )
        await until(lambda: bool(named("98765.4321")), END_SECONDS, "the child of the run is there")
        await server.send("notifications/cancelled", {"requestId": number, "reason": "test"}, reply=False)
        await until(lambda: not named("98765.4321"), END_SECONDS, "the child of the run is gone")
        assert (await server.run("print(1)"))["stdout"] == "1\n"
        # What it wrote is gone too; empty folders of the server's are kept for the next runs.
        await until(lambda: not list(place.glob("*/p*/*")), END_SECONDS, "the run's files are gone")


async def test_a_cancelled_call_that_waits_for_its_turn_never_runs(place: Path) -> None:
    async with raw(place, *BARE, "--concurrent-runs", "1") as server:
        first = await server.begun("import time, os\nwhile not os.path.exists('go'): time.sleep(0.02)")
        waiting = await server.begin("open('ran', 'w').close()")
        await server.send("notifications/cancelled", {"requestId": waiting}, reply=False)
        files = files_in(place)
        # Sent in order, so answered in order: by now the cancellation has been seen.
        await server.reply(await server.send("ping"))
        (files / "go").touch()
        assert (await server.reply(first))["structuredContent"]["status"] == "ok"
        assert (await server.run("import os; print(os.path.exists('ran'))"))["stdout"] == "False\n"


async def test_a_cancelled_installation_ends_its_installer(place: Path, silent_index: dict[str, str]) -> None:
    async with raw(place, env=silent_index) as server:
        number = await server.begin("1", requirements=["six"])
        await until(lambda: bool(uv_below(server.process.pid)), END_SECONDS, "uv runs")
        await server.send("notifications/cancelled", {"requestId": number}, reply=False)

        def asked() -> list[int]:
            """What is prepared for all runs is not this call's and may go on."""
            return [pid for pid in uv_below(server.process.pid) if b"six" in _files_of(pid)]

        await until(lambda: not asked(), END_SECONDS, "uv has ended")


def _files_of(pid: int) -> bytes:
    """What the requirement files hold that a uv process was started with."""
    seen = b""
    try:
        for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            if word.endswith(b".txt"):
                seen += Path(os.fsdecode(word)).read_bytes()
    except OSError:
        pass
    return seen


LEFTOVERS = {
    "children": "subprocess.Popen(['/bin/sleep', MARK])",
    "daemons": """
if os.fork() == 0:
    os.setsid()
    for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0: os.execv('/bin/sleep', ['sleep', MARK])
    os._exit(0)
os.wait()""",
    "stopped": "os.kill(subprocess.Popen(['/bin/sleep', MARK]).pid, signal.SIGSTOP)",
    "background_of_a_shell": "os.system(f'nohup setsid /bin/sleep {MARK} >/dev/null 2>&1 &')",
    "forking": """
if os.fork() == 0:
    os.setsid()
    subprocess.Popen(['/bin/sleep', MARK])
    while True:
        if os.fork(): os._exit(0)""",
    "pool": """
import multiprocessing as m
pool = m.get_context('fork').Pool(2)
subprocess.Popen(['/bin/sleep', MARK])""",
    "threads": """
import threading
def work():
    subprocess.Popen(['/bin/sleep', MARK]).wait()
threading.Thread(target=work, daemon=True).start()""",
}


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "os._exit(4)", "os.kill(os.getpid(), 11)"])
@pytest.mark.parametrize("kind", LEFTOVERS)
async def test_nothing_that_a_run_started_outlives_its_call(session: RawServer, kind: str, ending: str) -> None:
    mark = f"9{time.monotonic_ns() % 10**8:08d}.25"
    code = f"""
import os, signal, subprocess, time
MARK = {mark!r}
{LEFTOVERS[kind]}
while not os.path.exists({mark!r}): time.sleep(0.01)
print("end", flush=True)
{ending}
"""
    files = files_in(session.state)
    number = await session.begin(code)
    await until(lambda: bool(named(mark)), kit.SECONDS, "what the run leaves is there")
    (files / mark).touch()
    result = (await session.reply(number))["structuredContent"]
    assert named(mark) == []
    assert result["stdout"] == "end\n"
    statuses = {"pass": "ok", "raise SystemExit(3)": "error"}
    assert result["status"] == statuses.get(ending, "died")


@pytest.fixture(scope="module")
async def session() -> AsyncIterator[RawServer]:
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        (place := folder / "s").mkdir(mode=0o700)
        async with raw(place, *BARE) as server:
            await idle(server)
            yield server
            pids = server.tree()
            await server.close_stdin()
            await server.ended()
            assert alive(pids) == []
            assert left_in(place) == []
    finally:
        shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------ without walls


@pytest.fixture
def path_without_bwrap(state: Path) -> str:
    """A PATH with everything but bubblewrap."""
    (folder := state / "bin").mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if program.name != "bwrap" and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


async def test_without_bubblewrap_the_server_starts_and_a_call_says_what_to_install(
    place: Path, path_without_bwrap: str
) -> None:
    async with raw(place, *BARE, "--isolation", "bubblewrap", env={"PATH": path_without_bwrap}) as server:
        tools = await server.reply(await server.send("tools/list"))
        assert "run_code" in [tool["name"] for tool in tools["tools"]]
        for _ in range(2):
            result = await server.run("1")
            assert result["is_error"]
            assert "apt-get install bubblewrap" in result["text"]
            assert "--isolation none" in result["text"]
        await server.close_stdin()
        await server.ended()
        assert left_in(place) == []


async def test_isolation_none_works_without_bubblewrap_and_is_named_in_the_result(
    place: Path, path_without_bwrap: str
) -> None:
    async with raw(place, *BARE, "--isolation", "none", env={"PATH": path_without_bwrap}) as server:
        result = await server.run("open('output/a.txt', 'w').write('x'); print('here')")
        assert (result["status"], result["stdout"], result["isolation"]) == ("ok", "here\n", "none")
        assert [a["relative_path"] for a in result["artifacts"]] == ["output/a.txt"]
        await server.begun(STUBBORN)
        pids = server.tree()
        await server.close_stdin()
        await server.ended()
        await until(lambda: alive(pids) == [], END_SECONDS, "all its processes are gone")
        assert left_in(place) == []


async def test_bubblewrap_that_is_installed_later_is_found_by_the_next_call(
    place: Path, path_without_bwrap: str
) -> None:
    async with raw(place, *BARE, "--isolation", "bubblewrap", env={"PATH": path_without_bwrap}) as server:
        assert (await server.run("1"))["is_error"]
        found = bubblewrap.find()
        assert found is not None
        (Path(path_without_bwrap) / "bwrap").symlink_to(found.executable)
        assert (await server.run("1"))["status"] == "ok"


# ------------------------------------------------------------------------------------------------- limits


async def test_code_longer_than_the_limit_is_refused(place: Path) -> None:
    async with raw(place, *BARE, "--code-bytes", "100") as server:
        assert (await server.run("#" * 99 + "\n"))["is_error"] is False
        result = await server.run("#" * 101)
        assert result["is_error"]
        assert "101" in result["text"] and "100" in result["text"]
        assert (await server.run("#" + "ä" * 50))["is_error"]  # bytes, not characters


async def test_a_run_is_stopped_when_its_seconds_are_up(place: Path) -> None:
    async with raw(place, *BARE, "--run-seconds", "1", "--max-run-seconds", "30") as server:
        for code in ("import time; print('x', flush=True); time.sleep(60)", "print('x', flush=True)\nwhile True: pass"):
            result = await server.run(code)
            assert (result["status"], result["stdout"]) == ("timeout", "x\n")
            assert result["seconds"]["run"] > 0.9
        result = await server.run(STUBBORN)
        assert (result["status"], result["stdout"]) == ("timeout", "up to here\n")
        assert (await server.run("import time; time.sleep(1.5)", timeout_seconds=30))["status"] == "ok"
        assert (await server.run("import time; time.sleep(1)", timeout_seconds=0.3))["status"] == "timeout"
        refused = await server.run("1", timeout_seconds=30.5)
        assert refused["is_error"] and "at most 30" in refused["text"]


async def test_an_installation_is_given_up_when_its_seconds_are_up(place: Path, silent_index: dict[str, str]) -> None:
    async with raw(place, *BARE, "--install-seconds", "2", env=silent_index) as server:
        result = await server.run("1", requirements=["six"])
        assert result["is_error"]
        assert "2 s" in result["text"]
        await until(lambda: not uv_below(server.process.pid), END_SECONDS, "uv has ended")


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(2, b'y' * 60_000)",
        "import subprocess; subprocess.run(['/usr/bin/yes'])",
        "from IPython.display import display, HTML\nwhile True: display(HTML('<b>z</b>' * 1000))",
        "import sys\nwhile True: display({'text/plain': 'z' * 10_000}, raw=True)",
    ],
    ids=["print", "descriptor", "child", "html", "text"],
)
async def test_a_run_that_writes_more_than_the_limit_is_stopped(place: Path, code: str) -> None:
    async with raw(place, *BARE, "--output-bytes", "1M", "--run-seconds", "80") as server:
        result = await server.run(code)
        assert result["status"] == "limit", result["text"][-500:]
        assert "1 MiB" in result["error"]["value"]
        assert len(result["text"]) < 40_000
        assert (await server.run("print(1)"))["stdout"] == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(700 << 20)",
        "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(90 << 20); time.sleep(60)",
        "import mmap\nx = mmap.mmap(-1, 700 << 20)\nfor at in range(0, 700 << 20, 4096): x[at] = 1",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = bytearray(700 << 20); input()'])",
    ],
    ids=["one_process", "many_processes", "shared_memory", "child"],
)
async def test_a_run_that_takes_more_memory_than_the_limit_is_stopped(place: Path, code: str) -> None:
    async with raw(place, *BARE, "--memory-bytes", "400M", "--run-seconds", "80") as server:
        result = await server.run(f"import time\nprint('up to here', flush=True)\n{code}\ntime.sleep(60)")
        assert (result["status"], result["stdout"]) == ("out_of_memory", "up to here\n"), result["text"]
        assert "400 MiB" in result["error"]["value"]
        assert (await server.run("x = bytearray(150 << 20); print(len(x) >> 20)"))["stdout"] == "150\n"


FLAGS = {
    "processes": ("--processes=40", """
import os, signal
pids = []
try:
    while len(pids) < 300:
        if (pid := os.fork()) == 0: signal.pause()
        pids.append(pid)
except BlockingIOError: print(10 < len(pids) < 40)
for pid in pids: os.kill(pid, 9)"""),
    "threads": ("--processes=40", """
import threading
stop, threads = threading.Event(), []
try:
    while len(threads) < 300:
        threads.append(threading.Thread(target=stop.wait, daemon=True)); threads[-1].start()
except RuntimeError: print(10 < len(threads) < 40)
stop.set()"""),
    "open_files": ("--open-files=80", """
opened = []
try:
    while len(opened) < 300: opened.append(open('/dev/null'))
except OSError as e: print(e.strerror == 'Too many open files' and 0 < len(opened) < 80 or (e.strerror, len(opened)))
del opened"""),
    "file_size": ("--file-bytes=2M", """
import os
try:
    with open('output/large', 'wb', 0) as f:
        for _ in range(4): f.write(bytes(1 << 20))
except OSError as e: print(e.strerror == 'File too large' and os.path.getsize('output/large') == 2 << 20)"""),
    "tmp": ("--tmp-bytes=8M", """
for folder in ('/tmp', '/dev/shm'):
    try:
        with open(folder + '/large', 'wb', 0) as f:
            for _ in range(20): f.write(bytes(1 << 20))
    except OSError as e: held = e.strerror == 'No space left on device'
    else: held = False
    print(held, end=' ')
print()"""),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
async def test_the_flag_sets_the_limit_of(place: Path, name: str) -> None:
    flag, code = FLAGS[name]
    async with raw(place, *BARE, flag) as server:
        result = await server.run(code)
        assert (result["status"], set(result["stdout"].split())) == ("ok", {"True"}), result["text"]
        # And the limit of one run does not weigh on the next.
        assert (await server.run("import subprocess; print(subprocess.call(['/bin/true']))"))["stdout"] == "0\n"


async def test_more_calls_than_may_run_and_wait_are_turned_away(place: Path) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('done')"
    async with raw(place, *BARE, "--concurrent-runs", "2", "--queued-runs", "1") as server:
        numbers = [await server.begun(wait), await server.begun(wait), await server.begin(wait)]
        refused = await server.run("1")
        assert refused["is_error"]
        assert "2 runs are under way" in refused["text"] and "1 more" in refused["text"]
        files = files_in(place)
        (files / "go").touch()
        results = [(await server.reply(number))["structuredContent"] for number in numbers]
        assert [r["stdout"] for r in results] == ["done\n"] * 3
        assert results[2]["seconds"]["queue"] > 0.01  # at least while the refused call was read and answered
        assert (await server.run("1"))["status"] == "ok"


async def test_no_queue_at_all_may_be_asked_for(place: Path) -> None:
    async with raw(place, *BARE, "--concurrent-runs", "1", "--queued-runs", "0") as server:
        number = await server.begun("import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)")
        assert "Try again" in (await server.run("1"))["text"]
        files = files_in(place)
        (files / "go").touch()
        assert (await server.reply(number))["structuredContent"]["status"] == "ok"


@pytest.mark.parametrize("arguments", [["--memory-bytes", "12"], ["--run-seconds", "x"], ["--isolation", "paper"]])
def test_a_setting_that_cannot_be_is_told_at_once(place: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "prims", "serve", *arguments]
    said = subprocess.run(
        command, env=kit.server_environment(place), capture_output=True, text=True, timeout=kit.SECONDS, check=False
    )
    assert said.returncode == 2
    assert arguments[0].removeprefix("--").replace("-", "_") in said.stderr.replace("-", "_")
    assert said.stdout == ""


def test_a_kernel_whose_server_is_gone_ends_by_itself(place: Path) -> None:
    """Also when its server was killed too early for the sandbox to have asked to be killed with it."""
    ports = {f"{name}_port": number for number, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
    connection = {**ports, "transport": "ipc", "ip": str(place / "s"), "key": "none", "signature_scheme": "hmac-sha256"}
    (place / "kernel.json").write_text(json.dumps(connection))
    launch = Path(prims.__file__).parent / "kernel" / "inside" / "launch.py"
    reader, writer = os.pipe()
    kernel = subprocess.Popen(
        [sys.executable, "-I", launch, "-f", place / "kernel.json", "--once"],
        stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, cwd=place,
        env={**os.environ, "HOME": str(place), "IPYTHONDIR": str(place / ".ipython")},
    )  # fmt: skip
    try:
        os.close(writer)
        with pytest.raises(subprocess.TimeoutExpired):
            kernel.wait(3)
        os.close(reader)
        assert kernel.wait(END_SECONDS) != 0
    finally:
        kernel.kill()
        kernel.wait()
