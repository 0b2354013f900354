"""The examples, run as a user would: against a server with a token, and with a server of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prims.server.file_tools import TOOLS
from prims.trees import remove_tree
from tests import kit, processes, web
from tests.test_http import TOKEN, Served, served

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name not in ("_server.py", "sales_report.py"))

REPORT = {
    "list_tools": [*(f"{tool.name}: " for tool in TOOLS), r"    code \(required\): ", "prompt python_programmer: task"],
    "run_code": [
        r"ok inside \w+: \[1, 4, 9, 16, 25\]",
        "content: text\ncontent: image",
        "with a package: '12.3 million'",
        "IndexError in line 2: list index",
    ],
    "mount_and_run": [
        "mounts/sales.csv: 629 rows, 26825 bytes",
        r"date \(date\), .*units \(int\)",
        "'North': 147089.93",
        "in one call: ok",
    ],
    "session_persistence": [
        "the file stayed: made by the first call",
        "the variable stayed: False",
        "another session has the file: False",
        "a session that is not ours: .*unknown",
    ],
    "inspect_workspace": [
        "file output/visits.csv: 172 bytes",
        "file output/visits.png: ",
        "30 rows of day, visits",
        r"\d+x\d+ pixels, sent as image",
        "resource: text/csv, 31 lines",
    ],
    "persist_artifact": ["Uploaded output/table.csv: 8 bytes, status 200"],
    "artifact_download": [
        r"numbers.csv: 3892 bytes of text/csv.*\n    206, the first four: 'n\\n0\\n'",
        "pages/report.html: 15 bytes of text/html.*\n    206, the first four: '<h1>'",
    ],
    "http_client": [
        "while it runs: Ada is at 0",
        "while it runs: Grace is at 0",
        "Ada: ok, 3 lines",
        "Grace: ok, 3 lines",
    ],
    "stdio_client": [r"prims \d+\.", "'kept'\ntimeout"],
}
"""What each example must have printed."""


@pytest.fixture(scope="module")
def site() -> Iterator[web.Site]:
    with web.serving() as running:
        yield running


@pytest.fixture(scope="module")
def server(site: web.Site) -> Iterator[Served]:
    state = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        with served(state, "--allow-host", site.place, env={"PRIMS_TOKEN": TOKEN}) as running:
            yield running
    finally:
        remove_tree(state)


def run(name: str, state: Path, *arguments: str, **environ: str) -> str:
    """What an example prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        cwd=state, env={**kit.server_environment(state), **environ}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=kit.SECONDS * 2, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def assert_report(name: str, printed: str) -> None:
    for expected in REPORT[name]:
        assert re.search(expected, printed), f"{expected!r} is not in {printed!r}"


def test_every_example_is_run_and_short_enough_to_read() -> None:
    assert [path.stem for path in SCRIPTS] == sorted(REPORT)
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < 60, path.name


@pytest.mark.parametrize("name", sorted(REPORT.keys() - {"persist_artifact", "stdio_client"}))
def test_an_example_works_with_a_server_that_wants_a_token(name: str, server: Served, state: Path) -> None:
    assert_report(name, run(name, state, server.url, PRIMS_TOKEN=TOKEN))


def test_an_upload_arrives_whole_with_the_type_it_was_signed_for(
    server: Served, site: web.Site, state: Path
) -> None:
    address = f"{site.url}/put/need-content-type?ct=text/csv"
    assert_report("persist_artifact", run("persist_artifact", state, server.url, address, PRIMS_TOKEN=TOKEN))
    put = site.asked("PUT")[-1]
    assert put.body == b"a,b\n1,2\n"
    assert put.headers["Content-Length"] == "8"


def test_a_file_of_the_users_own_is_mounted_when_it_is_named(server: Served, state: Path) -> None:
    address = "data:text/csv,region,units,unit_price%0AN,2,1.5"
    printed = run("mount_and_run", state, server.url, address, PRIMS_TOKEN=TOKEN)
    assert "mounts/sales.csv: 1 rows" in printed
    assert "{'N': 3.0}" in printed


def test_a_download_is_kept_when_a_folder_is_named(server: Served, state: Path) -> None:
    run("artifact_download", state, server.url, str(state / "kept"), PRIMS_TOKEN=TOKEN)
    assert (state / "kept" / "pages" / "report.html").read_text() == "<h1>Report</h1>"
    assert len((state / "kept" / "numbers.csv").read_text().splitlines()) == 1001


@pytest.mark.slow
@pytest.mark.parametrize("name", ["artifact_download", "http_client", "persist_artifact", "run_code", "stdio_client"])
def test_an_example_alone_starts_a_server_of_its_own_and_ends_it(name: str, state: Path) -> None:
    assert_report(name, run(name, state, PRIMS_SESSION_IDLE_SECONDS="600"))
    assert not processes.named(str(state))
    assert [path for path in state.iterdir() if path.is_dir()] == []


def test_an_example_says_when_its_server_does_not_start(state: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "list_tools.py"],
        cwd=state, env={**kit.server_environment(state), "PRIMS_TOKEN": "short"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=kit.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "The server did not start" in done.stderr
