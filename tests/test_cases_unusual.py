# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""Code that does unusual things to the process it runs in, or that is written for another place than this one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests import cases
from tests.cases import Served

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


# Each: the code, the status, standard output (None: any), and what the text of the reply holds.
UNUSUAL: dict[str, tuple[str, str, str | None, tuple[str, ...]]] = {
    # ---------------------------------------------------------------- streams that the code breaks
    "descriptor 1 closed": ("import os\nprint('a')\nos.close(1)\nprint('b')\n", "error", "a\n", ("line 4", "Bad file descriptor")),
    "descriptor 2 closed": ("import os, sys\nos.close(2)\nprint('b', file=sys.stderr)\n", "error", "", ("line 3", "Bad file descriptor")),
    "a value after descriptor 1 is closed": ("import os\nos.close(1)\ndisplay('shown')\n4\n", "ok", "", ("'shown'", "result:\n4")),
    "stdout closed": ("import sys\nprint('a')\nsys.stdout.close()\nprint('b')\n", "error", "a\n", ("line 4", "closed file")),
    "stdout is None": ("import sys\nprint('a')\nsys.stdout = None\nprint('b')\n3\n", "ok", "a\n", ("result:\n3",)),
    "stderr is None": ("import sys\nsys.stderr = None\n1 / 0\n", "error", "", ("line 3", "ZeroDivisionError")),
    "no stdout at all": ("import sys\ndel sys.stdout\n5\n", "ok", "", ("result:\n5",)),
    "a stdout that always fails": (
        "import sys\nclass B:\n    def write(self, s): raise OSError('w')\n    def flush(self): raise OSError('f')\nsys.stdout = B()\n7\n",
        "ok", "", ("result:\n7",),
    ),
    # ---------------------------------------------------------------- parts of Python that the code exchanges
    "json without dumps": ("import json\njson.dumps = json.loads = None\n{'a': 5}\n", "ok", "", ("{'a': 5}",)),
    "a clock that stands": ("import time\ntime.sleep = lambda s: None\ntime.time = time.monotonic = lambda: 0\n5\n", "ok", "", ("result:\n5",)),
    "a kernel that cannot answer": ("get_ipython().kernel.session.send = None\nprint('a')\n", "died", "a\n", ("TypeError",)),
    # ---------------------------------------------------------------- ends
    "sys.exit in a forked child": (
        "import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n", "ok", "3\n", (),
    ),
    "a message of a forked child's exit": (
        "import os, sys\nif os.fork() == 0:\n    sys.exit('no')\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n", "ok", "1\n", ("stderr:\nno\n",),
    ),
    "sys.exit in an exit function": ("import atexit, sys\natexit.register(sys.exit, 3)\nprint('a')\n", "ok", "a\n", ()),
    "an error in an exit function": (
        "import atexit\ndef bye():\n    raise ValueError('at exit')\natexit.register(print, 'b')\natexit.register(bye)\nprint('a')\n",
        "ok", "a\nb\n", ("line 3, in bye", "ValueError: at exit"),
    ),
    "what is finalized at the end": (
        "import weakref\nclass A:\n    def __del__(self):\n        print('deleted')\na, b = A(), type('B', (), {})()\nweakref.finalize(b, print, 'finalized')\nweakref.finalize(b, int, 'x')\n",
        "ok", "finalized\ndeleted\n", ("invalid literal for int",),
    ),
    # ---------------------------------------------------------------- errors
    "a value that cannot be told": ("x = 1\n10 ** 5000\n", "error", "", ("line 2", "Exceeds the limit")),
    "a value that gives no text": ("class V:\n    def __repr__(self):\n        return 5\n\nV()\n", "error", "", ("line 5", "non-string")),
    "the code as a file": ("print(open(__file__).read())\n", "error", "", ("The code of a call is no file",)),
    "recursion over two functions": ("def a():\n    b()\ndef b():\n    a()\na()\n", "error", "", ("frames left out", "RecursionError")),
    "halves of characters in what is shown": (
        "display({'text/plain': 'a\\ud83db'}, raw=True)\nclass V:\n    def __repr__(self):\n        return 'c\\ud83d'\nV()\n", "ok", None, ("a?b", "c?"),
    ),
    "halves of characters in an error": ("raise ValueError('a\\ud83db \\udcff')\n", "error", "", ("line 1", "ValueError: a?b ?")),
    "a line break in the name of an error": ("raise type('Bad\\nName', (Exception,), {})('x')\n", "error", "", ("Bad Name: x",)),
    "an error in a thread": (
        "import threading\ndef f():\n    return 1 / 0\nt = threading.Thread(target=f, name='T')\nt.start(); t.join()\nprint('end')\n",
        "ok", "end\n", ('Exception in thread T:\nTraceback (most recent call last):\n  File "/workspace/main.py", line 3, in f\n    return 1 / 0',),
    ),
    "an error in a task that nobody awaits": (
        "import asyncio\nasync def f():\n    raise ValueError('unseen')\nt = asyncio.create_task(f())\nawait asyncio.sleep(0)\nprint('end')\n",
        "ok", "end\n", ("never retrieved", "line 3, in f", "ValueError: unseen"),
    ),
    "tasks that begin tasks, and a figure": (
        "import asyncio, matplotlib.pyplot as plt\nasync def b():\n    await asyncio.sleep(0)\n    plt.plot([1, 2])\n    print('b')\nasync def a():\n    await asyncio.sleep(0)\n    c = asyncio.create_task(b())\nasyncio.create_task(a())\nawait asyncio.sleep(0)\nprint('end')\n",
        "ok", "end\nb\n", ("image/png",),
    ),
    "all tasks cancelled": (
        "import asyncio\nawait asyncio.sleep(0)\nfor t in asyncio.all_tasks():\n    t.cancel()\nprint('end')\n", "died", "end\n", ("cancel none but its own",),
    ),
    "no way to end": ("import asyncio, threading\nthreading.enumerate = asyncio.all_tasks = None\nprint('end')\n", "ok", "end\n", ()),
    "an error in a long line": (f"x = 1; y = [{'1234, ' * 5000}][-1] / 0\n", "error", "", ("line 1", "...\nZeroDivisionError")),
    "a syntax error in a long line": (f"x = [{'1234, ' * 5000}, 'here']\n", "error", "", ("line 1\n    ...", "1234, , 'here']\n", "^\nSyntaxError")),
    "a figure that cannot be drawn": (
        "import matplotlib.pyplot as plt\nplt.title('$\\\\badcmd$');\n", "ok", None, ("cannot be shown in every form: ValueError: \\badcmd",),
    ),
    "a font that is not here": (
        "import matplotlib.pyplot as plt\nplt.rcParams['font.sans-serif'] = ['SimHei']\nplt.title('t');\n", "ok", "", ("were found: SimHei", "image/png"),
    ),
    "a picture of a child": (
        "import os\nfrom PIL import Image\nif os.fork() == 0:\n    display(Image.new('RGB', (8, 8)))\n    os._exit(0)\nos.wait();\n",
        "ok", None, ("Picture of Pillow: 8 x 8", "cannot be shown: save it to output/"),
    ),
    "a warning of each round": (
        "import warnings\nwarnings.simplefilter('always')\nfor n in range(99):\n    warnings.warn('x' * 99)\n", "ok", "",
        ("UserWarning: xxx", "UserWarning: the same as before; it is not told again\n\n["),
    ),
    "a picture as base64": (
        "import base64, os\nprint('src=' + base64.b64encode(os.urandom(30_000)).decode())\nprint('ACGT' * 300)\n",
        "ok", None, ("characters of base64 left out", "ACGT" * 300),
    ),
    "one line for ever": ("for n in range(9999):\n    print('Working')\nprint('done')\n", "ok", None, ("Working\n[1,", " more lines like this]\ndone")),
    "a task without a loop": (
        "import asyncio\nasync def f():\n    pass\nasyncio.create_task(f())\n",
        "error", "", ("line 4", "stderr:\nRuntimeWarning: coroutine 'f' was never awaited\n\n", "asyncio.run(main())"),
    ),
    "errors shown in the code's own way": (
        "def show(shell, kind, value, tb, tb_offset=None):\n    print('MINE')\nget_ipython().set_custom_exc((ValueError,), show)\n1\nraise ValueError('x')\n",
        "error", "MINE\n", ("line 5", "ValueError: x"),
    ),
    "errors shown by another function": (
        "get_ipython()._showtraceback = lambda *args, **kwargs: print('MINE')\n1 / 0\n", "error", "MINE\n", ("line 2", "ZeroDivisionError"),
    ),
    "a value whose form formats another": (
        "class V:\n    def __repr__(self):\n        get_ipython().display_formatter.format(3)\n        return 'V!'\nV()\n", "ok", "", ("result:\nV!",),
    ),
    "the stack of the code": (
        "import logging, traceback\ntraceback.print_stack()\nlogging.warning('w', stack_info=True)\n", "ok", "",
        ('stderr:\n  File "/workspace/main.py", line 2', 'recent call last):\n  File "/workspace/main.py", line 3'),
    ),
    "a prompt that gives up": (
        "import sys\ntry:\n    input('Go? ')\nexcept EOFError:\n    print('Aborted!', file=sys.stderr)\n    sys.exit(1)\n", "error", None, ("Nobody can type",),
    ),
    # ---------------------------------------------------------------- written for a notebook, a shell, a page
    "the language in the first line": ("python\nprint('a')\nb\n", "error", "a\n", ("line 3", "NameError")),
    "a session of a Python shell": (">>> x = 2\n>>> x\n2\n>>> for i in range(2):\n...     print(i)\n...\n0\n1\n>>> y\n", "error", "0\n1\n", ("line 9", "name 'y'")),
    "a line for a shell": ("x = 1\npip install six\n", "error", "", ("line 2", "A line for a shell begins with !")),
    "line ends escaped once too often": ("import json\\nprint(json.dumps({}))\\n", "ok", "{}\n", ()),
    "text escaped for a page": ("x = 1\nif x &lt; 2:\n    print(&quot;a&quot;)\n", "ok", "a\n", ()),
    "an escape within a string": ("print('&lt;\\n')\n", "ok", "&lt;\n\n", ()),
    "a dedent to nowhere": ("def f():\n        x = 1\n    y = 2\n", "error", "", ('main.py", line 3', "unindent does not match")),
    "a text without an end": ("a = 1\ns = \"\"\"b\nc\n", "error", "", ("line 2", "unterminated triple-quoted")),
    "a window for matplotlib": ("%matplotlib widget\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);\n", "ok", "", ("image/png",)),
    "help by a question mark": ("import json\njson.dumps?\n", "ok", None, ("Serialize ``obj``",)),
    "a profile": ("%prun sum(range(9))\n", "ok", None, ("function calls in",)),
    "a cell magic further down": ("x = 1\n%%bash\necho hi\n", "error", "", ("%%bash can only stand in the first line",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNUSUAL)
async def test_unusual_code_gets_a_prompt_and_clear_answer(server: Served, kind: str) -> None:
    code, status, stdout, pieces = UNUSUAL[kind]
    seen = await server.run(code, timeout_seconds=30)
    assert seen.status == status, seen
    if stdout is not None:
        assert seen.stdout == stdout
    for piece in pieces:
        assert piece in seen.text, seen
    assert len(seen.text) < 5000


async def test_files_that_are_not_closed_hold_what_was_written(server: Served) -> None:
    code = """import csv, gzip, zipfile
kept = [open('output/a.txt', 'w'), gzip.open('output/b.gz', 'wt')]
for file in kept:
    file.write('kept')
csv.writer(open('output/c.csv', 'w')).writerow([1, 2])
archive = zipfile.ZipFile('output/d.zip', 'w')
archive.writestr('e.txt', '')
1 / 0
"""
    seen = await server.run(code)
    assert seen.status == "error" and seen.files["output/a.txt"]["size"] == 4, seen
    look = await server.run(
        "import gzip, zipfile\nprint(gzip.open('output/b.gz', 'rt').read(), open('output/c.csv').read(), zipfile.ZipFile('output/d.zip').namelist())\n"
    )
    assert look.stdout == "kept 1,2\n ['e.txt']\n"
