"""Whose cgroup it is, what it tells of a run, and, where this machine has one to divide, that it bounds one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from prims import config, doctor
from prims.isolation.cgroups import Cgroup, NoCgroups, own
from prims.kernel.environment import Environments

_ROOT = "35 24 0:30 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
_OTHERS = "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
_OLD = "9:memory:/docker/1\n1:name=systemd:/\n"

# The process's line of version 2, the root of the mount, whether version 1 has the memory controller, the controllers
# of the cgroup that it is in, and what is found: a folder below the mount and whether it is the topmost, or words.
CASES = [
    ("0::/", "/", False, "cpu memory pids", ("", True)),
    ("0::/system.slice/prims.service", "/", False, "memory pids", ("system.slice/prims.service", False)),
    ("0::/docker/1", "/docker/1", False, "memory", ("", True)),
    ("0::/docker/1/a b", "/docker/1", False, "memory", ("a b", False)),
    ("0::/../other", "/docker/1", False, "memory", "version 2, but this server's own is not in sight"),
    ("0::/", "/..", False, "memory", "version 2, but this server's own is not in sight"),
    ("0::/user.slice", "/", False, "pids", "version 2, without the memory controller"),
    (_OLD + "0::/", "/", True, "", "version 1"),
    (_OLD, None, True, "", "version 1"),
    ("0::/", None, False, "", "none"),
]


@pytest.mark.parametrize(("member", "root", "version_1", "controllers", "found"), CASES)
def test_its_own_cgroup_is_found_as_the_kernel_tells_it(
    member: str, root: str | None, version_1: bool, controllers: str, found: tuple[str, bool] | str, tmp_path: Path
) -> None:
    point, old = tmp_path / "cgroup", tmp_path / "memory"
    place = point / (found[0] if isinstance(found, tuple) else "user.slice" if "user" in member else "")
    place.mkdir(parents=True)
    (place / "cgroup.controllers").write_text(controllers + "\n")
    if version_1:
        old.mkdir()
    (tmp_path / "cgroup_of_self").mkdir()
    proc = tmp_path / "cgroup_of_self"
    (proc / "cgroup").write_text(member + "\n")
    (proc / "mountinfo").write_text(_OTHERS + (_ROOT.format(root=root, point=point) if root else ""))
    if isinstance(found, tuple):
        assert own(proc, old) == (place, found[1])
        return
    with pytest.raises(NoCgroups) as caught:
        own(proc, old)
    assert str(caught.value) == found
    advice = "cgroup_enable=memory" if "without" in found else "Delegate=yes" if "sight" in found else "version 2"
    assert advice in caught.value.advice


def test_what_linux_tells_of_a_cgroup_is_read(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, 1000)
    assert cgroup.used().bytes == cgroup.peak() == cgroup.cpu_seconds() == 0  # not there
    assert cgroup.killed() is None

    def tell(current: int, cache: int, high: int) -> None:
        (tmp_path / "memory.current").write_text(f"{current}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\nshmem 7\nactive_file {cache}\ninactive_file 2\n")
        (tmp_path / "memory.events").write_text(f"low 0\nhigh {high}\nmax 0\noom 0\noom_kill 0\n")

    tell(400, 300, 1)
    assert (cgroup.used().bytes, cgroup.used().near) == (400, False)
    tell(990, 300, 1)
    assert (cgroup.used().bytes, cgroup.used().near, cgroup.used().short) == (688, True, False)
    tell(990, 3, 0)
    assert not cgroup.used().short
    tell(990, 3, 1)
    assert (cgroup.used().bytes, cgroup.used().files, cgroup.used().short) == (985, 7, True)
    for oom, kills, by in ((0, 0, None), (1, 0, None), (0, 2, "machine"), (1, 2, "limit")):
        (tmp_path / "memory.events").write_text(f"high 3\noom {oom}\noom_kill {kills}\n")
        assert cgroup.killed() == by


def test_the_doctor_says_what_bounds_the_memory_of_runs() -> None:
    off = doctor._cgroups(config.load({"cgroups": "off"}))
    assert (off.ok, off.needed) == (None, False)
    assert "turned off" in off.detail
    assert "--cgroups off" in off.advice


# In a process of its own, which may be moved to another cgroup.
_TRY = """
import json, signal, subprocess, sys
from prims.isolation.cgroups import NoCgroups, find
from prims.model import Limits
try:
    found = find()
