# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""What code writes, by whatever way: all of it, in order, clean, bounded, and with the right call."""

from __future__ import annotations

import json
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


# ------------------------------------------------------------------------------------------ A01 order


ALTERNATING = {
    "prints to both": (
        """import sys
for n in range(1, 4):
    print(f"err {n}", file=sys.stderr)
    print(f"out {n}")
""",
        "out 1\nout 2\nout 3\n",
        "err 1\nerr 2\nerr 3\n",
    ),
    "log lines between prints": (
        """import logging
logging.basicConfig(format="%(message)s", level=logging.INFO)
for n in range(3):
    print("out", n)
    logging.info("err %d", n)
""",
        "out 0\nout 1\nout 2\n",
        "err 0\nerr 1\nerr 2\n",
    ),
    "pieces of lines": (
        """import sys
for n in range(3):
    sys.stdout.write("o")
    sys.stderr.write("e")
    sys.stdout.write(f"{n} ")
    sys.stderr.write(f"{n} ")
""",
        "o0 o1 o2 ",
        "e0 e1 e2 ",
    ),
    "descriptors and Python's own streams": (
        """import os, sys
for n in range(3):
    print("py", n); os.write(1, b"fd %d\\n" % n)
    print("py", n, file=sys.stderr); os.write(2, b"fd %d\\n" % n)
""",
        "py 0\nfd 0\npy 1\nfd 1\npy 2\nfd 2\n",
        "py 0\nfd 0\npy 1\nfd 1\npy 2\nfd 2\n",
    ),
    "children between prints": (
        """import subprocess
for n in range(3):
    print("parent", n)
    subprocess.run(["sh", "-c", f"echo child {n}; echo oops {n} >&2"])
""",
        "parent 0\nchild 0\nparent 1\nchild 1\nparent 2\nchild 2\n",
        "oops 0\noops 1\noops 2\n",
    ),
    "displays and values between prints": (
        """from IPython.display import display
for n in range(3):
    print("text", n)
    display({"shown": n})
print("end")
""",
        None,
        "",
    ),
}


@pytest.mark.parametrize("kind", ALTERNATING)
async def test_each_stream_is_whole_and_in_order(server: Served, kind: str) -> None:
    code, stdout, stderr = ALTERNATING[kind]
    seen = await server.run(code)
    assert seen.status == "ok"
    if stdout is not None:
        assert seen.stdout == stdout
        assert "stdout:\n" + stdout.rstrip("\n") in seen.text
    assert seen.stderr == stderr
    if stderr:
        assert "stderr:\n" + stderr.rstrip("\n") in seen.text


async def test_displayed_text_stands_between_the_prints_around_it(server: Served) -> None:
    seen = await server.run(ALTERNATING["displays and values between prints"][0])
    wanted = ["text 0", "{'shown': 0}", "text 1", "{'shown': 1}", "text 2", "{'shown': 2}", "end"]
    places = [seen.text.index(piece) for piece in wanted]
    assert places == sorted(places), seen


# ------------------------------------------------------------------------------------------ A02 whose output


@pytest.mark.slow
async def test_fifty_calls_each_hold_their_own_text_and_nothing_else(server: Served) -> None:
    for n in range(1, 51):
        seen = await server.run(f'print("HELLO-{n}")\n{n}\n')
        assert (seen.stdout, seen.stderr, seen.value) == (f"HELLO-{n}\n", "", str(n))


@pytest.mark.parametrize("era", kit.ERAS)
async def test_two_calls_are_not_one_call_late_in_either_era(era: str) -> None:
    async with cases.serving(mode=era) as served:
        first = await served.run('print("HELLO-1")\n')
        second = await served.run('print("HELLO-2")\n')
        assert (first.stdout, second.stdout) == ("HELLO-1\n", "HELLO-2\n")


# ------------------------------------------------------------------------------------------ A04, A08 floods


FLOOD = """import sys
for i in range(20000):
    sys.stdout.write(f"chunk-{i}\\n"); sys.stdout.flush()
print("THE-END")
"""


def whole_text(seen: cases.Seen) -> str:
    """The path of the file that the reply names for what was left out."""
    [path] = set(re.findall(r"left out .*; all of it is in (output/\S+) \.\.\.", seen.text))
    assert path in seen.files
    return str(path)


