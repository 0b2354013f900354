"""Decides what a file is, and has it looked at. The one place where things go wrong on purpose."""

from __future__ import annotations

import json
import os
import resource
import signal

from look.answer import Answer, Ask, one_line, short
from look.decoding import Coding, coding_of, tidy
from look.kinds import JSONS, LINES, PACKINGS, TABLES, TEXTS, magic_of, suffix_of
from look.source import Source, Unusable, open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class TimeUp(BaseException):
    """The time for looking is over. Not an Exception, so that no library takes it for one of its own."""


def main(question: str) -> NoReturn:
    """Answer one question on standard output and end the process."""
    ask = Ask(json.loads(question))
    _bound(ask)
    if ask.want == "redraw":
        _reply({"pictures": _redrawn(ask)})
    answer = Answer()
    try:
        look(answer, ask)
    except Unusable as error:
        answer.mime = error.mime or answer.mime
        answer.note(f"could not be looked at: {error}")
    except TimeUp:
        answer.note(f"looking at it was stopped after {ask.seconds:g} s")
    except (MemoryError, RecursionError):
        answer.note("could not be looked at: it takes too much memory")
    except Exception as error:  # hostile bytes find faults in every library
        words = one_line(short(f"{type(error).__name__}: {error}", 200))
        answer.note(f"could not be looked at: {words}")
    _reply(answer.fields())


def _redrawn(ask: Ask) -> list[dict[str, Any]]:
    """All the pictures that are wanted; those for which the time is too short without one."""
    from look import pictures

    done: list[dict[str, Any]] = []
    try:
        for name, room in ask.pictures:
            done.append(pictures.redrawn(ask, name, room))
    except TimeUp:
        pass
    rest = {"image": None, "note": f"drawing the pictures anew was stopped after {ask.seconds:g} s"}
    return done + [rest] * (len(ask.pictures) - len(done))


def _reply(fields: dict[str, Any]) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0)
    data = json.dumps(fields).encode("ascii")
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)  # what libraries want to do at the end is of no use to anybody


def _bound(ask: Ask) -> None:
    """Set the limits that give an answer; those around the sandbox only end it."""

    def stop(number: int, frame: object) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, ask.seconds)
    if ask.memory is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        memory = ask.memory if hard == resource.RLIM_INFINITY else min(ask.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))


def look(answer: Answer, ask: Ask) -> None:
    """Fill in the answer."""
    descriptor, answer.size = open_beneath(ask.root, ask.relative)
    if answer.size == 0:
        answer.kind, answer.mime = "empty", "application/x-empty"
        return
    plain = Source(descriptor, answer.size)
    try:
        _judge(answer, ask, plain, "")
    except Unusable as error:
        _fallen_back(answer, ask, plain, str(error))
    except (MemoryError, RecursionError):
        _fallen_back(answer, ask, plain, "it takes too much memory")
    except Exception as error:
        _fallen_back(answer, ask, plain, one_line(short(f"{type(error).__name__}: {error}", 200)))


def _fallen_back(answer: Answer, ask: Ask, source: Source, why: str) -> None:
    """What can be said of a file that is not what it claims to be."""
    answer.note(f"could not be looked at as {answer.mime}: {why}")
    answer.forget()
    _hex(answer, source, "")


def _judge(answer: Answer, ask: Ask, source: Source, packing: str) -> None:
    head = source.head()
    if not head:
        raise Unusable(source.damage or "there is nothing to read in it")
    suffix = suffix_of(ask.name)
    magic = magic_of(head)
    if magic is not None and not packing and magic[0] in PACKINGS:
        _packed(answer, ask, source, magic[0])
        return
    # Two or three letters also begin texts: such a magic must not stand against a valid text.
    coding = coding_of(head, source.head_is_all, ask.allow_layers) if magic is None or magic[0] in _WEAK else None
    if coding is not None:
        _text(answer, ask, source, suffix, coding)
    elif magic is None:
        answer.mime = "application/octet-stream"
        _hex(answer, source, "binary data")
    else:
        answer.mime, words = magic
        _binary(answer, ask, source, words)


_WEAK = ("image/bmp", "application/vnd.microsoft.portable-executable", "audio/mpeg", "font/otf")


# Names of what is never a text.
_NO_TEXTS = frozenset(
    ("xlsx", "xls", "ods", "docx", "pptx", "pdf", "parquet", "feather", "arrow", "zip", "gz", "tar", "png", "jpg",
     "jpeg", "gif", "webp", "npy", "npz", "pkl", "pickle", "db", "sqlite", "h5", "mp3", "mp4", "wav")
)  # fmt: skip
# Names of texts that may begin as a page does.
_PAGES = frozenset(("", "html", "htm", "xhtml", "mhtml", "php", "asp", "jsp", "txt", "log", "md", "tmpl", "j2", "vue"))


def _is_page(sample: str) -> bool:
    return sample[:200].lstrip().lower().startswith(("<!doctype html", "<html"))


