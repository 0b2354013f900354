# ruff: noqa: E501 (programs are one line each, as a client sends them)
"""What code shows and leaves: pictures once each, updates applied, files listed, and nothing a client chokes on."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator

import pytest

from tests import cases, kit
from tests.cases import Served

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with cases.serving() as served:
        yield served


def check_png(seen: cases.Seen, count: int) -> None:
    """So many PNG blocks, each also told in words with its size and where it is stored."""
    assert len(seen.images) == count, seen
    pngs = [d for d in seen.fields["displays"] if d["mime"] == "image/png"]
    assert len(pngs) == count
    for image, display in zip(seen.images, pngs, strict=True):
        raw = base64.b64decode(image.data)
        assert image.mime_type == "image/png" and raw.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", raw[16:24])
        assert display["width"] == width and display["height"] == height
        assert f"{width}x{height}" in seen.text.replace("×", "x")
        assert display["relative_path"].startswith("output/") and display["relative_path"] in seen.text
    cases.assert_no_base64(seen)


FIGURES = {
    "a plot that is never shown": ("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares')\n", 1),
    "a plot that is shown": ("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n", 1),
    "Agg, then show": ("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot(range(5))\nplt.show()\n", 1),
    "Agg without show": ("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot(range(5))\n", 1),
    "agg by switch_backend": ("import matplotlib.pyplot as plt\nplt.switch_backend('agg')\nplt.plot(range(5))\nplt.show()\n", 1),
    "MPLBACKEND in the code": ("import os\nos.environ['MPLBACKEND'] = 'Agg'\nimport matplotlib.pyplot as plt\nplt.plot(range(5))\nplt.show()\n", 1),
    "TkAgg": ("import matplotlib\nmatplotlib.use('TkAgg')\nimport matplotlib.pyplot as plt\nplt.plot(range(5))\nplt.show()\n", 1),
    "the inline magic": ("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot(range(5))\nplt.show()\n", 1),
    "the inline magic after an import": ("import matplotlib.pyplot as plt\n%matplotlib inline\nplt.plot(range(5))\n", 1),
    "two figures": ("import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()\nplt.figure(); plt.plot([2, 3]); plt.show()\n", 2),
    "two figures, one of them not shown": ("import matplotlib.pyplot as plt\nplt.figure(); plt.plot([1, 5])\nplt.figure(); plt.plot([2, 3, 1])\n", 2),
    "a figure as last value": ("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 3, 2])\nfig\n", 1),
    "a figure shown and as last value": ("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 3, 2])\nplt.show()\n", 1),
    "a figure shown by display": ("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 3, 2])\ndisplay(fig)\nplt.close(fig)\n", 1),
    "a closed figure": ("import matplotlib.pyplot as plt\nplt.plot([1]); plt.close()\n", 0),
    "a figure after ioff": ("import matplotlib.pyplot as plt\nplt.ioff()\nplt.plot([1, 2, 4])\n", 1),
    "a figure in a function": ("def draw():\n    import matplotlib.pyplot as plt\n    plt.plot([1, 8])\n    plt.show()\ndraw()\n", 1),
    "a plot of pandas": ("import pandas as pd\npd.Series([1, 3, 2]).plot()\n", 1),
    "savefig, no show": ("import matplotlib.pyplot as plt\nplt.plot([1, 6])\nplt.savefig('output/saved.png')\n", 1),
    "a figure before an error": ("import matplotlib.pyplot as plt\nplt.plot([1, 7])\nplt.show()\n1 / 0\n", 1),
    "an unshown figure before an error": ("import matplotlib.pyplot as plt\nplt.plot([1, 9])\n1 / 0\n", 1),
    "a figure in asyncio.run": ("import asyncio, matplotlib.pyplot as plt\nasync def m():\n    plt.plot([3, 1])\nasyncio.run(m())\n", 1),
    "a figure beside a top-level await": ("import asyncio, matplotlib.pyplot as plt\nawait asyncio.sleep(0)\nplt.plot([3, 5])\n", 1),
    "a figure before sys.exit": ("import sys, matplotlib.pyplot as plt\nplt.plot([3, 6])\nsys.exit(0)\n", 1),
    "block=True": ("import matplotlib.pyplot as plt\nplt.plot([3, 7])\nplt.show(block=True)\n", 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", FIGURES)
async def test_each_figure_comes_back_once_as_a_picture(server: Served, kind: str) -> None:
    code, count = FIGURES[kind]
    seen = await server.run(code)
    assert seen.status == ("error" if "error" in kind else "ok"), seen
    check_png(seen, count)
    assert "non-interactive" not in seen.text
    assert "UserWarning" not in seen.stderr


async def test_figures_stand_in_the_order_of_the_code(server: Served) -> None:
    code = "import matplotlib.pyplot as plt\nfor n in (2, 4, 3):\n    plt.figure(figsize=(n, 2), dpi=100)\n    plt.plot([1, n])\n    plt.show()\n"
    seen = await server.run(code)
    check_png(seen, 3)
    widths = [d["width"] for d in seen.fields["displays"]]
    assert widths[0] < widths[2] < widths[1]


@pytest.mark.parametrize("era", kit.ERAS)
async def test_a_client_without_eyes_still_learns_of_the_picture(era: str) -> None:
    async with cases.serving(mode=era) as served:
        seen = await served.run("import matplotlib.pyplot as plt\nplt.plot([3, 1, 2]); plt.show()\n")
        check_png(seen, 1)
        wire = len(json.dumps(seen.fields)) + len(seen.text) + len(seen.images[0].data)
        assert wire < len(seen.images[0].data) + 20_000, "the picture travels twice"
        path = seen.fields["displays"][0]["relative_path"]
        again = await served.run(f"print(open({path!r}, 'rb').read(4))\n")
        assert again.stdout == "b'\\x89PNG'\n"


PICTURES = {
    "a pillow image": ("from PIL import Image\nImage.new('RGB', (30, 20), 'red')\n", "image/png", (30, 20)),
    "a pillow image by display": ("from PIL import Image\ndisplay(Image.new('RGB', (31, 20), 'red'))\n", "image/png", (31, 20)),
    "JPEG bytes": ("import io\nfrom PIL import Image as P\nfrom IPython.display import Image, display\nb = io.BytesIO(); P.new('RGB', (40, 25), 'blue').save(b, 'JPEG')\ndisplay(Image(b.getvalue()))\n", "image/jpeg", (40, 25)),
    "JPEG bytes labelled as PNG": ("import io, base64\nfrom PIL import Image as P\nb = io.BytesIO(); P.new('RGB', (41, 25), 'blue').save(b, 'JPEG')\ndisplay({'image/png': base64.b64encode(b.getvalue()).decode()}, raw=True)\n", "image/jpeg", (41, 25)),
    "a GIF": ("import io\nfrom PIL import Image as P\nfrom IPython.display import Image, display\nb = io.BytesIO(); P.new('P', (12, 13)).save(b, 'GIF')\ndisplay(Image(b.getvalue(), format='gif'))\n", "image/gif", (12, 13)),
}  # fmt: skip


@pytest.mark.parametrize("kind", PICTURES)
async def test_pictures_have_the_type_that_their_bytes_are(server: Served, kind: str) -> None:
    code, mime, size = PICTURES[kind]
    seen = await server.run(code)
    assert seen.status == "ok", seen
    [image], [display] = seen.images, seen.fields["displays"]
    assert image.mime_type == display["mime"] == mime
    assert (display["width"], display["height"]) == size
    cases.assert_no_base64(seen)


NO_PICTURES = {
    "SVG": "from IPython.display import SVG, display\ndisplay(SVG(data='<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"60\"><circle cx=\"30\" cy=\"30\" r=\"20\"/></svg>'))\n",
    "SVG as last value": "from IPython.display import SVG\nSVG(data='<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"60\"></svg>')\n",
    "text labelled as PNG": "display({'image/png': 'bm90IGEgcGljdHVyZQ==', 'text/plain': 'fallback'}, raw=True)\n",
    "no base64 labelled as PNG": "display({'image/png': '%%%', 'text/plain': 'fallback'}, raw=True)\n",
    "TIFF": "import io, base64\nfrom PIL import Image as P\nb = io.BytesIO(); P.new('RGB', (8, 8)).save(b, 'TIFF')\ndisplay({'image/tiff': base64.b64encode(b.getvalue()).decode(), 'text/plain': 'a tiff'}, raw=True)\n",
    "BMP labelled as PNG": "import io, base64\nfrom PIL import Image as P\nb = io.BytesIO(); P.new('RGB', (8, 8)).save(b, 'BMP')\ndisplay({'image/png': base64.b64encode(b.getvalue()).decode(), 'text/plain': 'a bmp'}, raw=True)\n",
    "PDF": "display({'application/pdf': 'JVBERi0xLjQK', 'text/plain': 'a pdf'}, raw=True)\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_PICTURES)
async def test_only_pictures_that_clients_take_are_image_blocks(server: Served, kind: str) -> None:
    seen = await server.run(NO_PICTURES[kind])
    assert seen.status == "ok", seen
    for image in seen.images:
        assert image.mime_type in ("image/png", "image/jpeg", "image/gif", "image/webp")
        raw = base64.b64decode(image.data)
        assert raw.startswith((b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF"))
    assert seen.fields["displays"] or seen.text.strip(), "what was shown is lost"
    if "SVG" in kind:
        assert "svg" in seen.text.lower() or seen.images


async def test_a_backend_does_not_leak_to_children(server: Served) -> None:
    code = """import os, subprocess, sys
