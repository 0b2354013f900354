"""Every probe through the whole product: a real server over stdio, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import platform
import selectors
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from prims.isolation import bubblewrap, wrapper
from prims.kernel.channels import MOST_AHEAD
from prims.kernel.kernel import _values_in
from prims.state import sweep
from tests import forgeries, kit, probes, users
from tests.engines import IS_FORKED
from tests.processes import alive, is_alive, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed"),
]

SECRETS = {"AWS_SECRET_ACCESS_KEY": "hunter2SECRET", "GITHUB_TOKEN": "SECRETtoken"}
LAYERS = ("--default-packages", "")  # a stranger's cache is empty, and no probe needs pandas


@dataclass(frozen=True, slots=True)
class Outside:
    """A server with a client, and all around it that its code must not reach."""

    client: Client
    world: probes.World
    state: Path
    pid: int
    other_pid: int  # of the server of the other session
    isolation: str
    kind: str


# ------------------------------------------------------------------------------------------ what is outside


@contextmanager
def listeners(folder: Path) -> Iterator[dict[str, object]]:
    """Sockets of this process that answer everybody, by their name in `World`."""
    with ExitStack() as stack:
        watch = stack.enter_context(selectors.DefaultSelector())
        wake, woken = os.pipe()
        stack.callback(os.close, wake)
        stack.callback(os.close, woken)

        def add(sock: socket.socket) -> socket.socket:
            stack.enter_context(sock)
            watch.register(sock, selectors.EVENT_READ)
            return sock

        tcp = add(socket.create_server(("0.0.0.0", 0)))
        port = tcp.getsockname()[1]
        if socket.has_dualstack_ipv6():
            add(socket.create_server(("::", port), family=socket.AF_INET6))
        udp = add(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("0.0.0.0", 0))
        names = {"stream": f"{folder}/stream", "datagram": f"{folder}/datagram", "abstract": f"\0prims{folder}"}
        for name, address in names.items():
            kind = socket.SOCK_DGRAM if name == "datagram" else socket.SOCK_STREAM
            sock = add(socket.socket(socket.AF_UNIX, kind))
            sock.bind(address)
            if kind == socket.SOCK_STREAM:
                sock.listen()
            if not address.startswith("\0"):
                os.chmod(address, 0o777)

        def answer() -> None:
            watch.register(wake, selectors.EVENT_READ)
            while True:
                for key, _ in watch.select():
                    if key.fileobj == wake:
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj.type == socket.SOCK_STREAM:
                        with key.fileobj.accept()[0] as connection:
                            connection.send(b"hello")
                    else:
                        _, address = key.fileobj.recvfrom(100)
                        if key.fileobj is udp:
                            udp.sendto(b"hello", address)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield {"tcp": port, "udp": udp.getsockname()[1], **names}
        finally:
            os.write(woken, b"x")
            thread.join(10)


def host_ip() -> str:
    """An address of this machine that is not loopback, when it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


def files_in(state: Path) -> Path:
    """The working directory of a server's only session."""
    (files,) = state.glob("*/w1/files")
    return files


