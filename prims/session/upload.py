"""Bytes out: one streamed PUT to a presigned URL, with nothing in it that could break the signature."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import anyio
import httpx2

from prims.errors import Refused, TransferError
from prims.session.addresses import Place, Reach, parsed
from prims.session.answers import advice_out, advice_redirect, cleaned, quoted, secrets_of, words
from prims.session.disk import stamp, why
from prims.session.web import MANNERS, REDIRECTS, Manners, answer, late

_CHUNK = 256 << 10
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
_MOST_HEADERS = 64
_OURS = frozenset(
    (
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "http2-settings",
        "proxy-authorization",
        "proxy-connection",
    )
)
_BUSY_CODES = frozenset({"SlowDown", "ServerBusy"})


@dataclass(frozen=True, slots=True)
class Stored:
    """An upload that the other side confirmed. `etag` is its own mark for it, without quotes, when it gave one."""

    status: int
    bytes: int
    host: str
    etag: str | None


async def put(
    source_fd: int,
    size: int,
    url: str,
    *,
    headers: Mapping[str, str],
    reach: Reach,
    most_bytes: int,
    seconds: float,
    manners: Manners = MANNERS,
) -> Stored:
    """Upload the `size` bytes of `source_fd` by one PUT, with exactly `headers` beside Host and Content-Length.

    Anything more could break the URL's signature, so no Content-Type, User-Agent or the like is invented, and redirects
    are not followed. It is tried again only when no connection came about or the storage said that it is too busy. The
    descriptor stays open; a file that changes meanwhile is never finished. On cancellation the upload is incomplete.

    Raises:
        Refused: URL, address, headers or size are not allowed.
        TransferError: the storage did not confirm; `status` and `code` are what it answered.
    """
    if size > most_bytes:
        raise Refused(f"The file has {size:,} bytes, above the limit of {most_bytes:,} for one upload.")
    target, place = parsed(url.strip())
    given = _checked_headers(headers)
    with anyio.move_on_after(seconds):
        for pause in (*manners.backoff, None):
            try:
                return await _put_once(_Body(source_fd, size), target, place, given, reach, manners)
            except TransferError as problem:
                again = problem.reason == "unreachable" or (problem.status == 503 and problem.code in _BUSY_CODES)
                if pause is None or not again:
                    raise
            await anyio.sleep(pause)
    raise late("upload", seconds)


class _Body(httpx2.AsyncByteStream):
    """The bytes of a descriptor, by position; its last piece is given only while the file is still as it was."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._stamp = stamp(os.fstat(descriptor))
        if self._stamp[0] != size:
            raise self._changed()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        done = 0
        while done < self.size:
            try:
                chunk = await anyio.to_thread.run_sync(os.pread, self._descriptor, min(_CHUNK, self.size - done), done)
            except OSError as problem:
                raise TransferError(f"The file could not be read: {why(problem)}.", reason="local") from problem
            done += len(chunk)
            if not chunk or stamp(os.fstat(self._descriptor)) != self._stamp:
                raise self._changed()
            yield chunk

    def _changed(self) -> TransferError:
        return TransferError(
            "The file changed while it was uploaded, so the upload was not finished. "
            "Upload it again when nothing writes to it.",
            reason="local",
        )


async def _put_once(
    body: _Body,
    url: httpx2.URL,
    place: Place,
    headers: Sequence[tuple[str, str]],
    reach: Reach,
    manners: Manners,
) -> Stored:
    host = str(place)
    sent = [*headers, ("Content-Length", str(body.size))]
    async with answer("PUT", url, place, sent, body, reach, manners) as response:
        status = response.status_code
        if 200 <= status < 300:
            etag = cleaned(response.headers.get("etag", ""))
            return Stored(status, body.size, host, etag.strip('"') if etag.startswith('"') else etag or None)
        said = await words(response, secrets_of(url, headers))
        if status in REDIRECTS:
            advice = advice_redirect(url, response.headers.get("location", ""))
        else:
            advice = advice_out(status, said, url, headers)
        raise TransferError(
            f"{host} answered {status}{quoted(said)}; the file was not stored. {advice}",
            reason="status",
            host=host,
            status=status,
            code=said.code,
        )


def _checked_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    if len(headers) > _MOST_HEADERS:
        raise Refused(f"At most {_MOST_HEADERS} headers are sent with an upload.")
    found: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        stripped = value.strip(" \t")
        if not _TOKEN.fullmatch(name):
            raise Refused("A header's name has characters that are not allowed there. Use letters, digits and hyphens.")
        if not _VALUE.fullmatch(stripped):
            raise Refused(f"The value of the header {name} must be one line of printable ASCII.")
        if name.lower() in _OURS:
            raise Refused(f"The header {name} is set by the transfer itself. Leave it out.")
        if name.lower() in found:
            raise Refused(f"The header {name} is given twice.")
        found[name.lower()] = (name, stripped)
    return list(found.values())
