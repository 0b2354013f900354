"""Looking at files: a real helper in real walls, real files, and files that were made to hurt."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from prims import config
from prims.errors import InstallError
from prims.isolation import bubblewrap, uids
from prims.isolation.walls import Box, NoWalls, Walls, base_python
from prims.kernel.environment import Environment, Environments
from prims.kernel.looking import MOST_CHARS, Column, Entry, Look, Sheet, look
from prims.model import Limits, PictureBudget
from tests.processes import named, until

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")]

SECONDS = 60
PYTHON = base_python().executable


@dataclass(frozen=True)
class Room:
    """A folder of files of one session, and how to look at them."""

    walls: Walls
    environment: Environment
    base: Path
    uid: int | None
    limits: Limits = field(default_factory=Limits)

    @property
    def files(self) -> Path:
        return self.base / "files"

    def write(self, name: str, content: bytes | str) -> Path:
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    async def look(self, name: str, want: Any = "preview", **more: Any) -> Look:
        if self.uid is not None:
            for folder, _, names in os.walk(self.files):
                for part in ("", *names):
                    os.chown(os.path.join(folder, part), self.uid, self.uid, follow_symlinks=False)
        with anyio.fail_after(SECONDS):
            seen = await look(
                self.walls, self.environment, self.base / "scratch", self.files, name,
                uid=self.uid, limits=self.limits, pictures=PictureBudget(), want=want, **more,
            )  # fmt: skip
        assert os.listdir(self.base / "scratch") == []
        return seen


@pytest.fixture(scope="module")
async def environment() -> Environment:
    async with Environments(config.load({}, {}), config.tool_environment()) as environments:
        return await environments.base()


@pytest.fixture
def base() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    for name in ("files", "scratch"):
        (folder / name).mkdir()
    try:
        yield folder
        assert not named(str(folder))
    finally:
        shutil.rmtree(folder)


def make_room(walls: Walls, environment: Environment, base: Path) -> Room:
    return Room(walls, environment, base, uids.take_uid() if walls.drops_uid else None)


@pytest.fixture
def room(environment: Environment, base: Path) -> Room:
    """A room with the best walls of this machine."""
    walls = bubblewrap.find()
    if walls is None:
        pytest.skip("bubblewrap is not installed")
    return make_room(walls, environment, base)


@pytest.fixture
def bare(environment: Environment, base: Path) -> Room:
    """A room without walls."""
    return make_room(NoWalls(), environment, base)


# ------------------------------------------------------------------------------------------------ contents


def zipped(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, "hello")
    return out.getvalue()


def tarred(mode: str, *names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    return out.getvalue()


def png(width: int, height: int, rows: int | None = None) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress((b"\0" + b"\x10\x80\xf0" * width) * (height if rows is None else rows))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def wav(seconds: float) -> bytes:
    sound = bytes(int(seconds * 44100) * 4)
    form = struct.pack("<HHIIHH", 1, 2, 44100, 176400, 4, 16)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(sound)) + sound
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "words"]},
            {"cell_type": "code", "source": "print(1)", "outputs": [
                {"output_type": "stream", "name": "stdout", "text": "1"},
                {"output_type": "display_data", "data": {"text/plain": "x", "image/png": "eA=="}},
            ]},
        ],
        "metadata": {"kernelspec": {"language": "python"}},
        "nbformat": 4,
    }
)  # fmt: skip

RUSSIAN = "Это русский текст в старой кодировке, ничего особенного в нём нет\n"


@dataclass(frozen=True)
class Case:
    """A file, and what must be said of it: fields of `Look`, pieces of its text, pieces of its notes."""

    name: str
    content: bytes | str
    fields: Mapping[str, Any]
    text: Sequence[str] = ()
    notes: Sequence[str] = ()


CASES = [
    Case("plain.txt", "hello\nworld\n", {"kind": "text", "mime": "text/plain", "encoding": "utf-8", "lines": 2,
         "size": 12, "text": "hello\nworld\n", "next_offset": None, "notes": ()}),
    Case("unended.txt", "a\nb", {"kind": "text", "lines": 2}),
    Case("mac.txt", "x\ry\rz\r", {"kind": "text", "lines": 3, "text": "x\ny\nz\n"}),
    Case("dos.txt", "x\r\ny\r\n", {"lines": 2, "text": "x\ny\n"}),
    Case("code.py", "print('hi')\n", {"kind": "text", "mime": "text/x-python"}),
    Case("colours.log", "a\x1b[31mred\x1b[0m\n", {"kind": "text", "text": "ared\n"}),
    Case("bom.txt", b"\xef\xbb\xbfhi\n", {"kind": "text", "encoding": "utf-8-sig", "text": "hi\n"}),
    Case("le.txt", "\ufeffhällo\n".encode("utf-16-le"), {"encoding": "utf-16", "text": "hällo\n", "lines": 1}),
    Case("be.txt", "\ufeffhällo\n".encode("utf-16-be"), {"encoding": "utf-16", "text": "hällo\n"}),
    Case("unmarked.txt", "hello there\n".encode("utf-16-le"), {"encoding": "utf-16-le", "text": "hello there\n"}),
    Case("latin.txt", "Déjà vu à l'été, naïve café\n".encode("latin-1"),
         {"kind": "text", "encoding": "cp1252", "text": "Déjà vu à l'été, naïve café\n"}, notes=["guess"]),
    Case("euro.txt", "“100 €” – schön\n".encode("cp1252"), {"encoding": "cp1252", "text": "“100 €” – schön\n"}),
    Case("japanese.txt", "これは日本語のテキストです。\n".encode("shift_jis"),
         {"encoding": "cp932", "text": "これは日本語のテキストです。\n"}),
    Case("chinese.txt", "这是一个中文的文件,我们在这里写了一些汉字。\n".encode("gbk"),
         {"encoding": "gb18030", "text": "这是一个中文的文件,我们在这里写了一些汉字。\n"}),
    Case("russian.txt", RUSSIAN.encode("cp1251"), {"encoding": "cp1251", "text": RUSSIAN}),
    Case("koi.txt", RUSSIAN.encode("koi8-r"), {"encoding": "koi8-r", "text": RUSSIAN}),
    Case("crashed.log", b"a line of the log\n" * 20 + b"\0" * 20 + b"up again\n",
         {"kind": "text", "lines": 21}, notes=["NUL"]),
    Case("mixed.log", ("äöü ß – ähnlich\n" * 20).encode() + b"\xff broken\n", {"kind": "text"}, notes=["not valid"]),
    Case("empty.csv", b"", {"kind": "empty", "size": 0}),
    Case("a.csv", "name,qty,price,when,ok\napple,3,1.20,2024-01-02,true\n"
         'pear,4,,2024-02-03,false\n"x\ny",5,7e3,,true\n',
         {"kind": "table", "mime": "text/csv", "encoding": "utf-8", "rows": 3, "rows_exact": True, "notes": (),
          "columns": (Column("name", "text"), Column("qty", "int"), Column("price", "float"), Column("when", "date"),
                      Column("ok", "bool")), "next_offset": None},
         text=["row  name   qty  price", "  0  apple    3   1.20  2024-01-02  true", r"x\ny"]),
    Case("german.csv", "Straße;Wert\nä;1,5\nö;2,5\n".encode("cp1252"),
         {"kind": "table", "rows": 2, "columns": (Column("Straße", "text"), Column("Wert", "float"))},
         notes=["';'", "decimal comma"]),
    Case("t.tsv", "a\tb\n1\tx,y\n", {"kind": "table", "mime": "text/tab-separated-values", "rows": 1}),
    Case("ids.csv", "id,n\n007,1\n008,2\n", {"columns": (Column("id", "text"), Column("n", "int"))}),
    Case("years.csv", "land,2020,2021,2022\nA,1.5,2,3\n", {"rows": 1, "notes": ()}),
    Case("headless.csv", "1,2\n3,4\n", {"rows": 2, "columns": (Column("column 1", "int"), Column("column 2", "int"))},
         notes=["no header"]),
    Case("ragged.csv", "a,b\n1,2,3\n4\n", {"rows": 2}, notes=["from 1 to 3"]),
    Case("blank.csv", "a,b\n\n1,2\n\r\n\n3,4\n\n", {"rows": 2, "rows_exact": True}),
    Case("header.csv", "a,b\n", {"kind": "table", "rows": 0, "columns": (Column("a", "empty"), Column("b", "empty"))}),
    Case("wide16.csv", "a,b\n1,ä\n".encode("utf-16"), {"kind": "table", "encoding": "utf-16", "rows": 1}),
    Case("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 100_000),
         {"kind": "table", "mime": "application/gzip", "rows": 100_000, "rows_exact": True, "next_offset": 50},
         notes=["packed with gzip"]),
    Case("l.jsonl", "".join(json.dumps({"i": i, "v": i / 2, "s": "x"}) + "\n" for i in range(200)),
         {"kind": "table", "mime": "application/x-ndjson", "rows": 200, "rows_exact": True, "next_offset": 50,
          "columns": (Column("i", "int"), Column("v", "float"), Column("s", "text"))}),
    Case("x.json", json.dumps({"name": "x", "items": [{"id": 1}] * 5}), {"kind": "json", "mime": "application/json"},
         text=["object with 2 keys", "items: array with 5 items of object", "id: int", '"name": "x"']),
    Case("records.json", json.dumps([{"id": i, "d": "2024-01-02"} for i in range(30)]),
         {"kind": "json", "rows": 30, "rows_exact": True, "columns": (Column("id", "int"), Column("d", "date"))}),
    Case("broken.json", '{"a": 1,', {"kind": "text", "mime": "application/json"}, ['{"a": 1,'], ["not valid JSON"]),
    Case("long.json", '{"n": ' + "9" * 5000 + "}", {"kind": "text"}, notes=["a number too long"]),
    Case("page.csv", "<!DOCTYPE html>\n<title>Sign in</title>\n", {"kind": "text", "mime": "text/html"},
         ["Sign in"], ["a page (HTML), whatever .csv says"]),
    Case("page.xlsx", "<html><p>a, b</p></html>", {"kind": "text", "mime": "text/html"}, [], ["whatever .xlsx says"]),
    Case("page.html", "<html><p>a</p></html>", {"kind": "text", "mime": "text/html", "notes": ()}),
    Case("report.csv", "Report of 2024\n\nname,value\nx,1\n", {"kind": "table", "rows": 2}, [], ["not the header"]),
    Case("excel.csv", b"\xef\xbb\xbfsep=;\r\na;b\r\n1;2\r\n3;4\r\n",
         {"kind": "table", "rows": 2, "columns": (Column("a", "int"), Column("b", "int"))}, [], ["line 2", "';'"]),
    Case("comments.csv", "# made in 2024\n#\n\na,b\n1,2\n3,4\n",
         {"kind": "table", "rows": 2, "columns": (Column("a", "int"), Column("b", "int"))}, [], ["line 4"]),
    Case("marked.csv", "#a,b\n1,2\n", {"rows": 1, "columns": (Column("#a", "int"), Column("b", "int")), "notes": ()}),
    Case("tabs.csv", "a\tb\n1\t2\n", {"kind": "table", "rows": 1}, [], ["tabs"]),
    Case("lines.json", '{"a": 1}\n{"a": 2}\n', {"kind": "table", "rows": 2}, [], ["one JSON value a line"]),
    Case("events", '{"a": 1}\n{"a": 2}\n', {"kind": "table", "rows": 2, "mime": "application/x-ndjson"}),
    Case("table.xlsx", "a,b\n1,2\n", {"kind": "text"}, ["a,b"], ["whatever .xlsx says"]),
    Case("p.heic", b"\0\0\0\x18ftypheic" + bytes(99), {"kind": "image"}, [], ["of no kind that is known here"]),
    Case("nameless", '[{"a": 1}]', {"kind": "json", "rows": 1}),
    Case("table", "a,b\n1,2\n3,4\n5,6\n", {"kind": "table", "mime": "text/csv", "rows": 3}),
    Case("n.ipynb", NOTEBOOK, {"kind": "notebook"},
         ["2 cells, python", "[0] markdown", "# Title", "[1] code → stdout, image/png", "print(1)"]),
    Case("z.zip", zipped("a/b.txt", "../evil.txt", "bidi\u202etxt.exe\n"),
         {"kind": "archive", "mime": "application/zip",
          "entries": (Entry("a/b.txt", 5), Entry("../evil.txt", 5), Entry(r"bidi\u202etxt.exe\n", 5))},
         ["3 entries, 15 bytes unpacked"], ["lead out"]),
    Case("t.tar", tarred("w", "d/x.txt"), {"kind": "archive", "entries": (Entry("d/x.txt", 5),)}),
    Case("t.tar.gz", tarred("w:gz", "d/x.txt"), {"kind": "archive", "entries": (Entry("d/x.txt", 5),)}, ["gzip"]),
    Case("t.tar.xz", tarred("w:xz", "d/x.txt"), {"kind": "archive", "entries": (Entry("d/x.txt", 5),)}),
    Case("t.txt.bz2", bz2.compress(b"hello\n"), {"kind": "text", "text": "hello\n", "mime": "application/x-bzip2"}),
    Case("two.txt.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"), {"text": "one\ntwo\n", "lines": 2}),
    Case("r.bin.gz", gzip.compress(bytes(range(256)) * 4), {"kind": "archive", "entries": (Entry("r.bin", 1024),)}),
    Case("p.png", png(2000, 1000), {"kind": "image", "width": 2000, "height": 1000, "image_mime": "image/png"}),
    Case("d.pdf", b"%PDF-1.7\n<</Type /Pages /Kids [] /Count 12>>\n\xff", {"kind": "pdf"}, ["12 pages"]),
    Case("s.wav", wav(0.5), {"kind": "audio", "mime": "audio/wav"}, ["2 channels, 44,100 Hz, 16 bit, 0.50 s"]),
    Case("v.mp4", b"\0\0\0\x18ftypisom" + bytes(50), {"kind": "video", "mime": "video/mp4"}),
    Case("blob.bin", bytes(range(256)) * 1000, {"kind": "binary", "mime": "application/octet-stream", "size": 256_000},
         ["00 01 02 03"]),
    Case("folder/Отчёт – 日本語 1.csv", "a,b\n1,2\n", {"kind": "table", "rows": 1}),
    Case("line\nbreak\x1b[31m.txt", "hi\n", {"kind": "text", "text": "hi\n"}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.name))
async def test_a_file_is_told_for_what_it_is(room: Room, case: Case) -> None:
    room.write(case.name, case.content)
    seen = await room.look(case.name)
    told = {name: getattr(seen, name) for name in case.fields}
    assert told == dict(case.fields), seen
    for part in case.text:
        assert part in seen.text
    for part in case.notes:
        assert any(part in note for note in seen.notes), seen.notes
    assert seen.kind in ("text", "json", "table") or len(seen.text) < 2000


async def test_a_description_is_short_and_shows_at_most_three_rows(room: Room) -> None:
    room.write("a.csv", "a,b\n" + "1,2\n" * 1000)
    room.write("a.txt", "some words of a long line " * 100 + "\n" + "line\n" * 1000)
    room.write("a.png", png(300, 200))
    table = await room.look("a.csv", "describe")
    assert (table.rows, table.text.count("\n"), table.next_offset) == (1000, 3, None)
    text = await room.look("a.txt", "describe")
    assert (text.lines, text.next_offset) == (1001, None)
    assert len(text.text) < 700
    picture = await room.look("a.png", "describe")
    assert (picture.width, picture.height, picture.image) == (300, 200, None)


# ---------------------------------------------------------------------------------------------- reading on


@pytest.mark.parametrize("before", [8191, 8190, 8189, 7999, 7998])
async def test_a_character_cut_at_the_limit_is_still_text(room: Room, before: int) -> None:
    content = "a" * before + "€😀" * 50
    room.write("cut.txt", content)
    first = await room.look("cut.txt")
    assert (first.kind, first.size) == ("text", len(content.encode()))
    assert first.next_offset is not None
    rest = await room.look("cut.txt", offset=first.next_offset)
    assert first.text + rest.text == content
    assert rest.next_offset is None


@pytest.mark.parametrize("codec", ["utf-8", "utf-16", "cp932", "cp1252", "gbk"])
async def test_pages_of_a_text_add_up_to_it(room: Room, codec: str) -> None:
    words = {"cp932": "日本語のかな漢字テキスト\n", "gbk": "我们在这里写了一些汉字的\n", "cp1252": "für 100 € schön\n"}
    content = words.get(codec, "zwölf Boxkämpfer 😀 €\r\n") * 60
    room.write("t.txt", content.encode(codec))
    pages, offset = [], 0
    while offset is not None and len(pages) < 30:
        page = await room.look("t.txt", offset=offset, limit=300)
        assert len(page.text) <= 300
        pages.append(page.text)
        offset = page.next_offset
    assert "".join(pages) == content.replace("\r\n", "\n")
    assert all(page.endswith("\n") for page in pages)


@pytest.mark.parametrize("into", [1, 2, 3])
async def test_an_offset_within_a_character_means_that_character(room: Room, into: int) -> None:
    room.write("t.txt", "ab😀cd")
    assert (await room.look("t.txt", offset=2 + into)).text == "😀cd"


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.csv.gz"])
async def test_pages_of_a_table_follow_each_other(room: Room, name: str) -> None:
    lines = "".join(f'{{"n": {n}}}\n' if "json" in name else f"{n},x\n" for n in range(120))
    content = (lines if "json" in name else "n,s\n" + lines).encode()
    room.write(name, gzip.compress(content) if name.endswith("gz") else content)
    starts, numbers, offset = [], [], 0
    while offset is not None and len(starts) < 10:
        page = await room.look(name, offset=offset)
        starts.append(page.offset)
        numbers += [int(line.split()[1]) for line in page.text.splitlines()[1:]]
        offset = page.next_offset
    assert numbers == list(range(120))
    assert starts == [0, 50, 100]
    past = await room.look(name, offset=5000)
    assert (past.text, past.next_offset) == ("", None)


async def test_an_offset_past_the_end_is_told(room: Room) -> None:
    room.write("t.txt", "hello")
    past = await room.look("t.txt", offset=10_000)
    assert (past.kind, past.text, past.next_offset) == ("text", "", None)
    assert any("past the end" in note for note in past.notes)


# ------------------------------------------------------------------------------------ libraries of the layers


async def test_a_workbook_is_shown_with_its_sheets(room: Room) -> None:
    program = """
