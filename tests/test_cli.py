"""The command line as a person uses it: real processes, their streams, their exit statuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from prims.server.render import OUTPUT_SCHEMA
from tests import kit


def prims(state: Path, *arguments: str | Path, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """One `prims` command to its end, with `code` on stdin."""
    return subprocess.run(
        [sys.executable, "-m", "prims", *arguments],
        input=code, cwd=state, env={**kit.server_environment(state), **environ},
        capture_output=True, text=True, timeout=kit.SECONDS, check=False,
    )  # fmt: skip


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What can be read up to `wanted` or to the end, within the bound of all waits."""
    data, deadline = b"", time.monotonic() + kit.SECONDS
    while wanted not in data:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"{wanted!r} did not come, only {data!r}"
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # what a terminal gives at its end
            break
        if not piece:
            break
        data += piece
    return data


def test_prims_alone_prints_help_on_a_terminal_instead_of_waiting(state: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "prims"],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=state, env=kit.server_environment(state),
        ) as process:  # fmt: skip
            os.close(theirs)
            text = read_until(ours, b"\0never").decode()
            assert process.wait(timeout=kit.SECONDS) == 0
    finally:
        os.close(ours)
    assert "usage: prims" in text
    for command in ("serve", "run", "doctor"):
        assert f"\n    {command} " in text.replace("\r", "")


def test_the_version_is_the_packages(state: Path) -> None:
    from prims import __version__

    assert prims(state, "--version").stdout == f"prims {__version__}\n"


def test_every_command_explains_its_settings(state: Path) -> None:
    for command in ("serve", "run", "doctor"):
        text = prims(state, command, "--help").stdout
        assert "--memory-bytes" in text
        assert "PRIMS_NAME" in text


def test_code_from_stdin_runs_and_its_streams_stay_apart(state: Path) -> None:
    done = prims(state, "run", "-", code="import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out\n42\n"
    assert "err\n" in done.stderr
    assert "prims: ok in " in done.stderr


def test_json_is_the_structured_result_and_nothing_else(state: Path) -> None:
    done = prims(state, "run", "-", "--json", code="print('out')\n1 / 0\n")
    assert done.returncode == 1
    structured = json.loads(done.stdout)
    Draft202012Validator(OUTPUT_SCHEMA).validate(structured)
    assert (structured["status"], structured["stdout"], structured["error"]["line"]) == ("error", "out\n", 2)
    assert "out" not in done.stderr.split()


def test_a_figure_and_a_file_are_saved_and_named(state: Path) -> None:
    code = """
import matplotlib.pyplot as plt
plt.plot([3, 1, 2])
plt.show()
open("output/a.csv", "w").write("x\\n1\\n")
"""
    done = prims(state, "run", "-", "--output", "kept", code=code)
    assert done.returncode == 0, done.stderr
    [picture] = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("picture: ")]
    assert Path(picture).parent == state / "kept"
    assert Path(picture).read_bytes().startswith(b"\x89PNG\r\n")
    assert f"file:    {state / 'kept' / 'a.csv'} (4 bytes)\n" in done.stderr
    assert (state / "kept" / "a.csv").read_text() == "x\n1\n"


def test_a_file_that_cannot_be_saved_is_told_and_the_rest_is_kept(state: Path) -> None:
    code = "# -*- coding: latin-1 -*-\nprint('é')\nfor name in 'ab':\n    open('output/' + name, 'w').write(name)\n"
    (state / "latin.py").write_text(code, "latin-1")
    (state / "kept" / "a").mkdir(parents=True)
    done = prims(state, "run", "latin.py", "--output", "kept")
    assert (done.returncode, done.stdout) == (0, "é\n"), done.stderr
    assert f"{state / 'kept' / 'a'} cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert (state / "kept" / "b").read_text() == "b"


def test_a_mounted_file_is_read_as_mounts_name_and_cannot_be_written(state: Path) -> None:
    (state / "in put.txt").write_text("given")
    code = """
print(open("mounts/in put.txt").read())
try:
    open("mounts/in put.txt", "w")
except OSError as problem:
    print(type(problem).__name__)
"""
    done = prims(state, "run", "-", "--mount", "in put.txt", code=code)
    given, refused = done.stdout.splitlines()
    assert given == "given"
    assert refused in ("PermissionError", "OSError")
    assert (state / "in put.txt").read_text() == "given"


@pytest.mark.parametrize(
    ("code", "arguments", "status"),
    [
        ("raise SystemExit(0)", (), 0),
        ("raise ValueError('no')", (), 1),
        ("import os; os._exit(7)", (), 70),
        ("while True: pass", ("--timeout", "0.5"), 124),
    ],
    ids=["exit", "error", "died", "timeout"],
)
def test_the_exit_status_says_how_a_run_ended(
    state: Path, code: str, arguments: tuple[str, ...], status: int
) -> None:
    done = prims(state, "run", "-", *arguments, code=code)
    assert done.returncode == status, done.stderr


