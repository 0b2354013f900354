"""matplotlib's list of the machine's fonts: made once in a sandbox, given to every fresh environment after that.

To a fresh HOME matplotlib lists all fonts anew, which takes from half a second to many, on each run that draws.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from prims.kernel.environment import Environment

LIST_FONTS = """
import glob, os, shutil
import matplotlib.font_manager
for path in glob.glob(os.path.expanduser("~/.cache/matplotlib/fontlist-*.json")):
    shutil.copy(path, "output")
"""
_NAME = re.compile(r"fontlist-[\w.-]{1,40}\.json")
_LARGEST = 16 << 20


class Fonts:
    """The lists below the cache folder, one for each set of layers and fonts. Synchronous; call in a thread."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "fonts"

    def wanted(self, environment: Environment) -> bool:
        """Whether this environment draws and has no list yet."""
        draws = any(package.startswith("matplotlib==") for package in environment.packages)
        return draws and not self._place(environment).is_dir()

    def keep(self, environment: Environment, files: Path) -> None:
        """Keep the list that `LIST_FONTS` left in output/ below `files`. What it says only ever goes back inside."""
        target = self._place(environment)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent))
        scratch.chmod(0o755)
        try:
            with os.scandir(files / "output") as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
                        shutil.copyfile(entry.path, scratch / entry.name, follow_symlinks=False)
            if any(scratch.iterdir()):
                scratch.rename(target)
        except OSError:
            pass  # somebody else was first, or the disk is full: the next environments go without
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def give(self, environment: Environment, venv: Path) -> None:
        """Put the list into a venv, where the kernel looks for it."""
        place = self._place(environment)
        if place.is_dir():
            shutil.copytree(place, venv / "share" / "prims" / "matplotlib")

    def _place(self, environment: Environment) -> Path:
        layers = "|".join(sorted(layer.name for layer in environment.layers[-2:]))
        fonts = "|".join(str(_changed(Path(p))) for p in ("/usr/share/fonts", "/usr/local/share/fonts"))
        return self._folder / hashlib.sha256(f"{layers}|{fonts}".encode()).hexdigest()[:32]


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