import sys, datetime, openpyxl
book = openpyxl.Workbook()
book.active.title = "Data"
book.active.append(["id", "name", "when"])
for n in range(120):
    book.active.append([n, f"n{n}", datetime.datetime(2024, 1, 1)])
book.create_sheet("Other").append(["x"])
book.save(sys.argv[1])
"""
    made_by_layers(room, program, "b.xlsx")
    seen = await room.look("b.xlsx")
    assert (seen.kind, seen.rows, seen.rows_exact) == ("table", 120, True)
    assert seen.sheets == (Sheet("Data", 121, 3), Sheet("Other", 1, 1))
    assert seen.columns == (Column("id", "int"), Column("name", "text"), Column("when", "date"))
    assert (await room.look("b.xlsx", offset=seen.next_offset or 0)).text.splitlines()[1].split() == [
        "50", "50", "n50", "2024-01-01",
    ]  # fmt: skip
    (room.files / "cut.xlsx").write_bytes((room.files / "b.xlsx").read_bytes()[:3000])
    cut = await room.look("cut.xlsx")
    assert cut.kind == "binary"
    assert cut.notes


async def test_a_large_picture_comes_small(room: Room) -> None:
    program = """
import sys, os
from PIL import Image
Image.frombytes("RGB", (3000, 1500), os.urandom(13_500_000)).save(sys.argv[1])
"""
    made_by_layers(room, program, "noise.png")
    seen = await room.look("noise.png")
    assert (seen.width, seen.height, seen.image_mime) == (3000, 1500, "image/jpeg")
    assert seen.image is not None
    assert len(seen.image) <= 150_000


async def test_parquet_tells_its_columns_and_shows_rows_where_pyarrow_is_there(room: Room) -> None:
    async with Environments(config.load({}, {}), config.tool_environment()) as environments:
        try:
            arrow = await environments.for_requirements(("pyarrow",))
        except InstallError as error:
            pytest.skip(str(error))
    program = """
