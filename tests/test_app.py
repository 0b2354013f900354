"""The MCP App: what the server says of it, and how its page shows real results in a real host (tests/apphost.py)."""

from __future__ import annotations

import base64
import contextlib
import gzip
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client import Client

from prims.server import app
from tests import apphost


@pytest.mark.anyio
async def test_the_tool_leads_to_the_page(client: Client) -> None:
    (run_code,) = [tool for tool in (await client.list_tools()).tools if tool.name == "run_code"]
    assert run_code.meta == {"ui": {"resourceUri": app.URI}, "ui/resourceUri": app.URI}
    listed = {str(resource.uri): resource for resource in (await client.list_resources()).resources}
    page = (await client.read_resource(app.URI)).contents[0]
    assert page.mime_type == listed[app.URI].mime_type == "text/html;profile=mcp-app"
    assert page.meta == listed[app.URI].meta
    assert page.meta["ui"]["csp"] == {"connectDomains": [], "resourceDomains": []}
    assert len(page.text) < 150_000


@pytest.mark.anyio
async def test_the_libraries_fit_into_one_message(client: Client) -> None:
    for name in ("plotly", "vega"):
        library = (await client.read_resource(f"ui://prims/{name}.js")).contents[0]
        assert len(library.blob) < 700_000
        assert len(gzip.decompress(base64.b64decode(library.blob))) > 500_000


# ------------------------------------------------------------------------------------------- in a browser

HOSTILE = (apphost.APP / "test-host" / "hostile.py").read_text("utf-8")
KINDS = r"""
import sys
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, JSON, SVG, Markdown, display

print("printed first")
frame = pd.DataFrame({"name": ["pear", "fig", "apple"], "count": [10, 9, 200]})
display(frame)
print("printed later")
display(HTML("<h2>Report</h2><p>See <a href='https://example.com/a?b=1'>the source</a>.</p>"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'><rect width='20' height='20'/></svg>"))
display(JSON({"deep": [1, 2]}))
plt.plot([1, 3, 2])
plt.show()
points = [{"a": i, "b": i * i % 7} for i in range(20)]
display({"application/vnd.plotly.v1+json": {
    "data": [{"type": "scattergl", "mode": "markers", "x": [1, 2, 3], "y": [2, 1, 3], "name": "dots"},
             {"type": "bar", "x": [1, 2, 3], "y": [1, 2, 1], "name": "bars"}],
    "layout": {"title": {"text": "A plotly plot"}}}}, raw=True)
display({"application/vnd.vegalite.v5+json": {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json", "data": {"values": points}, "mark": "point",
    "encoding": {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "quantitative"}}}}, raw=True)
display({"application/vnd.plotly.v1+json": {"data": [{"type": "surface", "z": [[1, 2], [3, 4]]}]}}, raw=True)
print("to stderr", file=sys.stderr)
frame.to_csv("output/fruit.csv", index=False)
open("output/lines.txt", "w").write("line\n" * 100_000)
open("output/raw.bin", "wb").write(bytes(range(256)) * 4000)
frame.describe()
"""


@pytest.fixture(scope="module")
def host() -> Iterator[apphost.Host]:
    apphost.require()
    with apphost.running() as host:
        yield host


@pytest.fixture(scope="module")
def kinds(host: apphost.Host) -> tuple[dict[str, Any], dict[str, Any]]:
    return host.call(KINDS)


def test_each_kind_of_output_is_shown(host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]]) -> None:
    view = host.show(*kinds)
    assert view.locator("h1").inner_text() == "Done"
    assert view.locator("h2").all_inner_texts() == [
        "Code",
        "Output",
        "Result",
        "Standard error",
        "Files",
        "Environment",
    ]
    assert "frame.describe()" in view.get_by_role("group", name="Code").inner_text()
    assert view.locator(".keyword").first.inner_text() == "import"
    output = view.locator("section", has=view.get_by_role("heading", name="Output"))
    texts = output.get_by_role("group", name="Standard output")
    assert [text.strip() for text in texts.all_inner_texts()] == ["printed first", "printed later"]
    assert "to stderr" in view.get_by_role("group", name="Standard error").inner_text()
    # The table of pandas, its own result, and the picture.
    output.locator("td", has_text="pear").wait_for()
    view.locator("section", has=view.get_by_role("heading", name="Result")).locator("th", has_text="mean").wait_for()
    assert output.locator("img").evaluate_all("all => all.map(one => one.src.slice(0, 15))") == [
        "data:image/svg+", "data:image/png;",
    ]  # fmt: skip
    assert '"deep"' in output.locator("pre", has_text='"deep"').first.inner_text()
    # Drawn by the libraries, each in a frame without an origin.
    frames = output.locator("iframe")
    assert set(frames.evaluate_all("all => all.map(one => one.getAttribute('sandbox'))")) == {"allow-scripts"}
    plotly = output.locator("figure", has_text="vnd.plotly").first.frame_locator("iframe")
    plotly.locator(".gtitle", has_text="A plotly plot").wait_for()
    assert plotly.locator(".scatterlayer .point").count() == 3
    vega = output.locator("figure", has_text="vnd.vegalite").frame_locator("iframe")
    vega.locator("svg .mark-symbol path").first.wait_for()
    assert vega.locator("svg .mark-symbol path").count() == 20
    output.locator("figure", has_text="type surface").locator("details[open]", has_text="surface").wait_for()
    assert host.errors == []
    assert host.strangers() == []


