"""The `prims` kernelspec as others use it: plain jupyter_client, nbclient, and the test suite for Jupyter kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jupyter_kernel_test
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from prims.isolation import bubblewrap, limits
from tests.processes import alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed"),
]

SECONDS = 90


class Room:
    """A temporary folder of its own for this process, so that whatever a kernel leaves is seen."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pt-"))
        self._before, tempfile.tempdir = tempfile.tempdir, str(self.folder)

    def leave(self) -> list[str]:
        """Go back to the usual folder; gives what was left."""
        tempfile.tempdir = self._before
        left = [*self.runs(), *(path.name for path in self.folder.iterdir() if path != self.state)]
        shutil.rmtree(self.folder)
        return left

    @property
    def state(self) -> Path:
        """The folder for all runs of a user, which stays when it is empty."""
        return self.folder / f"prims-{os.getuid()}"

    def runs(self) -> list[str]:
        """What lies in it."""
        return [path.name for path in self.state.iterdir()] if self.state.exists() else []


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    assert room.leave() == []


def tree_of(manager: KernelManager) -> list[int]:
    """The processes of a kernel, from outside."""
    process = manager.provisioner.process  # type: ignore[union-attr]
    pids = limits.tree(process.pid)
    assert len(pids) >= 3  # bwrap, its first process inside, the kernel
    return pids


def told(client: BlockingKernelClient, code: str) -> dict[str, Any]:
    """The contents of what `code` gives, by message type; text is joined."""
    seen: dict[str, Any] = {"stdout": "", "stderr": ""}

    def note(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            seen[content["name"]] += content["text"]
        else:
            seen[message["msg_type"]] = content

    seen["reply"] = client.execute_interactive(code, output_hook=note, timeout=SECONDS)["content"]
    return seen


# ------------------------------------------------------------------------------------ the official tests


class InRoom:
    """Class-wide set-up of the official test cases: nothing may be left of their kernels."""

    room: Room

    @classmethod
    def setUpClass(cls) -> None:
        cls.room = Room()
        super().setUpClass()  # type: ignore[misc]

    @classmethod
    def tearDownClass(cls) -> None:
        pids = tree_of(cls.km)  # type: ignore[attr-defined]
        super().tearDownClass()  # type: ignore[misc]
        assert alive(pids) == []
        assert cls.room.leave() == []


class TestMessages(InRoom, jupyter_kernel_test.KernelTests):
    kernel_name = "prims"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oh', file=sys.stderr)"
    code_generate_error = "raise ValueError('wrong')"
    code_page_something = "print?"
    code_inspect_sample = "print"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    completion_samples: ClassVar = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "impor", "matches": {"import"}},
    ]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "'ä'", "result": "'ä'"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import JSON, display; display(JSON({'a': 1}))", "mime": "application/json"},
        {"code": "import matplotlib.pyplot as plt; plt.plot([1, 2]);", "mime": "image/png"},
    ]
    supported_history_operations = ("tail", "search")  # type: ignore[assignment]  # as ipykernel
    code_history_pattern = "1?2*"


class TestWelcome(InRoom, jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = "prims"
    support_iopub_welcome = True


# ---------------------------------------------------------------------------------- what notebooks rely on


@pytest.fixture
def kernel(room: Room) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name="prims", startup_timeout=SECONDS)
    try:
        yield manager, client
    finally:
        process = manager.provisioner.process  # type: ignore[union-attr]
        pids = limits.tree(process.pid) if process else []
        client.stop_channels()
        manager.shutdown_kernel()
    assert alive(pids) == []


Started = tuple[KernelManager, BlockingKernelClient]


