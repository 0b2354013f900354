"""The Dockerfile, as far as it can be tried without an engine: what it says, and its steps in a folder of the tests."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from prims import cli, config
from prims.errors import ConfigError
from prims.server.auth import make_verifier
from prims.trees import remove_tree
from tests import kit

ROOT = Path(__file__).parents[1]
TOKEN = "the-token-of-the-container"
STEP_SECONDS = 300.0

Instruction = tuple[str, str]


def read_dockerfile() -> list[list[Instruction]]:
    """The stages of the Dockerfile: each a list of instructions with their text on one line."""
    lines = [line for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: list[list[Instruction]] = []
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest))
    return stages


BUILD, FINAL = read_dockerfile()


def of(stage: list[Instruction], name: str) -> list[str]:
    return [rest for instruction, rest in stage if instruction == name]


def environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(word.split("=", 1) for rest in of(FINAL, "ENV") for word in shlex.split(rest))


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a file through; the last line that matches it or a folder above it decides."""
    sent = True
    names = [path, *map(str, Path(path).parents)]
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            deep = line.startswith("**/")
            if any(fnmatch.fnmatch(Path(name).name if deep else name, pattern) for name in names):
                sent = line.startswith("!")
    return sent


def copied() -> Iterator[tuple[str, str]]:
    """From where in the repository to where below the working directory files are copied."""
    for rest in of(BUILD, "COPY"):
        *sources, target = rest.split()
        for source in sources:
            is_folder = (ROOT / source).is_dir()
            yield source, target.rstrip("/") if is_folder else f"{target.rstrip('/')}/{Path(source).name}"


def test_each_stage_begins_with_a_slim_python_that_prims_supports() -> None:
    for stage in (BUILD, FINAL):
        assert re.match(r"python:3\.1[123]-slim( AS \w+)?$", stage[0][1])
    assert BUILD[0][1].split()[0] == FINAL[0][1]


def test_what_is_copied_is_there_and_sent_and_nothing_else_is() -> None:
    for source, _ in copied():
        assert (ROOT / source).exists(), source
        assert is_sent(source), source
    assert is_sent("prims/server/http.py")
    for name in (".git/config", "tests/kit.py", ".venv/bin/python", "examples/sales.csv", "requirements/test.txt",
                 "token.txt", "prims/__pycache__/cli.cpython-313.pyc"):  # fmt: skip
        assert not is_sent(name), name
    assert of(FINAL, "COPY") == ["--from=build /opt/prims /opt/prims"]
    assert not of(BUILD, "ADD") + of(FINAL, "ADD")


def test_the_server_is_not_root_and_nothing_lets_anybody_in() -> None:
    assert of(FINAL, "USER") == ["prims"]
    assert [name for name, _ in FINAL].index("USER") < [name for name, _ in FINAL].index("CMD")
    assert any("useradd" in rest and rest.count("prims") for rest in of(FINAL, "RUN"))
    text = (ROOT / "Dockerfile").read_text("utf-8").lower()
    assert "insecure" not in text
    assert "PRIMS_TOKEN" not in environment()


def test_no_cache_is_left_in_a_layer() -> None:
    installed = 0
    for rest in of(BUILD, "RUN") + of(FINAL, "RUN"):
        if "apt-get install" in rest:
            installed += 1
            assert "--no-install-recommends" in rest
            assert rest.rstrip().endswith("rm -rf /var/lib/apt/lists/*")
        if "pip install" in rest:
            installed += 1
            assert "--no-cache-dir" in rest
        if "prims doctor" in rest:
            installed += 1
            assert f"rm -rf {environment()['UV_CACHE_DIR']}" in rest
    assert installed == 4


def test_the_settings_of_the_image_are_settings_and_its_command_is_one() -> None:
    settings = config.load({}, environment_of_settings())
    assert (settings.transport, settings.host, settings.port) == ("http", "0.0.0.0", 8000)
    assert settings.isolation == "auto"
    [command] = of(FINAL, "CMD")
    program, *arguments = json.loads(command)
    assert program == "prims"
    assert cli._parser().parse_args(arguments).command == "serve"
    assert of(FINAL, "EXPOSE") == ["8000"]
    folders = json.loads(of(FINAL, "VOLUME")[0])
    for folder in (settings.cache_dir, settings.state_dir):
        assert any(folder.is_relative_to(volume) for volume in folders)


def environment_of_settings() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name.startswith("PRIMS_")}


def test_without_a_token_the_image_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"token_file /run/secrets/prims_token cannot be read"):
        make_verifier(config.load({}, environment_of_settings()))


def test_the_packages_of_the_system_are_ones_that_apt_knows() -> None:
    [line] = [rest for rest in of(FINAL, "RUN") if "apt-get install" in rest]
    [words] = re.findall(r"apt-get install ([^&]+)", line)
    packages = [word for word in words.split() if not word.startswith("-")]
    assert {"bubblewrap", "tini"} <= set(packages)
    assert json.loads(of(FINAL, "ENTRYPOINT")[0]) == ["tini", "--"]
    if shutil.which("apt-cache") is None:
        pytest.skip("there is no apt on this machine")
    told = subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True, timeout=60, check=True)
    known = set(told.stdout.split())
    if "coreutils-doc" not in known and len(known) < 10_000:
        pytest.skip("apt has no lists of packages here; apt-get update gets them")
    assert set(packages) <= known


