"""What a waiting client hears: the run's text as it comes, and a sign of life in every phase."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from prims.model import DisplayEvent, Event, PhaseEvent, TextEvent

Report = Callable[[float, float | None, str | None], Awaitable[None]]

_COALESCE_SECONDS = 0.2
_SIGN_SECONDS = 5.0
_MOST_CHARS = 2000
_WORDS = {"queue": "waiting for a free place", "environment": "preparing the environment",
          "start": "starting the kernel", "run": "running"}  # fmt: skip


class ProgressPump:
    """Takes events at any speed and passes on at most five messages a second, never holding up the run."""

    def __init__(self) -> None:
        self._text = ""
        self._left_out = 0
        self._phase = "environment"
        self._detail = ""
        self._wake = anyio.Event()
        self._sent = 0
        self._begun = time.monotonic()

    def emit(self, event: Event) -> None:
        """Note an event; returns at once."""
        match event:
            case PhaseEvent():
                self._phase, self._detail = event.phase, event.detail
                if not event.detail:
                    return
            case TextEvent() | DisplayEvent():
                self._text += event.text
                if len(self._text) > _MOST_CHARS:
                    self._left_out += len(self._text) - _MOST_CHARS
                    self._text = self._text[-_MOST_CHARS:]
        self._wake.set()

    async def run(self, report: Report) -> None:
        """Report until cancelled; silently, once the client takes no more."""
        while True:
            with anyio.move_on_after(_SIGN_SECONDS):
                await self._wake.wait()
                await anyio.sleep(_COALESCE_SECONDS)
            self._wake = anyio.Event()
            self._sent += 1
            try:
                await report(float(self._sent), None, self._message())
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                await anyio.sleep_forever()

    def _message(self) -> str:
        if self._text:
            left_out = f"[... {self._left_out:,} characters ...]\n" if self._left_out else ""
            text, self._text, self._left_out = left_out + self._text, "", 0
            return text
        detail = f": {self._detail}" if self._detail else ""
        return f"{_WORDS[self._phase]}{detail} ({time.monotonic() - self._begun:.0f} s)"