def test_a_notebook_kernel_is_behind_the_walls(kernel: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = kernel
    outside = str(Path(__file__).resolve())
    seen = told(
        client,
        "import os, socket\n"
        f"print(os.getuid() == 0, os.path.exists({outside!r}), {os.getpid()} in map(int, "
        "filter(str.isdigit, os.listdir('/proc'))), [n for _, n in socket.if_nameindex()], os.getcwd())\n"
        "print([k for k in os.environ if 'PRIMS' in k or 'PYTEST' in k])",
    )
    assert seen["stdout"] == "False False False ['lo'] /workspace\n[]\n"


def test_variables_and_files_of_a_notebook_last_from_cell_to_cell(kernel: Started) -> None:
    _, client = kernel
    assert told(client, "x = 20\nopen('output/a.txt', 'w').write('b')")["reply"]["status"] == "ok"
    assert told(client, "print(x + 1, open('output/a.txt').read())")["stdout"] == "21 b\n"


def test_a_notebook_may_ask_its_user(kernel: Started) -> None:
    _, client = kernel
    answered: list[str] = []

    def answer(message: dict[str, Any]) -> None:
        answered.append(message["content"]["prompt"])
        client.input("Ada")

    shown: list[str] = []
    client.execute_interactive(
        "print('hello', input('name? '))",
        allow_stdin=True,
        stdin_hook=answer,
        output_hook=lambda m: shown.append(m["content"].get("text", "")),
        timeout=SECONDS,
    )
    assert answered == ["name? "]
    assert "hello Ada\n" in shown


def test_an_interrupt_stops_a_cell_and_keeps_the_kernel(kernel: Started) -> None:
    manager, client = kernel
    told(client, "x = 1")
    request = client.execute("print('go', flush=True)\nwhile True: pass", stop_on_error=False)
    while client.get_iopub_msg(timeout=SECONDS)["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=SECONDS))["parent_header"]["msg_id"] != request:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert told(client, "print(x)")["stdout"] == "1\n"


def test_a_restart_gives_a_new_process_to_the_same_client_and_keeps_the_files(kernel: Started) -> None:
    manager, client = kernel
    # Links to the outside in place of the sockets' folder: the server must not follow them.
    told(
        client,
        "import os, glob\nopen('kept', 'w').close(); x = 1\n"
        "(folder,) = glob.glob('/run/prims/k*')\nos.rename(folder, folder + '.old')\nos.symlink('/tmp', folder)",
    )
    first = tree_of(manager)
    manager.restart_kernel()
    assert alive(first) == []
    client.wait_for_ready(timeout=SECONDS)
    assert told(client, "import os; print(os.path.exists('kept'), 'x' in globals())")["stdout"] == "True False\n"
    second = tree_of(manager)
    manager.restart_kernel(now=True)
    assert alive(second) == []
    client.wait_for_ready(timeout=SECONDS)
    assert told(client, "1")["execute_result"]["data"]["text/plain"] == "1"


def test_a_kernel_that_ended_itself_leaves_nothing(kernel: Started) -> None:
    manager, client = kernel
    client.execute("import os; os._exit(3)")
    manager.provisioner.process.wait(SECONDS)  # type: ignore[union-attr]
    assert not manager.is_alive()


def test_a_kernel_that_cannot_be_started_leaves_nothing(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(room.folder))
    monkeypatch.setenv("PRIMS_ISOLATION", "bubblewrap")
    with pytest.raises(Exception, match="apt-get install bubblewrap"):
        KernelManager(kernel_name="prims").start_kernel()


def test_what_a_killed_notebook_server_left_is_swept_by_the_next_kernel(room: Room) -> None:
    program = (
        f"import os, tempfile; tempfile.tempdir = {str(room.folder)!r}\n"
        "from jupyter_client.manager import KernelManager\n"
        "KernelManager(kernel_name='prims').start_kernel()\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=SECONDS)
    (left,) = room.runs()
    manager, client = start_new_kernel(kernel_name="prims", startup_timeout=SECONDS)
    assert left not in room.runs()
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_many_kernels_live_side_by_side(room: Room) -> None:
    started = [start_new_kernel(kernel_name="prims", startup_timeout=SECONDS) for _ in range(3)]
    pids = [pid for manager, _ in started for pid in tree_of(manager)]
    for number, (_, client) in enumerate(started):
        told(client, f"x = {number}")
    assert [told(client, "print(x)")["stdout"] for _, client in started] == ["0\n", "1\n", "2\n"]
    for manager, client in started:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert alive(pids) == []


def test_nbclient_executes_a_notebook_in_the_sandbox(room: Room) -> None:
    new = nbformat.v4
    cells = [
        "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2, 3]})\nprint('rows', len(frame))",
        "import os, sys\nprint(os.getuid() != 0, file=sys.stderr)\nframe['a'].sum()",
        "import matplotlib.pyplot as plt\nplt.plot(frame['a']);",
    ]
    notebook = new.new_notebook(cells=[new.new_code_cell(code) for code in cells])
    NotebookClient(notebook, kernel_name="prims", timeout=SECONDS).execute()
    texts, values, figures = (cell.outputs for cell in notebook.cells)
    assert [(o.name, o.text) for o in texts] == [("stdout", "rows 3\n")]
    assert [(o.name, o.text) for o in values[:1]] == [("stderr", "True\n")]
    assert values[1].data["text/plain"] in ("6", "np.int64(6)")
    assert figures[-1].data["image/png"].startswith("iVBORw0KGgo")


def test_nbclient_tells_of_an_error_in_a_cell_and_ends_the_kernel(room: Room) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1/0")])
    runner = NotebookClient(notebook, kernel_name="prims", timeout=SECONDS)
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        runner.execute()
    assert notebook.cells[0].outputs[0].ename == "ZeroDivisionError"
    assert room.runs() == []