def test_the_documentation_names_the_files_and_variables_of_the_image() -> None:
    text = (ROOT / "docs" / "containers.md").read_text("utf-8")
    for name in ("PRIMS_TOKEN_FILE", *json.loads(of(FINAL, "VOLUME")[0]), environment()["PRIMS_TOKEN_FILE"]):
        assert name in text
    for name in re.findall(r"PRIMS_[A-Z_]+[A-Z](?!\w|\.)", text):
        assert name.removeprefix("PRIMS_").lower() in {*config.Settings.__dataclass_fields__}, name


# ------------------------------------------------------------------------------------------ the steps, tried


@dataclass(frozen=True, slots=True)
class Image:
    """What the steps of the Dockerfile made, its absolute paths moved below `root`."""

    root: Path

    def moved(self, text: str) -> str:
        return re.sub(r"/(opt|var|tmp)/(?=[a-z])", lambda found: f"{self.root}{found[0]}", text)

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of the image, as far as this machine is it."""
        here = without_prims(self.root) | {name: self.moved(value) for name, value in environment().items()}
        here["PATH"] = here["PATH"].replace("$PATH", os.environ["PATH"])
        return {**here, **more}

    def run(self, line: str, folder: Path, environ: dict[str, str]) -> None:
        """One RUN instruction."""
        python = shlex.quote(sys.executable)
        line = re.sub(r"^python -m venv", f"{python} -m venv", self.moved(line))
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=STEP_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    image = Image(Path(tempfile.mkdtemp(prefix="pt-")))
    try:
        source = image.root / "src"
        for place in ("src/requirements", "opt", "tmp", "var/cache/prims", "var/lib/prims"):
            (image.root / place).mkdir(parents=True)
        for origin, target in copied():
            if (ROOT / origin).is_dir():
                shutil.copytree(ROOT / origin, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / origin, source / target)
        for line in of(BUILD, "RUN"):
            image.run(line, source, without_prims(image.root))
        # Those before it change the system; what they ask for is looked at above.
        [line] = [rest for rest in of(FINAL, "RUN") if "prims doctor" in rest]
        image.run(line, image.root, image.environ())
        yield image
    finally:
        remove_tree(image.root)


def without_prims(folder: Path) -> dict[str, str]:
    return {name: value for name, value in kit.server_environment(folder).items() if not name.startswith("PRIMS_")}


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_steps_make_a_server_that_runs_code_with_a_token_and_without_a_package_index(image: Image) -> None:
    secret = image.root / "token"
    secret.write_text(TOKEN + "\n")
    # The layers are there and uv's cache is not: this must need no network, and there is none to be had.
    environ = image.environ(
        PRIMS_PORT="0", PRIMS_TOKEN_FILE=str(secret), HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9"
    )
    assert not Path(environ["UV_CACHE_DIR"]).exists()
    assert list(Path(environ["PRIMS_CACHE_DIR"]).glob("layers/*/resvg_py/__pycache__"))
    [command] = of(FINAL, "CMD")
    program, *arguments = json.loads(command)
    program = shutil.which(program, path=environ["PATH"]) or ""
    assert program.startswith(str(image.root))
    process = await anyio.to_thread.run_sync(start, [program, *arguments], environ, image.root)
    try:
        port = await anyio.to_thread.run_sync(port_of, process)
        assert await anyio.to_thread.run_sync(health, image, port) == 0
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.post("/mcp", json={})).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=kit.SECONDS) as http,
            Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client,
        ):
            result = await kit.run_code(client, "import pandas\nprint(pandas.DataFrame({'a': [1, 2]}).a.sum())")
            assert not result.is_error, kit.text_of(result)
            assert result.structured_content["stdout"] == "3\n"
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(process.wait, kit.SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    assert list(Path(environ["PRIMS_STATE_DIR"]).iterdir()) == []
    assert await anyio.to_thread.run_sync(health, image, port) != 0


def start(command: list[str], environ: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environ, cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def port_of(process: subprocess.Popen[str]) -> int:
    """The port that a server says it listens on, on all addresses."""
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if found := re.search(r"serving http://0\.0\.0\.0:(\d+)/mcp", line):
            return int(found[1])
    pytest.fail(f"the server ended: {''.join(told)}")


def health(image: Image, port: int) -> int:
    """The exit status of the image's health check."""
    [line] = of(FINAL, "HEALTHCHECK")
    command = ["sh", "-c", line.partition(" CMD ")[2]]
    environ = image.environ(PRIMS_PORT=str(port))
    done = subprocess.run(command, env=environ, timeout=kit.SECONDS, check=False, stderr=subprocess.DEVNULL)
    return done.returncode
