# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""Every kind of output of the real libraries: what the model gets, what the structured part says, what is stored."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from jsonschema import Draft202012Validator

from prims.config import Settings
from prims.kernel import bundles
from prims.model import Display, Form, RunResult
from prims.server.render import OUTPUT_SCHEMA, render
from tests import cases
from tests.cases import Seen, Served

pytestmark = pytest.mark.anyio

# One set for all rows, so that its layer is built once.
LIBRARIES = ["altair", "anywidget", "bokeh", "folium", "graphviz", "ipywidgets", "jinja2", "matplotlib", "pandas", "plotly", "polars",
             "rich", "seaborn", "sympy", "tqdm"]  # fmt: skip


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


@dataclass(frozen=True)
class Row:
    """A program; fragments of the text that it must lead to and must not; its pictures; what is shown, as
    (type, whether its files are hidden), with the types of the other forms."""

    code: str
    text: tuple[str, ...]
    images: int = 0
    shown: tuple[tuple[str, bool], ...] = ()
    also: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


PLOTLY, VEGA, HTML, PNG = "application/vnd.plotly.v1+json", "application/vnd.vegalite", "text/html", "image/png"
DRAWN = "import matplotlib.pyplot as plt, numpy as np\n"

ROWS = {
    # ------------------------------------------------------------------------------------------ matplotlib
    "lines with a legend on a logarithmic axis": Row(
        DRAWN + "plt.plot(range(100), [n * n for n in range(100)], label='squares')\nplt.axhline(50)\nplt.title('Growth')\nplt.xlabel('time [s]')\nplt.yscale('log')\nplt.legend()\n",
        ('plot: "Growth"; x "time [s]"', "(log)", 'line "squares": 100 points, x 0 to 99, y 0 to 9801', "horizontal line at 50", 'legend: "squares"'),
        1, ((PNG, False),),
    ),
    "bars, pie, histogram and picture in one figure": Row(
        DRAWN + "fig, ax = plt.subplots(2, 2)\nax[0, 0].bar(['a', 'b'], [1, 2])\nax[0, 1].pie([1, 3], labels=['x', 'y'])\nax[1, 0].hist(np.arange(100) % 10, bins=10)\nim = ax[1, 1].imshow(np.arange(12).reshape(3, 4))\nfig.colorbar(im, label='heat')\nfig.suptitle('All')\n",
        ('Figure "All" with 5 plots', "bars: a: 1, b: 2", 'pie: "x" 25.0%, "y" 75.0%', "histogram: 10 bins from 0 to 9", "100 in all", "image: 3 x 4 (rows x columns), values 0 to 11", 'colour bar "heat"'),
        1, ((PNG, False),),
    ),
    "scatter, error bars, 3D, areas and contours": Row(
        DRAWN + "plt.scatter([1, 2, 3], [3, 4, 9], c=[5, 6, 7], label='pts')\nplt.figure(); plt.errorbar([1, 2], [3, 5], yerr=.1, label='measured')\nax = plt.figure().add_subplot(projection='3d'); ax.scatter([1, 2], [2, 3], [3, 9]); ax.plot([1, 2], [2, 3], [0, 4])\nplt.figure(); plt.contourf(np.arange(16).reshape(4, 4)); plt.fill_between([1, 2], [1, 2])\n",
        ('scatter "pts": 3 points, x 1 to 3, y 3 to 9, colour 5 to 7', 'points with error bars "measured" (y): 2 points', "plot, 3d", "scatter: 2 points, x 1 to 2, y 2 to 3, z 3 to 9", "3D line: 2 points", "filled contours", "area: x 1 to 2"),
        4, ((PNG, False),) * 4,
    ),
    "dates, names, polar and boxes": Row(
        DRAWN + "import datetime as dt\nplt.plot([dt.date(2024, 1, d) for d in range(1, 11)], range(10))\nplt.figure(); plt.barh(['up', 'down'], [5, 6])\nplt.figure().add_subplot(projection='polar').plot([0, 1], [1, 2])\nplt.figure(); plt.boxplot([[1, 2, 3], [2, 3, 9]])\nplt.figure(); plt.plot([]); plt.title('nothing in it')\n",
        ("2024-01-01 to 2024-01-10", "horizontal bars: up: 5, down: 6", "plot, polar", "lines without label", '"nothing in it"'),
        5, ((PNG, False),) * 5,
    ),
    "a figure saved and shown": Row(
        DRAWN + "plt.plot([1, 4])\nplt.savefig('output/same.png')\nplt.show()\n", ("output/same.png",), 1, ((PNG, False),), never=("not shown",),
    ),
    "a figure saved and closed": Row(
        DRAWN + "plt.plot([1, 4])\nplt.savefig('output/unseen.png')\nplt.close()\n", ("output/unseen.png", "saved and not shown"),
    ),
    "a figure made without pyplot, one of three dimensions, dates of pandas, and no font": Row(
        "from matplotlib.figure import Figure\nf = Figure(figsize=(3, 2))\nf.subplots().plot([1, 4])\ndisplay(f)\nimport matplotlib.pyplot as plt, pandas as pd\nplt.figure().add_subplot(projection='3d').plot_trisurf([0, 1, 0], [0, 0, 1], [5, 6, 7])\nplt.figure()\npd.Series([1, 3], index=pd.date_range('2024-01-01', periods=2)).plot(title='日本')\n",
        ("values 1, 4", "3d; x", "; z ", "x 2024-01-01 to 2024-01-02", "'日' is drawn as a box"), 3, ((PNG, False),) * 3, never=("Glyph",),
    ),
    "figures of threads": Row(
        DRAWN + "from threading import Thread\nfigures = [plt.figure(figsize=(2, n)) for n in (2, 3, 4)]\nfor f in figures: f.add_subplot().plot([1, 2])\nplt.close('all')\nthreads = [Thread(target=display, args=(f,)) for f in figures]\nfor t in threads: t.start()\nfor t in threads: t.join()\n",
        ("values 1, 2",), 3, ((PNG, False),) * 3, never=("Exception",),
    ),
    "figures of other libraries": Row(
        "import seaborn.objects as so\nclass Own:\n    def _repr_png_(self):\n        import io\n        from matplotlib.figure import Figure\n        f = Figure(figsize=(2, 2)); f.subplots().bar(['p', 'q'], [1, 2]); b = io.BytesIO(); f.savefig(b)\n        return b.getvalue()\ndisplay(Own())\nso.Plot(x=[1, 2, 3], y=[3, 1, 2]).add(so.Line()).label(title='objects')\n",
        ("bars: p: 1, q: 2", 'plot: "objects"', "values 3, 1, 2"), 2, ((PNG, False),) * 2, never=("function",),
    ),
    "the magic for a live page": Row("%matplotlib widget\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n", ("values 1, 2",), 1, ((PNG, False),)),
    "seaborn": Row(
        "import seaborn as sns, pandas as pd\ndf = pd.DataFrame({'g': list('abab'), 'v': [1, 2, 3, 4]})\nsns.barplot(df, x='g', y='v', errorbar=None)\nsns.relplot(df, x='v', y='v', hue='g')\n",
        ('x "g" a, b; y "v"', "bars: a: 2, b: 3", "scatter: 4 points", '"a", "b"'), 2, ((PNG, False),) * 2,
    ),
    # ------------------------------------------------------------------------------------------ tables
    "a frame as last value": Row(
        "import pandas as pd\npd.DataFrame({'city': ['Rome', 'Oslo', None], 'n': [1, 2, 3]})\n",
        ("Rome", "[3 rows x 2 columns: city", "(1 missing), n int64]"), shown=((HTML, True),), never=(".html", "<td>"),
    ),
    "a wide and a long frame": Row(
        "import pandas as pd, numpy as np\ndf = pd.DataFrame(np.arange(30_000).reshape(1000, 30)).add_prefix('c')\nprint(df)\nprint(pd.get_option('display.max_columns'), pd.get_option('display.width'), pd.get_option('display.max_rows'))\ndf\n",
        ("c14", "29999", "20 80 60", "[1,000 rows x 30 columns: all int64]", "shown in part"), shown=((HTML, True),),
    ),
    "options that the code sets": Row(
        "import pandas as pd, numpy as np\npd.set_option('display.max_columns', 4)\nprint(pd.DataFrame(np.arange(300).reshape(10, 30)).add_prefix('c'))\n", ("c0", "...", "c29"), never=("c14",),
    ),
    "a column, a styled frame, odd names and values": Row(
        "import pandas as pd\ndisplay(pd.Series([1, None] * 50, name='s'))\ndisplay(pd.DataFrame({'p': [.5]}).style.format('{:.0%}'))\npd.DataFrame({1: [float('nan')], (1, 2): [b'x'], None: [10**40]})\n",
        ("[50 of 100 missing]", "50%", "b'x'", "1" + "0" * 40, "1 float64 (1 missing)"), shown=(("text/plain", False), (HTML, True), (HTML, True)),
    ),
    "polars": Row(
        "import polars as pl\ndf = pl.DataFrame({f'c{n}': [1, None, 3] for n in range(12)})\nprint(df)\ndf\n",
        ("shape: (3, 12)", "c6", "[missing: c0 1"), shown=((HTML, True),), never=("…",),
    ),
    # ------------------------------------------------------------------------------------------ charts for browsers
    "plotly, shown and as last value": Row(
        "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a', 'b'], y=[2, 3])).show()\nfig = go.Figure(go.Scatter(y=list(range(2000)), name='ramp'))\nfig.update_layout(title='Two', xaxis_title='step')\nfig\n",
        ("bar: a: 2, b: 3", 'Plotly figure "Two" with 1 trace', 'x axis: "step"', 'scatter "ramp": 2,000 points'),
        shown=((HTML, False),) * 2, also=(PLOTLY,) * 2, never=("nbformat", "plotly.js v"),
    ),
    "plotly as notebooks are told to use it": Row(
        "import plotly.offline, plotly.io as pio, plotly.graph_objects as go\nplotly.offline.init_notebook_mode(connected=False)\npio.renderers.default = 'notebook'\nplotly.offline.iplot(go.Figure(go.Pie(labels=['a', 'b'], values=[1, 3])))\n",
        ("pie: a: 1, b: 3",), shown=((HTML, False),), also=(PLOTLY,), never=("MB",),
    ),
    "plotly with few packed numbers, frames, and as a widget": Row(
        "import pandas as pd, plotly.express as px, plotly.graph_objects as go\ndisplay(px.scatter(pd.DataFrame({'a': [7, 8], 't': [0, 1]}), y='a', animation_frame='t'))\npx.line(pd.DataFrame({'a': [7, 8]})).show()\ngo.FigureWidget(go.Bar(x=['a', 'b'], y=[2, 3]))\n",
        ("animated: 2 frames", "2 points, x 0 to 1, y 7 to 8", "bar: a: 2, b: 3"), shown=((HTML, False),) * 3, also=(PLOTLY,) * 3,
    ),
    "plotly with packed numbers": Row(
        "import plotly.express as px, numpy as np\npx.scatter(x=np.arange(1000), y=np.arange(1000) * .5, title='np')\n",
        ("1,000 points, x 0 to 999, y 0 to 499.5",), shown=((HTML, False),), also=(PLOTLY,),
    ),
    "altair": Row(
        "import altair as alt, pandas as pd\nalt.Chart(pd.DataFrame({'a': list('ABC'), 'b': [1, 2, 3]}), title='T').mark_bar().encode(x='a', y='mean(b)')\n",
        ('Vega-Lite chart "T": bar', "x a (nominal)", "y mean(b) (quantitative)", "3 rows; a: A, B, C; b: 1 to 3"), shown=((HTML, False),), also=(VEGA,),
    ),
    "bokeh": Row(
        "from bokeh.io import output_notebook\nfrom bokeh.plotting import figure, show\noutput_notebook()\np = figure(title='B', x_axis_label='xx')\np.line([1, 2, 3], [4, 5, 6], legend_label='up')\nshow(p)\np\n",
        ("Bokeh figure", 'plot: "B"; x "xx"', "Line: 3 points, x 1 to 3, y 4 to 6", 'legend: "up"'), shown=((HTML, False),) * 2, never=("BokehJS",),
    ),
    "folium": Row(
        "import folium\nm = folium.Map([45, 9], zoom_start=6)\nfolium.Marker([45, 9], popup='hello there').add_to(m)\nm\n",
        ("Map of folium, centre 45, 9, zoom 6", "Marker", '"hello there"'), shown=((HTML, False),),
    ),
    "a graph without its drawing program": Row(
        "import graphviz\ng = graphviz.Digraph()\ng.edge('start', 'end')\ng\n", ("start -> end", "cannot be shown in every form"), never=("Traceback",),
    ),
    # ------------------------------------------------------------------------------------------ text and formulas
    "sympy": Row(
        "import sympy as sp\nx = sp.symbols('x')\ndisplay(sp.sqrt(x) / 2)\nsp.Matrix([[x, 1]])\n",
        ("sqrt(x)/2", r"\frac{\sqrt{x}}{2}", "Matrix([[x, 1]])"), shown=(("text/latex", True),) * 2,
    ),
    "rich": Row(
        "from rich import print as rprint\nfrom rich.table import Table\nt = Table(title='T')\nt.add_column('name')\nt.add_row('cell one')\nrprint(t)\nrprint('[bold]loud[/]')\n",
        ("cell one", "loud"), shown=((HTML, True),) * 2, never=("[bold]", ".html"),
    ),
    "progress of rich, and its printing of values": Row(
        "from rich import pretty\nfrom rich.progress import track\nfor n in track(range(3), 'work'): pass\npretty.install()\n{'k': [1]}\n", ("work", "100%", "{'k': [1]}"), never=("Warning",),
    ),
    "formulas after init_printing": Row("from sympy import *\ninit_printing()\nEq(Symbol('x'), 4)\n", ("Eq(x, 4)",), shown=(("text/latex", True),)),
    "bars of tqdm": Row(
        "from tqdm.auto import tqdm\nfor n in tqdm(range(5), desc='auto'):\n    pass\nfrom tqdm.notebook import trange\nfor n in trange(3, desc='note'):\n    pass\n",
        ("auto: 100%", "5/5", "note: 100%", "3/3"), never=("HBox", "Warning"),
    ),
    "widgets": Row(
        "import ipywidgets as w\ndisplay(w.IntSlider(value=5))\nw.HBox([w.Label('x')])\n", ("IntSlider(value=5)", "HBox(children=(Label(value='x'),))"), shown=(("text/plain", False),), never=("widget-view",),
    ),
    # ------------------------------------------------------------------------------------------ IPython.display
    "pages": Row(
        "from IPython.display import HTML, IFrame, display\ndisplay(HTML('<h2>Head</h2><p>some <b>bold</b> <a href=\"https://a.example/b\">link</a></p><table><tr><th>a<th>b</tr><tr><td>1<td>2</tr></table><style>p {}</style>'))\ndisplay(HTML('<p>drawn</p><script>var secret = 1</script>'))\nIFrame('https://a.example/page', 10, 10)\n",
        ("## Head", "some bold link (https://a.example/b)", "a | b", "1 | 2", "drawn", "[page: https://a.example/page]"), shown=((HTML, True), (HTML, False), (HTML, False)), never=("secret", "p {}"),
    ),
    "markdown, JSON and LaTeX": Row(
        "from IPython.display import JSON, Latex, Markdown, display\ndisplay(Markdown('# Title'))\ndisplay(JSON({'k': [1, float('nan')], 3: {4}, 'big': 10**30}))\ndisplay(JSON([{'n': n} for n in range(2000)]))\nLatex('$x^2$')\n",
        ("# Title", '{"k": [1, NaN]', "1" + "0" * 30, "JSON list with 2,000 elements: object with n", "$x^2$"),
        shown=(("text/markdown", False), ("application/json", True), ("application/json", False), ("text/latex", True)), never=("not JSON compliant",),
    ),
    "sound, films and pictures from elsewhere": Row(
        "from IPython.display import Audio, Image, Video, YouTubeVideo, display\nimport numpy as np\ndisplay(Audio(np.sin(np.arange(11025) / 10), rate=11025))\ndisplay(Video('https://a.example/v.mp4'))\ndisplay(YouTubeVideo('abc'))\nImage(url='https://a.example/i.png')\n",
        ("Audio, audio/wav, 1.00 s, 11,025 Hz, 1 channel", "https://a.example/v.mp4", "youtube.com/embed/abc", "[image: https://a.example/i.png]"),
        shown=(("audio/wav", False), (HTML, False), (HTML, False), (HTML, False)), also=(HTML,),
    ),
    "drawings": Row(
        "from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"40\"><text>label</text></svg>')\n",
        ("SVG drawing, 60 x 40; texts: label", "attached as 600x400 px"), 1, (("image/svg+xml", False),),
    ),
    "pictures and films within pages and texts": Row(
        "import base64, io\nfrom IPython.display import HTML, Markdown, display\nfrom PIL import Image\nb = io.BytesIO(); Image.effect_noise((40, 30), 90).save(b, 'PNG'); e = base64.b64encode(b.getvalue()).decode()\ndisplay(HTML(f'<p>seen</p><img src=\"data:image/png;base64,{e}\">'))\ndisplay(HTML(f'<script>f = [\"data:image/png;base64,{e}\", \"data:image/png;base64,{e[:-8]}\"]</script>'))\ndisplay(HTML(f'<video><source src=\"data:video/mp4;base64,{\"AAAA\" * 200}\"></video>'))\nMarkdown(f'# head\\n![m](data:image/png;base64,{e})')\n",
        ("seen", "Page with 2 pictures or films", "# head\n  ![m](data:image/png;base64,…)"), 3, ((PNG, False), (PNG, False), ("video/mp4", False), (PNG, False)), also=(HTML,) * 3,
    ),
    "no picture": Row("from IPython.display import Image\nImage(b'none', format='png')\n", ("what it gives as image/png is no picture",)),
    "pictures of Pillow in all modes": Row(
        "from PIL import Image\nfor mode in ('1', 'L', 'P', 'RGBA', 'CMYK', 'I;16', 'I', 'F', 'HSV', 'YCbCr', 'LA'):\n    display(Image.new(mode, (30 + len(mode), 20)))\ng = Image.linear_gradient('L').convert('F').point(lambda v: v * 1e6 - 5)\ndisplay(g)\n",
        ("mode CMYK", "mode F"), 12, ((PNG, False),) * 12,
    ),
    "a picture too large to travel, and one in the colours of print": Row(
        "import io\nfrom PIL import Image\nfrom IPython.display import Image as Shown\nb = io.BytesIO(); Image.new('CMYK', (40, 30)).save(b, 'JPEG'); display(Shown(b.getvalue()))\nImage.new('RGB', (2200, 2000), 'red').save(b := io.BytesIO(), 'PNG', compress_level=0)\ndisplay(Shown(b.getvalue() + b'x' * 4_000_000))\n",
        ("too large to show: save it to a file in output/; this is a smaller copy", "40x30 px"), 2, (("image/jpeg", False), (PNG, False)),
    ),
    "pictures of Pillow": Row(
        "from PIL import Image\nim = Image.new('RGB', (30, 20), 'red')\nim.show()\nim\n", ("30x20 px", "Picture of Pillow: 30 x 20 pixels, mode RGB"), 1, ((PNG, False),),
    ),
    # ------------------------------------------------------------------------------------------ users' own classes
    "own forms": Row(
        "class Page:\n    def _repr_html_(self): return '<b>of a class</b>'\nclass Bundle:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'as a bundle', 'application/x-own': 'own data'}\nclass Shows:\n    def _ipython_display_(self): print('by itself')\nclass Breaks:\n    def _repr_html_(self): raise ValueError('no page')\n    def __repr__(self): return 'still here'\nfor kind in (Page, Bundle, Shows, Breaks):\n    display(kind())\n",
        ("of a class", "as a bundle", "by itself", "still here", "Breaks cannot be shown in every form: ValueError: no page"),
        shown=((HTML, True), ("application/x-own", False), ("text/plain", False)),
    ),
    "own forms within forms": Row(
        "class Shows:\n    def _ipython_display_(self): display('inner')\nclass Nests:\n    def _repr_html_(self): display('within'); raise ValueError('no page')\n    def __repr__(self): return 'outer'\ndisplay(Shows())\nNests()\n",
        ("'inner'", "'within'", "outer", "ValueError: no page"), shown=(("text/plain", False),) * 2, never=("AttributeError",),
    ),
    "a long way to say how a value was made": Row(
        "class Table:\n    def __repr__(self): return 'Table(' + 'x=<y>, ' * 500 + ')'\n    def _repr_html_(self): return '<table><tr><th>a<th>b<tr><td>1<td>2</table>'\nTable()\n", ("a | b", "1 | 2"), shown=((HTML, True),), never=("x=<y>",),
    ),
    "a page that a script draws": Row(
        "from IPython.display import HTML\nHTML('<div id=c></div><script>' + 'lib' * 40_000 + '</script><script>draw(\"c\", {\"bars\": [1, 2]})</script>')\n",
        ('Page that a script draws: draw("c", {"bars": [1, 2]})',), shown=((HTML, False),), never=("liblib",),
    ),
    "styles and scripts of a page": Row(
        "from IPython.display import HTML, JSON, Javascript, GeoJSON, display\ndisplay(HTML('<style>p {}</style> <!-- c --> <script>x = 1</script>'))\ndisplay(display_id='later')\ndisplay(GeoJSON({'type': 'Point'}))\nJavascript('alert(1)')\n",
        ('{"type": "Point"}', "JavaScript: alert(1)"), shown=(("application/geo+json", False), ("application/javascript", False)), never=("html", "0 bytes"),
    ),
    "what loads scripts, and nothing at all": Row(
        "display({'application/javascript': 'x' * 10**6, 'application/vnd.bokehjs_load.v0+json': 'x' * 10**6}, raw=True)\ndisplay({'text/plain': '', 'text/html': '<pre></pre>'}, raw=True)\ndisplay({'text/plain': ''}, raw=True)\nprint('only this')\n", ("only this",), never=("shown",),
    ),
    "data that JSON does not know": Row(
        "display({'application/json': {None: float('inf'), 'b': b'x', 'deep': [{1}, object]}, 'text/plain': 'words'}, raw=True)\ndisplay({'application/vnd.plotly.v1+json': {'data': [{'y': [1, float('nan'), None]}, 7, {'type': {}}], 'layout': None}}, raw=True)\ndisplay({'application/vnd.vegalite.v5+json': {'mark': 3, 'encoding': [], 'data': 'x'}}, raw=True)\n",
        ("words", "Plotly figure with 2 traces", "Vega-Lite chart"), shown=(("application/json", True), (PLOTLY, False), ("application/vnd.vegalite.v5+json", False)),
    ),
    "updates and clears": Row(
        "from IPython.display import HTML, clear_output\nimport pandas as pd\nh = display(HTML('<p>first</p>'), display_id=True)\nh.update(HTML('<p>second</p>'))\nprint('kept')\n", ("second", "kept"), shown=((HTML, False),), never=("first",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
async def test_what_libraries_show_is_told_attached_and_stored(server: Served, kind: str) -> None:
    row = ROWS[kind]
    seen = await server.run(row.code, requirements=LIBRARIES)
    assert seen.status == "ok", seen
    for piece in row.text:
        assert piece in seen.text, seen
    for piece in row.never:
        assert piece not in seen.text, seen
    displays = seen.fields["displays"]
    assert len(seen.images) == row.images == sum(bool(d.get("attached")) for d in displays)
    told = [(d["mime"], d.get("relative_path", "").startswith("output/.shown/")) for d in displays]
    assert tuple(told) == row.shown, displays
    also = [form["mime"] for d in displays for form in d.get("alternatives", ())]
    assert len(also) == len(row.also) and all(map(str.startswith, also, row.also)), also
    await check_files(server, seen)
    cases.assert_no_base64(seen)
    assert len(seen.text) < 12_000 and len(json.dumps(seen.fields)) < 30_000


async def check_files(server: Served, seen: Seen) -> None:
    """Every form of what was shown can be read by its address; those of told ones are not among the artifacts."""
    for form in [form for d in seen.fields["displays"] for form in (d, *d.get("alternatives", ()))]:
        if "uri" not in form:
            continue
        content = (await server.client.read_resource(form["uri"])).contents[0]
        raw = content.text.encode() if hasattr(content, "text") else base64.b64decode(content.blob)
        assert len(raw) == form["size"]
        hidden = form["relative_path"].startswith("output/.shown/")
        assert (form["relative_path"] in seen.files) == (not hidden)
        assert (form["relative_path"] in seen.text) == (not hidden)


async def test_interactive_plots_are_stored_as_small_pages_and_as_data(server: Served) -> None:
    seen = await server.run("import plotly.express as px\npx.line(y=[1, 3, 2])\n", requirements=LIBRARIES)
    [display] = seen.fields["displays"]
    page = (await server.client.read_resource(display["uri"])).contents[0]
    assert display["size"] < 50_000 and "cdn" in page.text
    data = (await server.client.read_resource(display["alternatives"][0]["uri"])).contents[0]
    assert json.loads(data.text)["data"][0]["type"] == "scatter"


# ------------------------------------------------------------------------------------------ what is in no library


TWINS_OF_HOSTS = """
import sys, warnings
import matplotlib.figure, matplotlib.pyplot as plt, numpy as np, pandas as pd, PIL.Image, random
from prims_kernel import twins
from prims_kernel.twins import bundles, markup

class Angry:
    def __getattr__(self, name): raise RuntimeError(name)
    def __str__(self): raise RuntimeError("str")
    __repr__ = __len__ = __iter__ = __float__ = __eq__ = __hash__ = __str__
class Endless(dict):
    def items(self):
        while True: yield from super().items()
loop = {}; loop["in"] = loop
nest = []
for _ in range(5000): nest = [nest]
words = ["", "x" * 10**6, "\\ud800", "<" * 5000, "\\0", -1, 10**400, float("nan"), None, b"\\xff", loop, nest, Angry(), object]

def figure():
    fig = plt.figure(); ax = fig.add_subplot()
    ax.plot([1, float("nan"), float("inf")]); ax.plot([float("nan")] * 3); ax.plot([])
    ax.set_title("t" * 10**5); ax.scatter([], []); ax.bar([1, 2], [float("nan"), 1]); ax.hist([]); ax.imshow(np.full((2, 2), np.nan))
    return fig
def broken():
    fig = figure()
    fig.axes[0].get_title = fig.axes[0].xaxis.get_view_interval = Angry().__str__
    for line in fig.axes[0].lines: line.get_xdata = Angry().__str__
    return fig
class Frame(pd.DataFrame):
    def __repr__(self): raise RuntimeError("repr")
class Picture(PIL.Image.Image):
    width = property(lambda self: 1 / 0)
values = [figure(), broken(), Frame({"a": [1]}), pd.DataFrame(), pd.DataFrame(columns=["a"]), pd.DataFrame({"a": words}, dtype=object),
          pd.DataFrame([words] * 2, dtype=object), pd.Series(dtype=object), Picture(), Angry(), *words]
made = 0
for value in values:
    twin = twins.of(value)
    made += twin is not None
    assert twin is None or len(twin.text) < 20_000, type(value)
mimes = ["text/html", "image/svg+xml", "application/json", "application/vnd.plotly.v1+json", "application/vnd.vegalite.v6.json", "text/latex", "x"]
keys = ["data", "layout", "x", "y", "type", "labels", "values", "title", "text", "mark", "encoding", "datasets", "layer", "spec", "field", "bdata", "dtype", "shape"]
chance = random.Random(1)
def made_up(depth):
    kind = chance.randrange(4) if depth < 5 else 3
    if kind == 0: return {chance.choice(keys): made_up(depth + 1) for _ in range(chance.randrange(5))}
    if kind == 1: return [made_up(depth + 1) for _ in range(chance.randrange(4))]
    return chance.choice([*words[:11], "f8", "AAAA", 3, "3, 4", "bar"])
for number in range(1500):
    value = chance.choice([made_up(0), {"data": [made_up(1)], "layout": made_up(1)}, *words])
    content = twins.complete({"data": {chance.choice(mimes): value, "text/plain": chance.choice(["", "<a.b object at 0x1>"])}})
    text = content["data"].get("text/plain", "")
    assert isinstance(text, str) and len(text) < 20_000, (number, len(text))
for html in ("<" * 100_000, "<a " * 50_000, "&" * 100_000, "<!--" * 50_000, "<table>" * 30_000, "</p>" * 50_000, "<p>&#x41;<script>never"):
    text, whole = markup.readable(html)
    assert len(text) < 5000 and "never" not in text
print("twins", made, plt.get_fignums() != [], pd.get_option("display.max_columns"))
plt.close("all")
"""


async def test_twins_of_hostile_values_neither_raise_nor_grow_nor_change_anything(server: Served) -> None:
    seen = await server.run(TWINS_OF_HOSTS)
    assert seen.status == "ok", seen
    assert seen.stdout.startswith("twins ") and seen.stdout.endswith(" True 20\n"), seen


async def test_nothing_is_imported_for_the_sake_of_a_twin(server: Served) -> None:
    code = "import sys\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))\ndisplay([1], {'a': 2}, None)\nprint([m for m in ('pandas', 'numpy', 'matplotlib', 'PIL', 'plotly', 'polars') if m in sys.modules])\n"
    assert (await server.run(code)).stdout.endswith("[]\n")


# ------------------------------------------------------------------------------------------ the budget of pictures


def opened(seen: Seen) -> list[tuple[int, int]]:
    """The sizes of a reply's pictures: each is what its label says, and whole."""
    sizes = []
    for block in seen.images:
        raw = base64.b64decode(block.data)
        assert bundles.sniff(raw) == block.mime_type and bundles.whole(raw, block.mime_type)
        width, height = bundles.pixels(raw, block.mime_type)
        assert width and height
        sizes.append((width, height))
    return sizes


LARGE = {
    "a noisy figure": ("import numpy as np, matplotlib.pyplot as plt\nplt.figure(figsize=(12, 12), dpi=150)\nplt.imshow(np.random.default_rng(0).random((1600, 1600)), interpolation='nearest')\nplt.show()\n", (1482, 1458)),
    "a very wide figure": ("import matplotlib.pyplot as plt\nplt.figure(figsize=(120, 3), dpi=100)\nplt.plot(range(100))\nplt.show()\n", (9356, 274)),
    "a photograph": ("import io\nfrom PIL import Image as P\nfrom IPython.display import Image, display\nb = io.BytesIO(); P.effect_noise((2500, 2000), 90).convert('RGB').save(b, 'JPEG', quality=95)\ndisplay(Image(b.getvalue()))\n", (2500, 2000)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
async def test_large_pictures_are_sent_small_and_kept_whole(server: Served, kind: str) -> None:
    code, (width, height) = LARGE[kind]
    seen = await server.run(code)
    [small], [display] = opened(seen), seen.fields["displays"]
    assert abs(display["width"] - width) < 20 and abs(display["height"] - height) < 20
    assert max(small) <= 1568 and len(base64.b64decode(seen.images[0].data)) <= 150_000
    assert abs(small[0] / small[1] / (display["width"] / display["height"]) - 1) < 0.05
    assert (
        f"{display['width']}x{display['height']} px" in seen.text
        and f"attached as {small[0]}x{small[1]} px" in seen.text
    )
    assert display["size"] > 20_000 and display["relative_path"] in seen.text


async def test_of_many_pictures_the_first_and_the_last_go_with_the_reply(server: Served) -> None:
    code = "import numpy as np\nfrom PIL import Image\nfor n in range(30):\n    display(Image.fromarray(np.random.default_rng(n).integers(0, 255, (120, 140 + n), dtype=np.uint8)))\n"
    seen = await server.run(code)
    displays = seen.fields["displays"]
    sent = [n for n, display in enumerate(displays) if display.get("attached")]
    assert len(displays) == 30 and 10 <= len(sent) < 30 and sent[0] == 0 and sent[-1] == 29
    gaps = [b for a, b in pairwise(sent) if b != a + 1]
    assert len(gaps) == 1, "the middle is left out, in one piece"
    assert [size[0] for size in opened(seen)] == [140 + n for n in sent]
    assert sum(len(base64.b64decode(image.data)) for image in seen.images) <= 500_000
    assert "no room for more pictures" in seen.text
    assert all(display["relative_path"] in seen.text for display in displays)


async def test_the_operator_decides_what_pictures_may_take() -> None:
    code = "import matplotlib.pyplot as plt\nfor n in range(3):\n    plt.figure(figsize=(6, 4)); plt.plot([1, n]); plt.show()\n"
    async with cases.serving("--image-pixels", "200", "--image-bytes", "9000", "--images-bytes", "12000") as served:
        seen = await served.run(code)
    sizes = opened(seen)
    assert sizes and all(max(size) <= 200 for size in sizes)
    raw = [len(base64.b64decode(image.data)) for image in seen.images]
    assert max(raw) <= 9000 and sum(raw) <= 12_000


BAD = """
import base64, io, struct, zlib
from PIL import Image

def encoded(kind):
    out = io.BytesIO(); Image.new("RGB", (100, 50), "red").save(out, kind)
    return out.getvalue()
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def png(width, height, data):
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
def show(raw, mime="image/png"):
    display({mime: base64.b64encode(raw).decode()}, raw=True)
good = encoded("PNG")
show(good[:60])
show(good[:-20] + b"\\0" * 20)
show(png(50_000, 50_000, zlib.compress(b"\\0" * 10_000_000)))
show(png(0, 0, b""))
show(png(3000, 3000, b"no zlib stream"))
show(b"\\xff\\xd8\\xff\\xe0 no more", "image/jpeg")
show(b"GIF89a", "image/gif")
show(b"RIFF\\x10\\0\\0\\0WEBPVP8 ", "image/webp")
for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"):
    show(encoded(kind), "image/png" if kind == "BMP" else f"image/{kind.lower()}")
huge = '<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="9e9"><pattern id="p" width="1e6" height="1e6"/><rect width="1e9" height="9" fill="url(#p)"/></svg>'
for drawing in ("<svg", "no drawing", huge % "9e9", huge % "-1", "<svg " + "a" * 100_000, "<svg>" * 20_000):
    display({"image/svg+xml": drawing}, raw=True)
print("shown")
"""


async def test_broken_pictures_and_bombs_are_told_and_the_others_still_sent(server: Served) -> None:
    seen = await server.run(BAD)
    assert seen.status == "ok" and seen.stdout == "shown\n"
    displays = seen.fields["displays"]
    assert [bool(display.get("attached")) for display in displays[:14]] == [False] * 8 + [True] * 6, seen
    assert opened(seen)[:6] == [(100, 50)] * 6 and max(map(max, opened(seen))) <= 1568
    assert len(displays) == 20
    assert seen.text.count("not attached (") == 8 and "too many pixels to be shown: 50,000 × 50,000" in seen.text
    assert (await server.run("print('next')\n")).stdout == "next\n"


async def test_pictures_of_a_spare_parent_need_no_helper(server: Served) -> None:
    # A small figure is sent as it was made, byte for byte.
    seen = await server.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n")
    [display] = seen.fields["displays"]
    stored = (await server.client.read_resource(display["uri"])).contents[0]
    assert stored.blob == seen.images[0].data


def test_a_flood_of_displays_stays_within_a_reply() -> None:
    forms = tuple(
        Form(f"application/{n}{'x' * 100}", 10**9, "n" * 40, f"output/run1000-display-100-{n}.bin") for n in range(7)
    )
    flood = Display(
        "image/png",
        10**9,
        "n" * 40,
        "output/run1000-figure-100.png",
        "t" * 20_000,
        9999,
        9999,
        forms,
        after=10**6,
        trouble="because " * 20,
    )
    result = RunResult(
        "ok", "bubblewrap", displays=(flood,) * 100 + (replace(flood, told=True),) * 100, displays_left_out=10**6
    )
    rendered = render(result, "s_" + "0" * 32, Settings())
    Draft202012Validator(OUTPUT_SCHEMA).validate(rendered.structured)
    assert len(json.dumps(rendered.structured)) < 60_000 and len(rendered.text) < 60_000
    assert len(rendered.structured["displays"]) == 40 and "more" in rendered.text


# ------------------------------------------------------------------------------------------ hints


HINTS = {
    "nothing": ("x = 1\n", "finished without output"),
    "a table in part": ("import pandas as pd\nprint(pd.DataFrame({'a': range(100)}))\n", "shown in part"),
    "a usual import": ("np.zeros(3)\n", "import numpy as np"),
    "a name of an earlier call": ("kept_table.head()\n", "kept_table was defined in an earlier call (run 1)"),
    "a pickle of an earlier call's class": ("import pickle\npickle.loads(b'c__main__\\nkept_table\\n.')\n", "kept_table was defined in an earlier call (run 1)"),
    "a name that never was": ("never_defined_anywhere\n", None),
    "an accessor that wants a package": ("import pandas as pd\npd.DataFrame({'a': [1]}).style\n", 'requirements=["jinja2"]'),
    "a file with a like name": ("open('sale_2023.csv')\n", "The workspace has output/sales_2023.csv."),
    "a window": ("class TclError(Exception): pass\nraise TclError('no display name and no $DISPLAY environment variable')\n", "no screen here"),
    "a program that is not there": ("import subprocess\nsubprocess.run(['ffmpeg', '-version'])\n", "imageio-ffmpeg brings it"),
    "a file elsewhere": ("import pandas as pd\npd.read_csv('/mnt/data/Sales_2023.csv')\n", "The workspace has output/sales_2023.csv."),
    "a file of an earlier call's own folder": ("open('/tmp/model.pkl')\n", "a /tmp and a home of its own"),
    "a file unlike all": ("open('q.bin')\n", "which has output/sales_2023.csv"),
    "writing to inputs": ("open('mounts/new.txt', 'w')\n", "mounts/ is read-only"),
    "a module of many packages": ("from google.cloud import storage\n", 'requirements=["google-cloud-storage"]'),
    "a figure saved and closed": ("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('output/p.png')\nplt.close()\n", "output/p.png saved and not shown"),
    "no network": ("import urllib.request\nurllib.request.urlopen('http://a.example/')\n", "network is off"),
    "a server": ("print('Running on http://127.0.0.1:5000', flush=True)\nwhile True: pass\n", "Nobody can reach a server here"),
    "a forgotten await": ("async def f(): pass\nf()\n", "write await before the call"),
    "nothing wrong": ("print(1)\n", None),
    "a picture beside output/": ("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('beside.png')\nplt.close()\n", "Not returned: beside.png"),
    "the same again": ("import os\nos.utime('beside.png')\nprint(1)\n", None),
}  # fmt: skip


async def test_hints_come_where_they_apply_and_nowhere_else() -> None:
    async with cases.serving() as served:
        await served.run("kept_table = 1\nopen('output/sales_2023.csv', 'w').close()\nprint('made')\n")
        for kind, (code, hint) in HINTS.items():
            seen = await served.run(code, timeout_seconds=2 if kind == "a server" else 30)
            found = seen.fields["feedback"]
            assert (len(found) == 1 and hint in found[0]) if hint else found == [], (kind, seen)
