"""Whose cgroup it is, what it tells of a run, and, where this machine has one to divide, that it bounds one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prims import config, doctor
from prims.isolation.cgroups import Cgroup, NoCgroups, own

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
