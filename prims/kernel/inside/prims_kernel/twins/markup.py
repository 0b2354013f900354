"""HTML as readable text: tables as rows, links with their targets, nothing of scripts and styles."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

from prims_kernel.twins.words import short

_MOST_MARKUP = 200_000
_MOST_TEXT = 4000
_MOST_SECONDS = 0.3
_LONGEST_TAG = 8000
_LONG_VALUE = re.compile(r"""(["'])[^"'<>]{1000,}\1""")
_SKIPPED = frozenset({"script", "style", "template", "noscript", "title"})
_BLOCKS = frozenset(
    {
        "p", "div", "br", "li", "ul", "ol", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "tr", "table", "pre",
        "section", "article", "header", "footer", "blockquote", "hr", "caption", "details", "summary", "figure",
        "figcaption", "form", "fieldset", "option",
    }
)  # fmt: skip
# What a text cannot say.
_SEEN_ONLY = frozenset({"script", "iframe", "svg", "canvas", "img", "video", "audio", "object", "embed", "math"})


class Readable(HTMLParser):
    """Collects the text of a page; `seen_only` are the tags of what only eyes get."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.seen_only: set[str] = set()
        self._skipping = ""
        self._pre = 0
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SEEN_ONLY:
            self.seen_only.add(tag)
        if self._skipping:
            return
        named = {name: value or "" for name, value in attrs}
        if tag in _SKIPPED or tag == "svg":
            self._skipping = tag
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag in _BLOCKS:
            self.parts.append("\n" + {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### "}.get(tag, ""))
            self._pre += tag == "pre"
        if tag in ("img", "iframe", "video", "audio", "source", "embed"):
            self._media(tag, named)
        elif tag == "a":
            self._link = named.get("href")

    def _media(self, tag: str, named: dict[str, str]) -> None:
        source = named.get("src", "")
        if source.startswith("data:"):
            source = source[5:].partition(",")[0].partition(";")[0]
        about = ", ".join(short(part, 300) for part in (named.get("alt", ""), source) if part)
        if about or tag == "iframe":
            name = {"img": "image", "iframe": "page"}.get(tag, tag)
            self.parts.append(f" [{name}{': ' if about else ''}{about}] ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipping:
            self._skipping = ""
        elif self._skipping:
            return
        elif tag == "a" and self._link and self._link.startswith(("http:", "https:", "mailto:", "file:", "output/")):
            self.parts.append(f" ({short(self._link, 200)})")
            self._link = None
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in _BLOCKS and tag != "br":
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(data if self._pre else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        """What was collected, without empty cells and lines."""
        lines = [line.strip().removeprefix("|").strip() for line in "".join(self.parts).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines)).strip()


def readable(html: str) -> tuple[str, bool]:
    """The text of some HTML, and whether that is all that there is to it."""
    parser = Readable()
    begun, at = time.monotonic(), 0
    markup = _LONG_VALUE.sub(lambda found: f"{found[0][:200]}{found[0][0]}", html[:_MOST_MARKUP])
    # In pieces, because the parser can be made to take the square of the time: then what it has is enough.
    while at < len(markup) and time.monotonic() - begun < _MOST_SECONDS:
        if len(parser.rawdata) > _LONGEST_TAG and not parser.cdata_elem:
            break
        parser.feed(markup[at : at + _LONGEST_TAG // 2])
        at += _LONGEST_TAG // 2
    if len(parser.rawdata) < 1000:
        parser.close()
    text = re.sub(r"\n\s*\n", "\n", parser.text())
    whole = at >= len(markup) and len(html) <= _MOST_MARKUP and len(text) <= _MOST_TEXT and not parser.seen_only
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT].rstrip()}\n[... {len(text) - _MOST_TEXT:,} more characters]"
    return text, whole
