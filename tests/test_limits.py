"""Each limit: what meets it is stopped, and the result names it, as the README says."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mcp.client import Client

from tests import kit

pytestmark = pytest.mark.anyio

LIMITS = {
    "memory-bytes": "400M",
    "cpu-seconds": "4",
    "processes": "64",
    "open-files": "128",
    "file-bytes": "4M",
    "tmp-bytes": "3M",
    "workspace-bytes": "16M",
    "workspace-files": "500",
    "output-bytes": "1M",
    "network-bytes": "50K",
    "network": "full",
}

MEMORY_BOMB = """
import mmap, os, time
for _ in range(8):
    if os.fork() == 0:
        # Populated: as fast as the kernel can give it.
        held = [mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000) for _ in range(30)]
        time.sleep(60)
time.sleep(60)
"""

# The limit's flag, the status, and the code. {outside} is a server that answers with a megabyte.
CASES = [
    ("run-seconds", "timeout", "import time\ntime.sleep(60)"),
    ("memory-bytes", "out_of_memory", MEMORY_BOMB),
    ("memory-bytes", "out_of_memory", "!dd if=/dev/zero of=/dev/null bs=1500M count=100"),
    ("memory-bytes", "error", "held = bytearray(5 << 30)"),
    ("cpu-seconds", "limit", "import os\nfor _ in range(3): os.fork()\nwhile True: pass"),
    ("processes", "error", "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(60)"),
    ("processes", "error", "import subprocess\nhold = [subprocess.Popen(['sleep', '60']) for _ in range(100)]"),
    (
        "processes",
        "error",
        "import threading\nfor _ in range(100): threading.Thread(target=threading.Event().wait, daemon=True).start()",
    ),
    ("processes", "ok", "!for i in $(seq 100); do sleep 9 & done"),
    ("open-files", "error", "held = [open('/dev/null') for _ in range(200)]"),
    ("file-bytes", "error", "with open('big', 'wb') as file: file.write(bytes(5 << 20))"),
    ("file-bytes", "ok", "!dd if=/dev/zero of=big bs=1M count=5"),
    ("tmp-bytes", "error", "for n in range(4): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))"),
    ("tmp-bytes", "ok", "!for i in 1 2 3 4; do dd if=/dev/zero of=/tmp/$i bs=1M count=1; done"),
    (
        "tmp-bytes",
        "limit",
        "import ipykernel, os, time\nfolder = os.path.dirname(ipykernel.get_connection_file())\n"
        "for n in range(4): open(f'{folder}/{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)",
    ),
    (
        "workspace-bytes",
        "limit",
        "import time\nfor n in range(9): open(f'{n}', 'wb').write(b'x' * (2 << 20))\ntime.sleep(60)",
    ),
    ("workspace-files", "limit", "import time\nfor n in range(600): open(f'output/{n}', 'w').close()\ntime.sleep(60)"),
    ("output-bytes", "limit", "while True: print('x' * 1000)"),
    ("network-bytes", "error", "import requests\nrequests.get('http://{outside}/')"),
]


class _Megabyte(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        try:
            self.wfile.write(bytes(1 << 20))
        except OSError:
            return  # the proxy has had enough

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def outside() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.2", 0), _Megabyte) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.2:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
async def client(outside: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    flags = [word for name, value in LIMITS.items() for word in (f"--{name}", value)]
    async with kit.connected(tmp_path_factory.mktemp("l"), *flags, "--allow-network", outside) as one:
        yield one


def promised() -> dict[str, list[str]]:
    """What the README says for each limit, as patterns in which the numbers may differ."""
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    table = text.partition("### When a limit is met")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]

    def pattern(said: str) -> str:
        return r"\d[\d.]*( [KMG]iB)?".join(map(re.escape, re.split(r"\d[\d.]*(?: [KMG]iB)?", said)))

    return {row[0].strip("`-"): list(map(pattern, re.findall("`([^`]+)`", row[2]))) for row in rows}


def test_the_readme_promises_and_the_cases_are_of_the_same_limits() -> None:
    assert set(promised()) == {flag for flag, _, _ in CASES}


@pytest.mark.parametrize(("flag", "status", "code"), CASES, ids=[f"{flag}-{n}" for n, (flag, _, _) in enumerate(CASES)])
async def test_a_limit_is_named_by_the_result(flag: str, status: str, code: str, client: Client, outside: str) -> None:
    more = {"timeout_seconds": 2} if flag == "run-seconds" else {}
    result = await kit.run_code(client, code.replace("{outside}", outside), **more)
    assert result.structured_content is not None, kit.text_of(result)
    text = kit.text_of(result)
    assert result.structured_content["status"] == status, text[-2000:]
    assert any(re.search(pattern, text) for pattern in promised()[flag]), text[-2000:]
    await kit.run_code(client, "import shutil, os\nfor f in os.scandir('.'):\n    if f.is_file(): os.unlink(f)\n"
                       "for f in os.scandir('output'): os.unlink(f)")  # fmt: skip


async def test_a_kernel_that_ends_by_itself_is_told_by_its_signal(client: Client) -> None:
    for code, words in (
        ("import ctypes; ctypes.string_at(0)", "the kernel ended: killed by SIGSEGV (segmentation fault)"),
        ("import os; os.abort()", "the kernel ended: killed by SIGABRT (aborted)"),
        ("import os; os._exit(3)", "the kernel ended: exit status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the kernel ended: killed by SIGKILL (killed)"),
    ):
        result = await kit.run_code(client, code)
        assert words in kit.text_of(result)


async def test_shared_memory_that_is_full_is_explained(client: Client) -> None:
    code = """
    from multiprocessing import shared_memory
    held = shared_memory.SharedMemory(create=True, size=3800 << 10)
    held.buf[:] = bytes(3800 << 10)
    """
    result = await kit.run_code(client, code)
    assert "killed by SIGBUS (bus error)" in kit.text_of(result)
    assert "in /dev/shm or /tmp fails so when that is full (3 MiB)" in kit.text_of(result)