import matplotlib.pyplot as plt
print("MPLBACKEND =", os.environ.get("MPLBACKEND"))
src = "import matplotlib.pyplot as p; p.plot([1,2]); p.savefig('output/child.png'); print('saved')"
r = subprocess.run([sys.executable, "-I", "-c", src], capture_output=True, text=True)
print(r.returncode, r.stdout, r.stderr[-300:])
"""
    seen = await server.run(code)
    assert "0 saved" in seen.stdout and "module://" not in seen.stdout, seen
    assert "output/child.png" in seen.files


# ------------------------------------------------------------------------------------------ B06 updates


UPDATED = {
    "a display that is updated": (
        "box = display('draft text', display_id='status-box')\nfor word in ('second', 'third', 'final'):\n    box.update(word + ' text')\n",
        ["final text"],
        ["draft text", "second text", "third text"],
    ),
    "an update by function": (
        "from IPython.display import display, update_display\ndisplay('old', display_id='d1')\nupdate_display('fresh', display_id='d1')\n",
        ["fresh"],
        ["old"],
    ),
    "two displays": (
        "a = display('a-0', display_id=True)\nb = display('b-0', display_id=True)\na.update('a-1')\nb.update('b-1')\na.update('a-2')\n",
        ["a-2", "b-1"],
        ["a-0", "a-1", "b-0"],
    ),
    "a clear that waits": (
        "from IPython.display import clear_output\nfor i in range(30):\n    clear_output(wait=True)\n    print('frame', i)\n",
        ["frame 29"],
        ["frame 28", "frame 0\n"],
    ),
    "a clear that nothing follows": (
        "from IPython.display import clear_output\nprint('keep me')\nclear_output(wait=True)\n", ["keep me"], []
    ),
    "a clear at once": ("from IPython.display import clear_output\nprint('gone')\nclear_output()\n", [], ["gone"]),
    "a clear between": (
        "from IPython.display import clear_output\nprint('gone')\nclear_output()\nprint('stays')\n", ["stays"], ["gone"]
    ),
    "a clear of displays": (
        "from IPython.display import clear_output, display\nfor i in range(5):\n    clear_output(wait=True)\n    display(f'shown {i}')\n",
        ["shown 4"],
        ["shown 3"],
    ),
    "text around an updated display": (
        "print('before')\nh = display('x1', display_id=True)\nprint('after')\nh.update('x2')\n", ["before", "after", "x2"], ["x1"]
    ),
    "a progress bar of IPython": (
        "from IPython.display import ProgressBar\nfor i in ProgressBar(10):\n    pass\nprint('done')\n", ["done"], []
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UPDATED)
async def test_updates_and_clears_are_applied(server: Served, kind: str) -> None:
    code, kept, gone = UPDATED[kind]
    seen = await server.run(code)
    assert seen.status == "ok", seen
    whole = seen.text + json.dumps(seen.fields)
    for piece in kept:
        assert seen.text.count(piece) == 1, seen
    for piece in gone:
        assert piece not in whole, seen


async def test_an_animation_of_figures_leaves_its_last_frame(server: Served) -> None:
    code = """import matplotlib.pyplot as plt
