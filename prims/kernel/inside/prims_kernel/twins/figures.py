"""matplotlib (and what draws with it): axes with their labels and ranges, and what is drawn in each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from prims_kernel.twins import Twin
from prims_kernel.twins.words import between, count, cut, number, quoted, short, some

_MOST_AXES = 16
_MOST_SERIES = 12
_MOST_POINTS = 2_000_000
_MOST_CHARS = 3000


def describe(value: Any) -> Twin | None:
    """A figure, or what leads to one. Says less than the picture."""
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not isinstance(value, figure.Figure):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Twin(cut("\n".join(_figure(value)), _MOST_CHARS), summary=True)


def _figure(figure: Any) -> Iterator[str]:
    title = ""
    with suppress(Exception):
        title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else figure._suptitle.get_text()
    axes = list(figure.axes)
    yield f"Figure {quoted(title)}".rstrip() + ("" if len(axes) == 1 else f" with {count(len(axes), 'plot')}")
    for number_of, ax in enumerate(axes[:_MOST_AXES], 1):
        with suppress(Exception):
            yield from _axes(ax, f"plot {number_of}" if len(axes) > 1 else "plot")
    texts = [quoted(text.get_text(), 60) for text in figure.texts if text.get_text().strip() not in ("", title)]
    if texts:
        yield f"texts: {some(texts, 6)}"
    for legend in figure.legends[:2]:
        with suppress(Exception):
            yield _legend(legend)
    if len(axes) > _MOST_AXES:
        yield f"and {len(axes) - _MOST_AXES} more"


def _axes(ax: Any, name: str) -> Iterator[str]:
    if ax.get_label() == "<colorbar>":
        label = ax.get_ylabel() or ax.get_xlabel()
        low, high = max(ax.get_ylim(), ax.get_xlim(), key=lambda limits: 0 if limits == (0.0, 1.0) else 1)
        yield f"{name}: colour bar {quoted(label)}".rstrip() + f", {between(low, high)}"
        return
    titles = [t for t in (ax.get_title(), ax.get_title("left"), ax.get_title("right")) if t]
    kind = "" if ax.name == "rectilinear" else f", {ax.name}"
    parts = [f"{name}{kind}: {some(map(quoted, titles), 3)}".rstrip(": ")]
    if getattr(ax, "_axis3don", ax.axison):
        axes = [("x", ax.xaxis), ("y", ax.yaxis)] + ([("z", ax.zaxis)] if hasattr(ax, "zaxis") else [])
        parts += [_axis(label, axis) for label, axis in axes]
    yield "; ".join(parts)
    series = list(_series(ax))
    yield from (f"  - {line}" for line in series[:_MOST_SERIES])
    if len(series) > _MOST_SERIES:
        yield f"  - and {len(series) - _MOST_SERIES} more"
    with suppress(Exception):
        if (legend := ax.get_legend()) is not None:
            yield f"  {_legend(legend)}"


def _legend(legend: Any) -> str:
    texts = [quoted(text.get_text(), 40) for text in legend.get_texts()]
    return f"legend {quoted(legend.get_title().get_text())}".rstrip() + f": {some(texts, 12)}"


def _axis(name: str, axis: Any) -> str:
    low, high = axis.get_view_interval()
    label = quoted(axis.get_label_text())
    scale = "" if axis.get_scale() in ("linear", "function") else f" ({axis.get_scale()})"
    turned = " (inverted)" if axis.get_inverted() else ""
    names = _names(axis)
    if names:
        shown = [text for at, text in sorted(names.items()) if min(low, high) <= at <= max(low, high)]
        extent = some((short(text, 24) for text in shown), 8)
    else:
        extent = _between(axis, min(low, high), max(low, high))
    return f"{name} {label}".rstrip() + f" {extent}{scale}{turned}"


def _names(axis: Any) -> dict[float, str]:
    """The names at an axis that stand for numbers."""
    with suppress(Exception):
        if (mapping := getattr(axis.units, "_mapping", None)) is not None:
            return {float(at): str(text) for text, at in mapping.items()}
        from matplotlib.ticker import FixedFormatter, FixedLocator  # loaded with any axis

        locator, formatter = axis.get_major_locator(), axis.get_major_formatter()
        if isinstance(locator, FixedLocator):
            fixed = isinstance(formatter, FixedFormatter)
            texts = formatter.seq if fixed else [label.get_text() for label in axis.get_majorticklabels()[:200]]
            if any(texts) and not all(_is_number(text) for text in texts):
                return {float(at): str(text) for at, text in zip(locator.locs, texts, strict=False) if text}
    return {}


def _is_number(text: str) -> bool:
    try:
        float(text.replace("\u2212", "-"))
    except ValueError:
        return False
    return True


def _between(axis: Any, low: float, high: float) -> str:
    noise = abs(high - low) * 1e-12  # of floating point
    first, last = (_at(axis, 0.0 if abs(value) < noise else value) for value in (low, high))
    return first if first == last else f"{first} to {last}"


def _at(axis: Any, value: float) -> str:
    """A place on an axis as its reader knows it: a date, a name, a number."""
    with suppress(Exception):
        if (mapping := getattr(axis.units, "_mapping", None)) is not None:
            return next((str(text) for text, at in mapping.items() if at == round(value)), number(value))
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        if "date" in type(converter).__name__.lower() or "Date" in type(axis.get_major_formatter()).__name__:
            if "Period" in type(converter).__name__ or hasattr(axis, "freq"):
                return str(sys.modules["pandas"].Period(ordinal=round(value), freq=axis.freq))
            from matplotlib.dates import num2date

            text: str = num2date(value).isoformat(" ", "seconds").removesuffix("+00:00")
            return text.removesuffix(" 00:00:00")
    return number(value)


# ------------------------------------------------------------------------------------------------- what is drawn


def _series(ax: Any) -> Iterator[str]:
    done: set[int] = set()
    for container in ax.containers:
        with suppress(Exception):
            yield from _container(ax, container, done)
    plain: list[Any] = []
    for line in ax.lines:
        if id(line) in done:
            continue
        if _label(line):
            with suppress(Exception):
                yield from _line(ax, line)
        else:
            plain.append(line)
    if len(plain) > 6:  # whiskers, caps, ticks: parts of something larger
        yield _together(ax, plain)
    else:
        for line in plain:
            with suppress(Exception):
                yield from _line(ax, line)
    for one in ax.collections:
        if id(one) not in done:
            with suppress(Exception):
                yield from _collection(ax, one)
    for image in ax.images:
        with suppress(Exception):
            yield _image(image)
    patches = [patch for patch in ax.patches if id(patch) not in done]
    with suppress(Exception):
        yield from _patches(ax, patches)
    pie = any(type(patch).__name__ == "Wedge" for patch in patches)
    texts = [quoted(text.get_text(), 40) for text in ax.texts if text.get_text().strip()]
    if texts and not pie:
        yield f"text: {some(texts, 6)}"


def _label(artist: Any) -> str:
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else quoted(label, 60)


def _named(kind: str, artist: Any) -> str:
    return f"{kind} {_label(artist)}".rstrip()


def _numbers(values: Any) -> Any:
    """An array of finite floats; of very long ones every n-th."""
    numpy = sys.modules["numpy"]
    array = numpy.ma.filled(numpy.ma.asarray(values, dtype=float), numpy.nan).ravel()
    array = array[:: max(1, -(-array.size // _MOST_POINTS))]
    return array[numpy.isfinite(array)]


def _extent(axis: Any, values: Any) -> str:
    array = _numbers(values)
    return _between(axis, array.min(), array.max()) if array.size else "no numbers"


def _line(ax: Any, line: Any) -> Iterator[str]:
    if hasattr(line, "get_data_3d"):
        x, y, z = line.get_data_3d()
        yield (
            f"{_named('3D line', line)}: {count(len(x), 'point')}, x {_extent(ax.xaxis, x)}, "
            f"y {_extent(ax.yaxis, y)}, z {_extent(ax.zaxis, z)}"
        )
        return
    x, y = line.get_xdata(orig=False), line.get_ydata(orig=False)
    if not len(x):
        return  # made for the legend only
    drawn = line.get_linestyle() not in ("None", "none", " ", "")
    kind = "line" if drawn else "points"
    if line.get_transform() == ax.get_yaxis_transform(which="grid"):
        yield f"{_named('horizontal line', line)} at {_at(ax.yaxis, y[0])}"
    elif line.get_transform() == ax.get_xaxis_transform(which="grid"):
        yield f"{_named('vertical line', line)} at {_at(ax.xaxis, x[0])}"
    else:
        yield f"{_named(kind, line)}: {_points(ax, x, y)}"


def _points(ax: Any, x: Any, y: Any) -> str:
    text = f"{count(len(x), 'point')}, x {_extent(ax.xaxis, x)}, y {_extent(ax.yaxis, y)}"
    if 1 < len(y) <= 8:
        return f"{text}, values {some((_at(ax.yaxis, v) for v in y), 8)}"
    with suppress(Exception):
        finite = _numbers(y)
        if 8 < len(y) <= _MOST_POINTS and finite.size == len(y):
            first, last = _at(ax.yaxis, y[0]), _at(ax.yaxis, y[-1])
            top = _at(ax.xaxis, x[int(finite.argmax())])
            return f"{text}, from {first} to {last}, highest at x {top}"
    return text


def _together(ax: Any, lines: list[Any]) -> str:
    x: list[float] = []
    y: list[float] = []
    for line in lines[:500]:
        with suppress(Exception):
            for values, found in ((line.get_xdata(orig=False), x), (line.get_ydata(orig=False), y)):
                array = _numbers(values)
                if array.size:
                    found += [array.min(), array.max()]
    return f"{count(len(lines), 'line')} without label: x {_extent(ax.xaxis, x)}, y {_extent(ax.yaxis, y)}"


def _container(ax: Any, container: Any, done: set[int]) -> Iterator[str]:
    kind = type(container).__name__
    if kind == "BarContainer":
        done.update(id(patch) for patch in container.patches)
        if (errors := getattr(container, "errorbar", None)) is not None:
            _mark(errors, done)
        yield _bars(ax, container)
    elif kind == "ErrorbarContainer":
        data_line = container.lines[0]
        _mark(container, done)
        errors = " and ".join(n for n, has in (("x", container.has_xerr), ("y", container.has_yerr)) if has)
        if data_line is not None:
            points = _points(ax, data_line.get_xdata(orig=False), data_line.get_ydata(orig=False))
            yield f"{_named('points with error bars', container)} ({errors}): {points}"
    elif kind == "StemContainer":
        marks = container.markerline
        done.update(id(part) for part in (marks, container.baseline, container.stemlines))
        points = _points(ax, marks.get_xdata(orig=False), marks.get_ydata(orig=False))
        yield f"{_named('stems', container)}: {points}"


def _mark(container: Any, done: set[int]) -> None:
    """What an error bar consists of: a line, and tuples of caps and bars."""
    for part in container.lines:
        done.update(id(one) for one in (part if isinstance(part, tuple) else (part,)))


def _bars(ax: Any, container: Any) -> str:
    patches = container.patches[:20_000]
    lying = container.orientation == "horizontal"
    if lying:
        along, across = ax.yaxis, ax.xaxis
        spans = [(p.get_y(), p.get_y() + p.get_height(), p.get_width()) for p in patches]
    else:
        along, across = ax.xaxis, ax.yaxis
        spans = [(p.get_x(), p.get_x() + p.get_width(), p.get_height()) for p in patches]
    touching = len(spans) > 2 and all(abs(a[1] - b[0]) < 1e-9 * max(1.0, abs(a[1])) for a, b in pairwise(spans))
    lengths = [span[2] for span in spans]
    what = _named("histogram" if touching else "horizontal bars" if lying else "bars", container)
    if touching:
        total = sum(lengths)
        return (
            f"{what}: {count(len(spans), 'bin')} from {_between(along, spans[0][0], spans[-1][1])}, "
            f"heights {between(min(lengths), max(lengths))}, {number(total)} in all"
        )
    names = _names(along)
    if 0 < len(spans) <= 20:
        told = []
        for start, end, length in spans:
            middle = (start + end) / 2
            name = next((text for at, text in names.items() if abs(at - middle) <= abs(end - start) / 2 + 1e-9), None)
            told.append(f"{short(name, 24) if name else _at(along, middle)}: {_at(across, length)}")
        return f"{what}: {some(told, 20)}"
    return f"{what}: {count(len(spans), 'bar')}, lengths {between(min(lengths), max(lengths))}" if spans else what


def _coloured(artist: Any) -> str:
    values = artist.get_array()
    if values is None:
        return ""
    array = _numbers(values)
    return f", colour {between(array.min(), array.max())} ({artist.get_cmap().name})" if array.size else ""


def _collection(ax: Any, one: Any) -> Iterator[str]:
    kind = type(one).__name__
    if kind in ("PathCollection", "Path3DCollection"):
        if hasattr(one, "_offsets3d"):
            x, y, z = one._offsets3d
            more = f", z {_extent(ax.zaxis, z)}"
        else:
            offsets = one.get_offsets()
            if not len(offsets):
                return
            x, y, more = offsets[:, 0], offsets[:, 1], ""
        sizes = _numbers(one.get_sizes())
        sized = f", sizes {between(sizes.min(), sizes.max())}" if sizes.size > 1 and sizes.min() < sizes.max() else ""
        text = f"{count(len(x), 'point')}, x {_extent(ax.xaxis, x)}, y {_extent(ax.yaxis, y)}"
        yield f"{_named('scatter', one)}: {text}{more}{_coloured(one)}{sized}"
    elif kind == "QuadMesh":
        shape = one.get_array().shape
        yield f"{_named('mesh', one)}: {' x '.join(map(str, shape))} values{_coloured(one)}"
    elif kind in ("QuadContourSet", "TriContourSet"):
        levels = one.levels
        filled = "filled contours" if one.filled else "contours"
        yield f"{_named(filled, one)}: {count(len(levels), 'level')}, {between(min(levels), max(levels))}"
    elif kind == "LineCollection":
        segments = one.get_segments()
        yield f"{_named('lines', one)}: {count(len(segments), 'segment')}"
    elif kind in ("FillBetweenPolyCollection", "PolyCollection") and one.get_array() is None:
        points = [path.vertices for path in one.get_paths()[:100]]
        x = [v for vertices in points for v in (vertices[:, 0].min(), vertices[:, 0].max())]
        y = [v for vertices in points for v in (vertices[:, 1].min(), vertices[:, 1].max())]
        yield f"{_named('area', one)}: x {_extent(ax.xaxis, x)}, y {_extent(ax.yaxis, y)}"
    elif kind == "PolyCollection":
        yield f"{_named('cells', one)}: {count(len(one.get_array()), 'value')}{_coloured(one)}"
    elif "3D" in kind:
        yield f"{_named('3D surface' if 'Poly' in kind else kind, one)}{_coloured(one)}"
    else:
        yield _named(kind, one)


def _image(image: Any) -> str:
    array = image.get_array()
    shape = " x ".join(map(str, array.shape))
    if array.ndim == 3:
        return f"{_named('image', image)}: {shape} (rows x columns x channels)"
    values = _numbers(array)
    extent = f", values {between(values.min(), values.max())}" if values.size else ""
    return f"{_named('image', image)}: {shape} (rows x columns){extent}, colours {image.get_cmap().name}"


def _patches(ax: Any, patches: list[Any]) -> Iterator[str]:
    wedges = [patch for patch in patches if type(patch).__name__ == "Wedge"]
    if wedges:
        told = []
        for wedge in wedges[:20]:
            part = abs(wedge.theta2 - wedge.theta1) / 3.6
            told.append(f"{_label(wedge)} {part:.1f}%".strip())
        yield f"pie: {some(told, 20, len(wedges))}"
    others: dict[str, int] = {}
    for patch in patches:
        if type(patch).__name__ != "Wedge":
            name = _named(type(patch).__name__.lower(), patch)
            others[name] = others.get(name, 0) + 1
    for name, many in list(others.items())[:6]:
        yield name if many == 1 else f"{many} x {name}"
