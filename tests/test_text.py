"""What a terminal would show of a text that is drawn over, however it comes in pieces."""

from __future__ import annotations

import pytest

from prims.kernel.text import Cleaner

_NESTED = "".join(
    f"\router {i}" + "".join(f"\n\rinner {j}\x1b[A" for j in range(4)) + "\n\r       \r\x1b[A" for i in range(3)
)

DRAWN = {
    "one bar": ("\rb 1\rb 2\rb 3\nend\n", "b 3\nend\n"),
    "bars one after the other": ("\ra 1\ra 2\n\rb 1\rb 2\ntext\n", "a 2\nb 2\ntext\n"),
    "a bar that is wiped within another": (f"first\n{_NESTED}\router done\nend\n", "first\nouter done\nend\n"),
    "bars that an error leaves": ("\router 1\n\rinner 2\n\rinner 3\x1b[1A", "outer 1\ninner 2\ninner 3"),
    "three bars at their places": (
        "".join("\n" * p + f"\rb{p} {i}" + "\x1b[A" * p for i in range(5) for p in range(3)) + "\n\n\nend\n",
        "b0 4\nb1 4\nb2 4\nend\n",
    ),
    "a line between bars": ("\rx 1\n\ry 1\x1b[A\r   \rnews\n\rx 2\n\ry 2\n", "news\nx 2\ny 2\n"),
    "up and down": ("\ra\n\rb\n\rc\x1b[2A\rA\x1b[2B\rC\n", "A\nb\nC\n"),
    "lines that end as on Windows": ("a\r\n\r\nb\r\n", "a\n\nb\n"),
    "colours": ("\x1b[31mred\x1b[0m\nplain\n", "red\nplain\n"),
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_drawn_over_is_kept_in_its_last_state(kind: str, size: int) -> None:
    drawn, kept = DRAWN[kind]
    data, cleaner = drawn.encode(), Cleaner()
    pieces = [cleaner.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join([*pieces, cleaner.flush()]) == kept


@pytest.mark.parametrize("piece", [b"\x1b[A" + b"x" * 9000, b"\r" + b"x" * 9000 + b"\n", b"\x1b[A\n\n" * 3000])
def test_what_is_held_back_is_bounded(piece: bytes) -> None:
    cleaner = Cleaner()
    for _ in range(200):
        cleaner.feed(piece)
    assert len(cleaner.flush()) < 500_000
