"""Words for bundles that come without a useful text of their own, whoever made them."""

from __future__ import annotations

import json
import re
from typing import Any

from prims_kernel.twins import Twin
from prims_kernel.twins.words import count, short, some

_OBJECT_REPR = re.compile(r"\s*<(?:[\w.]+ object|[^\n<>]{1,200} at 0x[0-9a-f]+)>\s*", re.IGNORECASE)
_MOST_JSON = 3000
_MOST_SVG = 200_000
_MOST_CODE = 500
# A text of this length which only spells out how a value was made says less than a page of half as much.
_LONG_REPR = 1500
_EMBEDDED = re.compile(r"data:(?:image|audio|video)/(?!svg)[\w.+-]{2,20};base64,[\w+/=\s\\]{400,}", re.ASCII)
_SETS_UP = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<(?:link|meta)\b[^>]*>", re.DOTALL | re.IGNORECASE)
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script", re.DOTALL | re.IGNORECASE)
_DATA = re.compile(r"""["']?\b(?:data|series|plotSpec|spec)["']?\s*[:=]\s*[\[{]\s*["'{\[\d-]""")
_MOST_PAGE = 1_000_000
_LONGEST_SCRIPT = 100_000
_ALIVE = re.compile(r"<(?:script|iframe|canvas|img|video|audio|object|embed)\b", re.IGNORECASE)


def is_silent(data: dict[str, Any]) -> bool:
    """Whether a bundle is a page of nothing but scripts and styles."""
    html, text = data.get("text/html"), data.get("text/plain", "")
    silent = isinstance(html, str) and data.keys() <= {"text/html", "text/plain"} and not _SETS_UP.sub("", html).strip()
    return silent and (not text or _OBJECT_REPR.fullmatch(text) is not None) and not _EMBEDDED.search(str(html))


def is_alive(data: dict[str, Any]) -> bool:
    """Whether a bundle is a page that does or draws more than any text tells."""
    return isinstance(data.get("text/html"), str) and _ALIVE.search(data["text/html"]) is not None


def describe(data: dict[str, Any]) -> Twin | None:
    """The twin of a bundle, or None when its own text will do."""
    for mime, value in data.items():
        if isinstance(value, dict) and mime.startswith("application/vnd.plotly"):
            from prims_kernel.twins import specs

            return Twin(specs.plotly(value), summary=True)
        if isinstance(value, dict) and mime.startswith("application/vnd.vega"):
            from prims_kernel.twins import specs

            return Twin(specs.vega(value), summary=True)
    text, html = data.get("text/plain"), data.get("text/html")
    if isinstance(text, str) and text and not _OBJECT_REPR.fullmatch(text):
        if not isinstance(html, str) or len(text) < _LONG_REPR or not re.match(r"\w+\(", text):
            return None
        twin = _page(html)
        return twin if twin and len(twin.text) < len(text) // 2 else None
    if "text/markdown" in data or "text/latex" in data:
        return None
    for mime, value in data.items():
        if mime.endswith("json") and not mime.startswith("application/vnd."):
            return _json(value)
    if isinstance(data.get("image/svg+xml"), str):
        return _svg(data["image/svg+xml"])
    if isinstance(html, str):
        return _page(html)
    if isinstance(code := data.get("application/javascript"), str):
        return Twin(f"JavaScript: {short(code, _MOST_CODE)}", summary=True)
    return None


def _page(html: str) -> Twin | None:
    from prims_kernel.twins import markup

    text, whole = markup.readable(html)
    if not text:  # its own script may have the data in it, which those that are libraries have not
        scripts = [script for script in _SCRIPT.findall(html[:_MOST_PAGE]) if 20 < len(script) < _LONGEST_SCRIPT]
        code = re.sub(r"[\w+/=]{100,}", "…", max(scripts, key=len, default=""))
        data = _DATA.search(code)
        part = short(code[data.start() :], _MOST_CODE) if data else short(code, 200)
        text = f"Page that a script draws: {part}" if code else ""
    many = len(set(_EMBEDDED.findall(html)))
    if many > 1:
        text = f"Page with {many} pictures or films, of which the first is given.\n{text}"
    return Twin(text, summary=not whole) if text else None


def _json(value: Any) -> Twin:
    """What a JSON value holds, then as much of it as fits."""
    whole = json.dumps(value, ensure_ascii=False, default=str)
    if len(whole) <= 300:
        return Twin(whole)
    if len(whole) <= _MOST_JSON:
        return Twin(f"{_shape(value)}\n{whole}")
    begin = f"{_shape(value)}\n{whole[:_MOST_JSON]}"
    return Twin(f"{begin} [... {len(whole) - _MOST_JSON:,} more characters]", summary=True)


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        fields = (f"{short(key, 40)} ({_kind(inner)})" for key, inner in list(value.items())[:20])
        return f"JSON object with {count(len(value), 'key')}: {some(fields, 20, len(value))}"
    if isinstance(value, list):
        kinds = list(dict.fromkeys(_kind(inner) for inner in value[:1000]))
        return f"JSON list with {count(len(value), 'element')}: {some(kinds, 6)}"
    return f"JSON {_kind(value)}"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return f"list of {len(value)}"
        case dict():
            return "object with " + (some((short(key, 20) for key in value), 6) or "nothing")
        case _:
            return type(value).__name__


def _svg(source: str) -> Twin:
    """A drawing: its size and the texts in it."""
    head = re.search(r"<svg\b[^>]{0,2000}", source)
    attributes = dict(re.findall(r'\b(width|height|viewBox)="([^"]{1,60})"', head[0])) if head else {}
    size = " x ".join(attributes[name] for name in ("width", "height") if name in attributes)
    texts = re.findall(r"<(?:text|title|tspan)\b[^<>]{0,1000}>([^<>]{1,200})<", source[:_MOST_SVG])
    words = list(dict.fromkeys(short(text, 40) for text in texts if text.strip()))
    parts = ["SVG drawing", size or (f"view {attributes['viewBox']}" if "viewBox" in attributes else "")]
    return Twin(", ".join(filter(None, parts)) + (f"; texts: {some(words, 30)}" if words else ""), summary=True)
