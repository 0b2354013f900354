"""Bytes in by URL, `data:` or an allowed local path; bytes out by a PUT to a presigned URL.

Bytes are streamed and counted, never parsed. A file is at its place whole or not at all, and an upload is claimed only
after the other side said so.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import urllib.parse
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2

from prims.errors import Refused, TransferError
from prims.session.addresses import Place, Reach, parsed
from prims.session.answers import advice_in, cleaned, quoted, secrets_of, words
from prims.session.disk import Sink, open_allowed, stamp, too_large_for, why, written
from prims.session.unwrap import Unwrap
from prims.session.upload import Stored, put
from prims.session.web import MANNERS, REDIRECTS, Manners, answer, late

__all__ = ["Fetched", "Manners", "Reach", "Stored", "fetch", "put"]

_MOST_REDIRECTS = 5
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_CHUNK = 256 << 10
_PACKED_EXTRA = 64 << 10
_GZIP_TYPES = frozenset({"application/gzip", "application/x-gzip", "application/x-tgz", "application/x-compressed-tar"})
_GZIP_NAMES = (".gz", ".tgz", ".svgz", ".gzip")
# The bytes as they are stored: only then is Content-Length the size of the file, and nothing can be a bomb.
_GET_HEADERS = (("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "prims"))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that came in. `source` is the host it came from in the end, `data:` or `local file`; `mime` is the type
    that the source named."""

    bytes: int
    sha256: str
    mime: str | None
    source: str


async def fetch(
    url: str, target: Path, *, reach: Reach, most_bytes: int, seconds: float, manners: Manners = MANNERS
) -> Fetched:
    """Bring one file in: http(s) URL, `data:` URL, or a local path or `file:` URL below an allowed folder.

    `target` appears whole, with mode 0444, or not at all (a temporary file beside it is gone by then); what is there
    already is never replaced, and its folder must be one that no other user can write to. At most `most_bytes` are
    kept, after content encodings were taken off; the whole takes at most `seconds`. On cancellation nothing is left
    either.

    Raises:
        Refused: the URL, an address behind it or the size is not allowed here, or `target` exists.
        TransferError: the other side failed, with a reason.
    """
    with anyio.move_on_after(seconds):
        with written(target, most_bytes) as sink:
            mime, source = await _brought(url.strip(), sink, reach, manners)
            await sink.flush()
        return Fetched(sink.bytes, sink.sha256, mime, source)
    raise late("download", seconds)


async def _brought(url: str, sink: Sink, reach: Reach, manners: Manners) -> tuple[str | None, str]:
    scheme = url[:5].lower()
    if scheme == "data:":
        mime, data = _data_url(url, sink.most_bytes)
        await sink.write(data)
        return mime, "data:"
    if scheme == "file:" or url.startswith("/"):
        await _copy_local(_local_path(url) if scheme == "file:" else url, sink, reach)
        return None, "local file"
    target, place = parsed(url)
    for _ in range(_MOST_REDIRECTS + 1):
        async with answer("GET", target, place, _GET_HEADERS, httpx2.ByteStream(b""), reach, manners) as response:
            if response.status_code not in REDIRECTS or not response.headers.get("location"):
                return await _save(response, target, place, sink), str(place)
            target, place = _next_hop(target, place, response.headers["location"])
    raise TransferError(
        f"Too many redirects (more than {_MOST_REDIRECTS}), the last to {place}. Give the final URL.",
        reason="status",
        host=str(place),
    )


def _next_hop(url: httpx2.URL, place: Place, location: str) -> tuple[httpx2.URL, Place]:
    try:
        joined = url.join(location)
    except httpx2.InvalidURL:
        raise Refused(f"{place} redirects to a malformed URL. Give the final URL.") from None
    if joined.scheme not in ("https", "http"):
        raise Refused(f"{place} redirects to a {joined.scheme[:20]}: URL, which is not followed. Give the final URL.")
    try:
        target, next_place = parsed(str(joined))
    except Refused as problem:
        raise Refused(f"{place} redirects to a URL that is not followed. {problem}") from None
    if place.scheme == "https" and next_place.scheme == "http":
        raise Refused(f"{place} redirects from https to plain http, which is not followed. Give the final URL.")
    return target, next_place


