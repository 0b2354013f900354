"""Libraries that want a notebook's page or file, set up so that what they show can be stored and told in words.

Each is touched right after the code has imported it, and only then.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from contextlib import suppress
from typing import Any

from prims_kernel import imports, order


def install() -> None:
    """Arrange for all of them."""
    imports.after(
        {
            "pandas.io.formats.format": _pandas,
            "polars": _polars,
            "plotly.io": _plotly,
            "plotly.basewidget": _plotly_widget,
            "altair": _altair,
            "bokeh.io": _bokeh,
            "tqdm.notebook": _tqdm,
            "PIL.Image": _pillow,
            "cv2": _opencv,
            "rich.live": _rich,
            "pyviz_comms": _pyviz,
            "itables": _itables,
            "numba.core.caching": _numba,
        }
    )


def _show(data: dict[str, Any], summary: bool = False) -> None:
    from IPython.display import display

    from prims_kernel.twins import SUMMARY

    display(data, raw=True, metadata={SUMMARY: True} if summary else None)


def _pandas(formats: Any) -> None:
    parameters = formats.get_dataframe_repr_params

    def wider_parameters() -> dict[str, Any]:
        from prims_kernel.twins import tables

        return tables.wider(sys.modules["pandas"], parameters())

    formats.get_dataframe_repr_params = wider_parameters


def _polars(polars: Any) -> None:
    frame = polars.DataFrame
    plain = frame.__str__

    def with_all_columns(self: Any) -> str:
        from prims_kernel.twins import tables

        with tables.plain_polars(polars):
            text: str = plain(self)
            return text

    frame.__str__ = with_all_columns


def _plotly(io: Any) -> None:
    """A renderer that gives the figure as data and as a page; its own would want a notebook's packages and page."""
    import plotly.io._base_renderers as base  # type: ignore[import-not-found, unused-ignore]
    import plotly.io._renderers as own  # type: ignore[import-not-found, unused-ignore]

    class Renderer(base.MimetypeRenderer):  # type: ignore[misc]
        def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
            spec = io.to_json(fig_dict, validate=False)
            page = io.to_html(fig_dict, validate=False, include_plotlyjs="cdn", full_html=True)
            return {"application/vnd.plotly.v1+json": json.loads(spec), "text/html": page}

    def show(fig: Any, renderer: Any = None, validate: bool = True, **kwargs: Any) -> None:
        """Show a figure in the result of the run."""
        spec = own.validate_coerce_fig_to_dict(fig, validate)
        _show(Renderer().to_mimebundle(spec))

    # What a page would be given once, before the first figure: some megabytes of script.
    base.HtmlRenderer.activate = lambda self: None
    io.renderers["prims"] = Renderer()
    io.renderers.default = "prims"
    own.show = io.show = show


def _plotly_widget(widgets: Any) -> None:
    widgets.BaseFigureWidget._repr_mimebundle_ = widgets.BaseFigure._repr_mimebundle_


def _altair(altair: Any) -> None:
    """Charts as data and as a page, and as a picture where the code has asked for a package that draws one."""
    renderers = altair.renderers

    def every_form(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        names = ["mimetype", "html", *(["png"] if importlib.util.find_spec("vl_convert") else [])]
        data: dict[str, Any] = {}
        for name in names:
            with suppress(Exception), renderers.enable(name):
                made = renderers.get()(spec, **metadata)
                data |= made[0] if isinstance(made, tuple) else made
        data.pop("text/plain", None)
        return data

    renderers.register("default", every_form)
    renderers.enable("default")


def _bokeh(io: Any) -> None:
    """Plots as pages, without a notebook's own machinery; where the code names a file that is written too."""
    from bokeh.io.notebook import install_notebook_hook  # type: ignore[import-not-found, unused-ignore]
    from bokeh.io.state import curstate  # type: ignore[import-not-found, unused-ignore]

    def load(*args: Any, **kwargs: Any) -> None:
        pass

    def show_doc(shown: Any, state: Any, notebook_handle: Any) -> None:
        from prims_kernel.twins import plots

        text = "Plot of Bokeh"
        with suppress(Exception):
            text = plots.bokeh(shown)
        _show({"text/html": plots.bokeh_page(shown), "text/plain": text}, summary=True)

    def show_app(*args: Any, **kwargs: Any) -> None:
        print("An application of Bokeh needs a server and a browser; show a plot instead.", file=sys.stderr)

    install_notebook_hook("jupyter", load, show_doc, show_app, overwrite=True)
    curstate().output_notebook("jupyter")


def _tqdm(notebook: Any) -> None:
    """Bars as text: a widget would need a page."""
    from tqdm import std  # type: ignore[import-untyped, unused-ignore]

    notebook.tqdm = notebook.tqdm_notebook = std.tqdm
    notebook.trange = notebook.tnrange = std.trange
    notebook.IProgress = True  # else `tqdm.auto` warns that there are no widgets


def _pillow(image: Any) -> None:
    def show(self: Any, title: str | None = None) -> None:
        """Show the picture in the result of the run."""
        from IPython.display import display

        display(self)

    image.Image.show = show


def _opencv(cv2: Any) -> None:
    """Windows as pictures in the result, and of keys always the one that most loops end at."""

    def imshow(winname: str, mat: Any) -> None:
        """Show a picture in the result of the run."""
        array = sys.modules["numpy"].asarray(mat)
        if array.dtype.kind == "f":  # from 0 to 1, as in a window
            array = (array.clip(0, 1) * 255).astype("uint8")
        png = base64.b64encode(cv2.imencode(".png", array)[1]).decode("ascii")
        text = f"Picture of OpenCV {winname!r}: {array.shape[1]} x {array.shape[0]} pixels"
        _show({"image/png": png, "text/plain": text}, summary=True)

    cv2.imshow = imshow
    cv2.waitKey = cv2.waitKeyEx = lambda delay=0: ord("q")
    for name in ("namedWindow", "resizeWindow", "moveWindow", "destroyWindow", "destroyAllWindows"):
        setattr(cv2, name, lambda *args, **kwargs: None)


def _rich(live: Any) -> None:
    """What redraws itself, such as progress, as text in its last state: elsewhere it would be a widget."""
    begin = live.Live.__init__

    def without_widget(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.console.is_jupyter = False

    live.Live.__init__ = without_widget


def _pyviz(comms: Any) -> None:
    """HoloViews and Panel without what they would give a page once."""
    extension = comms.extension
    make = extension.__new__

    def quietly(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with order.muted():
            return make(cls, *args, **kwargs)

    extension.__new__ = quietly


def _itables(itables: Any) -> None:
    """Tables as they are: the reader's page, not a script in each of them, makes them scroll and sort."""
    from IPython.display import display

    itables.init_notebook_mode = lambda *args, **kwargs: None
    itables.show = lambda df=None, *args, **kwargs: display(df)


def _numba(caching: Any) -> None:
    """Functions with cache=True, which in a notebook work too: it is no file that they stand in."""
    from prims_kernel.shell import script_path

    locator = getattr(caching, "IPythonCacheLocator", None) or caching._IPythonCacheLocator
    known = locator.from_function.__func__

    def from_function(cls: Any, py_func: Any, py_file: str) -> Any:
        return known(cls, py_func, "<ipython-" if py_file == script_path() else py_file)

    locator.from_function = classmethod(from_function)