def resident(pid: int) -> int:
    """What a process holds in memory, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spilled(folder: str) -> list[Path]:
    """Files that a server has put beside where they belong."""
    return list(Path(folder).glob("run*-output.txt"))


@asynccontextmanager
async def serving(who: users.Owner, name: str, *arguments: str) -> AsyncIterator[tuple[Client, Path, int]]:
    """A server with its state below `name`; its log is shown when the block fails."""
    state = who.folder(who.base / name)
    before = set(wrapper.children(os.getpid()))
    log = who.base / f"{name}.log"
    with log.open("w") as errlog:
        parameters = who.server(state, *arguments, env=SECRETS)
        async with Client(stdio_client(parameters, errlog=errlog), mode="auto") as client:  # type: ignore[arg-type]
            (pid,) = set(wrapper.children(os.getpid())) - before
            try:
                yield client, state, pid
            except BaseException:
                print(log.read_text())
                raise
    await until(lambda: not is_alive(pid), kit.SECONDS, f"end of server {pid}")
    sweep(state)  # a server that had no time for all of it, on a busy machine, leaves that to the next one
    assert list(state.iterdir()) == []


@asynccontextmanager
async def world_of(kind: str, *arguments: str) -> AsyncIterator[Outside]:
    """A server of a user of that kind and everything around it, another live session with a running kernel included."""
    isolation = arguments[arguments.index("--isolation") + 1] if "--isolation" in arguments else "bubblewrap"
    open_ways = isolation == "landlock"
    with users.owner(kind, open_ways=open_ways) as who, listeners(who.base) as addresses:
        secret = who.home / "secret.txt"
        secret.write_text("nobody else's")
        secret.chmod(0o600)
        who.give(secret)
        async with (
            serving(who, "s1", *LAYERS, *arguments) as (client, state, pid),
            serving(who, "s2", *LAYERS, *arguments, "--run-seconds", "600") as (other, other_state, other_pid),
            anyio.create_task_group() as group,
        ):
            code = "import time; open('secret.txt', 'w').write('theirs'); time.sleep(600)"
            group.start_soon(other.call_tool, "run_code", {"code": code})
            first = await kit.run_code(client, "1")
            assert not first.is_error, kit.text_of(first)
            data = files_in(state).parent / "mounts" / "data.csv"
            data.write_text("a,b\n1,2\n")
            data.chmod(0o644)
            await until(lambda: bool(list(other_state.glob("*/w1/files/secret.txt"))), kit.SECONDS, "the other run")
            theirs = files_in(other_state) / "secret.txt"
            other_socket, *_ = other_state.glob("*/k*/s/k*/s-1")
            world = probes.World(
                secret=str(secret),
                other_files=str(theirs.parent),
                other_socket=str(other_socket),
                runs=str(state),
                server_pid=pid,
                host_ip=host_ip(),
                **addresses,  # type: ignore[arg-type]
            )
            yield Outside(client, world, state, pid, other_pid, isolation, kind)
            group.cancel_scope.cancel()


WALLS = ("bubblewrap", "landlock")


@pytest.fixture(scope="module", params=[(w, k) for w in WALLS for k in users.KINDS], ids="-".join)
async def outside(request: pytest.FixtureRequest) -> AsyncIterator[Outside]:
    isolation, kind = request.param
    async with world_of(kind, "--isolation", isolation) as outside:
        yield outside


@pytest.fixture(scope="module")
async def said(outside: Outside) -> dict[str, str]:
    return await all_said(outside)


async def tried(outside: Outside, code: str) -> CallToolResult:
    return await kit.run_code(outside.client, probes.preamble(outside.world) + code)


def is_about(probe: probes.Probe, isolation: str) -> bool:
    return probe.needs in (None, platform.machine()) and probe.only in (None, isolation)


async def all_said(outside: Outside, *, forked: bool = False) -> dict[str, str]:
    """What each probe says, by its name; the attempts on limits come last, in a call of their own.

    With `forked` a call that is not made by a forked kernel fails.
    """
    known = [probe for probe in probes.PROBES if is_about(probe, outside.isolation)]
    lines: dict[str, str] = {}
    (tmpfs,) = (probe for probe in probes.LIMITS if probe.name == "limit_tmpfs")
    for chosen in ([p for p in known if p not in probes.LIMITS], [p for p in probes.LIMITS if p != tmpfs]):
        check = f"assert {IS_FORKED}\n" if forked else ""
        result = await kit.run_code(outside.client, check + probes.program(outside.world, chosen))
        assert not result.is_error, kit.text_of(result)
        assert result.structured_content is not None
        assert result.structured_content["isolation"] == outside.isolation
        lines |= {name: text for name, _, text in (line.partition(" ") for line in stdout(result).splitlines())}
        assert list(lines)[-len(chosen) :] == [probe.name for probe in chosen]
    filled = await kit.run_code(outside.client, probes.program(outside.world, [tmpfs]))
    # Without a tmpfs, the server looks.
    looked = outside.isolation == "landlock" and "temporary files limit" in kit.text_of(filled)
    lines[tmpfs.name] = "LIMITED" if looked else stdout(filled).partition(" ")[2]
    assert is_alive(outside.pid)
    assert os.stat(outside.world.secret).st_mode & 0o777 == 0o600
    return lines


def stdout(result: CallToolResult) -> str:
    assert result.structured_content is not None
    return str(result.structured_content["stdout"])


# ------------------------------------------------------------------------------------------- ways out


@pytest.mark.parametrize("probe", probes.PROBES, ids=lambda probe: probe.name)
async def test_there_is_no_way_out_by(probe: probes.Probe, outside: Outside, said: dict[str, str]) -> None:
    if not is_about(probe, outside.isolation):
        pytest.skip(f"is about {probe.needs or probe.only}")
    assert said[probe.name].split()[:1] == [probe.expected_in(outside.isolation)], said[probe.name]


def test_the_table_in_the_documentation_says_what_is_tested_here() -> None:
    text = probes._PAGE.read_text("utf-8")
    assert text == probes.page(text), "run `python -m tests.probes`"
    assert probes.table().count("\n| ") > 60


async def test_the_probes_find_their_way_out_where_there_are_no_walls() -> None:
    chosen = [probe for probe in probes.PROBES if probe.name in probes.ESCAPES_WITHOUT_WALLS]
    assert len(chosen) == len(probes.ESCAPES_WITHOUT_WALLS)
    async with world_of(users.KINDS[0], "--isolation", "none") as outside:
        result = await kit.run_code(outside.client, probes.program(outside.world, chosen))
        assert result.structured_content is not None
        assert result.structured_content["isolation"] == "none"
        lines = stdout(result).splitlines()
        assert len(lines) == len(chosen)
        assert [line for line in lines if line.split()[1] != "ESCAPED"] == []


@pytest.mark.parametrize("kind", users.KINDS)
def test_in_a_container_that_refuses_namespaces_code_runs_in_landlock_walls(kind: str) -> None:
    with users.owner(kind, open_ways=True) as who:
        server = who.server(who.folder(who.base / "s"), *LAYERS)
        serve = [server.command, *server.args]
        refusing = [who.python, "-I", "-S", str(Path(__file__).with_name("refusing.py")), "namespaces"]
        at = serve.index(who.python)
        command = [*serve[:at], *refusing, *serve[at : serve.index("serve")], "doctor", "--json", *LAYERS]
        done = subprocess.run(
            command, env=server.env, cwd=who.base, capture_output=True, text=True, timeout=240, check=False
        )
        told = json.loads(done.stdout)
        assert done.returncode == 0, done.stdout
        assert [check["detail"] for check in told["checks"]["walls"]] == ["landlock"]
        (refused,) = told["checks"]["bubblewrap"]
        assert "new namespace" in refused["detail"].lower() and refused["advice"]
        open_ones = {c["name"] for about in ("landlock", "limits") for c in told["checks"][about] if not c["ok"]}
        assert open_ones == {"names and sizes outside"}, done.stdout
        assert len(told["checks"]["limits"]) == 11


async def test_what_programs_miss_without_namespaces_is_told_in_one_line(outside: Outside) -> None:
    result = await tried(outside, "import multiprocessing\nmultiprocessing.Lock()\nsocket.socket()")
    if outside.isolation == "landlock":
        assert result.structured_content is not None
        assert result.structured_content["error"]["name"] == "PermissionError"
        assert kit.text_of(result).count("isolation: landlock). Use tempfile") == 1
    else:
        assert not result.is_error


async def test_workers_that_are_started_anew_find_their_python(outside: Outside) -> None:
    code = """import multiprocessing
