# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""How code runs and how a run ends: script habits, exits, crashes, limits, and what stays behind (nothing)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import anyio
import pytest

from tests import cases, kit
from tests.cases import Served

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


# ------------------------------------------------------------------------------------------ C01 silence


SILENT = {
    "an assignment": "total = sum(range(10))\n",
    "None as last expression": "None\n",
    "a call without a value": "[].append(1)\n",
    "a value hidden by a semicolon": "1 + 1;\n",
    "only definitions": "def f():\n    return 1\nclass C:\n    pass\n",
    "a loop": "for i in range(3):\n    i\n",
    "an import": "import json\n",
}


@pytest.mark.parametrize("kind", SILENT)
async def test_silence_is_said_to_be_success_and_how_to_see_a_value(server: Served, kind: str) -> None:
    seen = await server.run(SILENT[kind])
    assert (seen.status, seen.stdout, seen.value) == ("ok", "", "")
    assert "print" in seen.hints and "without output" in seen.hints
    assert seen.hints in seen.text.replace("- ", "")


VALUES = {
    "a number": ("total = sum(range(10))\ntotal\n", "45"),
    "a string": ("'a\\nb'\n", "'a\\nb'"),
    "zero": ("0\n", "0"),
    "false": ("False\n", "False"),
    "an empty list": ("[]\n", "[]"),
    "an empty string": ("''\n", "''"),
    "an awaited value": ("import asyncio\nasync def f():\n    return 7\nawait f()\n", "7"),
    "a value after a comment": ("x = 3\nx  # the answer\n", "3"),
    "a comprehension": ("[i * i for i in range(4)]\n", "[0, 1, 4, 9]"),
    "an expression over lines": ("(1 +\n 2)\n", "3"),
    "an object": ("class P:\n    def __repr__(self):\n        return 'P!'\nP()\n", "P!"),
    "Ellipsis": ("...\n", "Ellipsis"),
}


@pytest.mark.parametrize("kind", VALUES)
async def test_the_last_expression_is_the_result(server: Served, kind: str) -> None:
    code, value = VALUES[kind]
    seen = await server.run(code)
    assert (seen.status, seen.value, seen.stdout) == ("ok", value, "")
    assert value in seen.text
    assert "without output" not in seen.text


# ------------------------------------------------------------------------------------------ C03 the flag


