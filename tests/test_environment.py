"""Environments, with the real uv and real directories; a fake installer only where no process may start."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute

from prims.config import Settings, tool_environment
from prims.errors import ConfigError, InstallError, ShuttingDown
from prims.kernel import uv
from prims.kernel.environment import KERNEL, Base, Environment, Environments, plan
from prims.kernel.layers import FRESH_SECONDS, Resolution, Store
from prims.kernel.uv import Pins
from prims.kernel.uv_words import explain
from prims.kernel.venv import create_venv

PATIENCE = 240.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def settings(cache: Path, *default: str, seconds: float = 200.0) -> Settings:
    return Settings(cache_dir=cache, default_packages=default, install_seconds=seconds)


def unreachable() -> dict[str, str]:
    """An environment in which every connection is refused; not part of what names a resolution."""
    return {**tool_environment(), "ALL_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "", "UV_HTTP_RETRIES": "0"}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


async def asked(cache: Path, *requirements: str, env: dict[str, str] | None = None) -> Environment:
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(cache, "numpy"), env or tool_environment()) as environments:
            return await environments.for_requirements(requirements)


# ------------------------------------------------------------------------------------- deciding (pure)


BASE = Base(kernel=("ipykernel==7.0", "traitlets==5.1"), default=("numpy==2.0",))


def test_a_call_that_changes_no_pin_gets_a_layer_of_the_rest_only() -> None:
    got = plan(BASE, ("ipykernel==7.0", "numpy==2.0", "six==1.0", "traitlets==5.1"))
    assert got.layers == (("six==1.0",), BASE.default, BASE.kernel)
    assert not got.kernel_moved


def test_a_call_that_needs_nothing_more_gets_no_layer() -> None:
    assert plan(BASE, BASE.pins).layers == (BASE.default, BASE.kernel)
    assert plan(Base(BASE.kernel, ()), BASE.kernel).layers == (BASE.kernel,)


def test_a_moved_kernel_pin_takes_the_whole_kernel_into_the_calls_layer() -> None:
    got = plan(BASE, ("ipykernel==7.0", "numpy==2.0", "traitlets==5.0"))
    assert got.layers == (("ipykernel==7.0", "traitlets==5.0"), BASE.default)
    assert got.kernel_moved


def test_a_moved_default_pin_takes_the_defaults_into_the_calls_layer() -> None:
    got = plan(BASE, ("ipykernel==7.0", "numpy==1.0", "traitlets==5.1"))
    assert got.layers == (("numpy==1.0",), BASE.kernel)
    assert not got.kernel_moved


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("error: No solution found when resolving dependencies\n  cause: Because numpyy was not found in the package\n"
         "  registry and you require numpyy, we can", "unknown", "Did you mean numpy?"),
        ("error: Failed to download `tiny==1.0`\n  cause: Failed to extract archive: tiny-1.0-py3-none-any.whl\n"
         "  cause: Invalid zip file structure", "other", "file of tiny .* is damaged"),
        ("error: No solution found when resolving dependencies\n  cause: Because tiny==1.0 has an invalid package"
         " format and only tiny==1.0 is", "other", "file of tiny .* is damaged"),
        ("error: Failed to install: a.whl\n  cause: failed to copy file from /a to /b: No space left on device"
         " (os error 28)", "other", "disk of the package cache is full"),
    ],
)  # fmt: skip
def test_words_of_uv_are_understood(text: str, reason: str, words: str) -> None:
    error = explain(text, ["numpyy"])
    assert error.reason == reason and re.search(words, str(error))


def test_a_package_name_cannot_forge_a_reason_and_passwords_stay_out() -> None:
    text = "error: something broke at http://user:secret@host/simple/dns-error-tcp-connect-error/"
    error = explain(text, ["dns-error"])
    assert error.reason == "other"
    assert "secret" not in error.log + str(error)


def test_bad_default_packages_are_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="default_packages"):
        Environments(settings(tmp_path, "../evil"), {})


# -------------------------------------------------------------------------------------- what is on disk


def built(scratch: Path) -> Path:
    target = scratch / "layer"
    (target / "six").mkdir(parents=True)
    return target


def test_a_layer_appears_whole_and_a_second_one_is_thrown_away(tmp_path: Path) -> None:
    store = Store(tmp_path, "")
    pins = ("six==1.0",)
    assert store.present(pins) is None
    for _ in range(2):
        scratch = store.scratch()
        layer = store.adopt(built(scratch.path), dict.fromkeys(pins, ()), scratch, "/usr/bin/python3")
        scratch.remove()
        assert store.present(pins) == layer
    assert [p.name for p in (tmp_path / "layers").iterdir()] == [layer.name]
    assert layer.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("gone", [".prims-layer.json", "six"])
def test_a_damaged_layer_is_replaced(tmp_path: Path, gone: str) -> None:
    store = Store(tmp_path, "")
    pins = ("six==1.0",)
    for again in (True, False):
        scratch = store.scratch()
        layer = store.adopt(built(scratch.path), dict.fromkeys(pins, ()), scratch, "/usr/bin/python3")
        scratch.remove()
        if again:
            (layer / gone).rename(tmp_path / "taken")
            assert store.present(pins) is None
    assert store.present(pins) == layer


def test_what_a_dead_builder_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from prims.kernel.layers import Store;"
        "s = Store(Path(sys.argv[1]), '').scratch(); (s.path / 'f').touch(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    store = Store(tmp_path, "")
    living = store.scratch()
    assert len(list((tmp_path / "builds").iterdir())) == 4
    store.sweep()
    assert {p.name for p in (tmp_path / "builds").iterdir()} == {living.path.name, f"{living.path.name}.lock"}
    living.remove()
    assert list((tmp_path / "builds").iterdir()) == []
    assert list((tmp_path / "layers").iterdir()) == []  # which code sees, and could lock


def test_scripts_find_python_by_path_and_hard_links_stay_untouched(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", "")
    scratch = store.scratch()
    target = built(scratch.path)
    (target / "bin").mkdir()
    original = tmp_path / "original"
    original.write_text("#!/opt/python\nprint(1)\n")
    (target / "bin/direct").hardlink_to(original)
    (target / "bin/shell").write_text("#!/bin/sh\n'''exec' '/opt/py thon' \"$0\" \"$@\"\n' '''\nprint(2)\n")
    (target / "bin/other").write_text("#!/bin/sh\necho 3\n")
    layer = store.adopt(target, {"six==1.0": ()}, scratch, "/opt/python")
    scratch.remove()
    assert (layer / "bin/direct").read_text() == "#!/usr/bin/env python3\nprint(1)\n"
    assert (layer / "bin/shell").read_text() == "#!/usr/bin/env python3\nprint(2)\n"
    assert (layer / "bin/other").read_text() == "#!/bin/sh\necho 3\n"
    assert original.read_text() == "#!/opt/python\nprint(1)\n"


def test_resolutions_age_and_damaged_ones_are_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path, "")
    found = Resolution(("six==1.0",), left_out=("numpy",))
    store.remember(("q",), found)
    remembered = store.recall(("q",))
    assert remembered is not None and remembered.fresh and remembered.resolution == found
    age(tmp_path)
    remembered = store.recall(("q",))
    assert remembered is not None and not remembered.fresh
    assert Store(tmp_path, "another index").recall(("q",)) is None
    [file] = (tmp_path / "resolutions").iterdir()
    file.write_text("{")
    assert store.recall(("q",)) is None


def age(cache: Path) -> None:
    """Make every remembered resolution one that is no longer fresh."""
    for file in (cache / "resolutions").iterdir():
        data = json.loads(file.read_text())
        file.write_text(json.dumps({**data, "time": data["time"] - FRESH_SECONDS - 1}))


# ------------------------------------------------------------------------- waiting, with a fake installer


@dataclass
class FakeInstaller:
    """Resolves a name to version 1 at once; installing waits for `gate`."""

    gate: anyio.Event = field(default_factory=anyio.Event)
    installing: anyio.Event = field(default_factory=anyio.Event)
    resolved: list[tuple[str, ...]] = field(default_factory=list)
    installed: list[tuple[str, ...]] = field(default_factory=list)
    compiling: anyio.Event | None = None
    compiled: list[Path] = field(default_factory=list)
    stopped: int = 0

    async def resolve(self, requirements: Sequence[str], scratch: Path, **_: object) -> Pins:
        self.resolved.append(tuple(requirements))
        return dict.fromkeys(sorted(f"{r.partition('>')[0]}==1" for r in requirements), ())

    async def add(
        self, requirements: Sequence[str], target: Path, scratch: Path, **_: object
    ) -> tuple[str, ...]:
        pins = await self.resolve(requirements, scratch)
        await self.install(pins, target, scratch)
        return tuple(pins)

    async def hashes(self, pins: Sequence[str], scratch: Path) -> Pins:
        return dict.fromkeys(pins, ("sha256:" + 64 * "0",))

    async def install(self, pins: Pins, target: Path, scratch: Path) -> None:
        self.installing.set()
        try:
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped += 1
            raise
        await anyio.Path(target).mkdir(exist_ok=True)
        self.installed.append(tuple(pins))

    async def compile(self, folder: Path) -> None:
        self.compiled.append(folder)
        if self.compiling:
            await self.compiling.wait()


@pytest.mark.anyio
async def test_a_cancelled_waiter_takes_nothing_from_the_others(tmp_path: Path) -> None:
    fake = FakeInstaller()
    told: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path), {}, installer=fake) as environments:
            got: list[Environment] = []

            async def wait() -> None:
                got.append(await environments.base(told.append))

            async with anyio.create_task_group() as others, anyio.create_task_group() as first:
                first.start_soon(environments.base)
                await fake.installing.wait()
                others.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
                fake.gate.set()
    assert [e.packages for e in got] == [("ipykernel==1",)]
    assert told == ["installing ipykernel"]
    assert fake.installed == [("ipykernel==1",)]


@pytest.mark.anyio
async def test_the_last_waiter_of_a_call_ends_its_build_and_leaves_nothing(tmp_path: Path) -> None:
    fake = FakeInstaller()
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path), {}, installer=fake) as environments:
            fake.gate.set()
            await environments.base()
            fake.gate, fake.installing = anyio.Event(), anyio.Event()
            async with anyio.create_task_group() as callers:
                callers.start_soon(environments.for_requirements, ("six",))
                await fake.installing.wait()
                callers.cancel_scope.cancel()
            fake.gate.set()
            environment = await environments.for_requirements(("six",))
    assert fake.stopped == 1
    assert "six==1" in environment.packages
    assert not [p for p in (tmp_path / "layers").iterdir() if p.name.startswith(".")]


@pytest.mark.anyio
async def test_closing_tells_waiters_and_newcomers_so(tmp_path: Path) -> None:
    fake = FakeInstaller()
    errors: list[Exception] = []

    async def wait() -> None:
        try:
            await environments.base()
        except Exception as e:
            errors.append(e)

    with anyio.fail_after(PATIENCE):
        async with (
            anyio.create_task_group() as callers,
            Environments(settings(tmp_path), {}, installer=fake) as environments,
        ):
            callers.start_soon(wait)
            await fake.installing.wait()
        with pytest.raises(ShuttingDown):
            await environments.base()
    assert [type(e) for e in errors] == [ShuttingDown]
    assert not list((tmp_path / "layers").iterdir())


@pytest.mark.anyio
async def test_what_leaves_the_body_leaves_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with Environments(settings(tmp_path), {}, installer=FakeInstaller()):
            raise KeyError
    fake = FakeInstaller()

    async def body() -> None:
        async with Environments(settings(tmp_path), {}, installer=fake) as environments:
            await environments.base()

    with anyio.fail_after(PATIENCE):
        # Cancelled by a scope around it, then by asyncio, both with a build under way.
        async with anyio.create_task_group() as callers:
            callers.start_soon(body)
            await fake.installing.wait()
            callers.cancel_scope.cancel()
        fake.installing = anyio.Event()
        task = asyncio.create_task(body())
        await fake.installing.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert fake.stopped == 2
    assert not list((tmp_path / "layers").iterdir())


@pytest.mark.anyio
async def test_a_call_that_is_late_says_the_limit(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with Environments(
            settings(tmp_path, seconds=0.3), {}, installer=FakeInstaller()
        ) as environments:
            with pytest.raises(InstallError, match=r"within 0.3 s \(install_seconds\)") as caught:
                await environments.base()
    assert caught.value.reason == "timeout"


@pytest.mark.anyio
async def test_a_layer_lost_while_the_server_runs_is_made_again(tmp_path: Path) -> None:
    fake = FakeInstaller()
    fake.gate.set()
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path), {}, installer=fake) as environments:
            [layer] = (await environments.base()).layers
            await anyio.Path(layer / ".prims-layer.json").unlink()
            assert (await environments.base()).layers == (layer,)
    assert len(fake.installed) == 2
    assert len(fake.resolved) == 1


@pytest.mark.anyio
async def test_a_calls_layer_is_compiled_behind_its_first_use_and_only_once(tmp_path: Path) -> None:
    fake, later = FakeInstaller(), FakeInstaller()
    fake.gate.set()
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path), {}, installer=fake) as environments:
            [kernel] = (await environments.base()).layers
            fake.compiling = anyio.Event()
            own = (await environments.for_requirements(("six",))).layers[0]
            await environments.for_requirements(("six",))
            while own not in fake.compiled:
                await anyio.sleep(0.02)
            assert fake.compiled == [kernel, own]
            fake.compiling.set()
            while not (own / ".prims-compiled").exists():
                await anyio.sleep(0.02)
        async with Environments(settings(tmp_path), {}, installer=later) as environments:
            await environments.for_requirements(("six",))
            await anyio.wait_all_tasks_blocked()
    assert not later.compiled


def test_what_cannot_be_compiled_takes_nothing_from_the_rest(tmp_path: Path) -> None:
    bad = {"old.py": "print 1", "nul.py": "\0", "deep.py": "(" * 100_000}
    for name, text in (bad | {f"good{n}.py": f"a = {n}" for n in range(20)}).items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-I", "-S", uv.__file__.replace("uv.py", "bytecode.py"), str(os.getpid()), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    made = {path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()}
    assert made == {f"good{n}" for n in range(20)}


# ------------------------------------------------------------------------------------- with the real uv


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_base_has_the_kernel_compiled_and_without_debugpy(cache: Path) -> None:
    environment = await asked(cache)
    names = [p.partition("==")[0] for p in environment.packages]
    assert {"ipykernel", "matplotlib-inline", "numpy"} <= set(names)
    assert "debugpy" not in names
    default, kernel = environment.layers
    assert (default / "numpy").is_dir() and not (kernel / "numpy").exists()
    assert (kernel / "ipykernel").is_dir() and not (default / "ipykernel").exists()
    assert list((kernel / "ipykernel/__pycache__").glob("kernelapp.*.pyc"))
    assert not (kernel / "debugpy").exists()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_remembered_call_starts_no_process_and_needs_no_index(cache: Path) -> None:
    first = await asked(cache, "six==1.16.0")
    fake = FakeInstaller()
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(cache, "numpy"), tool_environment(), installer=fake) as environments:
            assert await environments.for_requirements(("six==1.16.0",)) == first
    assert "six==1.16.0" in first.packages
    assert len(first.layers) == 3 and (first.layers[0] / "six.py").is_file()
    assert not fake.resolved and not fake.installed
    # An old answer is asked for again, and serves when nobody answers.
    age(cache)
    assert await asked(cache, "six==1.16.0", env=unreachable()) == first


@pytest.mark.slow
@pytest.mark.anyio
async def test_debugpy_comes_when_it_is_asked_for(cache: Path) -> None:
    environment = await asked(cache, "debugpy")
    assert (environment.layers[0] / "debugpy").is_dir()
    assert len(environment.layers) == 3 and not environment.kernel_moved


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_pin_that_moves_the_kernel_gets_the_kernel_in_its_own_layer(cache: Path) -> None:
    environment = await asked(cache, "traitlets==5.14.3")
    assert environment.kernel_moved
    own, default = environment.layers
    assert (own / "ipykernel").is_dir() and (own / "traitlets-5.14.3.dist-info").is_dir()
    assert (default / "numpy").is_dir()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("requirements", "reason", "words"),
    [
        (("nosuchpackage-xyz123",), "unknown", ["nosuchpackage-xyz123"]),
        (("cv2",), "unknown", ["Did you mean opencv-python-headless?"]),
        (("numpy==99.0",), "unknown", ["numpy==99.0"]),
        (("mysqlclient==2.2.4",), "no-wheel", ["mysqlclient", "source"]),
        (("sklearn",), "no-wheel", ["Did you mean scikit-learn?"]),
        (("numpy==1.20.0",), "no-wheel", ["numpy", "no wheel"]),
        (("traitlets==5.0.5",), "conflict", ["Jupyter kernel", "traitlets>=5.4.0", "traitlets==5.0.5"]),
        (("ipython==5.10.0", "pyzmq==19.0.2"), "no-wheel", ["pyzmq==19.0.2"]),
        (("ipython==5.10.0",), "conflict", ["Jupyter kernel", "ipython==5.10.0"]),
        (("numpy==1.26.4", "numpy==2.0.0"), "conflict", ["numpy==1.26.4", "numpy==2.0.0"]),
    ],
)
async def test_what_cannot_be_installed_is_explained(
    cache: Path, requirements: tuple[str, ...], reason: str, words: list[str]
) -> None:
    with pytest.raises(InstallError) as caught:
        await asked(cache, *requirements)
    message = str(caught.value)
    assert caught.value.reason == reason, message
    assert all(word in message for word in words), message
    assert len(message) < 1500 and message.isprintable()
    assert "No solution found" in caught.value.log


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_dead_index_is_named_as_such(tmp_path: Path) -> None:
    env = {**tool_environment(), "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path), env) as environments:
            with pytest.raises(InstallError, match="could not be reached") as caught:
                await environments.base()
    assert caught.value.reason == "network"
    assert not list((tmp_path / "layers").iterdir())


@pytest.mark.slow
@pytest.mark.anyio
async def test_default_packages_give_way_to_the_call(tmp_path: Path) -> None:
    default = ("httpx==0.27.0", "six==1.16.0", "toolz")  # httpx needs httpcore 1
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path, *default), tool_environment()) as environments:
            environment = await environments.for_requirements(("httpcore==0.18.0", "six==1.17.0"))
    names = {p.partition("==")[0] for p in environment.packages}
    assert {"httpcore==0.18.0", "six==1.17.0"} <= set(environment.packages)
    assert "toolz" in names and "httpx" not in names
    [note] = environment.notes
    assert "httpx==0.27.0" in note
    assert "six" not in note  # it is there, in the version that was asked for
    assert "toolz" not in note


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_project_above_the_cache_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text("nonsense = ][")
    with anyio.fail_after(PATIENCE):
        async with Environments(settings(tmp_path / "cache"), tool_environment()) as environments:
            assert (await environments.base()).layers


@pytest.mark.slow
def test_two_processes_that_build_the_same_layer_do_no_harm(tmp_path: Path) -> None:
    code = (
        "import anyio, sys; from pathlib import Path; from prims.config import *;"
        "from prims.config import tool_environment; from prims.kernel.environment import Environments\n"
        "async def main():\n"
        "    s = Settings(cache_dir=Path(sys.argv[1]), default_packages=())\n"
        "    async with Environments(s, tool_environment()) as e:\n"
        "        print(*(await e.base()).layers)\n"
        "anyio.run(main)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=PATIENCE)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert [str(p) for p in (tmp_path / "layers").iterdir()] == said[0]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_call_in_time_trouble_leaves_no_uv_behind(cache: Path, tmp_path: Path) -> None:
    # An index that takes connections and never answers.
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
        port = silent.extra(SocketAttribute.local_port)
        env = {**tool_environment(), "UV_DEFAULT_INDEX": f"http://127.0.0.1:{port}/simple", "NO_PROXY": "*"}
        with anyio.fail_after(PATIENCE):
            async with Environments(settings(tmp_path, seconds=2), env) as environments:
                with pytest.raises(InstallError) as caught:
                    await environments.base()
    assert caught.value.reason == "timeout"
    assert not commands_with(str(tmp_path))
    assert not list((tmp_path / "layers").iterdir())


def commands_with(word: str) -> list[bytes]:
    """The command lines of all processes that hold `word`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes())
    return [command for command in found if word.encode() in command]