async def count_lines(server: Served, seen: cases.Seen, path: str) -> list[int]:
    """Lines in a stored text, and how many of the flood's lines are missing."""
    look = f"""lines = open({path!r}).read().splitlines()
print(len(lines), sum(line != f"chunk-{{i}}" for i, line in enumerate(lines[:20000])), lines[-1])
"""
    check = await server.run(look, session_id=seen.fields["session_id"])
    assert check.stdout.split()[2] == "THE-END"
    return [int(word) for word in check.stdout.split()[:2]]


async def test_a_flood_of_small_writes_is_kept_whole_in_a_file(server: Served) -> None:
    seen = await server.run(FLOOD)
    assert seen.status == "ok"
    assert "THE-END" in seen.stdout and "THE-END" in seen.text and seen.stdout.startswith("chunk-0\n")
    path = whole_text(seen)
    assert await count_lines(server, seen, path) == [20_001, 0]


async def test_floods_at_once_lose_no_line(server: Served) -> None:
    replies: list[cases.Seen] = []

    async def flood() -> None:
        replies.append(await server.run(FLOOD))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(flood)
    for seen in replies:
        assert seen.status == "ok" and "THE-END" in seen.stdout
        path = whole_text(seen)
        assert await count_lines(server, seen, path) == [20_001, 0]
    assert len({whole_text(seen) for seen in replies}) == 4, "two runs wrote to one file"


LONG = {
    "six thousand lines": (
        'for i in range(6000):\n    print(f"{i:05d} some fairly ordinary log text that an agent may want to read")\n',
        ("00000 some", "05999 some"),
    ),
    "one endless line": ('print("<" + "abc " * 200_000 + ">")\n', ("<abc", "abc >")),
    "a long standard error": (
        'import sys\nfor i in range(9000):\n    print(f"warning {i:05d} of many", file=sys.stderr)\n',
        ("warning 00000", "warning 08999"),
    ),
    "a large value": ("list(range(200_000))\n", ("[0,",)),
    "a long string as value": ("'v' * 300_000\n", ("'vvv",)),
    "text in another script": (
        'for i in range(6000):\n    print(f"{i:05d} これは普通の行です、読みたいかも")\n',
        ("00000 これ", "05999 これ"),
    ),
    "a long error": ('raise ValueError("E-START " + "e" * 500_000 + " E-END")\n', ("ValueError", "E-START")),
    "a deep recursion": ("def f(n):\n    return f(n + 1)\nf(0)\n", ("RecursionError",)),
    "a chain of many errors": (
        "def g(n):\n    try:\n        g(n - 1) if n else 1 / 0\n    except Exception as e:\n"
        '        raise ValueError(f"level {n}") from e\ng(200)\n',
        ("ValueError",),
    ),
    "thousands of displays": ("for i in range(3000):\n    display(f'shown {i}')\n", ("shown 0",)),
    "emoji": ('print("\\U0001F600" * 100_000)\nprint("END")\n', ("\U0001f600", "END")),
}


@pytest.mark.parametrize("kind", LONG)
async def test_a_reply_stays_far_below_the_ceiling_of_clients(server: Served, kind: str) -> None:
    code, pieces = LONG[kind]
    seen = await server.run(code)
    for piece in pieces:
        assert piece in seen.text
    whole = seen.text + json.dumps(seen.fields, ensure_ascii=False)
    assert tokens(seen.text) < 10_000, f"{tokens(seen.text)} tokens"
    assert len(whole) < 50_000
    assert any(word in seen.text for word in ("left out", "[...]", " ...]", "and 2", "repeated")), seen.text[
        -500:
    ]


def tokens(text: str) -> float:
    """A cautious guess: three characters a token, but one each outside of ASCII."""
    ascii_chars = sum(char.isascii() for char in text)
    return ascii_chars / 3 + (len(text) - ascii_chars)


async def test_what_was_left_out_is_in_a_named_file_with_its_size(server: Served) -> None:
    seen = await server.run(LONG["six thousand lines"][0])
    path = whole_text(seen)
    assert seen.files[path]["size"] == 6000 * 67
    look = await server.run(
        f"t = open({path!r}).read()\nprint(t.count(chr(10)), t[:5], t.splitlines()[-1][:5])",
        session_id=seen.fields["session_id"],
    )
    assert look.stdout == "6000 00000 05999\n"
    assert "6,000 lines" in seen.text
    assert not look.files, "the file of the earlier call counts as new"


# ------------------------------------------------------------------------------------------ A05 memory