worker = multiprocessing.get_context("spawn").Process(target=print, args=("worked",))
worker.start()
worker.join()"""
    assert stdout(await kit.run_code(outside.client, code)) == "worked\n"


async def test_signals_to_everybody_reach_nobody_outside(outside: Outside) -> None:
    others = wrapper.tree(outside.other_pid)
    assert len(others) >= 3
    code = "try: os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError: pass\nprint('done')"
    assert stdout(await tried(outside, code)) == "done\n"
    result = await tried(outside, "os.killpg(0, signal.SIGKILL)")
    assert result.structured_content is not None
    assert result.structured_content["status"] == "died"
    assert alive([outside.pid, *others]) == [outside.pid, *others]
    assert stdout(await tried(outside, "print(1)")) == "1\n"


async def test_a_port_opened_inside_is_not_open_outside(outside: Outside) -> None:
    if outside.isolation == "landlock":
        pytest.skip("no port can be opened there")
    with socket.create_server(("0.0.0.0", 0)) as free:
        port = free.getsockname()[1]
    code = f"""
listener = socket.create_server(("0.0.0.0", {port}))
with socket.create_connection(("127.0.0.1", {port})): open("listening", "w").close()
import time
while not os.path.exists("go"): time.sleep(0.02)
print("done")
"""
    files = files_in(outside.state)
    results: list[CallToolResult] = []

    async def call() -> None:
        results.append(await tried(outside, code))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        try:
            await until((files / "listening").exists, kit.SECONDS, "the code inside listens")
            for address in {"127.0.0.1", outside.world.host_ip}:
                with pytest.raises(OSError):
                    await anyio.connect_tcp(address, port)
        finally:
            (files / "go").touch()
    assert stdout(results[0]) == "done\n"


async def test_a_call_does_not_see_the_processes_of_another_one_of_its_session(outside: Outside) -> None:
    seen: list[str] = []

    async def look(seconds: float) -> None:
        code = f"""
