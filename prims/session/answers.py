"""What the other side says about a failure, and what to do about it, in words that carry no secrets."""

from __future__ import annotations

import contextlib
import html
import json
import re
import time
import urllib.parse
from calendar import timegm
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import httpx2

from prims.errors import Refused
from prims.session.addresses import parsed

_ANSWER_BYTES = 64 << 10
_ANSWER_SECONDS = 5.0
_WORDS = 200
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,128}")


@dataclass(frozen=True, slots=True)
class Words:
    """What the other side says about a failure: its own code and message, cleaned, at most 200 characters each."""

    code: str = ""
    message: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.code, self.message) if part)


async def words(response: httpx2.Response, secrets: Sequence[str]) -> Words:
    """What a cloud storage (S3, GCS, Azure), a page's title or a short text says of an error.

    At most 64 KB are read, for at most 5 s.
    """
    body = b""
    try:
        with anyio.move_on_after(_ANSWER_SECONDS):
            async with contextlib.aclosing(response.aiter_raw()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) >= _ANSWER_BYTES:
                        break
    except httpx2.TransportError:
        pass  # what came is enough: the status is known already
    code, message = _storage_error(body[:_ANSWER_BYTES].decode("utf-8", "replace"))
    return Words(cleaned(code, secrets), cleaned(message, secrets))


def _storage_error(text: str) -> tuple[str, str]:
    if text.lstrip()[:1] == "{":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return "", ""
        inner = found.get("error", found)
        if isinstance(inner, dict):
            # GCS puts the number of the status where others have a word.
            code = inner.get("code", "")
            return code if isinstance(code, str) else "", str(inner.get("message", ""))
        return str(inner), str(found.get("error_description", ""))
    # Not parsed as XML: two elements are wanted, and a parser can be made to do much more.
    code, message, details = (
        match[1] if (match := re.search(rf"<{tag}>([^<]{{1,2000}})</{tag}>", text)) else ""
        for tag in ("Code", "Message", "Details")
    )
    said = message if code else ""
    if not code and (title := re.search(r"<title>([^<]{1,300})</title>", text, re.IGNORECASE)):
        said = title[1]
    elif not code and len(text) <= _WORDS and "<" not in text:
        said = text
    return html.unescape(code), html.unescape(f"{said} {details}" if said and details else said)


def cleaned(text: str, secrets: Sequence[str] = ()) -> str:
    """Text of the other side, fit to be told: one line, no controls, none of `secrets`, at most 200 characters."""
    for secret in secrets:
        text = text.replace(secret, "…")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"


def secrets_of(url: httpx2.URL, headers: Sequence[tuple[str, str]] = ()) -> list[str]:
    """What must not be told of a request: its query, whole and in parts, and the values of its headers."""
    query = url.query.decode("ascii")
    parts = [part.partition("=")[2] for part in query.split("&")] + [value for _, value in headers]
    told = {query, *parts, *(urllib.parse.unquote(part) for part in parts)}
    # Short values are no secrets, and cutting out every "1" would spoil the message.
    return sorted((part for part in told if len(part) >= 8), key=len, reverse=True)


def quoted(said: Words) -> str:
    """The words in brackets, for the middle of a sentence; nothing when there are none."""
    return f" ({said})" if said.code or said.message else ""


def advice_in(status: int, said: Words, url: httpx2.URL) -> str:
    """What to do after a download was answered with `status`."""
    if status in (400, 401, 403) and _expired(said, url):
        return "The link has expired: ask for a new one."
    if status in (401, 403):
        return "The file is not public or the link is not valid: ask for a presigned link."
    if status in (404, 410):
        return "Check the URL."
    if status == 429 or status >= 500:
        return "Try again later."
    return "Give a URL that leads to the file itself."


def advice_redirect(url: httpx2.URL, location: str) -> str:
    """What to do after an upload was answered with a redirect; at most the host of `location` is told."""
    try:
        other = url.join(location)
        where = f" to {parsed(str(other))[1]}" if location and other.host != url.host else ""
    except (httpx2.InvalidURL, Refused):
        where = ""
    return (
        f"It redirects{where}, and an upload does not follow that, as the signature is for this URL only: mostly the "
        "bucket is in another region. Ask for a URL that is signed for the right endpoint."
    )


def advice_out(status: int, said: Words, url: httpx2.URL, headers: Sequence[tuple[str, str]]) -> str:
    """What to do after an upload with `headers` was answered with `status`."""
    if status in (400, 401, 403) and _expired(said, url):
        return "The link has expired: ask for a new one."
    missing = sorted(_signed_headers(url) - {name.lower() for name, _ in headers} - {"host", "content-length"})
    if missing and status in (400, 401, 403):
        return (
            f"The link was signed together with the headers {', '.join(missing)[:200]}: give them in `headers`, with "
            "the values they were signed with."
        )
    if said.code in ("SignatureDoesNotMatch", "AuthenticationFailed"):
        return (
            "A signed header is missing or differs, or one is sent that must not be: give in `headers` exactly those "
            "the link was signed with (often Content-Type), or ask for a new link."
        )
    if said.code == "MissingRequiredHeader":
        return "Azure needs the header x-ms-blob-type: BlockBlob in `headers`."
    if status in (401, 403):
        return "The link does not allow this upload: ask for one that is signed for PUT to this name."
    if status == 404:
        return "Check the bucket and the name in the link."
    if status == 413 or said.code == "EntityTooLarge":
        return "The storage takes only smaller files there."
    if status == 429 or status >= 500:
        return "Try again later."
    return "Ask for a new link that is signed for PUT."


def _signed_headers(url: httpx2.URL) -> set[str]:
    for name in ("X-Amz-SignedHeaders", "X-Goog-SignedHeaders"):
        if name in url.params:
            return {part for part in url.params[name].lower().split(";") if _HEADER_NAME.fullmatch(part)}
    return set()


def _expired(said: Words, url: httpx2.URL) -> bool:
    """Whether the link's own time is over, by what the storage says or by our clock."""
    if "expire" in f"{said.code} {said.message}".lower():
        return True
    for brand in ("X-Amz", "X-Goog"):
        with contextlib.suppress(KeyError, ValueError, OverflowError):
            signed = timegm(time.strptime(url.params[f"{brand}-Date"], "%Y%m%dT%H%M%SZ"))
            return time.time() > signed + int(url.params[f"{brand}-Expires"])
    return False