except NoCgroups as reason:
    print(json.dumps([str(reason), reason.advice]))
    sys.exit()
cgroup = found.make(Limits(memory_bytes=64 << 20, processes=8))
bomb = "print(1, flush=True)\\nheld = bytearray(b'x') * (256 << 20)"
done = subprocess.run(cgroup.entering([sys.executable, "-c", bomb]), capture_output=True)
forks = 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 20 & done'
forked = subprocess.run(cgroup.entering(["/bin/sh", "-c", forks]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
told = [done.returncode == -signal.SIGKILL, done.stdout == b"1\\n", cgroup.killed(), b"fork" in forked.stderr]
cgroup.remove()
again = find()
print(json.dumps([*told, cgroup.path.exists(), again.base == found.base]))
"""


def test_a_cgroup_bounds_what_is_in_it_where_there_can_be_one() -> None:
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if isinstance(told[0], str):
        assert all(told)  # why there is none here, and what to do
    else:
        assert told == [True, True, "limit", True, False, True]


# The first process of a machine whose files are those of this one, read-only; its cgroups are its own.
_INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs run /run; mount -t tmpfs -o size=1G tmp /tmp; mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
cd {here}
PRIMS_CACHE_DIR={cache} {python} -c '{runs}' 2>&1
echo o > /proc/sysrq-trigger
sleep 60
"""

# A started kernel and forked ones; each is ended by Linux, faster than the server looks, or while it is held up.
_RUNS = """
import anyio, os
from tests.engines import engine_of_one_session
fast = "import mmap; print(1, flush=True); held = [mmap.mmap(-1, 64 << 20, flags=0x8022) for _ in range(9)]"
files = "for n in range(6): open(\\"/tmp/%d\\" % n, \\"wb\\").write(bytes(60 << 20))"
async def main():
    async with engine_of_one_session(memory_bytes="300M", tmp_bytes="380M") as session:
        async def tell(bomb):
            result = await session.run(bomb)
            print("told", result.status, repr(result.stdout.head), result.cause, flush=True)
        await tell(fast)
        await session.until_forked()
        await tell(fast)
        await tell(files)
        base = session.engine._cgroups.base
    print("left", [entry.name for entry in os.scandir(base) if entry.is_dir()], flush=True)
anyio.run(main)
"""


@pytest.mark.skipif(
    not shutil.which("linux.uml") or os.geteuid() != 0, reason="needs root, and Debian's package user-mode-linux"
)
def test_runs_are_bounded_by_cgroups_on_a_machine_that_has_them(tmp_path: Path) -> None:
    async def build() -> None:
        settings = config.load({"default_packages": ""})
        async with Environments(settings, config.tool_environment()) as environments:
            await environments.base()

    anyio.run(build)  # there is no network in there
    init = tmp_path / "init"
    here = Path(__file__).parents[1]
    init.write_text(_INIT.format(here=here, python=sys.executable, runs=_RUNS, cache=config.load().cache_dir))
    init.chmod(0o755)
    machine = subprocess.Popen(
        ["linux.uml", "mem=1500M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "con=null",
         "con0=null,fd:1", f"init={init}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = machine.communicate(timeout=150)
    finally:
        # Its processes are processes here, in one group; some may just be being made.
        with contextlib.suppress(ProcessLookupError):
            for _ in range(100):
                os.killpg(machine.pid, signal.SIGKILL)
                machine.wait(10)
    if "told" not in said and "Traceback" not in said:
        pytest.skip(f"user mode Linux does not come up here: {said[-300:]}")
    told = re.findall(r"^(?:told|left) .*(?=\r?$)", said, re.MULTILINE)
    ended = r"memory limit 300 MiB reached; peak (29\d|300) MiB"
    wanted = [
        rf"told out_of_memory '1\\n' {ended}",
        rf"told out_of_memory '1\\n' {ended}",
        rf"told out_of_memory '' {ended}, 2\d\d MiB of it files in memory, such as those in /tmp",
        r"left \[\]",
    ]
    assert len(told) == len(wanted), said[-3000:]
    assert all(map(re.fullmatch, wanted, map(str.strip, told))), said[-3000:]