FLOODS_OF_BYTES = {
    "300 MB of lines": (
        'line = "x" * 999 + "\\n"\nimport sys\nfor _ in range(300_000):\n    sys.stdout.write(line)\nprint("LAST-LINE")\n',
        300_000_010,
    ),
    "100 MB without a line end": (
        'import sys\nfor _ in range(100):\n    sys.stdout.write("y" * 1_000_000)\nprint("LAST-LINE")\n',
        100_000_010,
    ),
    "100 MB of redraws": (
        'import sys\nfor i in range(200_000):\n    sys.stdout.write("\\r" + "z" * 499)\nprint("\\rLAST-LINE" + " " * 490)\n',
        None,
    ),
    "100 MB from a child": (
        'import subprocess, sys\nsubprocess.run(["sh", "-c", "yes | head -c 100000000"])\nprint("LAST-LINE")\n',
        100_000_010,
    ),
    "100 MB of displays": (
        'for i in range(100):\n    display({"text/plain": "d" * 1_000_000}, raw=True)\nprint("LAST-LINE")\n',
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOODS_OF_BYTES)
async def test_the_server_does_not_keep_what_a_run_prints(kind: str) -> None:
    code, size = FLOODS_OF_BYTES[kind]
    async with cases.serving() as served:
        await served.run("print('warm')")
        before = cases.memory_kb(served.pid, "VmRSS")
        seen = await served.run(code)
        grown = cases.memory_kb(served.pid, "VmHWM") - before
        assert grown < 50_000, f"the server grew by {grown // 1000} MB"
        assert seen.status == "ok", seen
        assert "LAST-LINE" in seen.text
        if size is not None:
            assert "left out" in seen.text and f"{size:,}" in seen.text
            assert sum(f["size"] for f in seen.fields["artifacts"]) == size
        again = await served.run("print('small')")
        assert again.stdout == "small\n"


async def test_output_beyond_the_operators_limit_ends_the_run_and_says_so() -> None:
    async with cases.serving("--output-bytes", "2M") as served:
        seen = await served.run('print("BEGIN")\nwhile True:\n    print("x" * 1000)\n')
        assert seen.status == "limit"
        assert "2 MiB" in seen.text and "BEGIN" in seen.stdout
        assert (await served.run("print('next')")).stdout == "next\n"


# ------------------------------------------------------------------------------------------ A09 redraws


REDRAWN = {
    "a bar on stderr": (
        """import sys, time
for i in range(501):
    sys.stderr.write(f"\\rtrain {i:3d}/500 |{'#' * (i // 25):20s}|"); sys.stderr.flush()
    time.sleep(0.002)
sys.stderr.write("\\n"); print("done")
""",
        "done\n",
        "train 500/500 |####################|\n",
    ),
    "a bar on stdout that ends in the return": (
        "import time\nfor i in range(101):\n    print(f'step {i}', end='\\r', flush=True); time.sleep(0.002)\nprint()\nprint('done')\n",
        "step 100\ndone\n",
        "",
    ),
    "a last redraw without a line end": (
        "for i in range(50):\n    print(f'\\r{i} of 49', end='')\n",
        "49 of 49",
        "",
    ),
    "backspaces": (
        "import sys\nsys.stdout.write('loading   0%')\nfor i in range(1, 101):\n    sys.stdout.write('\\b' * 4 + f'{i:3d}%'); sys.stdout.flush()\nprint()\n",
        "loading 100%\n",
        "",
    ),
    "a spinner": (
        "import sys\nfor c in '|/-\\\\' * 30:\n    sys.stdout.write(c + '\\b'); sys.stdout.flush()\nprint('ready')\n",
        "ready\n",
        "",
    ),
    "erase-line codes": (
        "import sys\nfor i in range(100):\n    sys.stdout.write(f'\\x1b[2K\\rline {i}'); sys.stdout.flush()\nprint()\n",
        "line 99\n",
        "",
    ),
    "a shorter text erased with a code": (
        "import sys\nsys.stdout.write('downloading 100 MB'); sys.stdout.write('\\r\\x1b[Kfinished\\n')\n",
        "finished\n",
        "",
    ),
    "lines that end as on Windows": (
        "import sys\nsys.stdout.write('one\\r\\ntwo\\r\\n')\n",
        "one\ntwo\n",
        "",
    ),
    "pip's and rich's way": (
        "import sys\nfor i in range(20):\n    sys.stdout.write(f'\\x1b[2K\\r\\x1b[32m{chr(0x2501) * i}\\x1b[0m {i}/19'); sys.stdout.flush()\nprint()\n",
        "━" * 19 + " 19/19\n",
        "",
    ),
    "a shorter redraw": ("print('aaaaaaaa\\rbb')\n", "bbaaaaaa\n", ""),
    "bars below each other": (
        'import sys\nfor i in range(3):\n    sys.stderr.write(f"\\router {i}"); sys.stderr.flush()\n    for j in range(5):\n'
        '        sys.stderr.write(f"\\n\\rinner {j}\\x1b[A"); sys.stderr.flush()\n    sys.stderr.write("\\n\\r       \\r\\x1b[A")\n'
        'sys.stderr.write("\\router done\\n"); print("end")\n',
        "end\n",
        "outer done\n",
    ),
    "redraws from a child": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'for i in 1 2 3 4 5; do printf \"\\\\rpart $i\"; done; echo'])\n",
        "part 5\n",
        "",
    ),
}


