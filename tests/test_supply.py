"""Where packages come from: checked against hashes, kept where no code can write, had without telling credentials."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from prims.config import Settings, tool_environment
from prims.errors import InstallError
from prims.kernel.environment import Environments
from prims.kernel.layers import HASHES
from prims.kernel.sdists import index_hosts
from tests import kit, users
from tests.engines import IS_FORKED
from tests.test_network import wheel
from tests.test_probes import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BARE = ("--default-packages", "", "--spare-kernels", "0")
PATIENCE = 200.0


@dataclass
class Index:
    """A package index that has one package, and what it says of it."""

    place: str
    package: str
    wheel: bytes
    digest: str
    file: str
    needs: str | None = None  # USER:PASSWORD
    damaged: bool = False


@contextmanager
def serving_index(package: str = "tiny", address: str = "127.0.0.1") -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            said = self.headers.get("Authorization", "").removeprefix("Basic ")
            known = one.needs is None or base64.b64decode(said).decode() == one.needs
            file = one.file
            page = f'<a href="/{file}#sha256={one.digest}">{file}</a>'.encode()
            found = {f"/simple/{package}/": page, f"/{file}": b"" if one.damaged else one.wheel}
            body = found.get(self.path) if known else None
            self.send_response(401 if not known else 404 if body is None else 200)
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/zip")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as server:
        made = wheel(package)
        place = f"{address}:{server.server_port}"
        one = Index(place, package, made, hashlib.sha256(made).hexdigest(), f"{package}-1.0-py3-none-any.whl")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield one
        finally:
            server.shutdown()
            thread.join()


# ----------------------------------------------------------------------------------------------- hashes


async def test_files_are_checked_against_hashes_which_their_layer_keeps(tmp_path: Path) -> None:
    with serving_index() as right, serving_index("wrong") as wrong, anyio.fail_after(PATIENCE):
        wrong.digest = right.digest
        where = f"http://{right.place}/simple http://{wrong.place}/simple"
        env = {**tool_environment(), "UV_INDEX": where, "UV_HTTP_RETRIES": "0", "UV_NO_VERIFY_HASHES": "1"}
        async with Environments(Settings(cache_dir=tmp_path, default_packages=()), env) as environments:
            layer = (await environments.for_requirements(("tiny",))).layers[0]
            while not any(json.loads((layer / HASHES).read_text()).values()):  # written behind the reply
                await anyio.sleep(0.02)
            with pytest.raises(InstallError, match=r"(?i)hash"):
                await environments.for_requirements(("wrong",))
    assert json.loads((layer / HASHES).read_text()) == {"tiny==1.0": [f"sha256:{right.digest}"]}
    for each in (tmp_path / "layers").iterdir():
        assert not (each / "wrong.py").exists()
        kept = json.loads((each / HASHES).read_text())
        assert kept and all(hashes for hashes in kept.values())


# ------------------------------------------------------------------------------------------------ secrets

SECRET = "sesame-3f9a"

LOOK = """
import os, byurl, bynames, bynetrc, sys, pathlib
seen = [repr(dict(os.environ))]
paths = [process / name for process in pathlib.Path("/proc").glob("[0-9]*") for name in ("environ", "cmdline")]
for top in ("/layers", sys.prefix):
    paths += [path for path in pathlib.Path(top).rglob("*") if path.suffix not in (".py", ".pyc", ".pyi", ".so")]
for path in paths:
    try:
        if path.is_file():
            seen.append(path.read_bytes().decode("utf-8", "replace"))
    except PermissionError:
        pass
