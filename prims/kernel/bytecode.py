"""Run as a program of its own, with the interpreter of the kernels: compiles folders to bytecode, and runs nothing of
them.

Imports nothing of prims. Arguments: the process to end with, and the folders.
"""

from __future__ import annotations

import compileall
import ctypes
import os
import resource
import sys

# What a file may make its compiler use: deep nesting and endless constants are a way to use the machine up.
_MEMORY_BYTES = 2 << 30
_FILE_SECONDS = 60


def main(parent: int, folders: list[str]) -> None:
    _end_with(parent)
    os.nice(10)  # whoever waits for the first run comes first
    files = [
        os.path.join(top, name)
        for folder in folders
        for top, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py")
    ]
    me, compilers = os.getpid(), len(os.sched_getaffinity(0))
    for number in range(compilers):
        if os.fork() == 0:
            _end_with(me)
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            for file in files[number::compilers]:
                _compile(file)
            os._exit(0)
    for _ in range(compilers):
        os.wait()


def _compile(file: str) -> None:
    """Write the bytecode of a file, unless it is there already; what is no Python of this version has none."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + _FILE_SECONDS, most))
    try:
        compileall.compile_file(file, quiet=2)
    except (ValueError, MemoryError, RecursionError):
        return


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that comes."""
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
