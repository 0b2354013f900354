# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""Packages of a call and the environment around it: what is taken, what is refused, what the code can see."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cases, kit
from tests.cases import Served

pytestmark = pytest.mark.anyio

MUST_NOT_RUN = 'print("must not run")\n'


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """A listening socket that nobody must connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


# ------------------------------------------------------------------------------------------ D01 options


OPTIONS: dict[str, list[str]] = {
    "another index": ["--index-url=http://127.0.0.1:{port}/simple", "six"],
    "an index behind a name": ["six --extra-index-url http://127.0.0.1:{port}/simple"],
    "a requirements file": ["-r/etc/hostname"],
    "a requirements file with a blank": ["-r /etc/hostname"],
    "a line break": ["six\n--pre"],
    "a carriage return": ["six\r--index-url http://127.0.0.1:{port}"],
    "a NUL": ["six\0--pre"],
    "a line separator": ["six\u2028--pre"],
    "an editable": ["-e ."],
    "a constraint": ["-c/etc/passwd"],
    "blanks before the dash": ["   --pre"],
    "a tab before the option": ["six\t--no-binary=:all:"],
    "a hash": ["six --hash=sha256:abc"],
    "a global option": ["six --global-option=build"],
    "config settings": ["six --config-settings=x=y"],
    "one dash": ["-"],
    "find-links": ["--find-links=http://127.0.0.1:{port}/"],
    "a trusted host": ["six", "--trusted-host=127.0.0.1"],
    "an option behind a comment": ["six # x\n--pre"],
    "two names": ["six pandas"],
    "a continuation": ["six \\\n--pre"],
    "an option in an extra": ["six[--pre]"],
    "an option in a version": ["six==--pre"],
    "a fullwidth dash": ["－－pre"],
    "an environment variable": ["${HOME}"],
    "a shell's words": ["six; rm -rf /"],
    "a backquote": ["`touch /tmp/prims_canary`"],
    "an answer file": ["@/etc/passwd"],
}


@pytest.mark.parametrize("kind", OPTIONS)
async def test_what_is_no_package_is_refused_by_name_before_anything_starts(server: Served, trap: socket.socket, kind: str) -> None:
    port = trap.getsockname()[1]
    entries = [entry.replace("{port}", str(port)) for entry in OPTIONS[kind]]
    seen = await cases.refused(server.client, MUST_NOT_RUN, requirements=entries)
    bad = next(entry for entry in entries if entry != "six")
    word = re.match(r"[^\s\x00\\]+", bad.strip())
    assert word and word[0][:30] in seen.text, seen.text


# ------------------------------------------------------------------------------------------ D02 places


PLACES = {
    "git with an option": "git+https://127.0.0.1/x.git@--upload-pack=touch%20/tmp/prims_canary",
    "git by ssh": "git+ssh://git@127.0.0.1/x.git",
    "mercurial": "hg+http://127.0.0.1/x",
    "a file address": "evil @ file:///etc",
    "a relative folder": "../../some/local/dir",
    "an absolute folder": "/etc",
    "this folder": ".",
    "this folder with a slash": "./",
    "a home folder": "~/x",
    "a wheel by name": "six-1.16.0-py2.py3-none-any.whl",
    "an archive by name": "six-1.16.0.tar.gz",
    "a wheel by address": "https://127.0.0.1/six-1.16.0-py2.py3-none-any.whl",
    "a name at an address": "six @ https://127.0.0.1/six.whl",
    "a name at an address without blanks": "six@https://127.0.0.1/six.whl",
    "a name at a git repository": "six @ git+https://127.0.0.1/six.git",
    "an address in capitals": "HTTPS://127.0.0.1/six.whl",
    "a file address without slashes": "file:six",
    "a UNC path": "\\\\host\\share",
    "a Windows path": "C:\\six",
    "a name with a folder": "six/../../etc",
    "an address behind a marker": "six ; python_version > '3' @ https://127.0.0.1/x",
    "a user and a host": "git@127.0.0.1:x.git",
    "an extra with a folder": "six[/etc]",
    "a data address": "data:text/plain,six",
}


@pytest.mark.parametrize("kind", PLACES)
async def test_addresses_and_paths_are_refused_by_name(server: Served, kind: str) -> None:
    seen = await cases.refused(server.client, MUST_NOT_RUN, requirements=["six", PLACES[kind]])
    assert PLACES[kind].split("\\")[0][:20] in seen.text, seen.text
    assert "prims_canary" not in os.listdir("/tmp")


TAKEN = {
    "a version": ["six>=1.15"],
    "several versions": ["six>=1.10,<2,!=1.11"],
    "an exact version": ["six==1.17.0"],
    "a wildcard": ["six==1.*"],
    "a compatible version": ["six~=1.15"],
    "blanks": ["  six  "],
    "blanks around the version": ["six >= 1.15"],
    "parentheses": ["six (>=1.15)"],
    "another case": ["SIX"],
    "a true marker": ["six; python_version >= '3.8'"],
    "twice": ["six", "six"],
    "blank entries": ["", "six", " "],
    "a module of the standard library": ["json", "six", "os"],
}


@pytest.mark.parametrize("kind", TAKEN)
async def test_plain_requirements_are_taken_in_all_their_spellings(server: Served, kind: str) -> None:
    seen = await server.run("import six\nprint('six', six.__version__)\n", requirements=TAKEN[kind])
    assert seen.status == "ok" and re.fullmatch(r"six \d+\.\d+\.\d+\n", seen.stdout), seen
    assert any(package.startswith("six==") for package in seen.fields["packages"])
    if kind == "a module of the standard library":
        assert "json" in seen.hints and "os" in seen.hints


async def test_a_false_marker_asks_for_nothing(server: Served) -> None:
    seen = await server.run("print('ran')\n", requirements=["no-such-thing-here; sys_platform == 'win32'"])
    assert seen.stdout == "ran\n"


# ------------------------------------------------------------------------------------------ D04, D05 what cannot be had


IMPOSSIBLE = {
    "no wheel": (["mysqlclient==2.2.4"], "mysqlclient", ["wheel"]),
    "no such package": (["prims-surely-no-such-package"], "prims-surely-no-such-package", ["not found", "no package", "does not exist", "no such", "unknown"]),
    "no such version": (["six==99.99"], "six", ["99.99"]),
    "two versions of one": (["six==1.16.0", "six==1.15.0"], "six", ["1.16.0", "1.15.0"]),
    "two that exclude each other": (["requests==2.31.0", "urllib3==1.20"], "urllib3", ["requests"]),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
async def test_what_cannot_be_installed_is_named_with_its_cause(server: Served, kind: str) -> None:
    requirements, name, causes = IMPOSSIBLE[kind]
    seen = await cases.refused(server.client, MUST_NOT_RUN, requirements=requirements)
    assert name in seen.text
    assert any(cause in seen.text.lower() for cause in causes), seen.text
    assert len(seen.text) < 4000
    assert (await server.run("print('next')\n")).stdout == "next\n"


CLASHING = {
    "an old traitlets": (["traitlets==5.0.5"], "traitlets"),
    "an old IPython and pyzmq": (["ipython==5.10.0", "pyzmq==19.0.2"], "pyzmq"),
    "an old tornado": (["tornado==4.5.3"], "tornado"),
    "another ipykernel": (["ipykernel==5.1.0"], "ipykernel"),
    "an IPython that takes fewer arguments": (["ipython==8.12"], "ipython"),
}


@pytest.mark.parametrize("kind", CLASHING)
async def test_pins_that_break_the_kernel_are_told_as_a_clash_or_work(server: Served, kind: str) -> None:
    requirements, name = CLASHING[kind]
    result = await kit.run_code(server.client, 'print("hello")\n', requirements=requirements)
    text = kit.text_of(result)
    if not result.is_error:
        assert "hello" in text
    else:
        assert name in text.lower() and "hello" not in text
        assert "Kernel died" not in text and "did not start" not in text, text
        assert len(text) < 4000
    assert (await server.run("print('next')\n")).stdout == "next\n"


LACKING = {
    "a module of the same name": ("import plotly\n", 'requirements=["plotly"]'),
    "OpenCV": ("import cv2\n", 'requirements=["opencv-python-headless"]'),
    "scikit-learn": ("from sklearn.linear_model import LinearRegression\n", 'requirements=["scikit-learn"]'),
    "PyYAML": ("import yaml\n", 'requirements=["PyYAML"]'),
    "Beautiful Soup": ("from bs4 import BeautifulSoup\n", 'requirements=["beautifulsoup4"]'),
    "a module inside of a function": ("def f():\n    import docx\nf()\n", 'requirements=["python-docx"]'),
    "a driver wanted by pandas": ("import pandas as pd\npd.read_sql('select 1', 'sqlite:///x.db')\n", 'requirements=["sqlalchemy"]'),
    "a module wanted by pandas": ("import pandas as pd\npd.DataFrame({'a': [1]}).to_parquet('x.parquet')\n", 'requirements=["pyarrow"]'),
    "built for NumPy 1": ("raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')\n", '"numpy<2"'),
    "a program by its path": ("import pathlib, subprocess\nsubprocess.run([pathlib.PosixPath('dot'), '-Tpng'])\n", "no program dot"),
    "a browser": ("raise RuntimeError('please run: playwright install')\n", "no browser"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LACKING)
async def test_what_is_missing_is_told_with_the_name_to_install(server: Served, kind: str) -> None:
    code, words = LACKING[kind]
    seen = await server.run(code)
    assert seen.status == "error", seen
    assert words in seen.hints and words in seen.text, seen


async def test_pip_inside_tells_what_cannot_be_had(server: Served) -> None:
    seen = await server.run("%pip install json git+https://example.org/six.git\n")
    assert "json (part of Python)" in seen.stdout and "requirements=[" not in seen.stderr, seen


async def test_numba_finds_a_place_for_its_cache(server: Served) -> None:
    """Only its part that looks for one is here, in short: the package itself is large."""
    caching = "class IPythonCacheLocator:\n    @classmethod\n    def from_function(cls, function, file):\n        return file.startswith('<ipython-')\n"
    made = await server.run(f"import os\nos.makedirs('numba/core')\nopen('numba/core/caching.py', 'w').write({caching!r})\n")
    seen = await server.run("from numba.core.caching import IPythonCacheLocator as found\nprint(found.from_function(None, __file__), found.from_function(None, 'x.py'))\n")
    assert (made.status, seen.stdout) == ("ok", "True False\n"), seen
    await server.run("import shutil\nshutil.rmtree('numba')\n")


async def test_a_missing_module_of_the_code_itself_is_not_taken_for_a_package(server: Served) -> None:
    seen = await server.run("open('part_one.py', 'w').write('x = 1')\nimport part_one.inner\n")
    assert 'requirements=["part_one"]' not in seen.hints


# ------------------------------------------------------------------------------------------ D07 time


async def test_the_second_call_with_a_list_makes_no_layer_and_phases_are_told() -> None:
    code = "import pandas, sys\nprint(pandas.__version__)\n"
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as cache:

        def made() -> dict[str, int]:
            return {layer.name: layer.stat().st_ino for layer in Path(cache, "layers").iterdir() if layer.is_dir()}

        async with cases.serving("--cache-dir", cache, "--default-packages", "numpy") as served:
            first = await served.run(code, requirements=["pandas"])
            layers = made()
            second = await served.run(code, requirements=["pandas"])
            bare = await served.run("print('ran')\n")
            assert made() == layers and layers
    assert first.stdout == second.stdout and first.status == "ok", first
    for seen in (first, second, bare):
        assert {"environment", "start", "run"} <= set(seen.fields["seconds"])
        assert sum(seen.fields["seconds"].values()) < seen.seconds + 0.1


# ------------------------------------------------------------------------------------------ D08 lists as strings


LISTS: dict[str, Any] = {
    "JSON text": '["six"]',
    "JSON text with blanks": ' [ "six" ] ',
    "JSON text over lines": '[\n  "six"\n]',
    "JSON text of JSON text": '"[\\"six\\"]"',
    "a Python list as text": "['six']",
    "one name as text": "six",
    "names with commas": "six, python-dateutil",
    "names by lines": "six\npython-dateutil",
}


@pytest.mark.parametrize("kind", LISTS)
async def test_a_list_that_came_as_text_is_read_or_answered_with_an_example(server: Served, kind: str) -> None:
    result = await kit.run_code(server.client, "import six\nprint('six ok')\n", requirements=LISTS[kind])
    text = kit.text_of(result)
    if kind.startswith("JSON"):
        assert "six ok" in text and not result.is_error, text
    else:
        assert "six ok" in text or ('["' in text and "requirements" in text and len(text) < 400), text


EMPTY: dict[str, Any] = {
    "null": None, "empty text": "", "blank text": "  ", "an empty JSON list": "[]", "null as text": "null",
    "an empty list": [], "a list of empty text": [""],
}  # fmt: skip


@pytest.mark.parametrize("kind", EMPTY)
async def test_an_empty_list_of_any_spelling_means_none(server: Served, kind: str) -> None:
    assert (await server.run("print('ran')\n", requirements=EMPTY[kind])).stdout == "ran\n"


NO_LISTS: dict[str, Any] = {
    "a broken JSON list": '["six"', "an object as text": '{"six": 1}', "a number as text": "5", "numbers in JSON text": "[1, 2]",
    "nested lists": [["six"]], "null in a list": [None],
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_LISTS)
async def test_text_that_is_no_list_gives_one_sentence_with_an_example(server: Served, kind: str) -> None:
    seen = await cases.refused(server.client, MUST_NOT_RUN, requirements=NO_LISTS[kind])
    assert "requirements" in seen.text and '["' in seen.text and len(seen.text) < 400


# ------------------------------------------------------------------------------------------ D10 secrets


SECRETS = {
    "OPENAI_API_KEY": "canary-1", "DATABASE_URL": "canary-2", "MY_SLACK_WEBHOOK": "canary-3", "PLAIN_NAME": "canary-4",
    "AWS_PROFILE": "canary-5", "HTTPS_PROXY_PASSWORD": "canary-6", "PIP_INDEX_URL_SECRET": "canary-7", "LD_CANARY": "canary-8",
    "JUPYTER_TOKEN": "canary-9", "MPLCONFIGDIR": "/canary-10",
}  # fmt: skip

LOOKING = {
    "in its own environment": "import os\nprint(sorted(k for k, v in os.environ.items() if 'canary' in v))\n",
    "in a child's environment": "!env | grep canary\nprint([])\n",
    "in the parent's environment": "import os, pathlib\ntry:\n    print([] if 'canary' not in pathlib.Path(f'/proc/{os.getppid()}/environ').read_text() else 'FOUND')\nexcept OSError:\n    print([])\n",
    "in every process": "import glob\nfound = []\nfor p in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/task/*/environ'):\n    try:\n        found += [p] if b'canary' in open(p, 'rb').read() else []\n    except OSError:\n        pass\nprint(found)\n",
    "in the environment that C sees": "import ctypes\nlibc = ctypes.CDLL(None)\nenviron = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\nn, found = 0, []\nwhile environ[n]:\n    found += [environ[n]] if b'canary' in environ[n] else []\n    n += 1\nprint(found)\n",
    "in files of the home folder": "import os\nfound = []\nfor top in ('/root', '/home', os.path.expanduser('~')):\n    for folder, _, names in os.walk(top):\n        found += [n for n in names if 'canary' in n]\nprint(found)\n",
}  # fmt: skip


@pytest.fixture(scope="module")
async def keeper_of_secrets() -> AsyncIterator[Served]:
    async with cases.serving(env=SECRETS) as served:
        yield served


@pytest.mark.parametrize("kind", LOOKING)
async def test_code_cannot_see_what_the_server_knows(keeper_of_secrets: Served, kind: str) -> None:
    seen = await keeper_of_secrets.run(LOOKING[kind])
    assert (seen.status, seen.stdout) == ("ok", "[]\n"), seen
    assert "canary" not in seen.text


async def test_the_environment_of_code_is_a_short_list(keeper_of_secrets: Served) -> None:
    seen = await keeper_of_secrets.run("import os\nprint(*sorted(os.environ))\nprint(os.environ['HOME'], os.environ['PATH'])\n")
    names = set(seen.stdout.splitlines()[0].split())
    assert len(names) < 30 and {"HOME", "PATH"} <= names
    assert not [n for n in names if re.search(r"KEY|TOKEN|SECRET|PASS|PRIMS_|PIP_|UV_|PYTEST|SSH", n)], names


# ------------------------------------------------------------------------------------------ D11 a bare Python


async def test_a_python_without_ensurepip_and_pip_is_enough() -> None:
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as folder:
        for name in ("ensurepip", "pip", "distutils"):
            (Path(folder) / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name!r}")\n')
        (Path(folder) / "cache").mkdir()
        async with cases.serving(
            "--cache-dir", f"{folder}/cache", "--default-packages", "", env={"PYTHONPATH": folder}
        ) as served:
            seen = await served.run('print("hi")\n')
            assert (seen.status, seen.stdout) == ("ok", "hi\n"), seen
            again = await served.run("import six\nprint('six')\n", requirements=["six"])
            assert again.stdout == "six\n", again


async def test_every_call_has_an_environment_of_its_own(server: Served) -> None:
    first = await server.run("import sys, six\nprint(sys.prefix != sys.base_prefix)\nopen(sys.prefix + '/mark', 'w').close()\n", requirements=["six"])
    assert first.stdout == "True\n" or first.fields["error"]["name"] in ("PermissionError", "OSError"), first
    second = await server.run("import os, sys\nprint(os.path.exists(sys.prefix + '/mark'))\nimport six\n")
    assert second.stdout == "False\n" and second.error["name"] == "ModuleNotFoundError"


async def test_layers_of_packages_cannot_be_changed_by_code(server: Served) -> None:
    code = """import six, os
for path in (six.__file__, os.path.dirname(six.__file__) + "/planted.py", os.__file__):
    try:
        open(path, "a").write("x = 1")
        print("WRITTEN", path)
    except OSError as problem:
        print(type(problem).__name__)
"""
    seen = await server.run(code, requirements=["six"])
    assert seen.status == "ok" and "WRITTEN" not in seen.stdout and len(seen.stdout.split()) == 3, seen