import time
time.sleep({seconds})
try: print(sorted(n for n in os.listdir('/proc') if n.isdigit()))
except PermissionError: print("nothing")
"""
        seen.append(stdout(await tried(outside, code)))

    async with anyio.create_task_group() as group:
        for seconds in (0.2, 0.5):
            group.start_soon(look, seconds)
    assert seen == (["nothing\n"] if outside.isolation == "landlock" else ["['1', '2']\n"]) * 2


# ------------------------------------------------------------------------------------ what is left behind


async def test_planted_files_are_neither_followed_nor_a_stumbling_block(outside: Outside) -> None:
    files = files_in(outside.state)
    result = await tried(outside, forgeries.PLANT)
    assert result.structured_content is not None, kit.text_of(result)
    assert result.structured_content["status"] in ("ok", "limit"), kit.text_of(result)
    assert stdout(result) == "planted\n"
    listed = {a["relative_path"]: a["size"] for a in result.structured_content["artifacts"]}
    locked = {"output/locked/inside.txt": 0}  # which root's server can read, and a user's cannot
    sizes = {"output/sparse.csv": 60 << 20, "output/bomb.json": 100_000, "output/ok.txt": 4}
    assert {path: size for path, size in listed.items() if path not in locked} == {
        **sizes,
        "output/bomb.gz": (files / "output/bomb.gz").stat().st_size,
    }
    for text in (kit.text_of(result), str(result.structured_content)):
        assert not {"\x1b", "\x07", "\u202e", "\udcff"} & set(text)
        assert "root:" not in text
    # The server goes on, and the next call does not report them again.
    again = await tried(outside, "open('output/next.txt', 'w').write('x'); print(len(os.listdir('output')) > 10)")
    assert stdout(again) == "True\n"
    assert again.structured_content is not None
    assert [a["relative_path"] for a in again.structured_content["artifacts"]] == ["output/next.txt"]
    # That all of it is removed with the session is seen where the server ends: its state folder is empty then.


@pytest.mark.parametrize("target", ["/etc", "/tmp", "../../w1", "nowhere"])
async def test_an_output_folder_that_is_a_link_leads_nowhere(outside: Outside, target: str) -> None:
    code = f"""