print(any("sesame" in text for text in seen), len(seen) > 50)
"""


async def test_the_credentials_of_an_index_are_not_told(state: Path, tmp_path: Path) -> None:
    with (
        serving_index("byurl", "127.0.0.2") as byurl,
        serving_index("bynames", "127.0.0.3") as bynames,
        serving_index("bynetrc", "127.0.0.4") as bynetrc,
    ):
        for one in (byurl, bynames, bynetrc):
            one.needs = f"person:{SECRET}"
        (tmp_path / "netrc").write_text(f"machine 127.0.0.4 login person password {SECRET}\n")
        env = {
            "UV_INDEX": f"http://person:{SECRET}@{byurl.place}/simple own=http://{bynames.place}/simple "
            f"http://{bynetrc.place}/simple",
            "UV_INDEX_OWN_USERNAME": "person",
            "UV_INDEX_OWN_PASSWORD": SECRET,
            "NETRC": str(tmp_path / "netrc"),
            "UV_HTTP_RETRIES": "0",
            "PRIMS_CACHE_DIR": str(tmp_path / "cache"),
        }
        async with kit.connected(state, *BARE, env=env) as client:
            result = await kit.run_code(client, LOOK, requirements=["byurl", "bynames", "bynetrc"])
            assert result.structured_content is not None, kit.text_of(result)
            assert result.structured_content["stdout"] == "False True\n"
            told = [kit.text_of(result), str(result.structured_content)]
            byurl.needs = "person:another"
            for wanted in (["byurl!=1.1"], ["byurl>=2"], ["nosuch-package-at-all"]):
                failed = await kit.run_code(client, "1", requirements=wanted)
                assert failed.is_error
                told.append(kit.text_of(failed))
    told.append((state / "stderr.log").read_text())
    told += [path.read_text() for path in (tmp_path / "cache").rglob("*.json")]
    assert "sesame" not in "\n".join(told)


# ----------------------------------------------------------------------------------------- built from source

BACKEND = """
import os, pathlib, socket, zipfile

def attempts():
    for path in (DECOY, "/layers", "/root", "/proc/1/environ"):
        try:
            yield f"read {path}: {bool(os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read())}"
        except OSError:
            pass
    for place in (ELSEWHERE, ("127.0.0.2", 1)):
        proxy = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2])))
        proxy.sendall(b"CONNECT %s:%d HTTP/1.1\\r\\n\\r\\n" % (place[0].encode(), place[1]))
        said = proxy.recv(100).split()[1].decode()
        if said != "403":
            yield f"reached {place}: {said}"
        try:
            socket.create_connection(place, 2)
            yield f"connected {place}"
        except OSError:
            pass
    for name, value in os.environ.items():
        if "sesame" in value:
            yield f"knows {name}"

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "fromsource-1.0-py3-none-any.whl"
    info = "fromsource-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as whole:
        whole.writestr("fromsource.py", f"worked = {list(attempts())!r}")
        whole.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: fromsource\\nVersion: 1.0\\n")
        whole.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        whole.writestr(f"{info}/RECORD", "".join(f"{one},,\\n" for one in [*whole.namelist(), f"{info}/RECORD"]))
    return name
