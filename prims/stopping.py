"""The wish to end a run, from any side: a deadline, a client, the operator, a limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import anyio

StopReason = Literal["timeout", "cancelled", "shutdown", "out_of_memory", "cpu", "output", "disk", "files"]


class Stop:
    """Set once; the first reason counts. `detail` says in words what only who set it knows."""

    def __init__(self) -> None:
        self._scopes: list[anyio.CancelScope] = []
        self.reason: StopReason | None = None
        self.detail = ""

    def set(self, reason: StopReason, detail: str = "") -> None:
        """Ask for the end; returns at once."""
        if self.reason is None:
            self.reason, self.detail = reason, detail
            for scope in self._scopes:
                scope.cancel()

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """A scope that is cancelled when somebody asks, or has asked."""
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            if self.reason is not None:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
