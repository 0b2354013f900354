"""Files in and out, through the tools: mount_file, list_dir, preview_file, persist_artifact, and files of run_code."""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ImageContent

from tests import kit, web

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def site() -> Iterator[web.Site]:
    with web.serving() as running:
        yield running


@pytest.fixture
def mode() -> str:
    """The era of the protocol; tests that matter in both say so."""
    return kit.ERAS[0]


@pytest.fixture
async def client(state: Path, site: web.Site, mode: str) -> AsyncIterator[Client]:
    """A client of a server that may reach the tests' own site, and a folder of local files."""
    local = state / "local"
    local.mkdir()
    (local / "sales.csv").write_text("day,amount\n2024-01-01,3\n2024-01-02,4.5\n")
    (state / "secret.txt").write_text("secret")
    (local / "link.txt").symlink_to(state / "secret.txt")
    async with kit.connected(state, "--allow-host", site.place, "--allow-dir", str(local), mode=mode) as connection:
        yield connection


async def call(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    return result


async def good(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a call that succeeds; its text names the session too."""
    result = await call(client, tool, **arguments)
    assert not result.is_error, kit.text_of(result)
    content: dict[str, Any] = result.structured_content
    assert content["session_id"] in kit.text_of(result)
    return content


async def bad(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a call that is refused."""
    result = await call(client, tool, **arguments)
    assert result.is_error
    return kit.text_of(result)


@pytest.mark.parametrize("mode", kit.ERAS)
async def test_a_mounted_file_is_described_and_read_only(client: Client, site: web.Site) -> None:
    mounted = await good(client, "mount_file", url=f"{site.url}/csv", mount_path="data.csv")
    assert mounted["mounted_as"] == "mounts/data.csv"
    assert mounted["bytes"] == len(web.CSV)
    assert mounted["sha256"] == hashlib.sha256(web.CSV).hexdigest()
    assert [c["name"] for c in mounted["columns"]] == ["a", "b"]
    assert mounted["rows"] == 1
    code = """
print(open("mounts/data.csv").read())
for act in (lambda: open("mounts/data.csv", "a"), lambda: __import__("os").remove("mounts/data.csv"),
            lambda: open("mounts/new", "w")):
    try:
        act()
        print("CHANGED")
    except OSError as problem:
        print(type(problem).__name__)
"""
    out = (await kit.run_code(client, code)).structured_content["stdout"]
    assert out.startswith(web.CSV.decode())
    assert "CHANGED" not in out


async def test_files_of_a_call_are_there_before_its_code_runs(client: Client, site: web.Site) -> None:
    result = await kit.run_code(
        client,
        "print(open('mounts/in/a.csv').read() + open('mounts/b.txt').read())",
        files=[
            {"url": f"{site.url}/csv", "mountPath": "in/a.csv"},
            {"url": "data:text/plain,hello", "mount_path": "b.txt"},
        ],
    )
    assert result.structured_content["stdout"] == web.CSV.decode() + "hello\n"


NAMES = (
    "a b.txt", "-rf", "..%2fx", "cafe\u0301.txt", "\u05e9\u05dc.txt", "\U0001f468\u200d\U0001f469.txt",
    "\u0645\u06cc\u200c\u062e.txt", "\u8868\u30002024.txt", "at 9.41\u202fAM.txt", "\u00e9" * 127,
)  # fmt: skip
NO_NAMES = ("..", "a/../b", "a\u202etxt.exe", "a\nb", "a\u200bb", "\ufeffa", "\u00e9" * 128, "a\0b", "///")


async def test_names_of_all_scripts_are_kept_and_those_that_deceive_refused(client: Client) -> None:
    for name in NAMES:
        mounted = await good(client, "mount_file", url="data:,x", mount_path=name)
        assert mounted["mounted_as"] == "mounts/" + unicodedata.normalize("NFC", name)
        # In the spelling that was given, too.
        assert (await good(client, "preview_file", relative_path=f"mounts/{name}"))["text"] == "x"
    for name in NO_NAMES:
        assert len(await bad(client, "mount_file", url="data:,x", mount_path=name)) < 500
    listed = await good(client, "list_dir", dir_path="mounts")
    assert len(listed["entries"]) == len(NAMES) and listed["left_out"] == 0
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><rect width="9" height="9"/></svg>'
    code = (
        "import os\nfor n in os.listdir('mounts'): open('mounts/' + n).close()\n"
        "open('output/u\u0308.txt', 'w').close()\n"
        f"open('output/d.svg', 'w').write({drawing!r})\n"
    )
    assert not (await kit.run_code(client, code)).is_error
    await good(client, "preview_file", relative_path="output/\u00fc.txt")
    picture = await call(client, "preview_file", relative_path="output/d.svg")
    assert "<rect" in kit.text_of(picture) and any(isinstance(block, ImageContent) for block in picture.content)
    assert "mounts/a b.txt" in await bad(client, "preview_file", relative_path="a b.txt")
    assert "mounts/-rf" in await bad(
        client, "persist_artifact", relative_path="-rf", presigned_url="https://a.example/"
    )


async def test_a_large_folder_is_listed_from_its_start(client: Client) -> None:
    await kit.run_code(client, "for n in range(2000): open(f'output/{n:04}', 'w').close()\nNone")
    listed = await good(client, "list_dir", dir_path="output")
    assert [entry["name"] for entry in listed["entries"]] == [f"{n:04}" for n in range(250)]
    assert listed["left_out"] == 1750


async def test_a_file_that_cannot_be_had_keeps_the_code_from_running(client: Client, site: web.Site) -> None:
    files = [{"url": f"{site.url}/status/404", "mountPath": "a.csv"}]
    result = await kit.run_code(client, "open('output/ran', 'w')", files=files)
    assert result.is_error
    assert "404" in kit.text_of(result)
    assert (await good(client, "list_dir", dir_path="output"))["entries"] == []


async def test_the_same_file_is_had_once_and_another_one_only_in_its_place_on_request(
    client: Client, site: web.Site
) -> None:
    before = len(site.asked("GET"))
    for _ in range(2):
        await good(client, "mount_file", url=f"{site.url}/csv", mount_path="d.csv")
    assert len(site.asked("GET")) == before + 1
    refused = await bad(client, "mount_file", url=f"{site.url}/csv2", mount_path="d.csv")
    assert "other content" in refused
    assert "replace" in refused
    kept = await kit.run_code(client, "print(open('mounts/d.csv').read(), end='')")
    assert kept.structured_content["stdout"] == web.CSV.decode()
    await good(client, "mount_file", url=f"{site.url}/csv2", mount_path="d.csv", replace=True)
    changed = await kit.run_code(client, "print(open('mounts/d.csv').read(), end='')")
    assert changed.structured_content["stdout"] == web.CSV2.decode()


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_an_error_page_is_never_a_file(client: Client, site: web.Site, status: int) -> None:
    refused = await bad(client, "mount_file", url=f"{site.url}/status/{status}", mount_path="data.csv")
    assert str(status) in refused
    assert "127.0.0.1" in refused
    assert (await good(client, "list_dir", dir_path="mounts"))["entries"] == []
    await good(client, "mount_file", url=f"{site.url}/csv", mount_path="data.csv")


URLS = [
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
    "/etc/passwd",
    "{site}/redirect?to=http://169.254.169.254/x",
    "{site}/redirect?to=file:///etc/passwd",
    "{site}/redirect?to=http://127.0.0.1:1/x",
    "{site}/loop",
    "http://[::ffff:127.0.0.1]:1/x",
    "http://127.0.0.1:1/x",
    "http://2130706433/",
    "http://0x7f.1/",
    "ftp://example.com/x",
    "{local}/../secret.txt",
    "{local}/link.txt",
]


async def test_no_url_reaches_what_the_operator_did_not_allow(client: Client, site: web.Site, state: Path) -> None:
    for url in URLS:
        spelled = url.format(site=site.url, local=state / "local")
        refused = await bad(client, "mount_file", url=spelled, mount_path="m.txt")
        assert "secret" not in refused.replace("secret.txt", ""), url
        assert "root:" not in refused, url
    assert (await good(client, "list_dir", dir_path="mounts"))["entries"] == []
    # An ordinary redirect, and what was allowed, still work.
    await good(client, "mount_file", url=f"{site.url}/redirect?to=/csv", mount_path="via.csv")


async def test_local_files_come_from_allowed_folders(client: Client, state: Path) -> None:
    path = state / "local" / "sales.csv"
    for number, url in enumerate((str(path), path.as_uri())):
        mounted = await good(client, "mount_file", url=url, mount_path=f"{number}.csv")
        assert mounted["rows"] == 2


def large_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20]


@pytest.mark.parametrize("way", ["endless", "huge?declared=50000000000"])
async def test_a_download_that_has_no_end_is_cut_at_the_limit(state: Path, site: web.Site, way: str) -> None:
    async with kit.connected(state, "--allow-host", site.place, "--download-bytes", "5M") as client:
        refused = await bad(client, "mount_file", url=f"{site.url}/{way}", mount_path="x.bin")
        assert "5,242,880" in refused or "5 MB" in refused or "limit" in refused
        assert (await good(client, "list_dir", dir_path="mounts"))["entries"] == []
        assert large_files(state) == []


async def test_names_are_kept_as_they_are(client: Client, site: web.Site) -> None:
    for name in ("Отчёт 2025 – 日本語.csv", "a b  c.csv", "naïve ☃.csv", "sub dir/ß.csv", "%2f.csv"):
        mounted = await good(client, "mount_file", url=f"{site.url}/csv", mount_path=name)
        assert mounted["mounted_as"] == f"mounts/{name}"
        code = f"print(open({mounted['mounted_as']!r}).readline(), end='')"
        assert (await kit.run_code(client, code)).structured_content["stdout"] == "a,b\n"
        shown = await good(client, "preview_file", relative_path=mounted["mounted_as"])
        assert shown["path"] == mounted["mounted_as"]


async def test_names_that_lead_elsewhere_are_refused(client: Client, site: web.Site) -> None:
    for name in ("../escape.csv", "/tmp/abs.csv", "a/../../b.csv", "", ".", "a\nb.csv", "a\x00b"):
        await bad(client, "mount_file", url=f"{site.url}/csv", mount_path=name)
    assert (await good(client, "list_dir", dir_path="mounts"))["entries"] == []


LINKS = """
import os
os.symlink("/etc/passwd", "output/leak")
os.symlink("/etc", "output/etc")
os.symlink("../mounts", "output/mounts")
os.mkfifo("output/fifo")
open("output/two", "w").write("x")
os.link("output/two", "output/names")
"""


PATHS = [
    "output/leak", "output/etc/passwd", "output/fifo", "output/names", "../../../../etc/passwd", "/etc/passwd",
    "output/../../x", "output/%2e%2e/x", "output/a\0b", "x" * 5000,
]  # fmt: skip


async def test_no_path_leads_out_of_the_workspace(client: Client, site: web.Site) -> None:
    await kit.run_code(client, LINKS)
    before = len(site.asked("PUT"))
    for path in PATHS:
        for refused in (
            await bad(client, "preview_file", relative_path=path),
            await bad(client, "persist_artifact", relative_path=path, presigned_url=f"{site.url}/put/ok"),
            await bad(client, "list_dir", dir_path=path),
        ):
            assert "root:" not in refused, path
    assert len(site.asked("PUT")) == before
    for folder in ("output/etc", "..", "output/mounts"):
        assert "passwd" not in await bad(client, "list_dir", dir_path=folder)


@pytest.mark.parametrize("mode", kit.ERAS)
async def test_a_listing_agrees_with_what_the_reply_told(client: Client) -> None:
    code = """
import os
os.makedirs("output/sub dir", exist_ok=True)
open("output/table.csv", "w").write("a,b\\n1,2\\n")
open("output/sub dir/naïve ☃.txt", "w", encoding="utf-8").write("hi")
open("output/empty.bin", "wb").close()
"""
    told = (await kit.run_code(client, code)).structured_content["artifacts"]
    listed = (await good(client, "list_dir", dir_path="output"))["entries"]
    listed += (await good(client, "list_dir", dir_path="output/sub dir"))["entries"]
    assert {(a["relative_path"], a["size"]) for a in told} == {
        (e["path"], e["size"]) for e in listed if e["type"] == "file"
    }
    top = (await good(client, "list_dir"))["entries"]
    assert [(e["name"], e["type"]) for e in top] == [("mounts", "directory"), ("output", "directory")]
    # The path as code sees it, and each tool for what it is for.
    assert (await good(client, "preview_file", relative_path="/workspace/output/table.csv"))["rows"] == 1
    assert "list_dir" in await bad(client, "preview_file", relative_path="output")
    assert "preview_file" in await bad(client, "list_dir", dir_path="output/table.csv")


async def test_what_a_plain_open_does_not_read_is_told_in_the_text(client: Client) -> None:
    code = """
import os
for name in ("t.csv", "t.json"):
    open("output/" + name, "w", encoding="utf-16").write("[1,\\n2]")
os.symlink("t.csv", "output/l")
"""
    await kit.run_code(client, code)
    for name in ("t.csv", "t.json"):
        assert "utf-16" in kit.text_of(await call(client, "preview_file", relative_path=f"output/{name}"))
    assert "output/l (link)" in kit.text_of(await call(client, "list_dir", dir_path="output"))


async def test_a_text_is_cut_between_characters_and_can_be_read_on(client: Client) -> None:
    code = """
for n in (8191, 8190, 8189):
    open(f"output/cut_{n}.txt", "w", encoding="utf-8").write("a" * n + "\\u20ac\\U0001F600" * 50)
"""
    await kit.run_code(client, code)
    for number in (8191, 8190, 8189):
        whole = "a" * number + "\u20ac\U0001f600" * 50
        seen, offset = "", 0
        for _ in range(5):
            part = await good(client, "preview_file", relative_path=f"output/cut_{number}.txt", offset=offset)
            assert part["kind"] == "text"
            seen += part["text"]
            if not part["truncated"]:
                break
            offset = part["next_offset"]
        assert seen == whole
        assert part["size"] == len(whole.encode())


@pytest.mark.parametrize("mode", kit.ERAS)
async def test_what_is_no_text_costs_little(client: Client) -> None:
    code = """
import gzip, os
open("output/blob.bin", "wb").write(os.urandom(300_000))
gzip.open("output/t.csv.gz", "wb").write(b"a,b\\n" + b"1,2\\n" * 100000)
import matplotlib.pyplot as plt
plt.figure(figsize=(30, 10)); plt.plot([1, 2]); plt.savefig("output/wide.png")
"""
    await kit.run_code(client, code)
    for path in ("output/blob.bin", "output/t.csv.gz"):
        result = await call(client, "preview_file", relative_path=path, limit=500)
        assert len(kit.text_of(result)) < 2000
    picture = await call(client, "preview_file", relative_path="output/wide.png")
    (image,) = [block for block in picture.content if isinstance(block, ImageContent)]
    assert base64.b64decode(image.data)[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0")
    assert picture.structured_content["width"] == 3000


async def test_an_upload_sends_its_length_and_no_header_that_was_not_asked_for(client: Client, site: web.Site) -> None:
    await kit.run_code(client, "open('output/r.csv', 'w').write('a,b\\n1,2\\n')")
    stored = await good(
        client, "persist_artifact", relative_path="output/r.csv", presigned_url=f"{site.url}/put/no-content-type"
    )
    assert stored["uploaded_bytes"] == 8
    sent = site.asked("PUT")[-1]
    assert sent.body == b"a,b\n1,2\n"
    assert sent.headers["Content-Length"] == "8"
    assert "Content-Type" not in sent.headers
    url = f"{site.url}/put/need-content-type?ct=text/csv"
    refused = await bad(client, "persist_artifact", relative_path="output/r.csv", presigned_url=url)
    assert "SignatureDoesNotMatch" in refused
    await good(
        client, "persist_artifact", relative_path="output/r.csv", presigned_url=url,
        headers={"Content-Type": "text/csv"},
    )  # fmt: skip


async def test_an_expired_link_says_so_and_keeps_its_secret(client: Client, site: web.Site, state: Path) -> None:
    await kit.run_code(client, "open('output/r.txt', 'w').write('x')")
    before = len(site.asked("PUT"))
    url = f"{site.url}/put/expired?X-Amz-Signature=SECRETSIG"
    refused = await bad(client, "persist_artifact", relative_path="output/r.txt", presigned_url=url)
    assert "403" in refused
    assert "AccessDenied" in refused
    assert "Request has expired" in refused
    assert "SECRETSIG" not in refused
    assert len(site.asked("PUT")) == before + 1
    missing = await bad(client, "persist_artifact", relative_path="output/no.txt", presigned_url=url)
    assert "no file" in missing
    assert len(site.asked("PUT")) == before + 1
    assert "SECRETSIG" not in (state / "stderr.log").read_text()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--workspace-bytes", "20M"), "for i in range(1000):\n    open(f'f{i}', 'wb').write(b'x' * (1 << 20))"),
        (("--workspace-bytes", "20M"), "f = open('one', 'wb')\nwhile True:\n    f.write(b'x' * (1 << 20))"),
        (("--workspace-files", "500"), "for i in range(10**7):\n    open(f'output/{i}', 'w').close()"),
    ],
    ids=["many files", "one file", "empty files"],
)
async def test_a_workspace_has_bounds_and_its_session_lives_on(state: Path, flags: tuple[str, str], code: str) -> None:
    async with kit.connected(state, *flags) as client:
        result = await kit.run_code(client, code)
        assert result.structured_content["status"] == "limit"
        most = {"20M": "20 MiB", "500": "500 files"}[flags[1]]
        assert f"workspace limit {most} reached" in kit.text_of(result)
        freed = await kit.run_code(client, "import os\nfor n in os.listdir():\n    os.path.isfile(n) and os.remove(n)")
        assert freed.structured_content["status"] == "ok"


async def test_a_sparse_file_costs_what_it_takes(state: Path) -> None:
    async with kit.connected(state, "--workspace-bytes", "20M") as client:
        code = "import time\nopen('sparse', 'wb').truncate(500 << 20)\ntime.sleep(2.5)\nprint('fine')"
        assert (await kit.run_code(client, code)).structured_content["stdout"] == "fine\n"


@pytest.mark.parametrize("mode", kit.ERAS)
async def test_the_prompt_tells_the_task_and_how_code_runs(client: Client) -> None:
    prompts = (await client.list_prompts()).prompts
    assert [p.name for p in prompts] == ["python_programmer"]
    told = await client.get_prompt("python_programmer", {"task": "Sum it.", "mounted_files": "a.csv"})
    text = told.messages[0].content.text  # type: ignore[union-attr]
    assert "Sum it." in text
    assert "a.csv" in text
    with pytest.raises(MCPError, match="task"):
        await client.get_prompt("python_programmer", {})