def test_the_traceback_is_that_of_the_code_and_on_stderr(state: Path) -> None:
    (state / "broken.py").write_text("def f():\n    raise ValueError('no')\n\nf()\n")
    done = prims(state, "run", "broken.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert "line 4" in done.stderr
    assert "ValueError: no\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "absent.py"), "absent.py cannot be read"),
        (("run", "-", "--mount", "absent.csv"), "absent.csv cannot be mounted"),
        (("run", "-", "--timeout", "100000"), "at most 600"),
        (("run", "-", "--with", "../evil"), "evil"),
        (("run", "-", "--output", "/dev/null"), "--output"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(state: Path, arguments: tuple[str, ...], words: str) -> None:
    done = prims(state, *arguments, code="print(1)")
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_setting_is_an_error_that_names_it(state: Path) -> None:
    for command in (["serve"], ["run", "-"], ["doctor"]):
        done = prims(state, *command, PRIMS_MEMORY="1G")
        assert (done.returncode, done.stdout) == (2, "")
        assert "PRIMS_MEMORY is not a setting" in done.stderr
    done = prims(state, "run", "-", "--memory-bytes", "lots")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--memory-bytes must be a number or none" in done.stderr


def test_ctrl_c_ends_the_run_and_keeps_what_it_gave(state: Path) -> None:
    code = "import time\nopen('output/early.txt', 'w').write('kept')\nprint('ready', flush=True)\ntime.sleep(600)\n"
    (state / "slow.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "-m", "prims", "run", "slow.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=state, env=kit.server_environment(state),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert read_until(process.stdout.fileno(), b"ready\n") == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=kit.SECONDS)
    assert process.returncode == 130
    assert b"prims: cancelled" in stderr
    assert (state / "output" / "early.txt").read_text() == "kept"
    assert not kit.processes_with(str(state))


def test_a_reader_that_goes_away_ends_the_run_quietly(state: Path) -> None:
    (state / "many.py").write_text("while True:\n    print('line')\n")
    with subprocess.Popen(
        [sys.executable, "-m", "prims", "run", "many.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=state, env=kit.server_environment(state),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        read_until(process.stdout.fileno(), b"line\n")
        process.stdout.close()
        assert process.stderr is not None
        stderr = read_until(process.stderr.fileno(), b"\0never")
        assert process.wait(timeout=kit.SECONDS) == 130
    assert b"Traceback" not in stderr
    assert b"BrokenPipe" not in stderr


def test_a_run_leaves_nothing_behind_but_its_output(state: Path) -> None:
    folder = state / "state"
    done = prims(state, "run", "-", "--state-dir", folder, code="open('left.txt', 'w').write('x'); print(1)")
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    assert not (state / "output").exists()


def test_doctor_says_that_this_machine_can_run_code(state: Path) -> None:
    done = prims(state, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert [c["detail"] for c in told["checks"]["walls"]] == ["bubblewrap"]
    for about, names in {
        "this machine": {"python", "uv", "sessions", "packages"},
        "bubblewrap": {"start", "seccomp", "loopback network", "files outside"},
        "limits": {
            "processes", "open files", "file size", "temporary files", "memory of one process", "memory of a run",
            "processor time", "output", "bytes of a session", "files of a session", "time",
        },
    }.items():  # fmt: skip
        assert names - {check["name"] for check in told["checks"][about] if check["ok"]} == set(), told["checks"][about]


TOO_OLD = """
import sys
from prims.isolation import wrapper
wrapper.landlock_abi = lambda: 2
from prims.cli import main
sys.exit(main())
"""
# A bubblewrap that fails as it does on such a machine.
FAILING = "#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.8.0 || {{ echo '{}' >&2; exit 1; }}\n"


@pytest.mark.parametrize(
    ("isolation", "said", "env", "detail", "advice"),
    [
        ("bubblewrap", None, {}, "bubblewrap is not installed", "apt-get install bubblewrap"),
        ("bubblewrap", "bwrap: setting up uid map: Permission denied", {}, "uid map", "bwrap-userns-restrict"),
        ("bubblewrap", "bwrap: Unknown option --size", {}, "Unknown option", "0.8 or later is better"),
        (
            "bubblewrap", "bwrap: Can'\\''t mount proc on /newroot/proc: Operation not permitted", {},
            "mount proc", "systempaths=unconfined",
        ),
        ("bubblewrap", "namespaces", {"container": "docker"}, "new namespace", "seccomp=unconfined"),
        ("bubblewrap", "namespaces", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "new namespace", "--cap-add SYS_ADMIN"),
        ("landlock", "landlock", {}, "Landlock is not to be had here", "security/lsm"),
        ("landlock", "too old", {}, "it worked", "Linux 6.2 or later"),
    ],
    ids=[
        "no bubblewrap", "AppArmor", "old bubblewrap", "masked proc", "Docker", "Kubernetes", "no Landlock",
        "old Landlock",
    ],
)  # fmt: skip
def test_on_a_machine_that_refuses_doctor_says_what_to_do(
    state: Path, isolation: str, said: str | None, env: dict[str, str], detail: str, advice: str
) -> None:
    command = [sys.executable, "-m", "prims"]
    env = {**kit.server_environment(state), "PRIMS_DEFAULT_PACKAGES": "", **env}
    if said in ("namespaces", "landlock"):
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("refusing.py")), said, *command]
    elif said == "too old":
        as_user = ["unshare", "-U", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
        command = [*as_user, sys.executable, "-c", TOO_OLD]
    else:
        env["PATH"] = str(state)
        if said is not None:
            (state / "bwrap").write_text(FAILING.format(said))
            (state / "bwrap").chmod(0o755)
    done = subprocess.run(
        [*command, "doctor", "--isolation", isolation],
        env=env, cwd=state, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told = done.stdout.partition(f"\n{isolation}\n")[2]
    assert detail in told and advice in told, done.stdout
    assert re.search(r"DOES NOT +walls ", told)


def test_where_neither_walls_can_be_had_doctor_and_run_say_what_stands_in_the_way(state: Path) -> None:
    refusing = [sys.executable, "-I", "-S", str(Path(__file__).with_name("refusing.py")), "namespaces,landlock"]
    for command, code in (("doctor", 1), ("run", 3)):
        done = subprocess.run(
            [*refusing, sys.executable, "-m", "prims", command, *(["-"] if command == "run" else [])],
            env=kit.server_environment(state),
            input="print(1)",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        said = done.stdout + done.stderr
        assert "new namespace" in said.lower()
        assert "Landlock is not to be had here" in said
        assert "seccomp=unconfined" in said or "max_user_namespaces" in said
        assert "security/lsm" in said


def test_without_bubblewrap_a_run_is_refused_and_says_what_to_install(state: Path) -> None:
    done = prims(state, "run", "-", "--isolation", "bubblewrap", code="print('ran')", PATH=str(state))
    assert (done.returncode, done.stdout) == (3, "")
    assert "apt-get install bubblewrap" in done.stderr


def test_isolation_none_runs_without_bubblewrap_and_says_so(state: Path) -> None:
    done = prims(state, "run", "-", "--isolation", "none", code="print('ran')", PATH=str(state))
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "isolation none" in done.stderr


def test_show_config_prints_what_is_in_force_and_starts_nothing(state: Path) -> None:
    file = state / "prims.toml"
    file.write_text('transport = "http"\nport = 1\nrun_seconds = 5\nprocesses = 64\nallow_dir = ["/data"]\n')
    folder = state / "sessions"
    done = prims(
        state, "serve", "--show-config", "--config", file, "--run-seconds", "7",
        PRIMS_PROCESSES="128", PRIMS_TOKEN="a-secret-of-the-operator", PRIMS_STATE_DIR=str(folder),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    told = tomllib.loads(done.stdout)
    assert (told["run_seconds"], told["processes"], told["transport"], told["allow_dir"]) == (7, 128, "http", ["/data"])
    assert (told["port"], told["memory_bytes"]) == (1, 2 << 30)
    assert "a-secret-of-the-operator" not in done.stdout
    assert not folder.exists()


def test_a_wrong_settings_file_is_an_error_that_names_it(state: Path) -> None:
    file = state / "prims.toml"
    file.write_text("memory = '1G'\n")
    for named in ({"PRIMS_CONFIG": str(file)}, {}):
        arguments = [] if named else ["--config", file]
        done = prims(state, "serve", "--show-config", *arguments, **named)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"memory in {file} is not a setting" in done.stderr
        assert "memory_bytes" in done.stderr
    done = prims(state, "run", "-", "--config", state / "absent.toml", code="print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent.toml" in done.stderr


def test_a_flag_for_a_list_can_be_given_again_and_again(state: Path) -> None:
    words = ["--allow-host", "a.example", "--allow-host", "b.example:8080,c.example", "--show-config"]
    done = subprocess.run(
        [sys.executable, "-m", "prims", "serve", *words],
        env=kit.server_environment(state),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'allow_host = ["a.example", "b.example:8080", "c.example"]' in done.stdout
