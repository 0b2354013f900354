"""One HTTP request to a checked address.

Proxies, credentials and cookies of the environment are never used: an address that was checked means nothing when a
proxy does the connecting. Certificates are: `SSL_CERT_FILE` and the machine's own store say whom to trust.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2

from prims.errors import TransferError
from prims.session.addresses import Place, Reach, Resolve, addresses, look_up

REDIRECTS = frozenset({301, 302, 303, 307, 308})


@functools.cache
def _system_trust() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


async def trust_system() -> ssl.SSLContext:
    """Verify against the machine's certificates; read once, as that takes a quarter of a second."""
    return await anyio.to_thread.run_sync(_system_trust)


@dataclass(frozen=True, slots=True)
class Manners:
    """How a transfer finds and waits for the other side. Times are seconds.

    `stall_seconds` bounds the silence between two pieces; `backoff` has one pause per retry of an upload.
    """

    resolve: Resolve = look_up
    trust: Callable[[], Awaitable[ssl.SSLContext]] = trust_system
    connect_seconds: float = 15.0
    stall_seconds: float = 30.0
    backoff: tuple[float, ...] = (0.5, 1.5)


MANNERS = Manners()


@asynccontextmanager
async def answer(
    method: str,
    url: httpx2.URL,
    place: Place,
    headers: Sequence[tuple[str, str]],
    body: httpx2.AsyncByteStream,
    reach: Reach,
    manners: Manners,
) -> AsyncIterator[httpx2.Response]:
    """The answer to exactly this request, its body unread; the connection is closed at the end of the block.

    Nothing is added to `headers` but Host. Failures of the network, in the block too, come as TransferError.

    Raises:
        Refused: the host is at an address that is not reached from here.
        TransferError: there is no answer, with a reason.
    """
    found = await addresses(place, reach, manners.resolve)
    # Without certificates this one trusts nobody, so it fits the plain scheme only.
    trust = await manners.trust() if place.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # One transport, and so one connection, per request: none is ever shared between two names at one address.
    transport = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False)
    wait = manners.stall_seconds
    extensions = {
        # Server name and certificate check go by the name while the connection goes by the address.
        # https://www.python-httpx.org/advanced/extensions/
        "sni_hostname": place.host,
        "timeout": {"connect": manners.connect_seconds, "read": wait, "write": wait, "pool": wait},
    }
    all_headers = [("Host", url.netloc.decode("ascii")), *headers]
    requests = [
        httpx2.Request(
            method,
            url.copy_with(host=address, fragment=None),
            headers=all_headers,
            stream=body,
            extensions=extensions,
        )
        for address in found
    ]
    try:
        response = await _first(transport, requests)
        try:
            yield response
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
    except httpx2.TransportError as problem:
        raise _translated(problem, place, manners) from problem
    finally:
        with anyio.CancelScope(shield=True):
            await transport.aclose()


async def _first(transport: httpx2.AsyncHTTPTransport, requests: Sequence[httpx2.Request]) -> httpx2.Response:
    """The answer to the first request whose address takes a connection; nothing was sent to those before it."""
    for request in requests[:-1]:
        with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
            return await transport.handle_async_request(request)
    return await transport.handle_async_request(requests[-1])


def late(what: str, seconds: float) -> TransferError:
    """The error of a `what` that ran into its deadline."""
    return TransferError(
        f"The {what} was not complete after {seconds:g} s and was given up; nothing was kept. "
        "Try a smaller file or a faster place.",
        reason="timeout",
    )


def _translated(problem: httpx2.TransportError, place: Place, manners: Manners) -> TransferError:
    host = str(place)
    if isinstance(problem, httpx2.ConnectError) and _is_certificate(problem):
        return TransferError(
            f"The certificate of {host} is not trusted here, so nothing was transferred. Use another address of the "
            "same data, or have the operator add the certificate's authority (SSL_CERT_FILE).",
            reason="untrusted",
            host=host,
        )
    if isinstance(problem, httpx2.ConnectError | httpx2.ConnectTimeout):
        return TransferError(
            f"{host} could not be reached. Check host and port, or try again later.", reason="unreachable", host=host
        )
    if isinstance(problem, httpx2.TimeoutException):
        return TransferError(
            f"{host} stalled: nothing moved for {manners.stall_seconds:g} s. Try again, or use another source.",
            reason="stalled",
            host=host,
        )
    return TransferError(
        f"The connection to {host} broke off before the transfer was complete. Try again.",
        reason="cut",
        host=host,
    )


def _is_certificate(problem: BaseException) -> bool:
    link: BaseException | None = problem
    while link is not None:
        if isinstance(link, ssl.SSLCertVerificationError):
            return True
        link = link.__cause__ or link.__context__
    return False
