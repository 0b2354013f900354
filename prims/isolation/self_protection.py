"""What the server does to itself, so that code of its own user cannot look into it."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def protect_server() -> None:
    """Close the server's memory and /proc/PID/environ to other processes of its user. Call it at start."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