from IPython.display import clear_output, display
for n in range(4):
    fig = plt.figure(figsize=(2 + n, 2), dpi=50)
    plt.plot([0, n])
    clear_output(wait=True)
    display(fig)
    plt.close(fig)
"""
    seen = await server.run(code)
    check_png(seen, 1)


# ------------------------------------------------------------------------------------------ B09 large displays


async def test_megabytes_of_html_are_a_file_and_a_note(server: Served) -> None:
    code = "from IPython.display import display, HTML\ndisplay(HTML('<div>map</div><script>var d=\\'' + 'x' * 8_000_000 + '\\'</script>'))\nprint('ok')\n"
    seen = await server.run(code)
    assert seen.stdout == "ok\n" and seen.status == "ok"
    assert len(seen.text) < 2000 and "xxxx" not in seen.text
    [display] = seen.fields["displays"]
    assert display["mime"] == "text/html" and display["size"] > 8_000_000
    assert display["relative_path"] in seen.text and "8.0 MB" in seen.text


async def test_a_table_is_shown_as_text_and_not_as_markup(server: Served) -> None:
    seen = await server.run("import pandas as pd\npd.DataFrame({'city': ['Rome', 'Oslo'], 'n': [1, 2]})\n")
    assert "Rome" in seen.value and "Oslo" in seen.text and "<td>" not in seen.text and "<table" not in seen.text


async def test_a_display_beyond_all_bounds_is_announced(server: Served) -> None:
    seen = await server.run("display({'text/html': 'h' * 40_000_000}, raw=True)\nprint('ok')\n")
    assert seen.status == "ok" and seen.stdout == "ok\n", seen
    assert "40 MB" in seen.text or "40.0 MB" in seen.text, seen


async def test_json_and_markdown_are_shown_as_text(server: Served) -> None:
    seen = await server.run("from IPython.display import JSON, Markdown, display\ndisplay(JSON({'k': [1, 2]}))\ndisplay(Markdown('**bold** words'))\n")
    assert '{"k": [1, 2]}' in seen.text and "**bold** words" in seen.text


# ------------------------------------------------------------------------------------------ B20 files


async def test_all_new_files_are_listed_with_path_size_and_type(server: Served) -> None:
    code = """import os