# --------------------------------------------------------------------------------------------- the venv


@pytest.fixture(scope="module")
def venv(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = anyio.run(asked, cache)
    path = tmp_path_factory.mktemp("venvs") / "venv"
    create_venv(path, [str(p) for p in environment.layers], cache / "virtualenv")
    # Somewhere else than it was made, as in the sandbox.
    return path.rename(path.with_name("moved"))


def call(venv: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_layers_are_on_the_path_in_order_and_their_pth_files_work(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which.py").write_text(f"name = {name!r}\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/more.py").write_text("")
    (tmp_path / "two/more.pth").write_text(f"{tmp_path}/extra\n")
    layers = [str(tmp_path / "one"), str(tmp_path / "two")]
    # As many at once as a server makes.
    with ThreadPoolExecutor(8) as pool:
        paths = [tmp_path / f"venv{n}" for n in range(8)]
        make = functools.partial(create_venv, layers=layers, app_data=tmp_path / "data")
        list(pool.map(make, paths))
    for path in paths[:2]:
        done = call(path, "python", "-c", "import which, more, sys; print(which.name, sys.prefix)")
        assert done.stdout.split() == ["one", str(path)], done.stderr


@pytest.mark.slow
def test_the_venv_imports_from_the_layers_wherever_it_lies(venv: Path) -> None:
    code = "import sys, numpy, ipykernel; print(sys.prefix, numpy.arange(3).sum())"
    done = call(venv, f"{venv}/bin/python", "-c", code)
    assert done.stdout.split() == [str(venv), "3"], done.stderr
    assert call(venv, "python3", "-c", "import debugpy").returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("pip", [("pip",), ("pip3",), ("python", "-m", "pip")])
def test_pip_answers_for_this_environment(venv: Path, pip: tuple[str, ...]) -> None:
    assert str(venv) in call(venv, *pip, "--version").stdout
    done = call(venv, *pip, "install", "-U", "numpy>=1", "Traitlets")
    assert done.returncode == 0
    assert done.stdout.count("Requirement already satisfied") == 2
    done = call(venv, *pip, "install", "-q", "numpy", "nosuch", "numpy<1")
    assert done.returncode == 1 and done.stdout == ""
    assert 'requirements=["nosuch", "numpy<1"]' in done.stderr
    assert "installed from inside" in done.stderr


@pytest.mark.slow
def test_pip_lists_and_shows(venv: Path) -> None:
    assert "numpy==" in call(venv, "pip", "freeze").stdout
    assert call(venv, "pip", "list").stdout.startswith("Package")
    assert {"numpy", "ipykernel"} <= {
        p["name"] for p in json.loads(call(venv, "pip", "list", "--format=json").stdout)
    }
    assert "Name: numpy" in call(venv, "pip", "show", "numpy").stdout
    assert call(venv, "pip", "show", "nosuch").returncode == 1
    done = call(venv, "pip", "uninstall", "-y", "numpy")
    assert done.returncode == 1 and "requirements" in done.stderr


def test_the_kernel_of_the_package_is_the_kernel_of_the_layers() -> None:
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'"{KERNEL}"' in pyproject
