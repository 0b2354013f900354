"""Text twins: what is shown, told in words, so that a model without eyes can reason and one with eyes need not.

They are made here because here the objects live. All of it may meet anything: each twin is bounded in what it looks at
and in what it says, none imports what the code has not imported, and whatever goes wrong, there is no twin.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from contextlib import AbstractContextManager
from typing import Any

# The text of a twin that says less than what is shown carries this in the message's metadata: files are then listed.
SUMMARY = "prims_summary"

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


def around(value: Any) -> AbstractContextManager[None]:
    """What must hold while the forms of a value are made."""
    if "pandas" in sys.modules and type(value).__module__.startswith("pandas."):
        from prims_kernel.twins import tables

        return tables.taller(value)
    return contextlib.nullcontext()


def add(twin: Twin, data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Put a twin into the bundle of its value."""
    for mime in twin.without:
        data.pop(mime, None)
    data.update(twin.more)
    data["text/plain"] = twin.text
    if twin.summary:
        metadata[SUMMARY] = True


def complete(content: dict[str, Any]) -> dict[str, Any]:
    """A message about something shown, with words for a bundle that has none of its own."""
    data = content.get("data")
    if not isinstance(data, dict) or not data.keys() - {"text/plain", "text/markdown"}:
        return content
    with contextlib.suppress(Exception):
        from prims_kernel.twins import bundles

        twin = bundles.describe(data)
        if twin is not None:
            data, metadata = dict(data), dict(content.get("metadata") or {})
            add(twin, data, metadata)
            return {**content, "data": data, "metadata": metadata}
    return content
