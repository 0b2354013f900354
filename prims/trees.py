"""Removing folders that hostile code has filled."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever is in it: deep, without permissions, with odd names. Follows no link, never raises.

    `rm` keeps no stack, where Python's own walk gives up on a thousand levels.
    """
    if not folder.is_dir():
        return
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        remove_large_tree(folder)


def remove_large_tree(folder: Path) -> None:
    """`remove_tree` for folders that may hold very much: by a program, which is ten times as fast then."""
    for words in (["/bin/rm", "-rf"], ["/bin/chmod", "-R", "u+rwX"], ["/bin/rm", "-rf"]):
        if not folder.is_dir():
            return
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*words, "--", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
