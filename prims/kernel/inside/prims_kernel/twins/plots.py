"""Interactive plots that live in a browser: Bokeh's, folium's maps, and graphs of graphviz."""

from __future__ import annotations

import base64
import io
import sys
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any

from prims_kernel import twins
from prims_kernel.twins import Twin
from prims_kernel.twins.words import between, count, cut, number, quoted, short, some, spread

_MOST_CHARS = 3000
_MOST_SERIES = 12
_MOST_VALUES = 100_000


def describe(value: Any) -> Twin | None:
    """A plot of Bokeh, a map of folium, or a graph of graphviz."""
    kind = type(value)
    if any(base.__name__ == "LayoutDOM" for base in kind.__mro__):
        return Twin(bokeh(value), summary=True, more={"text/html": bokeh_page(value)})
    if kind.__module__.startswith(("folium", "branca")) or any(base.__name__ == "Map" for base in kind.__mro__):
        return _folium(value)
    if "holoviews" in sys.modules and kind.__module__.startswith("holoviews"):
        return _holoviews(value)
    if "panel" in sys.modules and kind.__module__.startswith("panel"):
        page = io.StringIO()
        value.save(page, resources="cdn")
        return Twin(cut(repr(value), _MOST_CHARS), summary=True, more={"text/html": page.getvalue()})
    if hasattr(value, "source") and "graphviz" in sys.modules:
        return Twin(cut(f"Graph of graphviz:\n{value.source}", _MOST_CHARS), summary=True)
    return None


def _holoviews(value: Any) -> Twin:
    """What HoloViews draws by another library, as that shows it."""
    drawn = sys.modules["holoviews"].render(value)
    twin = twins.of(drawn)
    more = dict(twin.more) if twin is not None else {}
    if hasattr(drawn, "savefig"):
        file = io.BytesIO()
        drawn.savefig(file, format="png", bbox_inches="tight")
        more["image/png"] = base64.b64encode(file.getvalue()).decode("ascii")
    text = f"{value!r}\n{twin.text}" if twin is not None else repr(value)
    return Twin(cut(text, _MOST_CHARS), summary=True, more=more, without=("text/html",))


def _folium(value: Any) -> Twin:
    parts = [f"{type(value).__name__} of folium"]
    with suppress(Exception):
        if value.location is not None:
            parts.append(f"centre {', '.join(map(number, value.location))}")
    with suppress(Exception):
        parts.append(f"zoom {number(value.options.get('zoom'))}")
    kinds: Counter[str] = Counter()
    texts: list[str] = []
    waiting = list(value._children.values())
    while waiting and sum(kinds.values()) < 2000:
        child = waiting.pop(0)
        kinds[type(child).__name__] += 1
        with suppress(Exception):
            if type(child).__name__ in ("Popup", "Tooltip"):
                text = getattr(child, "text", None) or next(iter(child.html._children.values())).data
                texts.append(quoted(text, 60))
        waiting += list(getattr(child, "_children", {}).values())
    layers = [
        f"{many} x {name}" if many > 1 else name
        for name, many in kinds.items()
        if name not in _HELPERS and not name.startswith("Element")
    ]
    if layers:
        parts.append(f"with {some(layers, 12)}")
    if texts:
        parts.append(f"texts {some(texts, 10)}")
    return Twin(cut(", ".join(parts), _MOST_CHARS), summary=True)


_HELPERS = frozenset({"Html", "Popup", "Tooltip", "JavascriptLink", "CssLink", "Figure", "Icon"})


def bokeh_page(value: Any) -> str:
    """A plot or a layout of Bokeh as a page."""
    from bokeh.embed import file_html  # type: ignore[import-not-found, unused-ignore]
    from bokeh.resources import CDN  # type: ignore[import-not-found, unused-ignore]

    page: str = file_html(value, CDN)
    return page


def bokeh(value: Any) -> str:
    """What a plot or a layout of Bokeh draws."""
    plots = [model for model in islice(value.references(), 20_000) if hasattr(model, "xaxis")]
    lines = [f"Bokeh {type(value).__name__}" + (f" with {count(len(plots), 'plot')}" if len(plots) != 1 else "")]
    for plot in plots[:6]:
        with suppress(Exception):
            lines += _bokeh_plot(plot)
    return cut("\n".join(lines), _MOST_CHARS)


def _bokeh_plot(plot: Any) -> list[str]:
    labels = [f"{name} {quoted(axes[0].axis_label)}" for name, axes in (("x", plot.xaxis), ("y", plot.yaxis))
              if axes and axes[0].axis_label]  # fmt: skip
    title = quoted(getattr(plot.title, "text", "") or "")
    lines = [f"  plot: {'; '.join(filter(None, [title, *labels]))}".rstrip()]
    for renderer in plot.renderers[:_MOST_SERIES]:
        with suppress(Exception):
            glyph, data = renderer.glyph, renderer.data_source.data
            parts = [type(glyph).__name__, quoted(renderer.name or "")]
            length = max((len(column) for column in data.values()), default=0)
            ranges = []
            for name in ("x", "y", "top", "right", "left", "bottom", "x0", "y0"):
                field = getattr(getattr(glyph, name, None), "field", None) or getattr(glyph, name, None)
                if isinstance(field, str) and field in data:
                    ranges.append(f"{name} {_extent(data[field])}")
            lines.append(f"    - {' '.join(filter(None, parts))}: {', '.join([count(length, 'point'), *ranges])}")
    for legend in plot.legend[:1]:
        names = [quoted(short(getattr(item.label, "value", item.label), 40)) for item in legend.items[:12]]
        if names:
            lines.append(f"    legend: {some(names, 12)}")
    return lines


def _extent(column: Any) -> str:
    if hasattr(column, "min") and hasattr(column, "dtype") and getattr(column.dtype, "kind", "") in "iuf":
        return between(column.min(), column.max())
    return spread(islice(column, _MOST_VALUES))
