"""Data frames: as much of them as is read at a glance, then their size, types and what is missing."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prims_kernel.twins import Twin
from prims_kernel.twins.words import count, short, some

# About 2,000 tokens; a reader who wants more asks for it.
_MOST_CHARS = 6000
_MOST_CELLS = 5_000_000
_MOST_COLUMNS = 20

# What takes the place of pandas' own defaults, which hide the middle of quite ordinary tables. The options themselves
# stay as they are, and one that the code has set counts.
_WIDER = {"display.max_columns": 40, "display.width": 220, "display.max_colwidth": 100}


def describe(value: Any) -> Twin | None:
    """A table, a column of one, or a styled table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
        if pandas is not None:
            if isinstance(value, pandas.DataFrame):
                return Twin(f"{_frame(pandas, value)}\n{_facts(value)}")
            if isinstance(value, pandas.Series):
                return Twin(f"{value!r}{_missing(value)}")
            if type(value).__name__ == "Styler" and isinstance(getattr(value, "data", None), pandas.DataFrame):
                return Twin(_styled(pandas, value))
        if polars is not None and isinstance(value, polars.DataFrame):
            return Twin(f"{value!s}{_nulls(value)}")
    return None


# ------------------------------------------------------------------------------------------------------- pandas


def is_default(pandas: Any, option: str) -> bool:
    """Whether the code has left an option as it is."""
    left: tuple[Any, ...] = {"display.max_columns": (0, 20), "display.width": (80,), "display.max_colwidth": (50,),
            "display.max_rows": (60,), "display.min_rows": (10,)}[option]  # fmt: skip
    return pandas.get_option(option) in left


def wider(pandas: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a frame's repr, with more room where the code asks for nothing else."""
    names = {"max_cols": "display.max_columns", "line_width": "display.width", "max_colwidth": "display.max_colwidth"}
    for parameter, option in names.items():
        if parameters.get(parameter) is not None and is_default(pandas, option):
            parameters[parameter] = _WIDER[option]
    return parameters


@contextmanager
def taller(value: Any) -> Iterator[None]:
    """More rows and columns in the HTML of a frame, which people scroll and sort."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        yield
        return
    wanted = {"display.max_columns": 60, "display.max_rows": 200, "display.min_rows": 40}
    options = [part for name, most in wanted.items() if is_default(pandas, name) for part in (name, most)]
    with pandas.option_context(*options):
        yield


def _frame(pandas: Any, frame: Any) -> str:
    text = repr(frame)
    if len(text) <= _MOST_CHARS or not all(map(is_default, [pandas] * 2, ("display.max_rows", "display.max_columns"))):
        return text
    # Fewer rows first; of very wide tables fewer columns too.
    for rows, columns in ((20, 40), (10, 40), (10, 20), (6, 10)):
        with pandas.option_context(
            "display.max_rows", rows, "display.min_rows", rows, "display.max_columns", columns + 1
        ):
            text = repr(frame)
        if len(text) <= _MOST_CHARS:
            break
    return text


def _facts(frame: Any) -> str:
    """`[3 rows x 2 columns: city str (1 missing), n int64]`, by type where there are many columns."""
    rows, columns = frame.shape
    shape = f"{count(rows, 'row')} x {count(columns, 'column')}"
    counted = rows * columns <= _MOST_CELLS
    names = [short(name, 40) for name in frame.columns]
    kinds = [short(kind, 40) for kind in frame.dtypes]
    nulls = [int(n) for n in frame.isna().sum()] if counted else [0] * columns
    if columns <= 8:
        gaps = [f" ({missing:,} missing)" if missing else "" for missing in nulls]
        told = [f"{name} {kind}{gap}" for name, kind, gap in zip(names, kinds, gaps, strict=True)]
        facts = [", ".join(told)] if told else []
    else:
        groups: dict[str, list[str]] = {}
        for name, kind in zip(names, kinds, strict=True):
            groups.setdefault(kind, []).append(name)
        one = "all " if len(groups) == 1 else ""
        facts = [one + kind if one else f"{kind}: {some(group, 8)}" for kind, group in list(groups.items())[:20]]
        gaps = [f"{name} {missing:,}" for name, missing in zip(names, nulls, strict=True) if missing]
        facts += [f"missing: {some(gaps, 20)}"] if gaps else []
    if not counted:
        facts.append("missing values not counted")
    return f"[{': '.join(filter(None, (shape, '; '.join(facts))))}]"


def _missing(series: Any) -> str:
    if len(series) > _MOST_CELLS:
        return ""
    missing = int(series.isna().sum())
    return f"\n[{missing:,} of {len(series):,} missing]" if missing else ""


def _styled(pandas: Any, styler: Any) -> str:
    data = styler.data
    if data.size <= 1000:
        with suppress(Exception):
            text = str(styler.to_string(delimiter=" | "))
            if len(text) <= _MOST_CHARS:
                return f"{text.rstrip()}\n{_facts(data)}"
    return f"{_frame(pandas, data)}\n{_facts(data)}"


# ------------------------------------------------------------------------------------------------------- polars


@contextmanager
def plain_polars(polars: Any) -> Iterator[None]:
    """Tables of polars with all their columns, as far as the code asks for nothing else."""
    import os

    wanted = {
        "set_tbl_cols": (60, "POLARS_FMT_MAX_COLS"),
        "set_tbl_width_chars": (220, "POLARS_TABLE_WIDTH"),
        "set_fmt_str_lengths": (100, "POLARS_FMT_STR_LEN"),
        "set_tbl_formatting": ("ASCII_MARKDOWN", "POLARS_FMT_TABLE_FORMATTING"),
    }
    with polars.Config() as config:
        for setter, (value, variable) in wanted.items():
            if variable not in os.environ:
                with suppress(Exception):
                    getattr(config, setter)(value)
        yield


def _nulls(frame: Any) -> str:
    if frame.height * frame.width > _MOST_CELLS:
        return ""
    missing = [(name, n) for name, n in zip(frame.columns, frame.null_count().row(0), strict=False) if n]
    if not missing:
        return ""
    return f"\n[missing: {some((f'{short(name, 40)} {n:,}' for name, n in missing), _MOST_COLUMNS)}]"
