"""A session as a notebook: what is recorded of a run, how it is written, and what runs again."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import anyio
import nbformat
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from prims import cli, config, run
from prims.errors import Refused
from prims.kernel.record import Recorder
from prims.model import CodeError, Output, Text
from prims.notebook_file import NotebookFile
from prims.requirements import inline
from prims.session.history import History, PastRun
from prims.session.notebook import as_notebook, as_script, convert, outputs_of
from prims.session.table import Mounted
from tests import kit

FILES = {"stdout": "output.txt", "stderr": "stderr.txt"}


def recorder(most: int = 1 << 20) -> Recorder:
    return Recorder(most, FILES)


def recorded(record: Recorder) -> list[dict[str, Any]]:
    """The outputs of the only cell as a notebook has them, which is valid and can be written."""
    [cell] = record.cells
    outputs = cell.outputs
    found = outputs_of(outputs, 1, None)
    notebook = as_notebook([past(1, outputs=outputs)], {}, ())
    nbformat.validate(nbformat.from_dict(notebook))
    nbformat.writes(nbformat.from_dict(notebook)).encode("utf-8")
    json.dumps(found, allow_nan=False)
    return found


def past(number: int, **changes: Any) -> PastRun:
    run = PastRun(number, "1", (), (), "ok", "", None, (), {"run": 0.5}, 1e9)
    return replace(run, **changes)


def bundle(data: Any, *, id: Any = None, metadata: Any = None) -> dict[str, Any]:
    return {"data": data, "metadata": metadata or {}, "transient": {"display_id": id}}


def stream(text: str, output: Output | None = None) -> Output:
    return Output({"output_type": "stream", "name": "stdout"}, Text(text, "", len(text), text.count("\n")))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# ------------------------------------------------------------------------------------------ the recorder


def test_streams_are_merged_and_stand_where_they_were_written() -> None:
    record = recorder()
    for name, text in (("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n")):
        record.stream(name, text)
    record.show("display_data", bundle({"text/plain": "shown"}), None)
    record.stream("stdout", "e\n")
    found = recorded(record)
    texts = [(o.get("name"), o.get("text") or o["data"]["text/plain"]) for o in found]
    assert texts == [
        ("stdout", "a\nb\n"), ("stderr", "c\n"), ("stdout", "d\n"), (None, "shown"), ("stdout", "e\n"),
    ]  # fmt: skip


def test_an_update_replaces_what_was_shown_and_a_clear_removes_all() -> None:
    record = recorder()
    record.stream("stdout", "gone")
    record.clear()
    record.show("display_data", bundle({"text/html": "old"}, id="x"), None)
    record.show("execute_result", bundle({"text/plain": "other"}, id="y"), None)
    record.update(bundle({"text/html": "new"}, id="x", metadata={"isolated": True}), None)
    record.update(bundle({"text/html": "nowhere"}, id=None), None)
    assert recorded(record) == [
        {"output_type": "display_data", "data": {"text/html": "new"}, "metadata": {"isolated": True}},
        {"output_type": "execute_result", "data": {"text/plain": "other"}, "metadata": {}, "execution_count": 1},
    ]


def test_an_update_reaches_the_cell_in_which_its_display_is() -> None:
    record = recorder()
    record.begin(0)
    record.show("display_data", bundle({"text/plain": "old"}, id="x"), None)
    ended = record.begin(1)
    assert ended is not None
    assert record.begin(1) is record.begin(0) is record.begin(7) is None
    record.stream("stdout", "second")
    record.update(bundle({"text/plain": "new"}, id="x"), None)
    record.clear()
    first, second = record.cells
    assert [o.content["data"] for o in ended.outputs] == [{"text/plain": "old"}]
    assert [o.content["data"] for o in first.outputs] == [{"text/plain": "new"}]
    assert second.outputs == ()
    assert first.begun <= first.ended == second.begun <= second.ended


NO_HTML, NO_JSON = (
    {"text/plain": f"[{mime} (no data of that type) left out of this notebook]"}
    for mime in ("text/html", "application/json")
)


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"application/json": {"a": [float("nan"), float("inf"), 1]}}, {"application/json": {"a": [None, None, 1]}}),
        ({"application/json": "\ud800"}, {"application/json": "?"}),
        ({"application/vnd.x.v1+json": nested(50)}, {"application/vnd.x.v1+json": nested(50)}),
        ({"application/json": {"[": '"]\\"[['}}, {"application/json": {"[": '"]\\"[['}}),
        ({"text/plain": "a\ud800\0é"}, {"text/plain": "a?\0é"}),
        ({"text/html": ["<b>", "</b>"]}, {"text/html": "<b></b>"}),
        ({"application/vnd.vegalite.v6.json": {"a": 1}}, {"application/vnd.vegalite.v6+json": {"a": 1}}),
        ({"text/html": {"no": "text"}}, NO_HTML),
        ({"application/json": nested(5000)}, NO_JSON),
        ({"application/json": nested(100_000)}, NO_JSON),
        ({"": "x", "no mime": "x", "text/<script>": "x", "a/b\n": "x", "text/plain": "y"}, {"text/plain": "y"}),
        ("no bundle", {}),
        (None, {}),
    ],
)  # fmt: skip
def test_a_bundle_is_kept_as_valid_json_whatever_was_sent(data: Any, kept: dict[str, Any]) -> None:
    record = recorder()
    record.show("display_data", bundle(data, metadata={"x": float("nan")}), None)
    [output] = recorded(record)
    assert output == {"output_type": "display_data", "data": kept, "metadata": {"x": None}}


@pytest.mark.parametrize(
    "content",
    [
        {}, {"data": []}, {"data": {1: 2}}, {"data": {"text/plain": None}}, {"transient": []},
        {"metadata": nested(9999)},
        {"transient": {"display_id": {}}}, {"data": {"text/plain": 10**400}}, {"metadata": {"a": "x" * 100_000}},
    ],
)  # fmt: skip
def test_messages_of_wrong_types_break_nothing(content: dict[str, Any]) -> None:
    record = recorder()
    for kind in ("display_data", "execute_result"):
        record.show(kind, content, None)
    record.update(content, None)
    record.error(content)
    record.error({"ename": 1, "evalue": None, "traceback": [1, "\ud800", None]})
    assert len(recorded(record)) == 4


def test_beyond_its_bound_a_run_keeps_small_forms_and_says_what_is_missing_and_where_it_is() -> None:
    record = recorder(10_000)
    record.show("display_data", bundle({"image/png": "x" * 20_000, "text/plain": "<Figure>"}), "figure-1.png")
    record.show("display_data", bundle({"text/html": "y" * 9000}), None)
    record.show("display_data", bundle({"text/html": "z" * 9000}), None)
    first, second, third = recorded(record)
    assert first["data"] == {
        "text/plain": "<Figure>\n[image/png of 20,000 bytes left out of this notebook; it is in figure-1.png]"
    }
    assert second["data"] == {"text/html": "y" * 9000}
    assert third["data"] == {"text/plain": "[text/html of 9,000 bytes left out of this notebook]"}


def test_room_comes_back_when_a_display_is_updated_or_cleared() -> None:
    record = recorder(10_000)
    for _ in range(5):
        record.show("display_data", bundle({"text/html": "x" * 9000}, id="bar"), None)
        for _ in range(5):
            record.update(bundle({"text/html": "y" * 9500}, id="bar"), None)
        record.clear()
    record.show("display_data", bundle({"text/html": "z" * 9900}), None)
    assert recorded(record)[0]["data"] == {"text/html": "z" * 9900}


def test_a_hundred_thousand_outputs_are_a_thousand_and_a_note() -> None:
    record = recorder()
    for number in range(100_000):
        record.show("display_data", bundle({"text/plain": str(number)}), None)
    found = recorded(record)
    assert len(found) == 1001
    assert found[-1]["data"]["text/plain"] == "[99000 more outputs left out of this notebook]"


def test_endless_text_is_bounded_and_keeps_head_and_tail() -> None:
    record = recorder(8 << 20)
    for number in range(2000):
        record.stream("stdout", f"{number:09}\n" * 500)
    [output] = recorded(record)
    assert len(output["text"]) < 500_000
    assert output["text"].startswith("000000000\n")
    assert output["text"].endswith("000001999\n")
    assert "characters left out (1,000,000 lines in all); all of it is in output.txt ...]" in output["text"]


def test_text_that_goes_from_one_stream_to_the_other_for_ever_is_bounded_too() -> None:
    record = recorder(1 << 20)
    for _ in range(20_000):
        record.stream("stdout", "o" * 100 + "\n")
        record.stream("stderr", "e" * 100 + "\n")
    found = recorded(record)
    assert len(found) == 1001
    assert sum(len(o.get("text", "")) for o in found) < 1_200_000


# ------------------------------------------------------------------------------------------ the history


def test_the_history_gives_back_what_was_kept(tmp_path: Path) -> None:
    history = History(tmp_path / "history", None)
    runs = [
        past(2, code="é\ud800", error=CodeError("E", "v", "t", 3), status="error", cause="why", packages=("a==1",)),
        past(1, outputs=(stream("hi"), Output({"output_type": "display_data", "data": {}}, None, "p", ("x",)))),
    ]
    for each in runs:
        history.add(each)
    assert history.runs() == [runs[1], replace(runs[0], code="é?")]


def test_large_outputs_of_the_oldest_runs_go_first_and_then_the_oldest_runs(tmp_path: Path) -> None:
    history = History(tmp_path / "history", 100_000)
    big = Output(
        {"output_type": "display_data", "data": {"text/html": "x" * 40_000, "text/plain": "t"}, "metadata": {}}
    )
    small = stream("small")
    for number in range(1, 4):
        history.add(past(number, outputs=(small, big, stream("y" * 4000))))
    first, second, third = history.runs()
    assert [o.content.get("data") for o in first.outputs] == [None, {"text/plain": "t"}, None]
    assert first.outputs[1].left_out == ("text/html of 40,002 bytes",)
    assert second.outputs[1] == third.outputs[1] == big
    for number in range(4, 40):
        history.add(past(number, code="c" * 9000))
    kept = [run.number for run in history.runs()]
    assert kept[-1] == 39
    assert len(kept) < 12
    assert history.forgotten == 39 - len(kept)
    assert sum(file.stat().st_size for file in (tmp_path / "history").iterdir()) <= 100_000
    notebook = as_notebook(history.runs(), {}, (), forgotten=history.forgotten)
    assert f"first {history.forgotten} runs" in notebook["cells"][1]["source"]


def test_the_setting_bounds_what_is_kept(tmp_path: Path) -> None:
    assert config.load({"notebook_bytes": "1M"}, {}).notebook_bytes == 1 << 20
    assert config.load({"notebook_bytes": "none"}, {}).notebook_bytes is None


# ------------------------------------------------------------------------------------------ the forms


def test_the_header_pins_what_was_asked_for_and_what_every_run_has() -> None:
    runs = [
        past(1, requirements=("Six", "uvicorn[standard]>=0.3"), packages=("numpy==1", "six==1.15", "uvicorn==0.30")),
        past(2, requirements=("six==1.16",), packages=("numpy==2", "six==1.16", "other==1")),
    ]
    notebook = as_notebook(runs, {}, ("NumPy", "absent"))
    header = notebook["cells"][0]["source"]
    text = "".join(line.removeprefix("# ") + "\n" for line in header.splitlines()[2:-1])
    assert ast.literal_eval(text.partition("=")[2].strip()) == [
        "NumPy==2", "six==1.16", "uvicorn[standard]==0.30",
    ]  # fmt: skip
    assert notebook["cells"][2]["metadata"]["prims"]["requirements"] == ["six==1.16"]


def test_mounted_files_are_listed_with_their_hash_and_without_the_secrets_of_links() -> None:
    mounted = {"a|`b.csv": Mounted("https://user:pw@host.example/x/a.csv?X-Amz-Signature=secret", 12, "f" * 64, None)}
    notebook = as_notebook([past(1)], mounted, ())
    [file] = notebook["metadata"]["prims"]["mounts"]
    assert file == {
        "path": "mounts/a|`b.csv", "bytes": 12, "sha256": "f" * 64, "source": "https://host.example/x/a.csv",
    }  # fmt: skip
    assert "f" * 64 in notebook["cells"][1]["source"]
    assert "secret" not in json.dumps(notebook)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = 1", "x = 1"),
        ("%time x\ny = 2", "# %time x\ny = 2"),
        ("!ls\n  \n%pip install six", "# !ls\n  \n# %pip install six"),
        ("%%bash\nls", "# %%bash\n# ls"),
        ("# /// script\n# dependencies = []\n# ///\n1", "## /// script\n# dependencies = []\n## ///\n1"),
        ("await f()\n", "# This is no plain Python:\n# await f()\n#"),
        ("def f(:\n", "# This is no plain Python:\n# def f(:\n#"),
    ],
)
def test_the_script_is_python_whatever_the_cells_hold(code: str, text: str) -> None:
    script = as_script(as_notebook([past(1, code=code, status="error")], {}, ()))
    assert script.endswith(f"# %% run1: error\n{text}\n")
    ast.parse(script)
    assert inline(script) == []


HOSTILE = "<script>document.title = 'taken'</script>"


def test_the_page_takes_no_output_for_its_own_html_and_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = f"""<p onclick='1'>table</p><script>
        parent.postMessage({{prims: 'height', value: 1234}}, '*');
        parent.document.title = 'taken';
    </script>{HOSTILE}"""
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'>{HOSTILE}</svg>"
    metadata = {"image/png": {"width": "1 onerror=document.title='taken'"}, "filenames": {"image/png": "file:///x"}}
    bundles: list[dict[str, Any]] = [
        {"text/html": frame, "text/plain": f'">{HOSTILE}'},
        {"image/svg+xml": svg},
        {"image/png": "eA==", "text/plain": f'">{HOSTILE}'},
        {"image/png": f'"{HOSTILE}'},
        {"text/markdown": f"# A\n{HOSTILE}"},
        {"application/javascript": "document.title = 'taken'"},
        {"application/vnd.jupyter.widget-view+json": {"x": HOSTILE}},
        {"text/vnd.mermaid": HOSTILE},
        {"text/latex": HOSTILE},
        {"text/html": frame, "image/png": "eA=="},
        {"application/vnd.plotly.v1+json": {"data": [{"name": f"'\">{HOSTILE}"}]}, "text/html": frame},
        {"application/vnd.plotly.v1+json": {"data": []}},
        {},
    ]
    shown = [Output({"output_type": "display_data", "data": data, "metadata": metadata}) for data in bundles]
    error = {"output_type": "error", "ename": HOSTILE, "evalue": HOSTILE, "traceback": [HOSTILE]}
    run = past(1, code=f"'{HOSTILE}'", outputs=(*shown, stream(HOSTILE), Output(error)), status="error", cause=HOSTILE)
    notebook = as_notebook([run], {f"{HOSTILE}.csv": Mounted("", 1, "f", None)}, ())
    markdown = f'# Title\n\n{HOSTILE}\n\n<img src=x onerror="{HOSTILE}"> [a](javascript:alert(1)) `code`'
    notebook["cells"].append({"cell_type": "markdown", "id": "m", "metadata": {}, "source": markdown})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bleach.py").write_text("raise SystemExit('a module that happens to lie here')")
    page = tmp_path / "page.html"
    page.write_bytes(convert(notebook, "html"))
    text = page.read_text("utf-8")
    assert HOSTILE not in text
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:|//)", text)
    assert "<h1" in text and "<code>code</code>" in text and "<td" in text
    assert "javascript:" not in text
    packed = re.findall(r"<script[^>]* type=.application/gzip.", text)
    assert len(packed) == 1  # plotly, once for all plots; no vega
    assert len(re.findall(r"<iframe[^>]* data-library=.plotly. data-spec=", text)) == 2
    assert len(re.findall(r"<iframe[^>]* srcdoc=", text)) == 1
    assert len(re.findall(r"<img [^>]*src=.data:image/png;base64,eA==", text)) == 2
    assert len(text) < 1_100_000
    browser = which("chromium") or which("chromium-browser") or which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *flags, "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=kit.SECONDS, check=True,
    )  # fmt: skip
    assert "<title>Session</title>" in done.stdout
    # Of the frame only our own script has run, which tells its height.
    heights = re.findall(r'style="height: (\d+)px;"', done.stdout)
    assert heights
    assert "1234" not in heights


def test_without_nbconvert_a_page_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    with pytest.raises(Refused, match=r"pip install 'nbconvert"):
        convert(as_notebook([past(1)], {}, ()), "html")


# ------------------------------------------------------------------------------------------ a real session

CODE = """
import sys
from IPython.display import HTML, clear_output
print("gone")
clear_output()
print("out")
print("err", file=sys.stderr)
shown = display(HTML("<b>old</b>"), display_id=True)
shown.update(HTML("<i>new</i>"))
import matplotlib.pyplot as plt
plt.plot([1, 2])
6 * 7
"""


@pytest.mark.anyio
@pytest.mark.parametrize("client", ["2026-07-28"], indirect=True)
async def test_a_session_is_read_as_a_valid_notebook_with_its_real_outputs(client: Client) -> None:
    first = await kit.run_code(client, CODE)
    session = first.structured_content["session_id"]
    await kit.run_code(client, "import six\nprint(six.__name__)\n1 / 0", requirements=["six"])
    await kit.run_code(client, "print('last words')\nimport os\nos._exit(3)")
    [contents] = (await client.read_resource(f"prims://{session}/notebook.ipynb")).contents
    assert contents.mime_type == "application/x-ipynb+json"
    assert session not in contents.text
    notebook = nbformat.reads(contents.text, as_version=4)
    nbformat.validate(notebook)
    header, one, two, three = notebook.cells
    assert re.search(r'^#   "six==1', header.source, re.M)
    assert [cell.execution_count for cell in (one, two, three)] == [1, 2, 3]
    assert [cell.metadata.prims.status for cell in (one, two, three)] == ["ok", "error", "died"]
    assert one.source == "#\n" + CODE.lstrip("\n")
    assert [o.output_type for o in one.outputs] == [
        "stream",
        "stream",
        "display_data",
        "execute_result",
        "display_data",
    ]
    # Between the two streams no order is kept.
    assert {o.name: o.text for o in one.outputs[:2]} == {"stdout": "out\n", "stderr": "err\n"}
    assert one.outputs[2].data["text/html"] == "<i>new</i>"
    assert one.outputs[3].data == {"text/plain": "42"}
    assert base64.b64decode(one.outputs[4].data["image/png"]).startswith(b"\x89PNG")
    assert two.outputs[0].text == "six\n"
    assert two.outputs[1].ename == "ZeroDivisionError"
    assert two.metadata.prims.requirements == ["six"]
    assert two.metadata.prims.seconds.run >= 0
    assert three.outputs[0].text == "last words\n"
    assert three.outputs[1].ename == "KernelDied"
    script = (await client.read_resource(f"prims://{session}/notebook.py")).contents[0].text
    ast.parse(script)
    whole = contents.text.encode()
    part = (await client.read_resource(f"prims://{session}/notebook.ipynb?offset=5&limit=100")).contents[0]
    assert base64.b64decode(part.blob) == whole[5:105]
    with pytest.raises(MCPError, match=r"notebook\.ipynb"):
        await client.read_resource(f"prims://{session}/notebook.exe")
    templates = (await client.list_resource_templates()).resource_templates
    assert "prims://{session_id}/notebook.ipynb{?offset,limit}" in [t.uri_template for t in templates]


# ------------------------------------------------------------------------------------------ prims run


def prims(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`prims run` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "prims", "run", *arguments],
        cwd=state, env=kit.server_environment(state), capture_output=True, text=True, timeout=kit.SECONDS, check=False,
    )  # fmt: skip


def cell(source: str, *tags: str, **metadata: Any) -> Any:
    return nbformat.v4.new_code_cell(source, metadata={**({"tags": list(tags)} if tags else {}), **metadata})


def write(path: Path, *cells: Any, **metadata: Any) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells), metadata=metadata), path)


def outputs(path: Path) -> list[list[Any]]:
    """What the code cells of a notebook have shown: streams by name, as between them no order is kept."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = {o.name: o.text for o in cell.outputs if o.output_type == "stream"}
            found.append([texts, *(json.loads(json.dumps(o)) for o in cell.outputs if o.output_type != "stream")])
    return found