@pytest.mark.parametrize("kind", REDRAWN)
async def test_only_the_last_state_of_a_redrawn_line_is_kept(server: Served, kind: str) -> None:
    code, stdout, stderr = REDRAWN[kind]
    seen = await server.run(code)
    assert (seen.stdout, seen.stderr) == (stdout, stderr)
    assert len(seen.text) < 1000


async def test_bars_of_tqdm_collapse_to_their_last_state(server: Served) -> None:
    code = """from tqdm.auto import tqdm
import sys, time
for i in tqdm(range(300), desc="epoch"):
    time.sleep(0.001)
for i in tqdm(range(300), desc="output", file=sys.stdout):
    time.sleep(0.001)
print("done")
"""
    seen = await server.run(code, requirements=["tqdm"])
    assert seen.status == "ok", seen
    assert "300/300" in seen.stderr and seen.stderr.count("epoch") == 1, seen
    assert "300/300" in seen.stdout and seen.stdout.count("output") == 1, seen
    assert seen.stdout.endswith("done\n")
    assert len(seen.text) < 1500


# ------------------------------------------------------------------------------------------ A11 control codes


COLOURED = {
    "colours": ('print("\\033[1;31mred\\033[0m plain")\n', "red plain\n"),
    "24-bit colours": ('print("\\033[38;2;1;2;3mx\\033[48;5;7my\\033[m z")\n', "xy z\n"),
    "a window title": ('print("\\033]0;title\\007shown")\n', "shown\n"),
    "a link": ('print("\\033]8;;http://a.example\\033\\\\text\\033]8;;\\033\\\\ after")\n', "text after\n"),
    "cursor moves and clears": ('print("\\033[2J\\033[Htop\\033[?25l\\033[?25h")\n', "top\n"),
    "a code cut in two writes": (
        'import sys, time\nsys.stdout.write("a\\033["); sys.stdout.flush(); time.sleep(0.3)\nsys.stdout.write("31mb\\n")\n',
        "ab\n",
    ),
    "a character cut in two writes": (
        'import os, time\nos.write(1, b"\\xe2\\x82"); time.sleep(0.3); os.write(1, b"\\xac\\n")\n',
        "€\n",
    ),
    "a bell and a NUL": ('print("a\\a\\0b")\n', "ab\n"),
    "breaks of lines and pages in documents": ('print("a\\x0bb\\x0cc\\x85d")\n', "a\nb\nc\nd\n"),
    "bytes that are no text": ('import os\nos.write(1, b"x\\xff\\xfey\\n")\n', "x\ufffd\ufffdy\n"),
    "a lone surrogate": ('print("s\\ud83dt")\n', None),
}


@pytest.mark.parametrize("kind", COLOURED)
async def test_control_codes_never_reach_the_reader(server: Served, kind: str) -> None:
    code, stdout = COLOURED[kind]
    seen = await server.run(code)
    assert seen.status == "ok", seen
    if stdout is not None:
        assert seen.stdout == stdout
    else:
        assert seen.stdout.startswith("s") and "t" in seen.stdout


