"""Text twins: what is shown, told in words, so that a model without eyes can reason and one with eyes need not.

They are made here because here the objects live. All of it may meet anything: each twin is bounded in what it looks at
and in what it says, none imports what the code has not imported, and whatever goes wrong, there is no twin.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

# The text of a twin that says less than what is shown carries this in the message's metadata: files are then listed.
SUMMARY = "prims_summary"
# And what shows nothing by itself, but sets up a page for what follows, this.
SILENT = "prims_silent"

# By the package of a class: which module here knows it. Its function `describe` gives a Twin or None.
_KNOWN = {
    "matplotlib": "figures",
    "pandas": "tables",
    "geopandas": "tables",
    "polars": "tables",
    "PIL": "media",
    "IPython": "media",
    "bokeh": "plots",
    "folium": "plots",
    "branca": "plots",
    "graphviz": "plots",
    "holoviews": "plots",
    "panel": "plots",
    "sympy": "media",
}


class Twin:
    """What a value is in words. `summary` tells that it says less than the value shows; `more` are further forms of
    it, and `without` those that are not worth keeping beside them."""

    def __init__(
        self, text: str, *, summary: bool = False, more: dict[str, Any] | None = None, without: tuple[str, ...] = ()
    ) -> None:
        self.text = text
        self.summary = summary
        self.more = more or {}
        self.without = without


def of(value: Any) -> Twin | None:
    """The twin of a value of one of the classes that are known here, or None."""
    for kind in type(value).__mro__[:-1]:
        package = str(getattr(kind, "__module__", "")).partition(".")[0]
        if package in _KNOWN:
            with contextlib.suppress(Exception):
                twin: Twin | None = importlib.import_module(f"{__name__}.{_KNOWN[package]}").describe(value)
                return twin
            return None
    return None


class Drawn:
    """What a value drew by matplotlib while its forms were made."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.twin: Twin | None = None


_formatting = threading.local()


@contextlib.contextmanager
def around(value: Any) -> Iterator[Drawn]:
    """What must hold while the forms of a value are made."""
    drawn, before = Drawn(value), getattr(_formatting, "drawn", None)
    with contextlib.ExitStack() as stack:
        if "pandas" in sys.modules and type(value).__module__.startswith("pandas."):
            from prims_kernel.twins import tables

            stack.enter_context(tables.taller(value))
        figure = sys.modules.get("matplotlib.figure")
        if figure is not None and isinstance(value, figure.Figure):
            # It sets up how figures are shown, those made without pyplot too.
            importlib.import_module("matplotlib_inline.backend_inline")
        _formatting.drawn = drawn
        try:
            yield drawn
        finally:
            _formatting.drawn = before


def drew(figure: Any) -> None:
    """Take note of a figure that is being drawn: it may be what a value of another library looks like."""
    drawn = getattr(_formatting, "drawn", None)
    if drawn is not None and drawn.value is not figure:
        drawn.twin = of(figure)


def add(twin: Twin, data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Put a twin into the bundle of its value."""
    for mime in twin.without:
        data.pop(mime, None)
    data.update(twin.more)
    data["text/plain"] = twin.text
    if twin.summary:
        metadata[SUMMARY] = True


def smaller_picture(data: Any) -> str | None:
    """A copy of a picture in base64 that is within what a reply takes, where Pillow is loaded."""
    with contextlib.suppress(Exception):
        from prims_kernel.twins import media

        return media.smaller(data)
    return None


def complete(content: dict[str, Any]) -> dict[str, Any]:
    """A message about something shown, with words for a bundle that has none of its own."""
    data = content.get("data")
    if not isinstance(data, dict) or data.keys() <= {"text/plain"}:
        return content
    with contextlib.suppress(Exception):
        from prims_kernel.twins import bundles

        data, metadata = dict(data), dict(content.get("metadata") or {})
        if bundles.is_silent(data):
            metadata[SILENT] = True
        elif twin := bundles.describe(data):
            add(twin, data, metadata)
        elif bundles.is_alive(data):
            metadata[SUMMARY] = True
        return {**content, "data": data, "metadata": metadata}
    return content
