"""What holds on this machine: the walls are proved by trying to get through them, never inferred."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import anyio.to_thread

from prims.config import inside_container
from prims.errors import IsolationUnavailable
from prims.isolation import bubblewrap, landlock
from prims.isolation.advice import INSTALL, LAST_RESORT, NO_LANDLOCK, advice_for
from prims.isolation.uids import uid_for
from prims.isolation.walls import Box, NoWalls, Walls, base_python, empty_box, server_homes
from prims.model import Limits

_log = logging.getLogger(__name__)

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `detail` says what happened, `advice` what to do when it is not `ok`.

    `ok` is None when nothing can be told. What is not `needed` is no reason to refuse code, but people should know.
    """

    name: str
    ok: bool | None
    detail: str
    advice: str = ""
    needed: bool = True


async def choose(isolation: str, scratch: Path, *, path: str | None = None) -> Walls:
    """The walls that `isolation` ("auto", "bubblewrap", "landlock", "none") asks for, proved to hold on this machine.

    `scratch` is a private directory for temporary files. `path` is where bwrap is looked for, default PATH.
    "auto" is bubblewrap, or landlock where that does not hold; it never means "none".

    Raises:
        IsolationUnavailable: they do not hold; the message says what to install or do.
    """
    if isolation != "auto":
        return await _proved(find(isolation, path), scratch)
    try:
        return await _proved(find("bubblewrap", path), scratch)
    except IsolationUnavailable as first:
        try:
            walls = await _proved(find("landlock"), scratch)
        except IsolationUnavailable as second:
            raise IsolationUnavailable(f"{first}. Nor do other walls hold: {second}") from first
        why = str(first).partition(". ")[0]
        _log.warning("code runs in the landlock walls, because %s; `prims doctor` says more", why)
        return walls


def find(isolation: str, path: str | None = None) -> Walls:
    """The walls of that name, unproved. Raises IsolationUnavailable when this machine lacks what they are made of."""
    if sys.platform != "linux":
        raise IsolationUnavailable("PRIMS runs code on Linux only: use Linux, WSL2 or a Linux container")
    match isolation:
        case "none":
            return NoWalls()
        case "landlock":
            try:
                return landlock.find()
            except OSError as error:
                raise IsolationUnavailable(f"Landlock is not to be had here ({error}): {NO_LANDLOCK}") from error
        case "bubblewrap":
            try:
                found = bubblewrap.find(path)
            except (OSError, subprocess.SubprocessError) as error:
                message = f"bubblewrap cannot be run ({error}): reinstall it, {LAST_RESORT}"
                raise IsolationUnavailable(message) from error
            if found is None:
                raise IsolationUnavailable(f"bubblewrap is not installed (there is no `bwrap` on PATH): {INSTALL}")
            return found
        case _:
            raise IsolationUnavailable(f"there is no isolation named {isolation!r}; choose auto")


async def _proved(walls: Walls, scratch: Path) -> Walls:
    failed = [check for check in await prove(walls, scratch) if check.needed and not check.ok]
    if failed:
        found = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        advice = next((check.advice for check in failed if check.advice), "run `prims doctor` for all checks")
        raise IsolationUnavailable(f"the {walls.name} walls do not hold here ({found}). {advice}")
    return walls


# -------------------------------------------------------------------------------------------- the self-test

# What some walls do not hold, and are not refused for.
_KNOWN_OPEN = {("landlock", "names and sizes outside"): "Landlock does not hide that files exist; bubblewrap does"}
# What to do where an older version of Landlock does not hold.
_TOO_OLD = {
    ("landlock", "read-only files"): (
        "For code of the server's own user Landlock must be of Linux 6.2 or later: install bubblewrap, or run PRIMS as "
        "root, which gives its code uids of their own"
    )
}

# Runs inside, so it may use nothing but the standard library. Prints {name: [held, what happened]}.
_SELF_TEST = r"""
import ctypes, json, os, socket, struct, sys
told = json.loads(sys.argv[1])
results = {}

def blocked(name, attempt):
    try:
        results[name] = [False, "it worked: %.80r" % (attempt(),)]
    except OSError as error:
        results[name] = [True, error.strerror or str(error)]

def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)

def write():
    path = "/prims-self-test-%d" % told["port"]
    open(path, "x").close()
    os.unlink(path)

def calls(name, *arguments):
    value = getattr(C, name)(*arguments)
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value

def home():
    seen = {}
    for home, known in told["homes"].items():
        try: seen[home] = sorted(set(os.listdir(home)) - set(known))
        except OSError: pass
    if not any(seen.values()):
        raise FileNotFoundError("nothing of it is there")
    return seen

def processes():
    # Its own and bubblewrap's are in sight, where there is anything to see at all.
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    if len(pids) <= 2:
        raise ProcessLookupError("%d in sight" % len(pids))
    return pids

def mode():
    os.chmod(told["decoy"], 0o600)
    if os.stat(told["decoy"]).st_mode & 0o777 != 0o600:
        raise PermissionError("only pretended")

C = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
status = {name: value.strip() for name, value in status.items()}
ids = {*os.getresuid(), *os.getresgid()}
results["not root"] = [0 not in ids, "ids %s" % sorted(ids)]
results["no new privileges"] = [status["NoNewPrivs"] == "1", "NoNewPrivs %s" % status["NoNewPrivs"]]
sets = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
results["no capabilities"] = [not any(int(value, 16) for value in sets.values()), json.dumps(sets)]
results["seccomp"] = [status["Seccomp"] == "2", "mode %s" % status["Seccomp"]]
blocked("other processes", processes)
blocked("files outside", lambda: open(told["decoy"]).read())
blocked("modes of files outside", mode)
blocked("names and sizes outside", lambda: os.stat(told["decoy"]))
blocked("read-only files", lambda: os.open(told["input"], os.O_RDONLY | os.O_TRUNC))
blocked("home directory", home)
blocked("writing the system", write)
blocked("loopback network", lambda: connect(socket.AF_INET, ("127.0.0.1", told["port"])))
blocked("abstract sockets", lambda: connect(socket.AF_UNIX, "\0" + told["abstract"]))
blocked("unix sockets", lambda: connect(socket.AF_UNIX, told["unix"]))
blocked("new namespaces", lambda: calls("unshare", 0x10000000))
if told["server"]:  # of whose pid nothing is known where pids are others
    blocked("signals", lambda: os.kill(told["server"], 0))
    blocked("limits of others", lambda: calls("prlimit", told["server"], 7, struct.pack("QQ", 64, 64), None))
print(json.dumps(results))
"""