FAILING = {
    "in a function": (
        "def ratio(a, b):\n    return a / b\nratio(1, 0)\n",
        "ZeroDivisionError",
        2,
        ["line 2", "line 3"],
    ),
    "with colour in its message": (
        'raise ValueError("\\033[31mred\\033[0m words")\n',
        "ValueError",
        1,
        ["red words"],
    ),
    "chained": (
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e\n",
        "RuntimeError",
        4,
        ["KeyError", "direct cause", "line 2"],
    ),
    "in a group": (
        "raise ExceptionGroup('both', [ValueError('v1'), TypeError('t1')])\n",
        "ExceptionGroup",
        1,
        ["ValueError: v1", "TypeError: t1"],
    ),
    "in a library": ("import json\njson.loads('{')\n", "JSONDecodeError", 2, ["line 2"]),
    "with surrogates in its message": ('raise OSError("name \\udcff end")\n', "OSError", 1, ["name", "end"]),
    "with a failing __str__": (
        "class Odd(Exception):\n    def __str__(self):\n        raise TypeError('no text')\nraise Odd()\n",
        "Odd",
        4,
        [],
    ),
}


@pytest.mark.parametrize("kind", FAILING)
async def test_an_error_reads_without_colours_and_without_our_frames(server: Served, kind: str) -> None:
    code, name, line, pieces = FAILING[kind]
    seen = await server.run(code)
    assert seen.status == "error"
    assert seen.error["name"] == name
    assert seen.error["line"] in (line, line + 1) if kind == "in a function" else seen.error["line"] == line
    for piece in (name, *pieces):
        assert piece in seen.text, seen


# ------------------------------------------------------------------------------------------ A12 descriptors


BELOW_PYTHON = {
    "every way at once": (
        """import os, subprocess, sys, ctypes
os.system("echo from-os-system")
subprocess.run([sys.executable, "-c", "print('from-child')"])
libc = ctypes.CDLL(None); libc.puts(b"from-libc"); libc.fflush(None)
os.write(2, b"from-fd2\\n")
print("from-python")
""",
        "from-os-system\nfrom-child\nfrom-libc\nfrom-python\n",
        "from-fd2\n",
    ),
    "printf that is never flushed": (
        'import ctypes\nlibc = ctypes.CDLL(None)\nlibc.printf(b"from-printf %d\\n", 7)\nprint("from-python")\n',
        {"from-printf 7", "from-python"},
        "",
    ),
    "a shell by Popen": (
        'import subprocess\np = subprocess.Popen("echo from-shell; echo to-err >&2", shell=True)\np.wait()\nprint("after")\n',
        "from-shell\nafter\n",
        "to-err\n",
    ),
    "a child that nobody waits for": (
        'import os, subprocess\np = subprocess.Popen(["sh", "-c", "echo quick"])\nos.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)\n',
        "quick\n",
        "",
    ),
    "multiprocessing with fork": (
        'import multiprocessing as mp\ndef work(n):\n    print("worker", n)\np = mp.get_context("fork").Process(target=work, args=(5,))\np.start(); p.join()\nprint("code", p.exitcode)\n',
        "worker 5\ncode 0\n",
        "",
    ),
    "os.fork": (
        'import os\npid = os.fork()\nif pid == 0:\n    print("in the child", flush=True)\n    os._exit(0)\nos.waitpid(pid, 0)\nprint("in the parent")\n',
        "in the child\nin the parent\n",
        "",
    ),
    "shell magic": ("!echo from-bang\n!echo bang-err >&2\n", "from-bang\n", "bang-err\n"),
    "a cell of bash": ("%%bash\necho one\necho two >&2\n", "one\n", "two\n"),
    "duplicated descriptors": (
        'import os, sys\nsaved = os.dup(1)\nr, w = os.pipe()\nos.dup2(w, 1)\nos.write(1, b"caught")\nos.dup2(saved, 1)\nprint("got", os.read(r, 100))\n',
        "got b'caught'\n",
        "",
    ),
    "streams replaced by the code": (
        'import io, sys, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as f:\n    print("hidden")\nprint("seen", f.getvalue().strip())\nsys.stdout = sys.__stdout__\nprint("still")\n',
        "seen hidden\nstill\n",
        "",
    ),
    "streams by their names": (
        "import os\nwith open('/dev/stdout', 'w') as f:\n    f.write('one\\n')\nos.system('echo two >/dev/stderr; echo three >/dev/fd/1')\nprint('four')\n",
        "one\nthree\nfour\n",
        "two\n",
    ),
    "binary writes": (
        'import sys\nsys.stdout.buffer.write(b"bytes\\n")\nprint("text")\n',
        "bytes\ntext\n",
        "",
    ),
    "faulthandler's dump": ("import faulthandler, sys\nfaulthandler.dump_traceback(sys.stderr)\n", "", None),
    "an unraisable error": (
        'class A:\n    def __del__(self):\n        raise ValueError("in del")\na = A()\ndel a\nprint("go on")\n',
        "go on\n",
        None,
    ),
}


