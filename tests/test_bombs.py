"""One server under every kind of bomb at once: it answers, an innocent session's code runs, and each bomb ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from prims.trees import remove_tree
from tests import kit
from tests.test_http import Served, client_of, served

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
ANSWER_SECONDS = 1.0
# As much more as a bare process beside the server has to wait for the processors, in steps of an answer: the server
# waits for them, a worker thread or two, and the client.
STEPS = 4

FLAGS = {
    "memory-bytes": "400M",
    "workspace-bytes": "100M",
    "workspace-files": "3000",
    "output-bytes": "32M",
    "run-seconds": "2",
    "concurrent-runs": "16",
    "default-packages": "",
    "spare-kernels": "0",  # the bombs are enough to do
    "fork-kernels": "off",
}

# What each may end as: the first that is met depends on how much of the processors it gets.
BOMBS = {
    "memory": (
        "import mmap, os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        held = [mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000) for _ in range(30)]\n"
        "        time.sleep(60)\n"
        "time.sleep(60)",
        {"out_of_memory", "timeout"},
    ),
    "fork": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {"timeout"}),
    "disk": ("for n in range(10**6): open(f'{n}', 'wb').write(b'x' * (8 << 20))", {"limit", "timeout"}),
    "files": ("for n in range(10**7): open(f'output/{n}', 'w').close()", {"limit", "timeout"}),
    "fds": (
        "import os, socket\nheld = []\nwhile True:\n"
        "    try: held += [os.dup(1), socket.socketpair()]\n    except OSError: pass",
        {"timeout"},
    ),
    "output": ("import os\nwhile True: os.write(1, b'x' * 65536)", {"limit", "timeout"}),
    "lines": ("while True: print('y')", {"limit", "timeout"}),
    "displays": (
        "from IPython.display import HTML, display\nwhile True: display(HTML('<b>x</b>' * 100))",
        {"limit", "timeout"},
    ),
    "processors": ("import os\nfor _ in range(2): os.fork()\nwhile True: pass", {"timeout"}),
    "interpreter lock": ("str(7 ** 10**8)", {"timeout"}),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "deaf": (
        "import signal, time\nfor n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True:\n    try: time.sleep(60)\n    except BaseException: pass",
        {"timeout"},
    ),
}


@pytest.fixture
def server() -> Iterator[Served]:
    state = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        with served(state, *(word for name, value in FLAGS.items() for word in (f"--{name}", value))) as one:
            yield one
    finally:
        remove_tree(state)


@asynccontextmanager
async def pinged(server: Served, told: list[float]) -> AsyncIterator[None]:
    """Another process asks the server all the time; `told` is what it saw, see pinging.py."""
    command = [sys.executable, "-m", "tests.pinging", server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert await anyio.to_thread.run_sync(process.stdout.readline) == b"ready\n"
            yield
            told += json.loads((await anyio.to_thread.run_sync(process.communicate, None, 60))[0])
        finally:
            process.kill()


async def test_the_server_and_other_sessions_live_on_under_all_bombs_at_once(server: Served) -> None:
    ends: dict[str, str] = {}
    innocent: list[str] = []
    told: list[float] = []

    async def bomb(name: str) -> None:
        async with client_of(server) as client:
            result = await kit.run_code(client, BOMBS[name][0])
            assert result.structured_content is not None, kit.text_of(result)
            ends[name] = result.structured_content["status"]

    async def live() -> None:
        while len(ends) < len(BOMBS):
            async with client_of(server) as client:
                result = await kit.run_code(client, "print(6 * 7)", timeout_seconds=60)
                innocent.append(kit.text_of(result))

    async with client_of(server) as client:
        await kit.run_code(client, "1")  # the layers are there
    async with pinged(server, told), anyio.create_task_group() as group:
        for name in BOMBS:
            group.start_soon(bomb, name)
        group.start_soon(live)
    assert innocent and all(text.startswith("stdout:\n42\n") for text in innocent)
    assert {name: status for name, status in ends.items() if status not in BOMBS[name][1]} == {}
    longest, bare, answers = told
    assert longest < ANSWER_SECONDS + STEPS * bare
    assert answers > 10