import sys, datetime, pyarrow, pyarrow.parquet
table = pyarrow.table({
    "id": list(range(200)), "name": [f"n{n}" for n in range(200)], "x": [n / 2 for n in range(200)],
    "day": [datetime.date(2024, 1, 2)] * 200, "tags": [["a", "b"]] * 200, "flag": [True] * 200,
})
pyarrow.parquet.write_table(table, sys.argv[1], row_group_size=70)
"""
    made_by_layers(replace(room, environment=arrow), program, "p.parquet")
    types = {"id": "int64", "name": "text", "x": "double", "day": "date", "tags": "list", "flag": "bool"}
    columns = tuple(Column(name, type) for name, type in types.items())
    without = await room.look("p.parquet")
    assert (without.kind, without.rows, without.rows_exact, without.columns) == ("table", 200, True, columns)
    assert (without.text, without.notes) == ("", ("showing rows of a Parquet file needs the package pyarrow",))
    shown = await replace(room, environment=arrow).look("p.parquet", offset=65)
    assert shown.text.splitlines()[1].split()[:4] == ["65", "65", "n65", "32.5"]
    assert (shown.columns, shown.next_offset) == (columns, 115)
    damaged = bytearray((room.files / "p.parquet").read_bytes())
    damaged[-200:-8] = bytes(192)
    room.write("damaged.parquet", bytes(damaged))
    assert (await room.look("damaged.parquet")).notes


def made_by_layers(room: Room, program: str, name: str) -> None:
    """A file that libraries of the environment write, here and not in the sandbox."""
    path = ":".join(map(str, room.environment.layers))
    command = [PYTHON, "-c", program, str(room.files / name)]
    subprocess.run(command, env={"PYTHONPATH": path}, check=True, timeout=SECONDS)


# ------------------------------------------------------------------------------------------------- hostile


def sparse(path: Path, size: int, head: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def million_entries(path: Path) -> None:
    count = 1_000_000
    entries = b"".join(
        struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 5, 7, 0, 0, 0, 0, 0, 0) + b"f%06d" % i
        for i in range(count)
    )
    end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), 30)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 30 + len(entries), 1)
    last = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(b"PK\3\4" + bytes(26) + entries + end + locator + last)


def gzip_bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(400):
            file.write(bytes(1 << 20))


def long_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"a,b\n1,2\n")
        for _ in range(500):
            file.write(b"x" * (1 << 20))


def huge_pax(path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = b"x", 50 << 30
    sparse(path, 60 << 30, header.tobuf(tarfile.GNU_FORMAT))


def heavy_texts(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("[Content_Types].xml", "xl/workbook.xml"):
            archive.writestr(name, "<x/>")
        with archive.open("xl/sharedStrings.xml", "w") as file:
            for _ in range(100):
                file.write(b"<si><t>aaaaaaaaaa</t></si>" * 40_000)


def wide_table(path: Path) -> None:
    path.write_text(",".join(f"c{n}" for n in range(100_000)) + "\n" + ",".join("1" * 100_000) + "\n")


def unclosed(path: Path) -> None:
    path.write_text('a,b\n1,"never closed\n' + "1,2\n" * 2_000_000)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


HOSTILE: list[tuple[str, Callable[[Path], Any], dict[str, Any]]] = [
    ("fifo.csv", os.mkfifo, {"kind": "binary", "mime": "inode/fifo", "size": 0}),
    ("socket.csv", socket_file, {"kind": "binary", "mime": "inode/socket"}),
    ("link.txt", lambda p: p.symlink_to("/etc/passwd"), {"kind": "binary", "mime": "inode/symlink", "text": ""}),
    ("folder.txt", Path.mkdir, {"kind": "binary", "mime": "inode/directory"}),
    ("sparse.txt", lambda p: sparse(p, 60 << 30, b"hello\n" * 20_000), {"kind": "text", "size": 60 << 30}),
    ("zeros.csv", lambda p: sparse(p, 60 << 30), {"kind": "binary", "size": 60 << 30}),
    ("bomb.gz", gzip_bomb, {"kind": "archive"}),
    ("bomb.txt.xz", lambda p: p.write_bytes(lzma.compress(b"hello\n" * 15_000_000)), {"kind": "text", "lines": None}),
    ("million.zip", million_entries, {"kind": "archive"}),
    ("heavy.xlsx", heavy_texts, {"kind": "archive"}),
    ("pax.tar", huge_pax, {"kind": "binary", "size": 60 << 30}),
    ("deep.json", lambda p: p.write_text("[" * 100_000), {"kind": "text"}),
    ("deep.jsonl", lambda p: p.write_text("[" * 100_000), {"kind": "text"}),
    ("deep.ipynb", lambda p: p.write_text("[" * 100_000), {"kind": "text"}),
    ("digits.json", lambda p: p.write_text("[" + "9" * 1_000_000 + "]"), {"kind": "text"}),
    ("long.csv", long_line, {"kind": "table", "rows_exact": False}),
    ("wide.csv", wide_table, {"kind": "table", "rows": 1, "columns_left_out": 99_800}),
    ("unclosed.csv", unclosed, {"kind": "table", "rows_exact": True}),
    ("bomb.png", lambda p: p.write_bytes(png(50_000, 50_000, 2000)),
     {"kind": "image", "width": 50_000, "height": 50_000, "image": None}),
    ("broken.png", lambda p: p.write_bytes(png(100, 100)[:60]), {"kind": "image", "image": None}),
    ("cut.gz", lambda p: p.write_bytes(gzip.compress(os.urandom(100_000))[:500]), {"kind": "archive"}),
    ("broken.gz", lambda p: p.write_bytes(b"\x1f\x8b\x08\0" + bytes(100)), {"kind": "binary"}),
    ("broken.zip", lambda p: p.write_bytes(b"PK\3\4" + bytes(100)), {"kind": "binary", "mime": "application/zip"}),
    ("lying.zip", lambda p: p.write_bytes(zipped("a")[:-12] + b"\xff" * 12), {"kind": "binary"}),
    ("broken.parquet", lambda p: p.write_bytes(b"PAR1" + b"\x19\xfc\xff" * 30 + b"\x40\0\0\0PAR1"), {"kind": "binary"}),
    ("pages.pdf", lambda p: p.write_bytes(b"%PDF-1.4\xff" + b"/Type/Pages " * 500_000), {"kind": "pdf"}),
    ("broken.npy", lambda p: p.write_bytes(b"\x93NUMPY\1"), {"kind": "binary"}),
    ("controls.csv", lambda p: p.write_text("a\u202eb,c\x1b[2J\n1,\u2028\n"), {"kind": "table", "rows": 1,
     "columns": (Column(r"a\u202eb", "int"), Column(r"c\x1b[2J", "empty"))}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "fields"), HOSTILE, ids=[name for name, _, _ in HOSTILE])
@pytest.mark.parametrize("want", ["preview", "describe"])
async def test_a_hostile_file_costs_a_bounded_amount_and_is_told(
    room: Room, want: str, name: str, make: Callable[[Path], Any], fields: dict[str, Any]
) -> None:
    make(room.files / name)
    with anyio.fail_after(SECONDS):
        seen = await room.look(name, want)
    left_out = {"columns_left_out"} if want == "describe" else set()
    told = {field: getattr(seen, field) for field in fields if field not in left_out}
    assert told == {field: value for field, value in fields.items() if field not in left_out}, seen
    assert len(seen.text) <= 8000


@pytest.mark.parametrize(
    "relative", ["../secret", "/etc/passwd", "out/secret", "x/../../secret", "a\0b", "", ".", "no"]
)
async def test_no_path_leads_out_of_the_folder(room: Room, relative: str) -> None:
    (room.base / "secret").write_text("a secret of the server")
    (room.files / "out").symlink_to("..")
    seen = await room.look(relative)
    assert (seen.kind, seen.text, seen.size) == ("binary", "", 0)
    assert seen.notes[0].startswith("could not be looked at: ")


async def test_a_growing_file_has_an_end(room: Room) -> None:
    path = room.write("grow.txt", "line\n" * 1000)
    writer = await anyio.open_process(["/bin/sh", "-c", 'while :; do echo line; done >> "$0"', str(path)])
    try:
        seen = await room.look("grow.txt", limit=1000)
    finally:
        writer.kill()
        with anyio.CancelScope(shield=True):
            await writer.aclose()
    assert seen.kind == "text"
    assert seen.lines is not None
    assert seen.size >= 5000


@pytest.mark.parametrize("number", range(40))
async def test_mangled_files_never_end_the_helper(bare: Room, number: int) -> None:
    """What is found by parsing must not depend on the file being as its format says."""
    originals = [case for case in CASES if len(case.content) > 40]
    case = originals[number % len(originals)]
    content = bytearray(case.content if isinstance(case.content, bytes) else case.content.encode())[:20_000]
    state = number * 7919 + 1
    for _ in range(1 + number % 7):
        state = (state * 1103515245 + 12345) % (1 << 31)
        content[state % len(content)] = state >> 8 & 0xFF
    name = case.name.rpartition("/")[2].replace("\n", "")
    bare.write(name, bytes(content))
    seen = await bare.look(name)
    assert not any("helper" in note for note in seen.notes), seen.notes


# ------------------------------------------------------------------------------------- helpers that go wrong


class Impostor(NoWalls):
    """Walls in which something else than our helper runs, as if a file had taken it over."""

    def __init__(self, program: str) -> None:
        self._program = program

    def spawn(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        command = [PYTHON, "-I", "-S", "-c", self._program, str(box.run)]
        return super().spawn(box, command, env, stdout=stdout, stderr=stderr)


HONEST: dict[str, Any] = {
    "kind": "text", "mime": "text/plain", "size": 5, "encoding": None, "lines": None, "rows": None,
    "rows_exact": False, "columns": [], "columns_left_out": 0, "sheets": [], "width": None, "height": None,
    "entries": [], "text": "hi", "offset": 0, "next_offset": None, "image": None,
    "image_mime": None, "notes": [],
}  # fmt: skip

NONSENSE = {
    "no JSON": "print('hello')",
    "nothing": "pass",
    "a list": "print('[]')",
    "too deep": "print('[' * 100000)",
    "too much": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "death": "import os; os.kill(os.getpid(), 11)",
    "words on stderr": "import sys; sys.exit('\\x1b[31mdisaster\\u202e')",
    "a daemon that holds the pipe": "import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(600)",
    "too long": "import time; time.sleep(600)",
    "too large": "x = bytearray(b'x') * (700 << 20)\nimport time; time.sleep(600)",
    **{
        f"{field}={value!r:.20}": f"import json; print(json.dumps({ {**HONEST, field: value}!r}))"
        for field, value in [
            ("kind", "virus"), ("size", -1), ("size", 1 << 80), ("size", True), ("size", 1.5), ("mime", None),
            ("mime", "x" * 1000), ("text", "x" * (MOST_CHARS + 2)), ("text", ["x"]), ("columns", [["a"]] * 3),
            ("columns", [["a", "int"]] * 1000), ("entries", [["a", "5"]]), ("notes", ["x"] * 100), ("notes", [7]),
            ("image", "!!"), ("image", "aGVsbG8="), ("next_offset", 0), ("rows_exact", 1), ("sheets", {}),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("program", NONSENSE.values(), ids=NONSENSE)
async def test_a_helper_that_goes_wrong_gives_an_answer_without_its_words(bare: Room, program: str) -> None:
    bare.write("a.csv", "hello")
    limits = Limits(run_seconds=2, memory_bytes=512 << 20)
    seen = await replace(bare, walls=Impostor(program), limits=limits).look("a.csv")
    assert replace(seen, notes=()) == Look("binary", "text/csv", 5)
    (note,) = seen.notes
    assert note.startswith("could not be looked at: ")
    assert note.isprintable()


async def test_what_a_helper_says_is_cleaned(bare: Room) -> None:
    told = {
        **HONEST, "text": "a\x1b[31mb\ud800", "mime": "text/\u202ex", "notes": ["a\nb"], "columns": [["a\nb", "i\x07"]],
    }  # fmt: skip
    seen = await replace(bare, walls=Impostor(f"import json; print(json.dumps({told!r}))")).look("a")
    assert (seen.text, seen.mime, seen.notes) == ("ab?", r"text/\u202ex", (r"a\nb",))
    assert seen.columns == (Column(r"a\nb", r"i\x07"),)


async def test_a_cancelled_look_leaves_nothing(bare: Room) -> None:
    bare.write("a.txt", "hello")
    room = replace(bare, walls=Impostor("import os, sys, time; open(sys.argv[1] + '/on', 'x'); time.sleep(600)"))
    async with anyio.create_task_group() as group:
        group.start_soon(room.look, "a.txt")
        await until(lambda: bool(list((room.base / "scratch").glob("*/s/on"))), SECONDS, "the helper runs")
        assert named(str(room.base))
        group.cancel_scope.cancel()
    assert not named(str(room.base))
    assert os.listdir(room.base / "scratch") == []


async def test_without_walls_it_is_a_child_with_limits(bare: Room) -> None:
    bare.write("a.csv", "a,b\n1,2\n")
    assert (await bare.look("a.csv")).rows == 1
    os.mkfifo(bare.files / "fifo")
    assert (await bare.look("fifo")).mime == "inode/fifo"


async def test_a_second_look_sees_the_file_only(room: Room) -> None:
    """The folder is read-only inside, and looking changes nothing of it."""
    room.write("a.csv", "a,b\n1,2\n")
    before = (room.files / "a.csv").stat()
    await room.look("a.csv")
    after = (room.files / "a.csv").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert os.listdir(room.files) == ["a.csv"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root server gives a session a uid, whose threads are counted")
async def test_a_session_that_uses_up_its_threads_can_still_be_looked_at(room: Room) -> None:
    program = "import threading, time\nfor _ in range(240): threading.Thread(target=time.sleep, args=[600]).start()\n"
    for name in ("mounts", "venv", "kernel", "run", "work"):
        (room.base / name).mkdir()
    for name in ("run", "work"):
        os.chown(room.base / name, room.uid or 0, room.uid or 0)
    box = Box(
        workspace=room.base / "work", mounts=room.base / "mounts", venv=room.base / "venv", layers=(), store=None,
        kernel=room.base / "kernel", run=room.base / "run", limits=room.limits, uid=room.uid,
    )  # fmt: skip
    argv = [PYTHON, "-I", "-S", "-u", "-c", program + "print('ready', flush=True)\ntime.sleep(600)"]
    process = room.walls.spawn(box, argv, {}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        room.write("a.csv", "a,b\n1,2\n")
        assert (await room.look("a.csv")).rows == 1
    finally:
        room.walls.kill(process)
        process.communicate()


async def test_a_hard_link_is_a_file_like_any_other(room: Room) -> None:
    room.write("a.txt", "hello")
    os.link(room.files / "a.txt", room.files / "b.txt")
    assert (await room.look("b.txt")).text == "hello"
