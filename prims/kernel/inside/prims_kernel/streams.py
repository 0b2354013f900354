"""Standard output and error of one run: whole lines straight to descriptors 1 and 2, nothing kept for long.

A line goes out in one piece, so that lines of threads and processes do not mix. What is not a line yet follows within a
moment, and before anything else could write: a child process, a fork, a display.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading

FLUSH_SECONDS = 0.05
_STARTS_OTHERS = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec"})

_streams: list[io.TextIOWrapper] = []
_lock = threading.RLock()
_begun = -1


class _Stream(io.TextIOWrapper):
    """A stream that can always be flushed: the code may have closed it, or its descriptor."""

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()


def install() -> None:
    """Put the streams in the place of sys.stdout and sys.stderr."""
    global _begun
    _begun = os.eventfd(0)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
        stream = _Stream(raw, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        _streams.append(stream)
    sys.addaudithook(_before_others_write)
    # Held over a fork, so that the child never inherits a stream that the flusher was busy with.
    os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)
    threading.Thread(target=_flush_often, name="flush", daemon=True).start()


def begin() -> None:
    """The code begins: from now on there may be something to write."""
    os.eventfd_write(_begun, 1)


def flush() -> None:
    """Write what is still here, also what the code has put in the place of the streams."""
    with _lock:
        for stream in (*_streams, sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def mend() -> None:
    """Put ours back where the code has put something that cannot be flushed: the kernel does that before it speaks."""
    for name, stream in zip(("stdout", "stderr"), _streams, strict=False):
        try:
            getattr(sys, name).flush()
        except Exception:
            setattr(sys, name, stream)


def _before_fork() -> None:
    flush()
    _lock.acquire()


def _before_others_write(event: str, args: object) -> None:
    if event in _STARTS_OTHERS:
        flush()


def _flush_often() -> None:
    """Flush; and end when nobody reads any more.

    A server that is killed while it starts a sandbox leaves one that does not know of it: bubblewrap asks to be killed
    with its parent only some milliseconds after it has begun.
    """
    reader = select.poll()
    pipe = os.dup(1)
    reader.register(pipe, 0)  # a pipe whose reading end is closed tells so unasked
    reader.register(_begun, select.POLLIN)
    waited: list[tuple[int, int]] = reader.poll()  # a kernel that waits for its code costs nothing
    reader.unregister(_begun)
    while not any(descriptor == pipe for descriptor, _ in waited):
        waited = reader.poll(FLUSH_SECONDS * 1000)
        with _lock:
            for stream in _streams:
                with contextlib.suppress(Exception):
                    stream.flush()
    os._exit(1)
