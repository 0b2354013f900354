"""Walls for machines that refuse namespaces: Landlock for files, a stricter filter of system calls for the rest.

Code sees real paths, and may open those that a rule names. What namespaces would hide and Landlock does not know is
refused by the filter: every socket but unix streams, which may listen (the server connects to the kernel) and not
connect; calls that change the modes and owners of files, or the limits and priorities of other processes.

What these walls do not hold: the names, sizes and times of files outside can be learnt (stat and the like), and so can
what the kernel tells of the machine. There is no tmpfs whose size could bound temporary files. Where a server is not
root, its code has the server's own uid; so it needs a kernel whose Landlock knows truncation (Linux 6.2) and, for
programs to signal their children, signals (6.12).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prims.isolation import wrapper
from prims.isolation.bubblewrap import LOOKED_UP, SYSTEM, interpreter_mounts
from prims.isolation.limits import rlimits, threads_of
from prims.isolation.walls import WRAPPER, Box, Supervised, after_the_server, base_python, make_private, server_homes

# What programs ask the kernel of the machine and of themselves. Other processes stay out of sight.
_TOLD_BY_THE_KERNEL = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm/overcommit_memory",
    "/proc/uptime",
    "/proc/version",
    "/sys/fs/cgroup",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def find() -> Landlock:
    """Landlock as this kernel has it. Raises OSError when it has none, or something refuses it to this process."""
    abi = wrapper.landlock_abi()
    return ForkingLandlock(abi) if abi >= wrapper.SCOPES_SINCE else Landlock(abi)


class Landlock(Supervised):
    """Walls by the version `abi` of Landlock."""

    name = "landlock"

    def __init__(self, abi: int) -> None:
        self.abi = abi
        self.drops_uid = os.geteuid() == 0
        shown = interpreter_mounts(base_python().prefix, sys.base_prefix, server_homes())
        interpreter = [mount[1] for mount in shown if mount[0] == "--ro-bind"]
        system = ("/usr", *SYSTEM, *LOOKED_UP, *_TOLD_BY_THE_KERNEL)
        self._read = [*filter(os.path.exists, system), WRAPPER, *interpreter]

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        return self._start(box, self._confined(box), argv, env, stdout=stdout, stderr=stderr)

    def _confined(self, box: Box) -> dict[str, Any]:
        """The wrapper's steps for one sandbox."""
        if self.drops_uid != (box.uid is not None):
            raise ValueError("Box.uid is given if and only if the walls drop the uid")
        places = self.places(box)
        layers = [str(box.store)] if box.store is not None else list(places.layers)
        config: dict[str, Any] = {
            "rlimits": rlimits(box.limits, other_threads=0 if self.drops_uid else threads_of(os.getuid())),
            "confine": True,
            **after_the_server(),
            "landlock": {
                "abi": self.abi,
                "same_uid": not self.drops_uid,
                "read": [*self._read, places.mounts, places.venv, *layers, places.kernel],
                "write": [places.workspace, places.run],
                "devices": list(filter(os.path.exists, _DEVICES)),
            },
        }
        if box.uid is not None:
            config["uid"] = box.uid
        return config


class ForkingLandlock(Landlock):
    """Where Landlock keeps signals in, so that the parent and what it forks can be of one uid.

    The parent has rules of its own, which leave it what any run of the session may have, and the sight of processes:
    what it forks looks for itself there, within narrower rules.
    """

    def spawn_parent(
        self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str], *, descriptor: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        config = self._confined(box)
        config["rlimits"] = {}  # those of its sandboxes are their own
        config["landlock"]["read"].append("/proc")
        config["landlock"]["write"].append(os.path.realpath(runs))
        return self._start(box, config, argv, env, stdout=subprocess.DEVNULL, stderr=stderr, keep=[descriptor])

    def parent_facts(self, box: Box) -> dict[str, Any]:
        return {"wrapper": WRAPPER, "uid": None, "namespaces": False}

    def fork_request(self, box: Box, runs: Path, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        places = self.places(box)
        for folder in (places.home, places.tmp):
            make_private(folder, box.uid)
        return {
            "argv": list(argv),
            "env": dict(env),
            "cwd": places.workspace,
            "confine": {name: value for name, value in self._confined(box).items() if name != "uid"},
        }