@pytest.mark.slow
def test_a_notebook_is_run_in_one_kernel_up_to_its_first_error(state: Path) -> None:
    write(
        state / "in.ipynb",
        nbformat.v4.new_markdown_cell("# Title"),
        cell("# /// script\n# dependencies = ['six']\n# ///", "skip-execution"),
        cell("n = 1\nword = 'a'", "parameters"),
        cell("n = 'stale'", "injected-parameters"),
        cell("import six\nprint(six.__name__, n, word)\nshown = display('old', display_id=True)"),
        cell(""),
        cell("def broken():\n    1 / 0\nbroken()", "raises-exception"),
        cell("shown.update('new')\n%time x = n + _ih.index(_ih[-1])\n'__file__' in globals()"),
        cell("print('no end of line', end='')"),
        cell("%%bash\necho $((1 + 1))"),
        cell("print('last')\nbroken()"),
        cell("print('never')"),
    )
    before = (state / "in.ipynb").read_bytes()
    done = prims(state, "in.ipynb", "-p", "n", "41", "-p", "word", "it's", "--notebook", "out.ipynb")
    assert done.returncode == 1, done.stderr
    assert (state / "in.ipynb").read_bytes() == before
    notebook = nbformat.read(state / "out.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert sources[2] == '# Parameters\nn = 41\nword = "it\'s"'
    header, parameters, injected, first, empty, failed, third, part, bash, last, never = outputs(state / "out.ipynb")
    assert header == parameters == injected == empty == never == [{}]
    assert first == [
        {"stdout": "six 41 it's\n"},
        {"output_type": "display_data", "data": {"text/plain": "'new'"}, "metadata": {}},
    ]
    assert failed[1]["ename"] == "ZeroDivisionError"
    assert re.search(r'File "Cell In\[4\]", line 2, in broken', failed[1]["traceback"][0])
    assert "Wall time" in third[0]["stdout"]
    assert third[1]["data"] == {"text/plain": "False"}
    assert part == [{"stdout": "no end of line"}]
    assert bash == [{"stdout": "2\n"}]
    assert last[0] == {"stdout": "last\n"}
    assert last[1]["ename"] == "ZeroDivisionError"
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [None, 1, 2, 3, None, 4, 5, 6, 7, 8, None]
    assert "never" not in done.stdout
    assert "ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.slow
def test_in_place_the_outputs_until_a_timeout_are_kept_and_the_rest_of_the_file_too(state: Path) -> None:
    write(
        state / "in.ipynb",
        cell("print('first')", kept={"a": 1}),
        cell("import time\nprint('second', flush=True)\ntime.sleep(600)"),
        cell("print('third')"),
        author="somebody",
    )
    (state / "in.ipynb").chmod(0o640)
    done = prims(state, "in.ipynb", "--inplace", "--timeout", "3")
    assert done.returncode == 124, done.stderr
    first, second, third = outputs(state / "in.ipynb")
    assert first == [{"stdout": "first\n"}]
    assert second[0] == {"stdout": "second\n"}
    assert second[1]["output_type"] == "error"
    assert third == [{}]
    notebook = nbformat.read(state / "in.ipynb", as_version=4)
    assert notebook.metadata.author == "somebody"
    assert notebook.cells[0].metadata.kept == {"a": 1}
    assert (state / "in.ipynb").stat().st_mode & 0o777 == 0o640
    assert {path.name for path in state.iterdir()} == {"in.ipynb"}


@pytest.mark.slow
def test_outputs_are_written_after_each_cell_and_when_somebody_stops_the_notebook(state: Path) -> None:
    write(state / "in.ipynb", cell("print('first')"), cell("import time\nprint('second', flush=True)\ntime.sleep(600)"))
    with subprocess.Popen(
        [sys.executable, "-m", "prims", "run", "in.ipynb", "--inplace"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=state, env=kit.server_environment(state), text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["first\n", "second\n"]
        assert outputs(state / "in.ipynb") == [[{"stdout": "first\n"}], [{}]]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=kit.SECONDS)
    assert process.returncode == 130
    first, second = outputs(state / "in.ipynb")
    assert first == [{"stdout": "first\n"}]
    assert second[0] == {"stdout": "second\n"}
    assert second[1]["output_type"] == "error"


@pytest.mark.slow
def test_a_script_with_its_requirements_becomes_a_notebook_that_gives_the_same_again(state: Path) -> None:
    (state / "data.csv").write_text("a\n1\n")
    (state / "script.py").write_text(
        '# /// script\n# requires-python = ">=3.8"\n# dependencies = [\n#   "six",\n# ]\n# ///\n'
        "import six\nfrom IPython.display import HTML\nprint(six.__name__, open('mounts/data.csv').read())\n"
        "display(HTML('<b>b</b>'))\n'__file__' in globals()\n"
    )
    done = prims(state, "script.py", "--mount", "data.csv", "--notebook", "first.ipynb")
    assert done.returncode == 0, done.stderr
    first = nbformat.read(state / "first.ipynb", as_version=4)
    assert first.metadata.prims.mounts == [
        {"path": "mounts/data.csv", "bytes": 4, "sha256": hashlib.sha256(b"a\n1\n").hexdigest()}
    ]
    assert str(state) not in (state / "first.ipynb").read_text()
    done = prims(state, "first.ipynb", "--mount", "data.csv", "--notebook", "second.ipynb")
    assert done.returncode == 0, done.stderr
    assert outputs(state / "second.ipynb") == outputs(state / "first.ipynb")
    assert outputs(state / "first.ipynb")[1][-1]["data"] == {"text/plain": "True"}


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_session_that_is_run_again_gives_the_same_outputs(state: Path) -> None:
    codes = (
        ("x = 1\nprint('one')\nx", ()),
        ("x", ()),  # each run is fresh: this fails, also when it is run again
        (
            "import six\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nsix.__version__",
            ("six==1.16.0",),
        ),
        ("import six", ()),
        ("import sys\nprint('err', file=sys.stderr)", ("six",)),
        ("print('out', end='')\nimport os\nos._exit(3)", ()),
    )
    async with kit.connected(state) as client:
        for code, requirements in codes:
            result = await kit.run_code(client, code, requirements=list(requirements))
        session = result.structured_content["session_id"]
        text = (await client.read_resource(f"prims://{session}/notebook.ipynb")).contents[0].text
    (state / "first.ipynb").write_text(text)
    done = await anyio.to_thread.run_sync(prims, state, "first.ipynb", "--inplace")
    assert done.returncode == 0, done.stderr  # what failed has failed before
    nbformat.write(nbformat.reads(text, as_version=4), state / "before.ipynb")
    assert outputs(state / "first.ipynb") == outputs(state / "before.ipynb")
    assert "ModuleNotFoundError" in json.dumps(outputs(state / "first.ipynb")[4])


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_notebook_that_leaves_out_what_says_nothing_is_read_without_a_word(
    tmp_path: Path, start: str, recwarn: pytest.WarningsRecorder
) -> None:
    cells = [
        {"cell_type": "code", "source": "1"},
        {"cell_type": "markdown"},
        {"cell_type": "code", "id": "a", "source": ["2"]},
    ]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "cells": [*cells, {**cells[2], "outputs": []}]}
    (tmp_path / "in.ipynb").write_text(start + json.dumps(notebook), "utf-8")
    [step] = NotebookFile(tmp_path / "in.ipynb").steps()
    assert [cell.code for cell in step.cells] == ["1", "2", "2"]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"), ("-1", "-1"), ("1.5", "1.5"), ("1e3", "1000.0"), ("True", "True"), ("None", "None"),
        ("true", "'true'"),
        ("a'b\n", '"a\'b\\n"'), ("", "''"), ("nan", "float('nan')"), ("-inf", "float('-inf')"), ("[1]", "'[1]'"),
    ],
)  # fmt: skip
def test_a_parameter_is_read_as_papermill_reads_it(tmp_path: Path, text: str, value: str) -> None:
    write(tmp_path / "in.ipynb", cell("pass"))
    file = NotebookFile(tmp_path / "in.ipynb")
    file.set_parameters([("a", text)])
    assert file.notebook.cells[0].source == f"# Parameters\na = {value}"
    assert ast.parse(file.notebook.cells[0].source)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "words"),
    [
        ("a.ipynb", "{", (), "cannot be read as a notebook"),
        ("a.ipynb", "[1]", (), "cannot be read as a notebook"),
        ("a.ipynb", "[" * 100_000, (), "cannot be read as a notebook"),
        ("a.ipynb", '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}', (), "as a notebook"),
        ("a.ipynb", '{"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": []}', (), "no code to run"),
        (
            "a.ipynb",
            '{"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": {"name": "ir", "display_name": "R", '
            '"language": "R"}}, "cells": []}', (), "notebook of R",
        ),
        ("a.ipynb", None, (), "cannot be read"),
        ("a.py", "1", ("--inplace",), "is no notebook"),
        ("a.py", "1", ("-p", "a", "1"), "is no notebook"),
        ("a.py", "1", ("--notebook", "out.exe"), "ends in .ipynb"),
        ("a.py", "1", ("--notebook", "absent/out.ipynb"), "folder is not there"),
        ("a.py", "# /// script\n# dependencies = 1\n# ///\n1", (), "must be a list"),
        ("a.py", "# /// script\n# dependencies = [\n# ///\n1", (), "no TOML"),
        ("a.py", "# /// script\n# dependencies = ['../x']\n# ///\n1", (), "file or folder"),
        ("a.py", "# /// script\n# requires-python = '>=4'\n# ///\n1", (), "wants Python >=4"),
        ("a.py", "# /// script\n# requires-python = 'x'\n# ///\n1", (), "cannot be read"),
        ("a.py", "# /// script\n# a = 1\n# ///\n\n# /// script\n# a = 1\n# ///\n1", (), "more than one"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str | None,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    options = cli._parser().parse_args(["run", name, *arguments])
    with pytest.raises(Refused, match=re.escape(words)):
        run._prepare(config.load({}, {}), options)
    assert content is None or Path(name).read_text() == content


def test_parameters_for_the_notebook_of_a_session_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in.ipynb", cell("a"), prims={"fresh": True})
    with pytest.raises(Refused, match="share nothing"):
        NotebookFile(tmp_path / "in.ipynb").set_parameters([("a", "1")])


def test_a_notebook_of_an_older_format_is_run_too(tmp_path: Path) -> None:
    v3 = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [
        {"cell_type": "code", "input": ["a = 1"], "language": "python", "outputs": [], "metadata": {}},
    ]}]}  # fmt: skip
    (tmp_path / "old.ipynb").write_text(json.dumps(v3))
    file = NotebookFile(tmp_path / "old.ipynb")
    file.set_parameters([("a", "1")])
    [step] = file.steps()
    assert [cell.code for cell in step.cells] == ["# Parameters\na = 1", "a = 1"]
    file.write(tmp_path / "new.ipynb")
    nbformat.validate(nbformat.read(tmp_path / "new.ipynb", as_version=nbformat.NO_CONVERT))