@pytest.mark.parametrize("kind", BELOW_PYTHON)
async def test_text_below_python_is_in_the_result_of_its_call(server: Served, kind: str) -> None:
    code, stdout, stderr = BELOW_PYTHON[kind]
    seen = await server.run(code)
    assert seen.status == "ok", seen
    if isinstance(stdout, set):
        assert set(seen.stdout.split("\n")) == {*stdout, ""}
    else:
        assert seen.stdout == stdout
    assert seen.stderr == stderr if stderr is not None else seen.stderr


# ------------------------------------------------------------------------------------------ A13 the GIL


async def test_c_code_that_holds_the_gil_can_fill_the_pipe(server: Served) -> None:
    code = """import ctypes
c_with_gil = ctypes.PyDLL(None)
for _ in range(40):
    c_with_gil.puts(b"gil" * 2_000)
c_with_gil.fflush(None)
print("survived")
"""
    seen = await server.run(code, timeout_seconds=60)
    assert seen.status == "ok" and seen.stdout.endswith("survived\n"), seen
    assert (await server.run("print('next')")).stdout == "next\n"


async def test_c_code_that_holds_the_gil_can_write_megabytes_to_both_descriptors(server: Served) -> None:
    code = """import ctypes
c = ctypes.PyDLL(None)
block = b"w" * 500_000
for _ in range(12):
    c.write(1, block, len(block)); c.write(2, block, len(block))
print("survived")
"""
    seen = await server.run(code, timeout_seconds=30)
    assert seen.status == "ok" and "survived" in seen.stdout, seen
    assert sum(f["size"] for f in seen.fields["artifacts"]) == 12_000_000 + len("survived\n")


async def test_c_code_that_sleeps_with_the_gil_ends_at_the_limit(server: Served) -> None:
    code = 'import ctypes\nprint("before", flush=True)\nctypes.PyDLL(None).sleep(600)\n'
    seen = await server.run(code, timeout_seconds=2)
    assert seen.status == "timeout" and seen.stdout == "before\n"
    assert (await server.run("print('next')")).stdout == "next\n"


# ------------------------------------------------------------------------------------------ A16 late output


LATE = {
    "a thread": """import threading, time
def late():
    for i in range(6):
        print("LATE", i, flush=True); time.sleep(0.2)
threading.Thread(target=late).start()
print("cell over")
""",
    "a daemon thread": """import threading, time
def late():
    while True:
        print("LATE", flush=True); time.sleep(0.2)
threading.Thread(target=late, daemon=True).start()
print("cell over")
""",
    "a thread without end": """import threading, time
def late():
    while True:
        time.sleep(0.2); print("LATE", flush=True)
threading.Thread(target=late).start()
print("cell over")
""",
    "a child process": """import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time\\nfor i in range(100): print('LATE', i, flush=True); time.sleep(0.1)"])
print("cell over")
""",
    "a timer": """import threading
threading.Timer(1.0, print, ["LATE"]).start()
print("cell over")
""",
    "a task of the event loop": """import asyncio
async def late():
    for i in range(6):
        await asyncio.sleep(0.1); print("LATE", i)
task = asyncio.ensure_future(late())
await asyncio.sleep(0)
print("cell over")
""",
}


@pytest.mark.parametrize("kind", LATE)
async def test_late_output_is_in_no_other_call(server: Served, kind: str) -> None:
    first = await server.run(LATE[kind])
    assert first.status == "ok", first
    assert "cell over" in first.stdout
    second = await server.run("import time; time.sleep(0.7); print('second call')\n")
    assert second.stdout == "second call\n" and second.stderr == ""


@pytest.mark.parametrize("kind", ["a thread", "a task of the event loop"])
async def test_what_ends_soon_is_waited_for(server: Served, kind: str) -> None:
    seen = await server.run(LATE[kind])
    assert [f"LATE {i}" in seen.stdout for i in range(6)] == [True] * 6


async def test_a_thread_that_does_not_end_is_stopped_and_named(server: Served) -> None:
    seen = await server.run(LATE["a thread without end"])
    assert "still running" in seen.stderr and "stopped" in seen.stderr