os.makedirs("output/sub dir", exist_ok=True)
open("output/table.csv", "w").write("a,b\\n1,2\\n")
open("output/sub dir/naïve ☃.txt", "w", encoding="utf-8").write("hi")
open("output/empty.bin", "wb").close()
"""
    seen = await server.run(code)
    assert {p: f["size"] for p, f in seen.files.items()} == {
        "output/table.csv": 8, "output/sub dir/naïve ☃.txt": 2, "output/empty.bin": 0,
    }  # fmt: skip
    assert seen.files["output/table.csv"]["mime"] == "text/csv" and seen.files["output/table.csv"]["name"] == "table.csv"
    for path in seen.files:
        assert path in seen.text
    changed = await server.run("open('output/table.csv', 'a').write('3,4\\n')\nopen('elsewhere.txt', 'w').close()\n")
    assert {p: f["size"] for p, f in changed.files.items()} == {"output/table.csv": 12}


OTHER_FILES = {
    "a workbook": ("import pandas as pd\npd.DataFrame({'a': [1]}).to_excel('output/book.xlsx')\n", {"output/book.xlsx"}),
    "an archive": ("import zipfile\nwith zipfile.ZipFile('output/a.zip', 'w') as z:\n    z.writestr('x', 'y')\n", {"output/a.zip"}),
    "a PDF": ("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('output/p.pdf'); plt.close()\n", {"output/p.pdf"}),
    "a file of a child": ("import os\nos.system('echo x > output/shell.txt')\n", {"output/shell.txt"}),
    "a file that is replaced": ("import os\nopen('output/t.tmp', 'w').write('1')\nos.replace('output/t.tmp', 'output/final.txt')\n", {"output/final.txt"}),
    "a file that is deleted": ("import os\nopen('output/temp.txt', 'w').close()\nos.remove('output/temp.txt')\n", set()),
    "a hidden file": ("open('output/.hidden', 'w').write('h')\n", None),
    "a deep folder": ("import os\nos.makedirs('output/a/b/c')\nopen('output/a/b/c/d.json', 'w').write('{}')\n", {"output/a/b/c/d.json"}),
    "a link out of the workspace": ("import os\nos.symlink('/etc/passwd', 'output/leak')\nos.symlink('/etc', 'output/etc')\n", None),
    "a line break in a name": ("open('output/two\\nlines.txt', 'w').write('x')\n", None),
    "a name that is no text": ("open(b'output/bad-\\xff.txt', 'w').write('x')\n", None),
    "a pipe": ("import os\nos.mkfifo('output/pipe')\n", None),
    "a loop of links": ("import os\nos.symlink('loop', 'output/loop')\n", None),
    "no output folder any more": ("import shutil\nshutil.rmtree('output')\n", None),
    "a file in a folder of another run": ("import os\nos.makedirs('output', exist_ok=True)\nopen('output/after.txt', 'w').write('a')\n", {"output/after.txt"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_FILES)
async def test_files_of_any_kind_are_found(server: Served, kind: str) -> None:
    code, paths = OTHER_FILES[kind]
    seen = await server.run(code)
    if paths is not None:
        assert seen.status == "ok" and set(seen.files) == paths, seen
        for path in paths:
            assert path in seen.text
    assert "root:" not in seen.text and not any("passwd" in p or p.startswith("output/etc/") for p in seen.files)


async def test_a_thousand_files_are_counted_and_not_all_listed(server: Served) -> None:
    seen = await server.run("import os\nos.makedirs('output/many', exist_ok=True)\nfor i in range(1000):\n    open(f'output/many/{i}.txt', 'w').close()\n")
    assert seen.status == "ok" and "more" in seen.text and len(seen.text) < 10_000
    assert 0 < len(seen.fields["artifacts"]) <= 100