async def _save(response: httpx2.Response, url: httpx2.URL, place: Place, sink: Sink) -> str | None:
    """The body of a good answer into the sink; its type."""
    host, status = str(place), response.status_code
    if status not in (200, 203):
        said = await words(response, secrets_of(url))
        raise TransferError(
            f"{host} answered {status} instead of the file{quoted(said)}. {advice_in(status, said, url)}",
            reason="status",
            host=host,
            status=status,
            code=said.code,
        )
    mime = _media_type(response.headers.get("content-type", ""))
    encodings = response.headers.get("content-encoding", "")
    # Packed, a file may take a little more room on the way than it does here.
    most = sink.most_bytes + (_PACKED_EXTRA if encodings else 0)
    # Digits only, at most twenty: h11 lets nothing else through.
    declared = int(response.headers.get("content-length") or 0)
    if declared > most:
        raise sink.too_large(declared)
    gzip_file = mime in _GZIP_TYPES or url.path.lower().endswith(_GZIP_NAMES)
    try:
        unwrap = Unwrap(encodings, gzip_file=gzip_file)
    except ValueError:
        raise TransferError(
            f"{host} sent the file in the encoding {cleaned(encodings)[:40]!r}, though it was asked not to; "
            "that cannot be read here. Use another source.",
            reason="cut",
            host=host,
        ) from None
    arrived = 0
    try:
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                arrived += len(chunk)
                if arrived > most:
                    raise sink.too_large()
                for piece in unwrap.feed(chunk):
                    await sink.write(piece)
        for piece in unwrap.finish():
            await sink.write(piece)
    except ValueError:
        raise TransferError(
            f"What {host} sent is damaged or was cut off: it cannot be unpacked. Try again, or use another source.",
            reason="cut",
            host=host,
        ) from None
    return "application/gzip" if unwrap.kept and mime not in _GZIP_TYPES else mime


def _media_type(text: str) -> str | None:
    found = re.match(r"\s*([\w.+-]{1,100}/[\w.+-]{1,100})\s*(?:;|$)", text, re.ASCII)
    return found[1].lower() if found else None


def _data_url(url: str, most_bytes: int) -> tuple[str, bytes]:
    head, comma, payload = url[5:].partition(",")
    if not comma:
        raise Refused("The data: URL has no comma. It looks like data:text/plain;base64,SGVsbG8=.")
    # In base64 four characters are three bytes, and in the other form three may be one.
    if len(payload) > 4 * most_bytes + 16:
        raise too_large_for(most_bytes)
    data = urllib.parse.unquote_to_bytes(payload)
    kind, *parameters = (part.strip().lower() for part in head.split(";"))
    if "base64" in parameters:
        packed = b"".join(data.split()).translate(_URL_SAFE)
        try:
            data = base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
        except binascii.Error:
            raise Refused("The data: URL's content is not valid base64. Encode the bytes again.") from None
    return _media_type(kind) or "text/plain", data


def _local_path(url: str) -> str:
    rest = url[5:]
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise Refused("A file: URL names a file of this server: write file:///folder/name.")
        rest = "/" + path
    if "?" in rest or "#" in rest:
        raise Refused("A file: URL has no query or fragment; write ? as %3F and # as %23.")
    return urllib.parse.unquote(rest, errors="surrogateescape")


async def _copy_local(path: str, sink: Sink, reach: Reach) -> None:
    descriptor = open_allowed(path, reach.folders)
    try:
        before = os.fstat(descriptor)
        if before.st_size > sink.most_bytes:
            raise sink.too_large(before.st_size)
        while chunk := await anyio.to_thread.run_sync(os.read, descriptor, _CHUNK):
            await sink.write(chunk)
        if stamp(os.fstat(descriptor)) != stamp(before):
            raise TransferError("The file changed while it was read. Try again when it is complete.", reason="local")
    except OSError as problem:
        raise TransferError(f"The local file could not be read: {why(problem)}.", reason="local") from problem
    finally:
        os.close(descriptor)
