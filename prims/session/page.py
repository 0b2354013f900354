"""A notebook as one page of HTML that needs nothing else: `python -m prims.session.page <notebook.ipynb >page.html`.

Outputs come from code that nobody vouches for, and such a page is opened from a disk. So no output is part of the page
itself: pictures are images, plots are drawn from their specs by the libraries of our own, HTML is in frames in which
no script of its own runs, and everything else is text. The page's policy allows no connection at all. A program of its
own, because nbconvert takes seconds to import, and the server's time and memory are for calls.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import logging
import re
import secrets
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from prims.errors import Refused

_log = logging.getLogger(__name__)
_SECONDS = 60.0
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
_PLOTS = {"plotly": re.compile(r"application/vnd\.plotly\.v1\+json"),
          "vega": re.compile(r"application/vnd\.vega(?:lite)?\.v\d[\d.]*[+.]json")}  # fmt: skip
_SCRIPTED = re.compile(r"<script|\son\w+\s*=|javascript:", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; img-src data: blob:; media-src data: blob:; font-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_TAGS = frozenset(
    [
        "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "div", "dl", "dt", "em", "h1", "h2", "h3", "h4",
        "h5", "h6", "hr", "i", "img", "li", "ol", "p", "pre", "s", "span", "strong", "sub", "sup", "table", "tbody",
        "td", "th", "thead", "tr", "ul",
    ]
)  # fmt: skip
_ATTRIBUTES = {"*": ["class", "id", "title", "align"], "a": ["href"], "img": ["src", "alt", "width", "height"]}
# A frame of another origin cannot be measured from here: it tells its height. Only that script runs in it, as nobody
# else knows the nonce.
_FRAME = """<!doctype html><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="script-src 'nonce-{nonce}'">
<style>
body {{ margin: 0; font: 14px/1.4 system-ui, sans-serif; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ padding: 3px 9px; text-align: right; border: 0; }}
thead {{ border-bottom: 1px solid #999; }}
tbody tr:nth-child(odd) {{ background: #f5f5f5; }}
</style><script nonce="{nonce}">
const tell = () => parent.postMessage({{prims: "height", value: document.documentElement.scrollHeight}}, "*");
addEventListener("load", tell);
new ResizeObserver(tell).observe(document.documentElement);
</script><body>{html}"""
_NO_SCRIPTS = '<div class="prims-status">The scripts of this output do not run here; the notebook has them.</div>'
# Packed as they are, the libraries are unpacked by the browser, once for all plots.
_SCRIPT = """
const frames = () => [...document.querySelectorAll(".prims-frame")];
addEventListener("message", ({source, data}) => {
  const frame = frames().find((frame) => frame.contentWindow === source);
  if (!frame || typeof data?.prims !== "string") return;
  if (data.prims === "height" && data.value > 0) frame.style.height = Math.min(Math.max(data.value, 20), 2400) + "px";
  else if (data.prims === "ready" && frame.dataset.spec)
    source.postMessage({prims: "spec", value: JSON.parse(frame.dataset.spec)}, "*");
  else if (data.prims === "failed") frame.replaceWith(frame.title);
});
addEventListener("DOMContentLoaded", async () => {
  for (const packed of document.querySelectorAll("script[type='application/gzip']")) {
    const bytes = Uint8Array.from(atob(packed.text), (c) => c.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const library = await new Response(unpacked).text();
    for (const frame of frames().filter((frame) => frame.dataset.library === packed.id))
      frame.srcdoc = `<!doctype html><meta charset="utf-8"><style>body { margin: 0; } #plot { width: 100%; }</style>` +
        `<div id="plot"></div><script>${library}<\\/script>`;
  }
});
"""
_TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}
<meta http-equiv="Content-Security-Policy" content="POLICY">
{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}
<style>
main { max-width: 1000px; margin: 0 auto; }
.prims-frame { width: 100%; height: 60px; border: 0; background: white; }
.prims-output pre { white-space: pre-wrap; }
.prims-status { color: #616161; font-size: 12px; padding: 2px 0; }
.prims-output img { max-width: 100%; }
</style>
<script>SCRIPT</script>
{%- endblock -%}
{#- Only what `_shown` has made. -#}
{%- block data_html scoped -%}<div class="prims-output">{{ output.data['text/html'] }}</div>{%- endblock -%}
{%- block body_footer -%}LIBRARIES{{ super() }}{%- endblock -%}
"""


def as_page(notebook: bytes) -> bytes:
    """A notebook file as a page; blocking, for seconds.

    Raises:
        Refused: nbconvert is not installed, or could not do it.
    """
    if find_spec("nbconvert") is None:
        raise Refused(
            "A session as .html needs nbconvert, which is not installed here (the extra `html` of prims): "
            "pip install 'nbconvert>=7.16'"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prims.session.page"],  # nothing of the working directory is imported
            input=notebook, capture_output=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as problem:
        _log.warning("a page failed: %s", str(getattr(problem, "stderr", b""))[-2000:])
        raise Refused("The notebook could not be made a page; read it as .ipynb.") from problem
    return done.stdout


def convert(data: bytes) -> bytes:
    """The page of a notebook file."""
    import nbformat
    from nbconvert.exporters import HTMLExporter

    cells: list[dict[str, Any]] = []
    nonce = secrets.token_hex(16)
    for cell in json.loads(data)["cells"]:
        kept = {"cell_type": cell["cell_type"], "metadata": {}, "source": _text(cell["source"])}
        if cell["cell_type"] == "code":
            outputs = [_shown(output, nonce) for output in cell["outputs"]]
            if caption := _caption(cell["metadata"].get("prims")):
                outputs.append(_display(f'<div class="prims-status">{html.escape(caption)}</div>'))
            kept |= {"execution_count": cell["execution_count"], "outputs": outputs}
        cells.append(kept)
    # Metadata has ways of its own into a page; what is said of the language is all that is needed.
    metadata = {"title": "Session", "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    plain = {"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": cells}
    template = _TEMPLATE.replace("POLICY", _POLICY).replace("SCRIPT", _raw(_SCRIPT))
    exporter = HTMLExporter(
        raw_template=template.replace("LIBRARIES", _raw(_libraries(cells))), sanitize_html=True, anchor_link_text=" "
    )
    exporter.register_filter("clean_html", _clean)
    page: str = exporter.from_notebook_node(nbformat.from_dict(plain))[0]
    return page.encode("utf-8", "replace")


def _raw(text: str) -> str:
    return "{% raw %}" + text + "{% endraw %}"


def _libraries(cells: list[dict[str, Any]]) -> str:
    """The libraries that draw the plots of these cells. They are the MCP App's, and lie where it has them."""
    shown = [output["data"]["text/html"] for cell in cells for output in cell.get("outputs", ())
             if "text/html" in output.get("data", {})]  # fmt: skip
    parts = []
    for name in _PLOTS:
        if any(f'data-library="{name}"' in text for text in shown):
            packed = files("prims").joinpath("server", "app_view", f"{name}.js.gz").read_bytes()
            parts.append(f'<script type="application/gzip" id="{name}">{base64.b64encode(packed).decode()}</script>')
    return "".join(parts)


def _clean(text: str) -> str:
    """Markdown's HTML, and that of highlighted code, without what could act. (nbconvert's own knows few tags.)"""
    import bleach

    return str(
        bleach.clean(str(text), tags=_TAGS, attributes=_ATTRIBUTES, protocols=("http", "https", "mailto", "data"))
    )


def _caption(prims: Any) -> str:
    if not isinstance(prims, dict):
        return ""
    seconds = prims.get("seconds")
    took = sum(s for s in seconds.values() if isinstance(s, (int, float))) if isinstance(seconds, dict) else 0
    packages = prims.get("requirements")
    parts = [f"{prims.get('status')} in {took:.2f} s", str(prims.get("cause") or "")]
    parts += [", ".join(map(str, packages))] if isinstance(packages, list) else []
    return " · ".join(part for part in parts if part)


def _shown(output: dict[str, Any], nonce: str) -> dict[str, Any]:
    """An output of which nothing is taken as HTML that is not ours."""
    if "data" not in output:
        return {**output, "text": _text(output["text"])} if "text" in output else output
    data = {mime: _text(value) for mime, value in output["data"].items()}
    twin = data.get("text/plain", "")
    alt = html.escape(twin[:1000], quote=True)
    frame = f'<iframe class="prims-frame" sandbox="allow-scripts" title="{alt}"'
    for name, mimes in _PLOTS.items():
        for mime in filter(mimes.fullmatch, data):
            spec = html.escape(json.dumps(output["data"][mime]), quote=True)
            return _display(f'{frame} data-library="{name}" data-spec="{spec}"></iframe>')
    scripted = "text/html" in data and _SCRIPTED.search(data["text/html"]) is not None
    if "text/html" in data and not (scripted and any(mime in data for mime in _PICTURES)):
        inner = html.escape(_FRAME.format(html=data["text/html"], nonce=nonce), quote=True)
        note = f"<pre>{html.escape(twin)}</pre>{_NO_SCRIPTS}" if scripted else ""
        return _display(f'{frame} srcdoc="{inner}"></iframe>{note}')
    for mime in _PICTURES:
        if (raw := _bytes(data.get(mime), mime)) is not None:
            source = base64.b64encode(raw).decode("ascii")
            return _display(f'<img src="data:{mime};base64,{source}" alt="{alt}">')
    if "text/markdown" in data:
        from nbconvert.filters import markdown2html

        return _display(f'<div class="jp-RenderedHTMLCommon">{_clean(markdown2html(data["text/markdown"]))}</div>')
    for mime in ("text/latex", "text/plain", *data):
        if mime in data:
            return {"output_type": "display_data", "metadata": {}, "data": {"text/plain": data[mime]}}
    return _display("")


def _display(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bytes(text: str | None, mime: str) -> bytes | None:
    if text is None or mime == "image/svg+xml":
        return text and text.encode("utf-8", "replace")  # type: ignore[return-value]
    try:
        return base64.b64decode(text.encode("ascii", "ignore"))
    except (binascii.Error, ValueError):
        return None


if __name__ == "__main__":
    sys.stdout.buffer.write(convert(sys.stdin.buffer.read()))