def test_a_link_is_opened_by_the_host_after_its_target_was_seen(
    host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    view = host.show(*kinds)
    figure = view.locator("figure", has=view.locator("iframe")).first
    figure.frame_locator("iframe").locator("a").click()
    figure.locator("code", has_text="https://example.com/a?b=1").wait_for()
    assert host.log("links") == []
    figure.get_by_role("button", name="Open").click()
    figure.locator(".links:empty").wait_for(state="attached")
    assert host.log("links") == ["https://example.com/a?b=1"]
    assert figure.frame_locator("iframe").locator("h2").inner_text() == "Report"


def test_tables_sort_by_values(host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]]) -> None:
    view = host.show(*kinds)
    table = view.get_by_role("table").first
    cells = table.locator("tbody td:nth-child(3)")
    head = table.get_by_role("columnheader", name="count")
    cells.first.wait_for()
    assert cells.all_inner_texts() == ["10", "9", "200"]
    for state, order in (
        ("ascending", ["9", "10", "200"]), ("descending", ["200", "10", "9"]), ("none", ["10", "9", "200"])
    ):  # fmt: skip
        head.get_by_role("button").press("Enter")
        table.locator(f"th[aria-sort={state}]", has_text="count").wait_for()
        assert cells.all_inner_texts() == order


def test_files_are_saved_through_the_host(host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]]) -> None:
    view = host.show(*kinds)
    # Larger than what the server gives in one piece.
    view.get_by_role("button", name="Download raw.bin").click()
    view.locator(".told", has_text="Saved.").wait_for()
    ((contents,),) = host.log("downloads")
    assert contents["resource"]["uri"].endswith("/output/raw.bin")
    assert base64.b64decode(contents["resource"]["blob"]) == bytes(range(256)) * 4000
    view.get_by_role("button", name="Show fruit.csv").click()
    view.locator(".files td", has_text="apple").wait_for()
    view.get_by_role("button", name="Show lines.txt").click()
    view.locator(".files pre", has_text="lines are not shown").wait_for()
    assert view.locator(".files pre").evaluate("all => all.textContent.split('\\n').length") < 6000
    # A host that gives nothing still shows what came with the result.
    view = host.show(*kinds, capabilities={"serverResources": None, "downloadFile": None})
    view.locator("img[src^='data:image/png']").last.wait_for()
    view.locator("figure", has_text="vnd.vegalite").locator("details[open] pre").wait_for()
    assert view.get_by_role("button", name="Download").count() == 0


def test_the_line_of_an_error_is_marked(host: apphost.Host) -> None:
    code = "def half(x):\n    return x / 0\n\nprint('before')\nhalf(3)\nprint('never')\n"
    view = host.show(*host.call(code))
    assert view.locator("h1").inner_text() == "Error"
    assert view.locator("mark").inner_text().strip().endswith("return x / 0")
    assert view.locator("mark").get_attribute("data-number") == "2"
    assert "ZeroDivisionError in line 2" in view.get_by_role("alert").inner_text()
    view.locator("summary", has_text="Traceback").click()
    assert "line 2, in half" in view.get_by_role("group", name="Traceback").inner_text()
    # A call that PRIMS refused has text only; one that was cancelled not even that.
    refused = host.call("1", requirements=["no such requirement!"])
    assert "requirement" in host.show(*refused).get_by_role("group", name="Answer").inner_text()
    view = host.show({"code": "1"}, None, cancelled="by the user")
    view.get_by_text("by the user").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_left_out(host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]], theme: str) -> None:
    """By the rules of axe-core (WCAG 2.2 A and AA), and every control by keyboard."""
    view = host.show(*kinds, context={"theme": theme})
    view.locator("td", has_text="pear").wait_for()
    frame = next(frame for frame in host.page.frames if frame.name == "app")
    frame.evaluate((apphost.APP / "node_modules/axe-core/axe.min.js").read_text("utf-8"))
    options = {"iframes": False, "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = frame.evaluate("options => axe.run(document, options)", options)
    told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
    assert told == []
    assert len(found["passes"]) > 15
    ground = view.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) > 384) == (theme == "light")