"""


def sdist(decoy: str, elsewhere: tuple[str, int]) -> bytes:
    """A source distribution whose build script tries to get out, and writes down what worked."""
    backend = BACKEND.replace("DECOY", repr(decoy)).replace("ELSEWHERE", repr(elsewhere))
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: fromsource\nVersion: 1.0\n",
        "pyproject.toml": system + '[project]\nname = "fromsource"\nversion = "1.0"\n',
        "backend.py": backend,
    }
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"fromsource-1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return whole.getvalue()


async def test_what_has_no_wheel_is_built_in_walls_with_the_index_only(state: Path, tmp_path: Path) -> None:
    decoy = state / "decoy"
    decoy.write_text("of the server")
    decoy.chmod(0o644)
    with serving_index("fromsource", "127.0.0.2") as index, socket.create_server(("127.0.0.2", 0)) as elsewhere:
        index.file = "fromsource-1.0.tar.gz"
        index.wheel = sdist(str(decoy), elsewhere.getsockname())
        index.digest = hashlib.sha256(index.wheel).hexdigest()
        env = {"UV_INDEX": f"http://{index.place}/simple", "SOME_TOKEN": SECRET}
        env |= {"UV_HTTP_RETRIES": "0", "PRIMS_CACHE_DIR": str(tmp_path / "cache")}
        async with kit.connected(state, *BARE, env=env) as client:
            refused = await kit.run_code(client, "1", requirements=["fromsource"])
            assert refused.is_error and "--allow-sdists" in kit.text_of(refused)
        async with kit.connected(state, *BARE, "--allow-sdists", "true", env=env) as client:
            for _ in range(2):
                result = await kit.run_code(client, "import fromsource\nfromsource.worked", requirements=["fromsource"])
                assert result.structured_content is not None, kit.text_of(result)
                assert result.structured_content["result"] == "[]"
                assert "fromsource==1.0" in result.structured_content["packages"]
                index.damaged = True  # the second time it is there


@pytest.mark.parametrize(
    "env",
    [
        {"UV_INDEX": f"own=https://person:{SECRET}@127.0.0.2/simple"},
        {"UV_INDEX": "own=https://127.0.0.2/simple", "UV_INDEX_OWN_PASSWORD": SECRET},
        {"UV_DEFAULT_INDEX": "file:///srv/packages"},
        {"UV_CONFIG_FILE": __file__},
    ],
)
def test_nothing_is_built_where_the_index_needs_what_build_scripts_must_not_see(env: dict[str, str]) -> None:
    with pytest.raises(InstallError) as refused:
        index_hosts({"HOME": "/nonexistent", **env})
    assert refused.value.reason == "no-wheel" and "sesame" not in str(refused.value)


def test_the_hosts_of_the_indexes_are_what_can_be_reached() -> None:
    env = {"UV_DEFAULT_INDEX": "own=https://127.0.0.2/simple", "UV_INDEX": "http://127.0.0.3:81/a http://127.0.0.3/b"}
    reachable = ("127.0.0.2:443", "127.0.0.3:81", "127.0.0.3:80")
    assert set(index_hosts({"HOME": "/nonexistent", **env})) == set(reachable)


# ------------------------------------------------------------------------------------------- from inside

POISON = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(*arguments):
    if libc.mount(*arguments):
        raise OSError(ctypes.get_errno(), "mount")
worked = []
layers = {os.path.dirname(p) if p.endswith("site-packages") else p for p in sys.path if p.startswith("/layers/")}
assert layers
for layer in (*layers, "/layers", sys.prefix):
    name = next(n for n in sorted(os.listdir(layer)) if not n.startswith("."))
    victim = os.path.join(layer, name)
    folder = os.open(layer, os.O_RDONLY)
    file = next(os.path.join(at, f) for at, _, fs in os.walk(layer) for f in fs)
    other = os.path.join(layer, "evil")
    for attempt in (
        lambda: open(other, "w"),
        lambda: open(file, "r+"),
        lambda: open("/proc/self/root" + file, "a"),
        lambda: os.open("evil", os.O_CREAT | os.O_RDWR, dir_fd=folder),
        lambda: os.open(os.path.relpath(file, layer), os.O_RDWR, dir_fd=folder),
        lambda: os.truncate(file, 0),
        lambda: os.mkdir(other),
        lambda: os.symlink("/tmp", other),
        lambda: os.rename(victim, other),
        lambda: os.rename(victim, "mine"),
        lambda: os.unlink(file),
        lambda: os.link(file, "mine"),
        lambda: os.link(file, other),
        lambda: os.chmod(file, 0o666),
        lambda: os.chmod(layer, 0o777),
        lambda: os.chown(layer, os.getuid(), -1),
        lambda: os.utime(file),
        lambda: os.setxattr(file, "user.evil", b"1"),
        lambda: mount(b"none", layer.encode(), None, 32, None),
        lambda: mount(b"/tmp", layer.encode(), None, 4096, None),
    ):
        try:
            attempt()
            worked.append(attempt.__code__.co_firstlineno)
        except OSError:
            pass
print(worked)
"""


SHOWN = """
import sys
print(*{p.split("/")[2] for p in sys.path if p.startswith("/layers/")}, sep="\\n")
"""


@dataclass(frozen=True)
class Lived:
    """A server of some user, and the folder of its layers."""

    client: Client
    layers: Path


@pytest.fixture(scope="module", params=users.KINDS)
async def lived(request: pytest.FixtureRequest) -> AsyncIterator[Lived]:
    with users.owner(request.param) as who:
        cache = Path(who.server(who.base).env["PRIMS_CACHE_DIR"])  # type: ignore[index]
        async with serving(who, "s", *BARE) as (client, _, _):
            yield Lived(client, cache / "layers")
    users.clean_up()


def stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a folder, with what changes when something is done to it."""
    return {
        str(path): (s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode, s.st_uid)
        for top, _, files in os.walk(folder)
        for path in (Path(top), *(Path(top, file) for file in files))
        if (s := path.lstat())
    }


async def test_no_code_can_write_what_later_runs_import(lived: Lived) -> None:
    async def run(code: str) -> Any:
        result = await kit.run_code(lived.client, code)
        assert result.structured_content is not None and not result.is_error, kit.text_of(result)
        return result.structured_content["stdout"]

    # Other servers may add layers of theirs to the cache meanwhile: what this one shows is looked at.
    forked, *names = (await run(f"print({IS_FORKED})" + SHOWN)).splitlines()
    assert forked == "False" and names
    before = [stamps(lived.layers / name) for name in names]
    with anyio.fail_after(kit.SECONDS):
        for _ in range(1000):
            said = await run(f"print({IS_FORKED})" + POISON)
            assert said.splitlines()[1:] == ["[]"]
            if said.startswith("True"):
                break
    assert [stamps(lived.layers / name) for name in names] == before and all(before)
