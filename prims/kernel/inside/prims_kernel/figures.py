"""matplotlib: every figure is shown, whichever backend the code asks for and whether it calls `show()` or not."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sys
from typing import Any

from prims_kernel import imports, twins

INLINE = "module://matplotlib_inline.backend_inline"

_shell: Any = None


def install(shell: Any) -> None:
    """Arrange for matplotlib to be set up when, and only when, the code imports it."""
    global _shell
    _shell = shell
    imports.after(
        {
            "matplotlib": _set_up,
            "matplotlib.pyplot": _set_up_pyplot,
            "matplotlib.backend_bases": _set_up_canvas,
            "matplotlib._text_helpers": _set_up_text,
            "matplotlib.font_manager": _set_up_fonts,
            "matplotlib_inline.backend_inline": _set_up_inline,
        }
    )


def _set_up(matplotlib: Any) -> None:
    use = matplotlib.use

    def use_inline(backend: str, *args: Any, **kwargs: Any) -> None:
        """Select the backend; here all draw into the result, so each choice means the same."""
        use(INLINE, *args, **kwargs)

    matplotlib.use = use_inline
    matplotlib.rcParams["backend"] = INLINE


def _set_up_pyplot(pyplot: Any) -> None:
    switch = pyplot.switch_backend
    pyplot.switch_backend = lambda newbackend: switch(INLINE)
    # At the end it would draw each figure for a window, once more and with its errors told in a way of their own.
    pyplot._draw_all_if_interactive = lambda: None


def _set_up_canvas(bases: Any) -> None:
    draw = bases.FigureCanvasBase.print_figure

    @functools.wraps(draw)
    def print_figure(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = draw(self, *args, **kwargs)
        twins.drew(self.figure)
        return result

    bases.FigureCanvasBase.print_figure = print_figure


def _set_up_text(helpers: Any) -> None:
    told: set[str] = set()

    def tell_once(codepoint: int, fontnames: str) -> None:
        """Tell of the first character that a font does not have: of a text in another script that is every one."""
        if fontnames not in told:
            told.add(fontnames)
            print(
                f"{chr(codepoint)!r} is drawn as a box, as perhaps others are: {fontnames} does not have it. "
                "matplotlib-fontja (Japanese), chineseize-matplotlib and koreanize-matplotlib bring fonts.",
                file=sys.stderr,
            )

    helpers.warn_on_missing_glyph = tell_once


def _set_up_fonts(fonts: Any) -> None:
    told: set[str] = set()

    def first(record: logging.LogRecord) -> bool:
        """Tell once that a font is not here: it is looked for with each text of each drawing."""
        text = record.getMessage()
        if text in told:
            return False
        told.add(text)
        return True

    logging.getLogger(fonts.__name__).addFilter(first)


def _set_up_inline(inline: Any) -> None:
    with contextlib.suppress(ValueError):
        _shell.events.unregister("post_execute", inline.flush_figures)
    inline.flush_figures = _show_all
    if _show_all not in _shell.events.callbacks["post_execute"]:
        _shell.events.register("post_execute", _show_all)


def _show_all() -> None:
    """Show and close every figure that is still open, also those made with `ioff()`."""
    from matplotlib._pylab_helpers import Gcf
    from matplotlib_inline.backend_inline import show

    if Gcf.get_all_fig_managers():
        try:
            show(True)
        except Exception:
            _shell.showtraceback()


def seed_font_cache() -> None:
    """Put matplotlib's list of fonts where it looks for it: to make it anew takes up to seconds of each run."""
    cache = os.path.join(os.path.expanduser("~"), ".cache", "matplotlib")
    with contextlib.suppress(OSError):
        shutil.copytree(os.path.join(sys.prefix, "share", "prims", "matplotlib"), cache)
