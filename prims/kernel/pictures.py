"""Which pictures go with a reply, and their copies that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prims.kernel.bundles import INLINE, pixels, whole
from prims.model import Display, Picture, PictureBudget


def attach(displays: Sequence[Display], spool: Path, budget: PictureBudget) -> tuple[Display, ...]:
    """The displays, the pictures among them with what is sent of each."""
    used, done = 0, []
    for display in displays:
        if display.mime in INLINE and display.path and display.size <= min(budget.each, budget.all - used):
            raw = (spool / display.path).read_bytes()
            width, height = pixels(raw, display.mime)
            if width and height and max(width, height) <= budget.edge and whole(raw, display.mime):
                used += len(raw)
                display = replace(display, inline=Picture(raw, display.mime, width, height))
        done.append(display)
    return tuple(done)