os.rename("output", "kept")
os.symlink({target!r}, "output")
print("x" * 100_000)
"""
    back = "os.unlink('output'); os.rename('kept', 'output'); print('back')"
    try:
        result = await tried(outside, code)
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content["artifacts"] == []
        assert [*spilled("/tmp"), *spilled("/etc")] == []
    finally:
        assert stdout(await tried(outside, back)) == "back\n"


# --------------------------------------------------------------------------------------- forged messages

@pytest.fixture(scope="module", params=users.KINDS[:1])
async def forged(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Client, int]]:
    with users.owner(request.param) as who:
        async with serving(who, "s", *LAYERS) as (client, _, pid):
            yield client, pid


@pytest.fixture
def forging(forged: tuple[Client, int]) -> Client:
    return forged[0]


@pytest.mark.parametrize("forgery", forgeries.FORGERIES.values(), ids=forgeries.FORGERIES)
async def test_a_run_goes_on_past_forged_messages(forging: Client, forgery: str) -> None:
    code = f"{forgeries.FORGE}\nprint('before')\n{forgery}\ntime.sleep(0.1)\nprint('after')"
    with anyio.fail_after(kit.SECONDS):
        result = await kit.run_code(forging, code)
    assert result.structured_content is not None, kit.text_of(result)
    assert result.structured_content["status"] == "ok", kit.text_of(result)
    assert "before" in stdout(result).partition("after")[0]
    assert stdout(result).endswith("after\n")
    assert "FAKE" not in kit.text_of(result)
    assert stdout(await kit.run_code(forging, "print(1)")) == "1\n"


@pytest.mark.parametrize("lie", forgeries.LIES.values(), ids=forgeries.LIES)
async def test_a_run_that_lies_ends_and_the_server_goes_on(forging: Client, lie: str) -> None:
    code = f"import os\n{forgeries.FORGE}\nprint('before')\n{lie}\nprint('after')"
    with anyio.fail_after(kit.SECONDS):
        result = await kit.run_code(forging, code, timeout_seconds=3)
    assert result.structured_content is not None, kit.text_of(result)
    assert "before\n" in stdout(result)  # wherever what was forged stands
    kit.text_of(result).encode()
    assert stdout(await kit.run_code(forging, "print(1)")) == "1\n"


def test_what_stands_in_strings_is_no_value_of_a_message() -> None:
    many = 1_000_000
    cases: list[tuple[object, int]] = [("a,[{" * many, 10), ('\\",' * many, 10), (["x"] * many, many + 10)]
    for text, most in (*cases, ([[]] * many, 2 * many + 10)):
        frame = json.dumps({"data": text}).encode()
        assert most - 20 <= _values_in(frame) <= most


async def test_a_message_without_an_end_does_not_fill_the_server(forged: tuple[Client, int]) -> None:
    client, pid = forged
    before = resident(pid)
    most = before
    async with anyio.create_task_group() as group:

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, resident(pid))
                await anyio.sleep(0.05)

        group.start_soon(look)
        result = await kit.run_code(client, f"{forgeries.FORGE}{forgeries.ENDLESS_MESSAGE}", timeout_seconds=3)
        group.cancel_scope.cancel()
    assert stdout(result) == "connected\n"
    assert most - before < 3 * MOST_AHEAD


async def test_in_landlock_walls_forgers_and_liars_get_no_further(outside: Outside) -> None:
    if outside.isolation != "landlock" or outside.kind != users.KINDS[-1]:
        pytest.skip("is about landlock, once")
    code = f"{forgeries.FORGE}\nprint('before')\n" + "\n".join(forgeries.FORGERIES.values()) + "\nprint('after')"
    result = await kit.run_code(outside.client, code)
    assert stdout(result).endswith("after\n"), kit.text_of(result)
    assert "FAKE" not in kit.text_of(result)
    lies = {name: lie for name, lie in forgeries.LIES.items() if name != "a_million_files"}  # would end the others too
    limiter = anyio.CapacityLimiter(4)
    told: dict[str, CallToolResult] = {}

    async def run(name: str, lie: str) -> None:
        async with limiter:
            code = f"import os\n{forgeries.FORGE}\nprint('before')\n{lie}\nprint('after')"
            told[name] = await kit.run_code(outside.client, code, timeout_seconds=3)

    async with anyio.create_task_group() as group:
        for name, lie in lies.items():
            group.start_soon(run, name, lie)
    assert [name for name, result in told.items() if "before\n" not in stdout(result)] == []
    assert stdout(await tried(outside, "print(1)")) == "1\n"