async def prove(walls: Walls, scratch: Path) -> list[Check]:
    """Build the walls around two small programs and report what held; takes a fraction of a second.

    The first shows that they can be built. The second tries what must be impossible inside: reading files of
    the server, its home and its sockets, having privileges, making namespaces. Walls named "none" are only
    started. `scratch` is a private directory for temporary files. Never longer than some 20 seconds.
    """
    with _room(walls, scratch) as box:
        started = await _run("start", walls, box, ["/bin/true"])
        if isinstance(started, Check) or walls.name == "none":
            return [started if isinstance(started, Check) else Check("start", True, "a program ran")]
        checks = [Check("start", True, "a program ran inside")]
        decoy = box.kernel.parent / "decoy"
        decoy.write_text("a file of the server")
        decoy.chmod(0o644)  # hidden by the walls, not by its mode
        (box.mounts / "input").write_text("read-only")
        with (
            socket.create_server(("127.0.0.1", 0)) as tcp,
            socket.socket(socket.AF_UNIX) as local,
            socket.socket(socket.AF_UNIX) as unix,
        ):
            name = f"prims-{os.getpid()}-{random.getrandbits(64):x}"
            local.bind("\0" + name)
            local.listen()
            with suppress(OSError):  # a path that is too long for a socket; then nobody can connect to it either
                unix.bind(str(decoy.with_name("unix")))
                decoy.with_name("unix").chmod(0o777)
                unix.listen()
            told = {
                "decoy": str(decoy),
                "input": f"{walls.places(box).mounts}/input",
                "unix": str(decoy.with_name("unix")),
                "server": os.getpid() if walls.name == "landlock" else None,
                "homes": {home: _known_below(home) for home in server_homes() if _is_private(home)},
                "port": tcp.getsockname()[1],
                "abstract": name,
            }
            program = [base_python().executable, "-I", "-S", "-c", _SELF_TEST, json.dumps(told)]
            tried = await _run("self-test", walls, box, program)
        if isinstance(tried, Check):
            return [*checks, tried]
        for name, (held, what) in json.loads(tried).items():
            known = _KNOWN_OPEN.get((walls.name, name), "")
            advice = known or _TOO_OLD.get((walls.name, name), "")
            checks.append(Check(name, held, what, advice, needed=not known))
        return checks


@contextmanager
def _room(walls: Walls, scratch: Path) -> Iterator[Box]:
    """A box of empty directories below `scratch`, removed afterwards."""
    top = Path(tempfile.mkdtemp(prefix="proof-", dir=scratch))
    try:
        with uid_for(walls) as uid:
            yield empty_box(top, Limits(), uid)
    finally:
        shutil.rmtree(top)


async def _run(name: str, walls: Walls, box: Box, argv: Sequence[str]) -> bytes | Check:
    """What `argv` prints, or the failed check of this `name` that says why it did not get that far."""
    try:
        process = walls.spawn(box, argv, {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return Check(name, False, str(error), _advice(str(error)))
    try:
        with anyio.CancelScope(shield=True):  # bounded, and the pipes must be read to their end
            stdout, stderr = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=_SECONDS))
    except subprocess.TimeoutExpired:
        return Check(name, False, f"no end within {_SECONDS:g} seconds", "Try again on a quieter machine")
    finally:
        walls.kill(process)
        process.communicate()
    if process.returncode == 0:
        return stdout
    text = stderr.decode(errors="replace").strip() or f"exit status {process.returncode}"
    return Check(name, False, text[-500:], _advice(text))


def _advice(said: str) -> str:
    return advice_for(said, container=inside_container(), root=os.geteuid() == 0)


def _is_private(home: str) -> bool:
    """Whether `home` is a directory that must not be seen inside; some accounts live in /, or below /usr."""
    return home != "/" and not PurePosixPath(home).is_relative_to("/usr")


def _known_below(home: str) -> list[str]:
    """The names in `home` that may be there inside because the base interpreter lies below them."""
    known = {"bin", "include", "lib", "lib64"} if home == base_python().prefix else set()
    for prefix in (base_python().prefix, sys.base_prefix):
        if PurePosixPath(prefix).is_relative_to(home):
            known.update(PurePosixPath(prefix).relative_to(home).parts[:1])
    return sorted(known)
