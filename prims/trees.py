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
        for command in (["chmod", "-R", "u+rwX", "--", str(folder)], ["rm", "-rf", "--", str(folder)]):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=60,
                    check=False,
                )