FAILURES = {
    "an error": ('raise RuntimeError("boom-1")\n', "RuntimeError", "boom-1"),
    "an error of the user's own class": ("class Mine(Exception):\n    pass\nraise Mine('m')\n", "Mine", "m"),
    "an error without a message": ("raise ValueError\n", "ValueError", ""),
    "a keyboard interrupt": ("raise KeyboardInterrupt\n", "KeyboardInterrupt", ""),
    "a BaseException": ("class B(BaseException):\n    pass\nraise B('base')\n", "B", "base"),
    "a generator's end": ("next(iter([]))\n", "StopIteration", ""),
    "an assertion": ("assert 1 == 2, 'not equal'\n", "AssertionError", "not equal"),
    "an error in an awaited call": (
        "import asyncio\nawait asyncio.sleep(0)\nraise LookupError('late')\n", "LookupError", "late"
    ),
    "a cancelled task": ("import asyncio\nraise asyncio.CancelledError('c')\n", "CancelledError", ""),
    "an unknown magic": ("%nosuchmagic\n", "UsageError", "nosuchmagic"),
    "a memory error": ("raise MemoryError('m')\n", "MemoryError", "m"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_failure_is_flagged_and_told_in_full(server: Served, kind: str) -> None:
    code, name, value = FAILURES[kind]
    seen = await server.run("print('so far')\n" + code)
    assert seen.result.is_error and seen.status == "error"
    assert seen.stdout == "so far\n" and "so far" in seen.text
    assert seen.error["name"] == name and value in seen.error["value"]
    assert name in seen.text and value in seen.text


async def test_a_failing_shell_command_does_not_fail_the_run_silently(server: Served) -> None:
    seen = await server.run("!ls /nowhere-at-all\nprint('on')\n")
    assert "nowhere-at-all" in seen.stderr and seen.stdout == "on\n"


# ------------------------------------------------------------------------------------------ C04 event loops


LOOPS = {
    "asyncio.run": (
        'import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return "async ok"\nprint(asyncio.run(main()))\n',
        "async ok\n",
    ),
    "no loop is running": (
        "import asyncio\ntry:\n    asyncio.get_running_loop()\n    print('a loop is running')\nexcept RuntimeError:\n    print('sync ok')\n",
        "sync ok\n",
    ),
    "top-level await": ('import asyncio\nawait asyncio.sleep(0.01)\nprint("top-level await ok")\n', "top-level await ok\n"),
    "run_until_complete": (
        "import asyncio\nloop = asyncio.new_event_loop()\nprint(loop.run_until_complete(asyncio.sleep(0, 'r')))\nloop.close()\n",
        "r\n",
    ),
    "get_event_loop of old scripts": (
        "import asyncio\nloop = asyncio.get_event_loop()\nprint(loop.run_until_complete(asyncio.sleep(0, 'old')))\n",
        "old\n",
    ),
    "asyncio.run twice": (
        "import asyncio\nasync def f(x):\n    return x\nprint(asyncio.run(f(1)))\nprint(asyncio.run(f(2)))\n",
        "1\n2\n",
    ),
    "a Runner": ("import asyncio\nwith asyncio.Runner() as r:\n    print(r.run(asyncio.sleep(0, 'runner')))\n", "runner\n"),
    "a loop in a thread": (
        "import asyncio, threading\ndef go():\n    print(asyncio.run(asyncio.sleep(0, 'thread')))\nt = threading.Thread(target=go); t.start(); t.join()\n",
        "thread\n",
    ),
    "async for and async with": (
        "async def numbers():\n    for i in range(3):\n        yield i\nasync for i in numbers():\n    print(i)\n",
        "0\n1\n2\n",
    ),
    "gathered tasks": (
        "import asyncio\nasync def f(i):\n    await asyncio.sleep(0)\n    return i\nprint(await asyncio.gather(*map(f, range(3))))\n",
        "[0, 1, 2]\n",
    ),
    "a task group by asyncio.run": (
        "import asyncio\nasync def main():\n    async with asyncio.TaskGroup() as g:\n        t = g.create_task(asyncio.sleep(0, 'tg'))\n    print(t.result())\nasyncio.run(main())\n",
        "tg\n",
    ),
    "child processes of asyncio": (
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'sub', stdout=-1)\n    print((await p.communicate())[0])\nasyncio.run(main())\n",
        "b'sub\\n'\n",
    ),
}


@pytest.mark.parametrize("kind", LOOPS)
async def test_event_loops_work_as_in_a_script(server: Served, kind: str) -> None:
    code, stdout = LOOPS[kind]
    seen = await server.run(code)
    assert (seen.status, seen.stdout, seen.stderr) == ("ok", stdout, ""), seen


async def test_asyncio_run_beside_a_top_level_await_works_or_says_what_to_write(server: Served) -> None:
    seen = await server.run("import asyncio\nawait asyncio.sleep(0)\nprint(asyncio.run(asyncio.sleep(0, 'both')))\n")
    assert seen.stdout == "both\n" or "use await" in seen.hints, seen


# ------------------------------------------------------------------------------------------ C05 nobody to ask


ASKING = {
    "input": 'name = input("Your name? ")\nprint(name)\n',
    "getpass": "import getpass\ngetpass.getpass()\n",
    "input without a prompt": "input()\n",
    "input in a function": "def ask():\n    return int(input('n: '))\nask()\n",
}


@pytest.mark.parametrize("kind", ASKING)
async def test_asking_fails_at_once_and_says_that_nobody_answers(server: Served, kind: str) -> None:
    seen = await server.run('print("kept")\n' + ASKING[kind])
    assert seen.status == "error" and seen.stdout.startswith("kept\n")
    assert seen.error["name"] == "EOFError"
    assert "nobody" in seen.text


NO_WAIT = {
    "breakpoint": ('x = 3\nbreakpoint()\nprint("after")\n', {"ok", "error"}),
    "pdb.set_trace": ('import pdb\npdb.set_trace()\nprint("after")\n', {"ok", "error"}),
    "a post-mortem": ("import pdb\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    pdb.post_mortem(e.__traceback__)\n", {"ok", "error"}),
    "IPython's set_trace": ("from IPython.core.debugger import set_trace\nset_trace()\nprint('after')\n", {"ok", "error"}),
    "debug magic": ("%debug\n", {"ok", "error"}),
    "reading standard input": ("import sys\nprint(repr(sys.stdin.read()))\n", {"ok", "error"}),
    "a line of standard input": ("import sys\nprint(repr(sys.stdin.readline()))\n", {"ok", "error"}),
    "lines of standard input": ("import sys\nfor line in sys.stdin:\n    print(line)\nprint('end')\n", {"ok"}),
    "descriptor 0": ("import os\nprint(os.read(0, 10))\n", {"ok"}),
    "a child that reads": ("import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)\n", {"ok"}),
    "a shell that reads": ("!read x; echo got $x\n", {"ok"}),
    "input in a thread": (
        "import threading\ndef ask():\n    try:\n        input()\n    except EOFError:\n        print('nobody')\nt = threading.Thread(target=ask); t.start(); t.join()\n",
        {"ok"},
    ),
    "input in a child": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'input()'], capture_output=True, text=True).stderr[-40:])\n",
        {"ok"},
    ),
    "input in a loop that catches": (
        "for i in range(3):\n    try:\n        input('? ')\n    except EOFError:\n        print('no', i)\n",
        {"ok"},
    ),
    "fileinput": ("import fileinput\nprint(list(fileinput.input()))\n", {"ok", "error"}),
    "code.interact": ("import code\ncode.interact(banner='hi', exitmsg='bye')\nprint('after')\n", {"ok", "error"}),
    "help without a topic": ("help()\nprint('after')\n", {"ok", "error"}),
    "a pager": ("help(len)\nprint('after')\n", {"ok"}),
    "object help": ("len?\n", {"ok"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_WAIT)
async def test_nothing_waits_for_somebody_to_type(server: Served, kind: str) -> None:
    code, statuses = NO_WAIT[kind]
    seen = await server.run(code, timeout_seconds=60)
    assert seen.status in statuses and seen.status != "timeout", seen
    if "after" in code and seen.status == "ok":
        assert "after" in seen.stdout
    if seen.status == "error":
        assert "nobody" in seen.text or "Quit" in seen.text, seen


# ------------------------------------------------------------------------------------------ C08 leaving


LEAVING = {
    "sys.exit(0)": 'import sys\nprint("bye")\nsys.exit(0)\nprint("never")\n',
    "sys.exit()": 'import sys\nprint("bye")\nsys.exit()\n',
    "exit()": 'print("bye")\nexit()\nprint("never")\n',
    "quit()": 'print("bye")\nquit()\nprint("never")\n',
    "exit in a function": 'def stop():\n    exit()\nprint("bye")\nstop()\nprint("never")\n',
    "raise SystemExit": 'print("bye")\nraise SystemExit\n',
    "raise SystemExit(None)": 'print("bye")\nraise SystemExit(None)\n',
    "sys.exit inside try/except Exception": 'import sys\nprint("bye")\ntry:\n    sys.exit()\nexcept Exception:\n    print("never")\n',
    "sys.exit in a main function": 'import sys\ndef main():\n    print("bye")\n    return 0\nif __name__ == "__main__":\n    sys.exit(main())\n',
    "exit after an await": 'import asyncio\nawait asyncio.sleep(0)\nprint("bye")\nexit()\n',
    "sys.exit in asyncio.run": 'import asyncio, sys\nasync def m():\n    print("bye")\n    sys.exit(0)\nasyncio.run(m())\n',
    "builtins' exit": 'import builtins\nprint("bye")\nbuiltins.exit()\nprint("never")\n',
    "exit in an imported module": 'open("leaver.py", "w").write("import sys\\nprint(\'bye\')\\nsys.exit(0)\\n")\nimport leaver\nprint("never")\n',
    "sys.exit(False)": 'import sys\nprint("bye")\nsys.exit(False)\n',
}


@pytest.mark.parametrize("kind", LEAVING)
async def test_leaving_with_success_is_success(server: Served, kind: str) -> None:
    seen = await server.run(LEAVING[kind])
    assert (seen.status, seen.stdout, seen.stderr) == ("ok", "bye\n", ""), seen
    assert "To exit" not in seen.text and "Traceback" not in seen.text and "SystemExit" not in seen.text


FAILING_EXITS = {
    "a message": ('sys.exit("config missing")', "config missing"),
    "status 2": ("raise SystemExit(2)", "2"),
    "status 1": ("sys.exit(1)", "1"),
    "exit with a status": ("exit(3)", "3"),
    "quit with a message": ("quit('no data')", "no data"),
    "in a function": ("def f():\n    sys.exit(4)\nf()", "4"),
    "true": ("sys.exit(True)", "1"),
    "argparse's error": ("import argparse\np = argparse.ArgumentParser()\np.add_argument('n')\np.parse_args()", "2"),
    "an object": ("sys.exit(['a', 'b'])", "['a', 'b']"),
}


@pytest.mark.parametrize("kind", FAILING_EXITS)
async def test_leaving_with_failure_is_failure_and_shows_status_or_message(server: Served, kind: str) -> None:
    code, shown = FAILING_EXITS[kind]
    seen = await server.run("import sys\nprint('part 1')\n" + code + "\nprint('never')\n")
    assert seen.status == "error" and seen.stdout == "part 1\n"
    assert seen.error["name"] == "SystemExit" and shown in seen.error["value"]
    assert shown in seen.text and "To exit" not in seen.text
    if kind == "argparse's error":
        assert "the following arguments are required: n" in seen.stderr


async def test_exit_functions_run_at_the_end(server: Served) -> None:
    seen = await server.run("import atexit\natexit.register(print, 'at exit')\nprint('end')\n")
    assert seen.stdout == "end\nat exit\n"


# ------------------------------------------------------------------------------------------ C09 the kernel dies


DYING = {
    "os._exit(7)": ("import os\nprint('last words', flush=True)\nos._exit(7)\n", "7"),
    "os._exit(0)": ("import os\nprint('last words', flush=True)\nos._exit(0)\n", "0"),
    "SIGKILL": ("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n", "SIGKILL"),
    "SIGTERM": ("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\n", "SIGTERM"),
    "a crash": ("import ctypes\nprint('last words', flush=True)\nctypes.string_at(0)\n", "SIGSEGV"),
    "os.abort": ("import os\nprint('last words', flush=True)\nos.abort()\n", "SIGABRT"),
    "an illegal instruction": ("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGILL)\n", "SIGILL"),
    "text that was not flushed": ("import os\nprint('last words')\nos._exit(1)\n", "1"),
    "an exit in a thread": (
        "import os, threading, time\nprint('last words')\nthreading.Thread(target=os._exit, args=(5,)).start()\ntime.sleep(600)\n",
        "5",
    ),
    "a C stack overflow": (
        "import ctypes, sys, threading\nprint('last words', flush=True)\n"
        "cb = ctypes.CFUNCTYPE(None)\n@cb\ndef again():\n    again()\nsys.setrecursionlimit(10**9)\nagain()\n",
        "SIGSEGV",
    ),
    "exec of another program": ("import os\nprint('last words', flush=True)\nos.execv('/bin/sh', ['sh', '-c', 'exit 9'])\n", "9"),
    "a kill of the whole group": ("import os, signal\nprint('last words', flush=True)\nos.killpg(0, signal.SIGKILL)\n", "SIGKILL"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DYING)
async def test_a_dead_kernel_is_reported_soon_with_its_cause_and_last_words(server: Served, kind: str) -> None:
    code, cause = DYING[kind]
    seen = await server.run(code, timeout_seconds=60)
    assert seen.status == "died", seen
    assert re.search(rf"\b{cause}\b", seen.error["value"]), seen
    assert seen.error["value"] in seen.text
    assert seen.stdout == "last words\n"
    assert (await server.run('print("server ok")\n')).stdout == "server ok\n"


DEAF = {
    "sockets that are closed": (
        "import os, time\nprint('last words', flush=True)\nfor n in range(3, 200):\n"
        "    try:\n        if os.readlink(f'/proc/self/fd/{n}').startswith('socket'): os.close(n)\n"
        "    except OSError: pass\nprint('and more', flush=True)\ntime.sleep(60)\n",
        "last words\nand more\n", "the code closed its connection to the server",
    ),
    "a program that takes the kernel's place, and its time": (
        "import os\nprint('last words', flush=True)\nos.execv('/bin/sh', ['sh', '-c', 'sleep 2.5; echo and more; exit 9'])\n",
        "last words\nand more\n", "exit status 9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEAF)
async def test_a_kernel_that_can_say_nothing_any_more_is_ended_and_another_program_ends_itself(
    server: Served, kind: str
) -> None:
    code, text, cause = DEAF[kind]
    seen = await server.run(code, timeout_seconds=60)
    assert (seen.status, seen.stdout) == ("died", text), seen
    assert seen.error["value"] == f"the kernel ended: {cause}"


async def test_a_crash_names_the_line_that_crashed(server: Served) -> None:
    seen = await server.run("import ctypes\ndef crash():\n    ctypes.string_at(0)\n\ncrash()\n")
    assert seen.status == "died"
    assert seen.error["line"] == 3 and "line 5" in seen.error["traceback"], seen


async def test_files_written_before_a_crash_are_listed(server: Served) -> None:
    seen = await server.run("import os\nopen('output/before_crash.txt', 'w').write('kept')\nos._exit(1)\n")
    assert "output/before_crash.txt" in seen.files


async def test_python_recursion_without_end_is_an_error_and_no_crash(server: Served) -> None:
    seen = await server.run("def f():\n    f()\nf()\n")
    assert seen.status == "error" and seen.error["name"] == "RecursionError"
    assert len(seen.text) < 5000


# ------------------------------------------------------------------------------------------ C10 memory


HOGS = {
    "Python's objects": "hog = []\nprint('filling', flush=True)\nwhile True:\n    hog.append(bytearray(64 * 1024 * 1024))\n",
    "small objects": "hog = []\nprint('filling', flush=True)\nwhile True:\n    hog.append('x' * 10_000 + str(len(hog)))\n",
    "children together": (
        "import subprocess, sys, time\nprint('filling', flush=True)\n"
        "ps = [subprocess.Popen([sys.executable, '-c', \"b = bytearray(180 << 20); b[::4096] = b'x' * len(b[::4096]); import time; time.sleep(600)\"]) for _ in range(5)]\n"
        "[p.wait() for p in ps]\ntime.sleep(600)\n"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOGS)
async def test_memory_has_a_cap_that_holds_and_is_told(kind: str) -> None:
    async with cases.serving("--memory-bytes", "512M") as served:
        seen = await served.run(HOGS[kind], timeout_seconds=80)
        assert seen.status in ("out_of_memory", "error", "died"), seen
        assert "memory" in seen.text.lower() and re.search(r"0\.5 GiB|512 MiB", seen.text), seen
        assert seen.stdout == "filling\n"
        assert (await served.run("print('next')")).stdout == "next\n"


async def test_one_absurd_allocation_is_an_error_that_names_the_limit(server: Served) -> None:
    seen = await server.run("b = bytearray(1 << 45)\n")
    assert seen.status == "error" and seen.error["name"] == "MemoryError"
    assert "2 GiB" in seen.hints


# ------------------------------------------------------------------------------------------ C11, C12 time


async def test_a_timeout_keeps_output_and_files_and_states_the_limit(server: Served) -> None:
    code = """import time
print("step 1 done", flush=True)
open("output/partial.txt", "w").write("half")
while True:
    time.sleep(0.1)
"""
    seen = await server.run(code, timeout_seconds=3)
    assert seen.status == "timeout" and seen.result.is_error
    assert seen.stdout == "step 1 done\n"
    assert "output/partial.txt" in seen.files and "output/partial.txt" in seen.text
    assert "3 s" in seen.text and "timeout_seconds" in seen.hints
    assert seen.fields["seconds"]["run"] >= 3
    assert seen.error["line"] in (4, 5)


STUBBORN = {
    "a broad except": (
        """import itertools, time
print("begun", flush=True)
for n in itertools.count():
    try:
        time.sleep(0.3)
    except BaseException as err:
        print("ignored", type(err).__name__, flush=True)
"""
    ),
    "a loop in C": "from collections import deque\nfrom itertools import repeat\nprint('begun', flush=True)\ndeque(repeat(0), maxlen=0)\n",
    "an ignored signal": "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\nwhile True:\n    time.sleep(1)\n",
    "a blocked signal": "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nprint('begun', flush=True)\nwhile True:\n    time.sleep(1)\n",
    "a thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\nimport time\nprint('begun', flush=True)\n"
        "with ThreadPoolExecutor(4) as pool:\n    list(pool.map(lambda n: time.sleep(600), range(8)))\n"
    ),
    "a child that sleeps": "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '641'])\n",
    "a child that ignores signals": "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sh', '-c', \"trap '' INT TERM; sleep 642\"])\n",
    "numpy": "print('begun', flush=True)\nimport numpy as np\na = np.ones((3000, 3000))\nwhile True:\n    a = a @ a\n",
    "a regular expression": "import re\nprint('begun', flush=True)\nre.match(r'(a+)+$', 'a' * 60 + 'b')\n",
    "a large power": "print('begun', flush=True)\nx = 7 ** (10 ** 9)\n",
    "an event loop": "import asyncio\nprint('begun', flush=True)\nasyncio.run(asyncio.sleep(600))\n",
    "a top-level await": "import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(600)\n",
    "a blocking call in an await": "import asyncio, time\nprint('begun', flush=True)\nawait asyncio.sleep(0)\ntime.sleep(600)\n",
    "a lock": "import threading\nprint('begun', flush=True)\nl = threading.Lock(); l.acquire(); l.acquire()\n",
    "a stopped process": "import os, signal\nprint('begun', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n",
    "a finally that goes on": "import time\nprint('begun', flush=True)\ntry:\n    time.sleep(600)\nfinally:\n    time.sleep(600)\n",
    "an exit function without end": "import atexit, time\nprint('begun', flush=True)\natexit.register(time.sleep, 600)\n",
    "a pool of processes": (
        "import multiprocessing as mp, time\nprint('begun', flush=True)\n"
        "with mp.get_context('fork').Pool(2) as pool:\n    pool.map(time.sleep, [600, 600])\n"
    ),
    "a shell command": "print('begun', flush=True)\n!sleep 643\n",
    "a value whose repr is endless": "import time\nclass R:\n    def __repr__(self):\n        time.sleep(600)\nprint('begun', flush=True)\nR()\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", STUBBORN)
async def test_the_time_limit_holds_whatever_the_code_does_about_it(server: Served, kind: str) -> None:
    seen = await server.run(STUBBORN[kind], timeout_seconds=1.5)
    assert seen.status == "timeout", seen
    assert seen.stdout.startswith("begun\n")
    assert "time limit" in seen.text and "unexpected" not in seen.text and "KernelDied" not in seen.text
    for left in ("sleep 641", "sleep 642", "sleep 643"):
        assert not kit.processes_with(left)


async def test_a_timeout_may_be_as_short_as_a_fraction_of_a_second(server: Served) -> None:
    seen = await server.run("import time\ntime.sleep(600)\n", timeout_seconds=0.2)
    assert seen.status == "timeout" and "0.2 s" in seen.text


async def test_an_await_that_takes_too_long_is_interrupted_where_it_stands(server: Served) -> None:
    code = "import asyncio\nasync def wait():\n    try:\n        await asyncio.sleep(600)\n    finally:\n        print('tidied')\nawait wait()\n"
    seen = await server.run(code, timeout_seconds=1)
    assert seen.status == "timeout" and seen.stdout == "tidied\n"
    assert seen.error["line"] == 4, seen


async def test_code_can_tidy_up_when_its_time_is_up(server: Served) -> None:
    code = "import time\ntry:\n    time.sleep(600)\nfinally:\n    print('tidied')\n    open('output/tidied.txt', 'w').close()\n"
    seen = await server.run(code, timeout_seconds=1)
    assert seen.status == "timeout" and seen.stdout == "tidied\n" and "output/tidied.txt" in seen.files
    assert "KeyboardInterrupt" in seen.error["traceback"], "the grace was waited out though the code had ended"


# ------------------------------------------------------------------------------------------ C14 what stays


LEFT_BEHIND = {
    "children": """import subprocess
a = subprocess.Popen(["sleep", "6011"])
b = subprocess.Popen(["sleep", "6011"], start_new_session=True)
print("started")
""",
    "a daemon": """import os, subprocess
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "6012"])
    os._exit(0)
print("started")
""",
    "nohup in a shell": "!nohup sleep 6013 >/dev/null 2>&1 &\nprint('started')\n",
    "a child that holds the output open": "import subprocess\nsubprocess.Popen('sleep 6014 & sleep 6014', shell=True)\nprint('started')\n",
    "a child with multiprocessing": "import multiprocessing as mp, os\np = mp.get_context('fork').Process(target=os.execvp, args=('sleep', ['sleep', '6015']), daemon=True)\np.start()\nprint('started')\n",
    "children of a run that died": "import os, subprocess\nsubprocess.Popen(['sleep', '6016'], start_new_session=True)\nprint('started', flush=True)\nos._exit(3)\n",
    "children of a run that timed out": "import subprocess, time\nsubprocess.Popen(['sleep', '6017'], start_new_session=True)\nprint('started', flush=True)\ntime.sleep(60)\n",
    "a fork bomb": "import os, time\nprint('started', flush=True)\ntry:\n    while True:\n        if os.fork() == 0:\n            os.execvp('sleep', ['sleep', '6018'])\nexcept OSError as e:\n    os._exit(4)\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT_BEHIND)
async def test_no_process_of_a_run_outlives_its_reply(server: Served, kind: str) -> None:
    code = LEFT_BEHIND[kind]
    limit = 2.0 if "timed out" in kind else 90.0
    seen = await server.run(code, timeout_seconds=limit)
    assert "started" in seen.stdout, seen
    assert (seen.status == "timeout") == ("timed out" in kind), seen
    number = re.search(r"60\d\d", code)
    assert number
    assert not kit.processes_with(f"sleep {number[0]}")


# ------------------------------------------------------------------------------------------ C16 pip


async def test_pip_magic_gives_the_package(server: Served) -> None:
    seen = await server.run('%pip install -q six\nimport six\nprint("six", six.__version__)\n')
    assert seen.status == "ok" and re.search(r"^six \d+\.\d+", seen.stdout, re.M), seen


PIP = {
    "a shell's pip": "!pip install six\nimport six\nprint('six', six.__version__)\n",
    "python -m pip": "!python -m pip install six\nimport six\nprint('six', six.__version__)\n",
    "pip by subprocess": "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'six'])\nimport six\nprint('six', six.__version__)\n",
    "pip by os.system": "import os\nos.system('pip install six')\nimport six\nprint('six', six.__version__)\n",
}


@pytest.mark.parametrize("kind", PIP)
async def test_other_ways_to_pip_work_or_name_the_argument_for_packages(server: Served, kind: str) -> None:
    seen = await server.run(PIP[kind])
    assert (seen.status == "ok" and "six 1" in seen.stdout) or "requirements" in seen.text, seen


async def test_python_and_pip_of_a_shell_are_the_kernels_own(server: Served) -> None:
    code = """import sys
py = !python -c "import sys; print(sys.prefix)"
py3 = !python3 -c "import sys; print(sys.prefix)"
pip = !pip --version
print(sys.prefix); print(py[0]); print(py3[0]); print(pip)
"""
    seen = await server.run(code)
    prefix, python, python3, pip = seen.stdout.splitlines()
    assert prefix == python == python3
    assert prefix in pip or "requirements" in pip, pip


# ------------------------------------------------------------------------------------------ C17 workers


WORKERS = {
    "a spawn pool": (
        """import multiprocessing as mp
def square(x):
    return x * x
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, range(5)))
""",
        "[0, 1, 4, 9, 16]",
    ),
    "a fork server pool": (
        """import multiprocessing as mp
def square(x):
    return x * x
if __name__ == "__main__":
    with mp.get_context("forkserver").Pool(2) as pool:
        print(pool.map(square, range(5)))
""",
        "[0, 1, 4, 9, 16]",
    ),
    "a fork pool": (
        """import multiprocessing as mp
def square(x):
    return x * x
with mp.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(5)))
""",
        "[0, 1, 4, 9, 16]",
    ),
    "a spawn pool without a guard": (
        """import multiprocessing as mp
def square(x):
    return x * x
with mp.get_context("spawn").Pool(2) as pool:
    print(pool.map(square, range(5)))
""",
        "[0, 1, 4, 9, 16]",
    ),
    "spawned processes of an executor": (
        """import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
BASE = 10
def add(x):
    return BASE + x
def main():
    with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as ex:
        print(list(ex.map(add, range(3))))
if __name__ == "__main__":
    main()
""",
        "[10, 11, 12]",
    ),
    "a dataclass across spawn": (
        """import multiprocessing as mp
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    def moved(self):
        return Point(self.x + 1)
def move(p):
    return p.moved()
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.map(move, [Point(1), Point(2)]))
""",
        "[Point(x=2), Point(x=3)]",
    ),
    "a function in a workspace module": (
        """open("helpers_for_pool.py", "w").write("def triple(x):\\n    return 3 * x\\n")
import multiprocessing as mp
from helpers_for_pool import triple
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(triple, range(3)))
""",
        "[0, 3, 6]",
    ),
    "set_start_method": (
        """import multiprocessing as mp
def square(x):
    return x * x
if __name__ == "__main__":
    mp.set_start_method("spawn", force=True)
    with mp.Pool(2) as pool:
        print(pool.map(square, range(3)))
""",
        "[0, 1, 4]",
    ),
    "a queue and a process": (
        """import multiprocessing as mp
def work(q):
    q.put("from worker")
if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    q = ctx.Queue()
    p = ctx.Process(target=work, args=(q,))
    p.start(); print(q.get(timeout=60)); p.join()
""",
        "from worker",
    ),
    "a manager": (
        """import multiprocessing as mp
if __name__ == "__main__":
    with mp.get_context("spawn").Manager() as m:
        d = m.dict(); d["k"] = 1
        print(dict(d))
""",
        "{'k': 1}",
    ),
    "a function made by exec": (
        """import multiprocessing as mp
exec("def made(x):\\n    return x + 1")
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(made, range(3)))
""",
        "[1, 2, 3]",
    ),
    "magics beside workers": (
        """import multiprocessing as mp
!echo begin
def square(x):
    return x * x
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, range(3)))
""",
        "[0, 1, 4]",
    ),
}


@pytest.mark.parametrize("kind", WORKERS)
async def test_worker_processes_find_what_the_code_defines(server: Served, kind: str) -> None:
    code, shown = WORKERS[kind]
    seen = await server.run(code, timeout_seconds=80)
    assert seen.status == "ok" and shown in seen.stdout, seen
    assert seen.stderr == ""


async def test_what_workers_print_is_in_the_result(server: Served) -> None:
    code = """from concurrent.futures import ProcessPoolExecutor
def cube(x):
    print("in worker", x, flush=True)
    return x ** 3
with ProcessPoolExecutor(2) as ex:
    print(list(ex.map(cube, range(4))))
"""
    seen = await server.run(code, timeout_seconds=80)
    assert seen.status == "ok" and seen.stdout.endswith("[0, 1, 8, 27]\n"), seen
    assert sorted(seen.stdout.splitlines()[:-1]) == [f"in worker {n}" for n in range(4)]


async def test_workers_of_joblib_run_functions_of_the_code(server: Served) -> None:
    code = """from joblib import Parallel, delayed
def cube(x):
    return x ** 3
print(Parallel(n_jobs=2)(delayed(cube)(i) for i in range(4)))
print(Parallel(n_jobs=2)(delayed(lambda x: x + 1)(i) for i in range(3)))
"""
    seen = await server.run(code, requirements=["joblib"], timeout_seconds=80)
    assert seen.status == "ok" and seen.stdout == "[0, 1, 8, 27]\n[1, 2, 3]\n", seen


BROKEN_WORKERS = {
    "a lambda": "import multiprocessing as mp\nwith mp.get_context('spawn').Pool(2) as pool:\n    print(pool.map(lambda x: x, range(3)))\n",
    "an error in a worker": "import multiprocessing as mp\ndef f(x):\n    raise ValueError(f'bad {x}')\nif __name__ == '__main__':\n    with mp.get_context('spawn').Pool(2) as pool:\n        print(pool.map(f, range(3)))\n",
    "a worker that dies": "import os\nfrom concurrent.futures import ProcessPoolExecutor\ndef f(x):\n    os._exit(1)\nwith ProcessPoolExecutor(2) as ex:\n    print(list(ex.map(f, range(3))))\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN_WORKERS)
async def test_workers_that_cannot_work_fail_once_and_soon(server: Served, kind: str) -> None:
    seen = await server.run(BROKEN_WORKERS[kind], timeout_seconds=80)
    assert seen.status == "error", seen
    assert len(seen.text) < 20_000


# ------------------------------------------------------------------------------------------ C19 the command line


COMMAND_LINES = {
    "argparse": (
        """import argparse, sys
p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=3)
print(p.parse_args().epochs, len(sys.argv))
""",
        "3 1\n",
    ),
    "sys.argv itself": ("import sys\nprint(sys.argv)\n", None),
    "optparse": ("import optparse\np = optparse.OptionParser()\np.add_option('-n', default=5)\nprint(p.parse_args())\n", "(<Values at "),
    "getopt": ("import getopt, sys\nprint(getopt.getopt(sys.argv[1:], 'f:'))\n", "([], [])\n"),
    "unittest.main": ("import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(True)\nunittest.main(exit=False)\nprint('tested')\n", "tested\n"),
    "unittest.main that exits": ("import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(True)\nprint('tested')\nunittest.main()\n", "tested\n"),
    "the program's name in a usage": ("import argparse\np = argparse.ArgumentParser()\nprint(p.prog)\n", "main.py\n"),
    "argv set by the code": ("import sys, argparse\nsys.argv = ['x', '--n', '4']\np = argparse.ArgumentParser(); p.add_argument('--n', type=int)\nprint(p.parse_args().n)\n", "4\n"),
    "an import from the script's folder": ("import sys, os\nprint(any(os.path.realpath(p or '.') == os.getcwd() for p in sys.path))\n", "True\n"),
    "__file__ and __name__": ("import os\nprint(__name__, os.path.basename(__file__), os.path.dirname(os.path.abspath(__file__)) == os.getcwd())\n", "__main__ main.py True\n"),
    "pickle of a class": ("import pickle\nclass A:\n    pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n", "True\n"),
    "inspect.getsource": ("import inspect\ndef f():\n    return 42\nprint(inspect.getsource(f))\n", "def f():\n    return 42\n\n"),
    "type hints of a dataclass": ("from __future__ import annotations\nimport typing, dataclasses\n@dataclasses.dataclass\nclass A:\n    b: int\nprint(typing.get_type_hints(A))\n", "{'b': <class 'int'>}\n"),
    "doctest": ("import doctest\ndef f(x):\n    '''\n    >>> f(2)\n    4\n    '''\n    return x * 2\nprint(doctest.testmod())\n", "TestResults(failed=0, attempted=1)\n"),
    "runpy of a workspace file": ("open('tool_script.py', 'w').write('import sys\\nprint(__name__)')\nimport runpy\nrunpy.run_path('tool_script.py', run_name='__main__')\n", "__main__\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", COMMAND_LINES)
async def test_code_finds_itself_to_be_a_script(server: Served, kind: str) -> None:
    code, stdout = COMMAND_LINES[kind]
    seen = await server.run(code)
    assert seen.status == "ok", seen
    if stdout is None:
        assert re.fullmatch(r"\['[\w./-]*main\.py'\]\n", seen.stdout)
    else:
        assert seen.stdout.startswith(stdout)


async def test_click_sees_an_empty_command_line(server: Served) -> None:
    code = "import click\n@click.command()\n@click.option('--n', default=6)\ndef main(n):\n    print('n is', n)\nmain()\n"
    seen = await server.run(code, requirements=["click"])
    assert (seen.status, seen.stdout) == ("ok", "n is 6\n"), seen


# ------------------------------------------------------------------------------------------ C21 lines


LINES = {
    "a name": ("a = 1\nb = 2\n\n# a comment\nc = a + undefined_name\n", "NameError", {5}, "c = a + undefined_name"),
    "an open bracket": ("x = 1\ny = (2\nz = 3\n", "SyntaxError", {2, 3}, "y = (2"),
    "a statement over lines": ("x = [\n    1,\n    2 / 0,\n]\n", "ZeroDivisionError", {3}, "2 / 0"),
    "a decorator": ("def deco(f):\n    raise TypeError('d')\n\n@deco\ndef g():\n    pass\n", "TypeError", {2}, "raise TypeError"),
    "a nested function": ("def outer():\n    def inner():\n        return {}['k']\n    return inner()\n\nouter()\n", "KeyError", {3}, "return {}['k']"),
    "a class body": ("class C:\n    a = 1\n    b = a / 0\n", "ZeroDivisionError", {3}, "b = a / 0"),
    "a comprehension": ("data = [1, 0]\n\nout = [1 / d for d in data]\n", "ZeroDivisionError", {3}, "1 / d"),
    "an indent": ("def f():\nreturn 1\n", "IndentationError", {2}, "return 1"),
    "an unexpected indent": ("x = 1\n    y = 2\n", "IndentationError", {2}, "y = 2"),
    "after a magic": ("%precision 2\n\n!true\nraise ValueError('m')\n", "ValueError", {4}, "raise ValueError"),
    "after an await": ("import asyncio\nawait asyncio.sleep(0)\n\n1 / 0\n", "ZeroDivisionError", {4}, "1 / 0"),
    "in asyncio.run": ("import asyncio\nasync def m():\n    await asyncio.sleep(0)\n    raise OSError('deep')\nasyncio.run(m())\n", "OSError", {4}, "raise OSError"),
    "in a thread pool": ("from concurrent.futures import ThreadPoolExecutor\ndef f(x):\n    return 1 / x\nwith ThreadPoolExecutor() as p:\n    list(p.map(f, [0]))\n", "ZeroDivisionError", {3, 5}, "return 1 / x"),
    "blank lines first": ("\n\n\nundefined_name\n", "NameError", {4}, "undefined_name"),
    "in a fence": ("```python\na = 1\nb = a / 0\n```", "ZeroDivisionError", {3}, "b = a / 0"),
    "in a fence after words": ("\n```python\na = 1\nb = a / 0\n```\n", "ZeroDivisionError", {4}, "b = a / 0"),
    "a syntax error in a fence": ("```python\na = 1\nb = = 2\n```", "SyntaxError", {3}, "b = = 2"),
    "with a common indent": ("    a = 1\n    b = a / 0\n", "ZeroDivisionError", {2}, "b = a / 0"),
    "with carriage returns": ("a = 1\r\n\r\nb = a / 0\r\n", "ZeroDivisionError", {3}, "b = a / 0"),
    "an unclosed string": ("a = 1\nb = 'text\n", "SyntaxError", {2}, "b = 'text"),
    "a bad f-string": ("a = 1\n\nb = f'{a +}'\n", "SyntaxError", {1, 3}, "SyntaxError"),
    "a return outside of a function": ("x = 1\nreturn x\n", "SyntaxError", {2}, "return x"),
    "a mixed tab": ("if True:\n        x = 1\n\ty = 2\n", "TabError", {3}, "y = 2"),
    "in a lambda": ("f = lambda x: x.nothing\n\nf(1)\n", "AttributeError", {1}, "x.nothing"),
    "in a method": ("class A:\n    @property\n    def p(self):\n        return self.q\n\nA().p\n", "AttributeError", {4}, "return self.q"),
    "on the last expression": ("x = {}\nx['missing']\n", "KeyError", {2}, "x['missing']"),
    "in its repr": ("class R:\n    def __repr__(self):\n        return 1 / 0\n\nR()\n", "ZeroDivisionError", {3}, "return 1 / 0"),
    "inside a with": ("from contextlib import suppress\nwith suppress(KeyError):\n    raise IndexError('i')\n", "IndexError", {3}, "raise IndexError"),
    "a match statement": ("match 1:\n    case 1:\n        raise ValueError('m')\n", "ValueError", {3}, "raise ValueError"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LINES)
async def test_errors_point_at_the_line_that_was_sent(server: Served, kind: str) -> None:
    code, name, lines, source = LINES[kind]
    seen = await server.run(code)
    assert seen.status == "error" and seen.error["name"] == name, seen
    assert seen.error["line"] in lines, seen
    assert source in seen.error["traceback"] and source in seen.text
    assert f"line {seen.error['line']}" in seen.text


async def test_an_error_in_an_imported_module_names_both_places(server: Served) -> None:
    code = """open("broken_helper.py", "w").write("def go():\\n    x = 1\\n    return x / 0\\n")
import broken_helper

broken_helper.go()
"""
    seen = await server.run(code)
    assert seen.error["name"] == "ZeroDivisionError"
    assert "broken_helper.py" in seen.text and "return x / 0" in seen.text and "line 3" in seen.text
    assert seen.error["line"] == 4


async def test_a_syntax_error_in_an_imported_module_names_its_file(server: Served) -> None:
    seen = await server.run('open("unreadable_helper.py", "w").write("a = 1\\nb = = 2\\n")\nimport unreadable_helper\n')
    assert seen.error["name"] == "SyntaxError"
    assert "unreadable_helper.py" in seen.text and "b = = 2" in seen.text and "line 2" in seen.text


# ------------------------------------------------------------------------------------------ C22 wrapped code


WRAPPED = {
    "a fence": ("```python\nprint('ran')\n```", "ran\n"),
    "a common indent": ("    x = 2\n    print('indented', x)\n", "indented 2\n"),
    "a byte order mark and carriage returns": ("\ufeffprint('bom')\r\nprint('crlf')\r\n", "bom\ncrlf\n"),
    "a fence without a language": ("```\nprint('ran')\n```\n", "ran\n"),
    "a short language": ("```py\nprint('ran')\n```\n", "ran\n"),
    "another case": ("```Python\nprint('ran')\n```\n", "ran\n"),
    "tildes": ("~~~python\nprint('ran')\n~~~\n", "ran\n"),
    "four ticks": ("````python\nprint('ran')\n````\n", "ran\n"),
    "blank lines around a fence": ("\n\n```python\nprint('ran')\n```\n\n\n", "ran\n"),
    "attributes after the language": ("```python {.line-numbers}\nprint('ran')\n```", "ran\n"),
    "a title after the language": ("```py title=\"main.py\"\nprint('ran')\n```", "ran\n"),
    "an indented fence": ("  ```python\n  print('ran')\n  ```\n", "ran\n"),
    "a fence with carriage returns": ("```python\r\nprint('ran')\r\n```\r\n", "ran\n"),
    "a fence after a byte order mark": ("\ufeff```python\nprint('ran')\n```", "ran\n"),
    "blanks after the fence": ("```python  \nprint('ran')\n```  \n", "ran\n"),
    "a fence in a string": ('text = """\n```python\nx\n```\n"""\nprint(text.count("```"))\n', "2\n"),
    "a fence in a string in a fence": ("```python\ntext = '''\n```js\nx\n```\n'''\nprint(text.count('`'))\n```", "6\n"),
    "a fence that is never opened": ("print('ran')\n```\n", "ran\n"),
    "a cell magic in a fence": ("```python\n%%bash\necho ran\n```\n", "ran\n"),
    "a magic in a fence": ("```python\n!echo ran\n```\n", "ran\n"),
    "a magic in an indent": ("    x = 'ran'\n    !echo $x\n", "ran\n"),
    "blank lines before a cell magic": ("\n\n%%bash\necho ran\n", "ran\n"),
    "a future import after blank lines": ("\n\nfrom __future__ import annotations\nprint('ran')\n", "ran\n"),
    "a fence that is never closed": ("```python\nprint('ran')\n", "ran\n"),
    "an indent of tabs": ("\tx = 2\n\tprint('tabs', x)\n", "tabs 2\n"),
    "an indent with a blank line": ("    x = 2\n\n    if x:\n        print('deeper')\n", "deeper\n"),
    "an indent with a comment at the margin": ("# first\n    x = 2\n    print('comment', x)\n", "comment 2\n"),
    "an indented fence's content": ("```python\n    x = 3\n    print(x)\n```", "3\n"),
    "old Mac line ends": ("print('one')\rprint('two')\r", "one\ntwo\n"),
    "a string with a carriage return written out": ("print(repr('a\\r\\nb'))\n", "'a\\r\\nb'\n"),
    "an indent inside a string is kept": ("    s = '''a\n    b'''\n    print(repr(s))\n", None),
    "no-break spaces": ("x\u00a0=\u00a01\nprint('nbsp', x)\n", None),
    "a form feed": ("x = 1\n\x0cprint('feed', x)\n", "feed 1\n"),
    "a doctest prompt": (">>> x = 2\n>>> print('prompt', x)\n", "prompt 2\n"),
    "no line end at the end": ("print('ran')", "ran\n"),
    "an indent in a whole function": ("    def f():\n        return 'f'\n    print(f())\n", "f\n"),
}


@pytest.mark.parametrize("kind", WRAPPED)
async def test_code_runs_whatever_is_wrapped_around_it(server: Served, kind: str) -> None:
    code, stdout = WRAPPED[kind]
    seen = await server.run(code)
    if stdout is None:
        assert seen.status == "ok" or "SyntaxError" in seen.text, seen
    else:
        assert (seen.status, seen.stdout) == ("ok", stdout), seen


async def test_text_around_a_fence_is_told_in_words(server: Served) -> None:
    seen = await server.run("Here is the code:\n```python\nprint('ran')\n```\nThat is all.\n")
    assert seen.stdout == "ran\n" or (seen.status == "error" and "fence" in seen.text), seen


# ------------------------------------------------------------------------------------------ both eras


SAMPLE = [
    ("total = 45\ntotal\n", "ok", "45"),
    ('raise RuntimeError("boom")\n', "error", "RuntimeError: boom"),
    ("import sys\nsys.exit('config missing')\n", "error", "config missing"),
    ("import os\nprint('last', flush=True)\nos._exit(7)\n", "died", "7"),
    ("import time\nprint('begun', flush=True)\ntime.sleep(60)\n", "timeout", "begun"),
    ("input()\n", "error", "nobody"),
]


async def test_a_client_of_the_old_era_sees_the_same_endings() -> None:
    async with cases.serving(mode="legacy") as served:
        for code, status, shown in SAMPLE:
            seen = await served.run(code, timeout_seconds=2 if status == "timeout" else 60)
            assert seen.status == status and shown in seen.text


async def test_runs_beside_a_hog_of_time_are_not_held_up(server: Served) -> None:
    hog = (
        "import os\nopen('hog', 'w').close()\nwhile os.path.exists('hog'):\n"
        "    for _ in range(10**6): pass\nprint('ended')\n"
    )
    async with anyio.create_task_group() as group:

        async def call() -> None:
            assert (await server.run(hog)).stdout == "ended\n"

        group.start_soon(call)
        await cases.until(lambda: bool(list(server.state.glob("*/w1/files/hog"))), kit.SECONDS)
        assert (await server.run("print('quick')")).stdout == "quick\n"
        assert (await server.run("import os\nos.remove('hog')")).status == "ok"
