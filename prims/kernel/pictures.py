"""Which pictures go with a reply, and which of them need a smaller copy. Blocking, but for what the helper does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prims.kernel.bundles import INLINE, pixels, whole
from prims.kernel.text import share
from prims.model import Display, Picture, PictureBudget

# What the helper can draw anew, besides what may be sent as it is.
_DRAWABLE = (*INLINE, "image/bmp", "image/tiff", "image/svg+xml")
_MOST = 20
# A picture with less than this is not worth looking at: rather fewer of them.
_LEAST_BYTES = 40_000


@dataclass(frozen=True, slots=True)
class Plan:
    """By the names of displays: pictures that are sent as they are, and bytes that a copy of others may have.

    `left_out` are those for which there is no room.
    """

    sent: Mapping[str, Picture]
    redrawn: Mapping[str, int]
    left_out: frozenset[str]


def plan(displays: Sequence[Display], spool: Path, budget: PictureBudget) -> Plan:
    """Who gets a place: the first and the last ones, if not all. Nothing is decoded."""
    drawable = [d for d in displays if d.mime in _DRAWABLE and d.path]
    chosen, rooms = _chosen(drawable, budget)
    sent: dict[str, Picture] = {}
    redrawn: dict[str, int] = {}
    for display, room in zip(chosen, rooms, strict=True):
        picture = _as_it_is(display, spool, budget, room)
        if picture is not None:
            sent[display.name] = picture
        else:
            redrawn[display.name] = room
    return Plan(sent, redrawn, frozenset(d.name for d in drawable) - sent.keys() - redrawn.keys())


def attached(displays: Sequence[Display], planned: Plan, drawn: Mapping[str, Picture | str]) -> tuple[Display, ...]:
    """The displays, the pictures among them with what is sent of each, or with the reason why nothing is.

    `drawn` has what became of those that were to be redrawn.
    """
    done = []
    for display in displays:
        picture = planned.sent.get(display.name) or drawn.get(display.name)
        if isinstance(picture, Picture):
            display = replace(display, inline=picture)
        elif picture is not None:
            display = replace(display, trouble=picture)
        elif display.name in planned.left_out:
            display = replace(display, trouble="there is no room for more pictures")
        done.append(display)
    return tuple(done)


def _chosen(drawable: list[Display], budget: PictureBudget) -> tuple[list[Display], list[int]]:
    """As many displays as get a fair share of the bytes, and their shares."""
    for many in range(min(len(drawable), _MOST), 0, -1):
        chosen = (
            drawable if many == len(drawable) else drawable[: (many + 1) // 2] + drawable[len(drawable) - many // 2 :]
        )
        wants = [min(budget.each, _want(d)) for d in chosen]
        rooms = share(budget.all, wants)
        if all(room >= min(want, _LEAST_BYTES) for room, want in zip(rooms, wants, strict=True)):
            return chosen, rooms
    return [], []


def _want(display: Display) -> int:
    # Drawn anew, even a small one may become larger than it was.
    return max(display.size, _LEAST_BYTES // 4) if display.mime in INLINE else 4 * _LEAST_BYTES


def _as_it_is(display: Display, spool: Path, budget: PictureBudget, room: int) -> Picture | None:
    """The picture itself, when it is of a type that may be sent, and small and whole as far as can be seen."""
    if display.mime not in INLINE or display.size > room or not display.path:
        return None
    raw = (spool / display.path).read_bytes()
    width, height = pixels(raw, display.mime)
    if not width or not height or max(width, height) > budget.edge or not whole(raw, display.mime):
        return None
    return Picture(raw, display.mime, width, height)