def test_every_control_is_reached_by_keyboard(host: apphost.Host, kinds: tuple[dict[str, Any], dict[str, Any]]) -> None:
    view = host.show(*kinds)
    view.locator("section", has=view.get_by_role("heading", name="Result")).locator("th", has_text="mean").wait_for()
    view.locator("figure", has_text="type surface").locator("details[open]").wait_for()
    frame = next(frame for frame in host.page.frames if frame.name == "app")
    named = "one => one.getAttribute('aria-label') || one.textContent.trim() || one.title"
    active = "document.activeElement"
    controls = "button, summary, [tabindex='0'], audio, video"
    for _ in range(3):  # what is not in sight is loaded when one comes near it, with controls of its own
        wanted = frame.eval_on_selector_all(controls, f"all => all.filter(one => one.checkVisibility()).map({named})")
        frame.locator(controls).first.focus()
        reached = []
        for _ in range(200):
            name = frame.evaluate(f"() => document.hasFocus() && {active}.matches(`{controls}`) && ({named})({active})")
            reached += [name] if name else []
            if len(reached) == len(wanted):
                break
            host.page.keyboard.press("Tab")
        if reached == wanted:
            break
    # In the order of the page; frames of outputs lie in between.
    assert reached == wanted
    # One press tells the host to show it larger.
    view.get_by_role("button", name="Full screen").press("Space")
    host.page.wait_for_function("() => testHost.log.modes.includes('fullscreen')")


def test_hostile_outputs_do_nothing(host: apphost.Host) -> None:
    with contextlib.closing(apphost.Canary()) as control:
        # What the browser may reach is noticed.
        host.page.evaluate("url => { fetch(url, {mode: 'no-cors'}).catch(() => 0) }", control.url)
        assert control.touched(within=apphost.SECONDS)
    with contextlib.closing(apphost.Canary()) as canary:
        host.requests.clear()
        given, result = host.call(HOSTILE.replace("http://127.0.0.1:9", canary.url))
        host.page.evaluate("() => { window.canary = 'alive' }")
        # The server leaves out names of this kind; the page does not count on it.
        forged = {
            "name": "invoice\u202egpj.exe",
            "relative_path": "output/invoice\u202egpj.exe",
            "size": 1,
            "mime": "x/y",
        }
        result["structuredContent"]["artifacts"].append(forged)
        view = host.show(given, result)
        frame = next(frame for frame in host.page.frames if frame.name == "app")
        frame.evaluate("() => { window.canary = 'alive' }")
        view.frame_locator("iframe >> nth=0").get_by_text("first").wait_for()
        second = view.frame_locator("iframe >> nth=1")
        second.get_by_text("second").wait_for()
        # Five megabytes, of which the page holds only what is in sight.
        view.get_by_role("button", name="Show (").click()
        view.get_by_text("50,000 rows × 1 column").wait_for()
        rows = view.locator("table[aria-rowcount='50001'] tbody tr")
        assert rows.count() < 100
        view.locator(".table").first.evaluate("box => { box.scrollTop = box.scrollHeight }")
        view.get_by_role("cell", name="cell 49999", exact=True).wait_for()
        assert rows.count() < 100
        view.locator("figure", has_text="vnd.plotly").frame_locator("iframe").locator(".main-svg").first.wait_for()
        view.locator("figure", has_text="vnd.vega").locator("details[open], .note").first.wait_for()
        assert view.locator(".files .name", has_text="invoice").inner_text() == r"output/invoice\u{202e}gpj.exe"
        view.get_by_role("button", name="Show <img").click()
        view.locator(".files td", has_text="<script>").wait_for()
        # Links lead nowhere by themselves, and to `javascript:` not even through the host.
        second.get_by_text("javascript link").click()
        second.locator("#leak").click()
        view.locator(".links code", has_text="/link").wait_for()
        second.get_by_role("button", name="send").click()
        assert view.get_by_role("button", name="Run its scripts").count() == 2
        # Even when a person lets its scripts run, it reaches neither the page nor the network.
        view.get_by_role("button", name="Run its scripts").last.click()
        view.frame_locator("iframe >> nth=1").get_by_text("script was run").first.wait_for()
        view.frame_locator("iframe >> nth=1").locator("#leak").wait_for()
        # A frame can leave its own document, and arrives nowhere.
        with host.page.expect_event("framenavigated", lambda moved: moved.url.startswith("chrome-error:")):
            view.get_by_role("button", name="Run its scripts").click()
        assert host.page.evaluate("window.canary") == frame.evaluate("window.canary") == "alive"
        assert [asked for asked in host.log("asked") if "://" not in asked] == []
        assert host.log("links") == []
        assert canary.touched() == []
        assert [url for url in host.strangers() if canary.url in url] == []
    assert frame.locator("script").count() == 1
    assert frame.locator("img").evaluate_all("all => all.every(one => one.src.startsWith('data:image/svg+xml'))")


def test_the_built_files_are_what_the_sources_make() -> None:
    apphost.require()
    command = ["node", "build.mjs", "--check"]
    done = subprocess.run(
        command, cwd=apphost.APP, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr


def test_the_page_makes_no_markup_of_text() -> None:
    sinks = r"(inner|outer)HTML\s*\+?=|insertAdjacent|document\.write|\beval\(|new Function|setHTML|Fragment\("
    for source in (apphost.APP / "src").rglob("*.js"):
        assert not re.search(sinks, source.read_text("utf-8")), source