def _text(answer: Answer, ask: Ask, source: Source, suffix: str, coding: Coding) -> None:
    from look import tables, texts

    sample = tidy(source.head()[coding.skip :].decode(coding.codec, "replace"))
    if _is_page(sample) and suffix not in _PAGES:
        answer.mime = "text/html"
        answer.note(f"a page (HTML), whatever .{short(suffix, 20)} says: perhaps one to sign in, or of an error")
        texts.text(answer, ask, source, coding)
    elif suffix in TABLES:
        answer.mime = TABLES[suffix]
        order = ",;\t|" if suffix == "csv" else "\t,;|"
        tables.csv_file(answer, ask, source, coding, tables.delimiter_of(sample, source.head_is_all, order)[0])
    elif suffix in LINES or (suffix == "json" and tables.are_json_lines(sample)):
        answer.mime = LINES["jsonl"]
        if suffix == "json":
            answer.note("one JSON value a line, not one JSON document")
        tables.json_lines(answer, ask, source, coding)
    elif suffix in JSONS:
        answer.mime = JSONS[suffix]
        if suffix == "ipynb":
            texts.notebook(answer, ask, source, coding)
        else:
            texts.json_file(answer, ask, source, coding, certain=True)
    elif suffix in TEXTS and suffix not in ("txt", "log"):
        answer.mime = TEXTS[suffix]
        texts.text(answer, ask, source, coding)
        if answer.mime == "image/svg+xml":
            from look import pictures

            pictures.drawing(answer, ask, source)
    else:
        _nameless(answer, ask, source, coding, sample, suffix)


def _nameless(answer: Answer, ask: Ask, source: Source, coding: Coding, sample: str, suffix: str) -> None:
    """A text whose name does not say of which kind."""
    from look import tables, texts

    start = sample.lstrip()[:1]
    if start == "{" and tables.are_json_lines(sample):
        answer.mime = LINES["jsonl"]
        tables.json_lines(answer, ask, source, coding)
        return
    answer.mime = "text/plain"
    if suffix in _NO_TEXTS:
        answer.note(f"a text, whatever .{suffix} says")
    if start and start in "{[" and texts.json_file(answer, ask, source, coding, certain=False):
        return
    delimiter, fields, share = tables.delimiter_of(sample, source.head_is_all, "\t;|" if suffix else "\t,;|")
    if suffix != "log" and fields > 1 and share == 1.0 and sample.count("\n") >= 3:
        answer.mime = "text/csv" if delimiter != "\t" else "text/tab-separated-values"
        tables.csv_file(answer, ask, source, coding, delimiter)
        return
    if _is_page(sample):
        answer.mime = "text/html"
    elif sample.lstrip()[:5].lower() == "<?xml":
        answer.mime = "application/xml"
    texts.text(answer, ask, source, coding)


def _packed(answer: Answer, ask: Ask, source: Source, mime: str) -> None:
    """A single packed stream: what is in it counts, when that can be shown."""
    from look import archives

    inner = Source(source.descriptor, source.size, PACKINGS[mime])
    head = inner.head()
    answer.mime = mime
    if inner.damage and not head:
        raise Unusable(inner.damage)
    magic = magic_of(head)
    if magic is not None and magic[0] == "application/x-tar":
        archives.tar(answer, ask, inner)
    elif magic is None and head and coding_of(head, inner.head_is_all, ask.allow_layers) is not None:
        _judge(answer, ask, inner, PACKINGS[mime])
        answer.note(f"packed with {inner.packing} ({answer.mime}); shown unpacked")
        answer.mime = mime
    else:
        archives.packed(answer, ask, inner, magic)
    if inner.damage:
        answer.note(inner.damage)


def _binary(answer: Answer, ask: Ask, source: Source, words: str) -> None:
    from look import archives, media

    mime = answer.mime
    match mime:
        case "application/zip":
            archives.zip_file(answer, ask, source)
        case "application/x-tar":
            archives.tar(answer, ask, source)
        case "application/x-7z-compressed" | "application/vnd.rar" | "application/zstd":
            answer.kind = "archive"
            _hex(answer, source, words)
            answer.note("what is in it cannot be listed here")
        case "application/vnd.apache.parquet":
            from look import columnar

            columnar.parquet(answer, ask, source)
        case "application/pdf":
            media.pdf(answer, source)
        case "audio/wav":
            media.wav(answer, source)
        case "application/x-npy":
            media.npy(answer, source)
            _hex(answer, source, answer.text or words)
        case _ if mime.startswith("image/"):
            from look import pictures

            pictures.picture(answer, ask, source, words)
        case _ if mime.startswith(("audio/", "video/")):
            answer.kind = "audio" if mime.startswith("audio/") else "video"
            answer.text = words
        case _:
            _hex(answer, source, words)


def _hex(answer: Answer, source: Source, words: str) -> None:
    """The first 64 bytes as numbers."""
    head = source.at(0, 64)
    lines = [head[at : at + 16].hex(" ") for at in range(0, len(head), 16)]
    what = f"{words}, first" if words else "first"
    answer.text = "\n".join([f"{what} {len(head)} bytes in hex:", *lines])
