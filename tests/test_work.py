"""The counted work of a warm call stays within its budget, and many calls leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import anyio
import pytest

from benchmarks.work import warm_session
from prims.isolation import bubblewrap
from prims.isolation.wrapper import tree
from tests import kit

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed"),
]

ROOT = Path(__file__).parents[1]


def test_the_work_of_a_warm_call_is_within_its_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Independent of the machine's speed: see `benchmarks/work.py`, which also records a new budget."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "work.py", "--json"],
        env=kit.server_environment(tmp_path), capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    budget = json.loads((ROOT / "benchmarks" / "budget.json").read_text())
    with capsys.disabled():
        print(f"\nwork of a warm call: {', '.join(f'{n} {name}' for name, n in said['counts'].items())}")
        if said["missing"]:
            print(f"not counted: {said['missing']}")
    assert said["over"] == []
    assert {name for name in budget if "strace" not in name} <= set(said["counts"])


WAYS = {
    "print('x' * 1000)\nopen('/tmp/x', 'w').write('x' * 10_000)": "ok",
    "1 / 0": "error",
    "import os; os._exit(3)": "died",
    "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)": "ok",
}


async def test_many_runs_leave_nothing_behind() -> None:
    async with warm_session() as warm:

        async def rounds(count: int) -> None:
            """So many times all ways to end, until nothing is being made or removed."""
            for _ in range(count):
                for code, expected in WAYS.items():
                    await warm.run(code, expected)
            async with anyio.create_task_group() as group:
                for code, expected in WAYS.items():
                    group.start_soon(warm.run, code, expected)
            await warm.settled()
            await anyio.wait_all_tasks_blocked()

        def counted() -> dict[str, int]:
            parent = warm.engine._parents.get(warm.key)
            assert parent is not None
            walk = os.walk(warm.session.folder.parent)
            return {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "tasks": len(asyncio.all_tasks()),
                "processes": len(tree(os.getpid())),
                # Those of pools come and go.
                "threads": len(os.listdir("/proc/self/task")) - threading.active_count(),
                # What the session remembers of its runs has a limit of its own.
                "files": sum(len(d) + len(f) for path, d, f in walk if not path.endswith("/history")),
                "runs of the parent": sum(process.poll() is None for process in parent._running),
            }

        await rounds(2)
        before = counted()
        tracemalloc.start()
        try:
            gc.collect()
            memory = tracemalloc.get_traced_memory()[0]
            await rounds(12)
            with anyio.move_on_after(kit.SECONDS):  # Linux takes a moment to take down the last processes
                while any(count > before[name] for name, count in counted().items()):
                    gc.collect()
                    await anyio.sleep(0.02)
            now = counted()
            assert {name: count for name, count in now.items() if count > before[name]} == {}, before
            gc.collect()
            # What is remembered of each run, for the session's notebook, and little else.
            assert tracemalloc.get_traced_memory()[0] - memory < 1_000_000
        finally:
            tracemalloc.stop()
