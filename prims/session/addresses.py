"""Where a transfer may go: every URL is taken apart here, and its host becomes addresses that were checked.

What is checked is what is connected to: the caller dials the addresses given here and never the name, so an answer of
the name service that changes in between (DNS rebinding) leads nowhere.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2

from prims.errors import ConfigError, Refused, TransferError
from prims.hosts import literal, not_public, plain_host, spelled

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port → addresses as text, in the order in which to try them."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Place:
    """The other end of one request: `host` in lower case ASCII, without brackets or a final dot."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the operator allows beyond public hosts.

    `hosts` are HOST or HOST:PORT (IPv6 in brackets when a port follows), as written in URLs; they may be private or
    loopback. `folders` are local folders that files may be brought in from.

    Raises:
        ConfigError: a host is malformed, or a folder is not an absolute path.
    """

    hosts: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    _places: frozenset[tuple[str, int | None]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", frozenset(_allowed(text) for text in self.hosts))
        for folder in self.folders:
            if not folder.is_absolute():
                raise ConfigError(f"An allowed folder must be an absolute path, not {str(folder)!r}.")

    def allows(self, place: Place) -> bool:
        """Whether the operator named this host, for this port or for all."""
        return (place.host, place.port) in self._places or (place.host, None) in self._places


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of `host` as the machine's own resolver gives them.

    Raises:
        TransferError: the name is not known, or the resolver fails.
    """
    try:
        # A resolver that hangs keeps its thread for a while, but neither the call nor its deadline.
        found = await anyio.to_thread.run_sync(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), abandon_on_cancel=True
        )
    except (OSError, UnicodeError):
        raise TransferError(
            f"The host {host} was not found. Check the spelling of the URL.", reason="unknown-host", host=host
        ) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parsed(text: str) -> tuple[httpx2.URL, Place]:
    """An http or https URL and where it leads.

    Raises:
        Refused: it is malformed, of another scheme, carries credentials, or spells its host in an odd way.
    """
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        raise Refused("The URL is malformed. Give a complete https URL, percent-encoded where needed.") from None
    if url.scheme not in _PORTS:
        raise Refused(
            f"{_scheme(url)} URLs are not taken here: only https and http, and for files to mount also data: URLs and "
            "local files below a folder that the operator allowed. For cloud storage, ask for a presigned https URL."
        )
    if url.userinfo:
        raise Refused("The URL carries a user name or password. Give one without; a presigned URL needs none.")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65536:
        raise Refused("The URL's port is not between 1 and 65535.")
    return url, Place(url.scheme, _host(url), port)


async def addresses(place: Place, reach: Reach, resolve: Resolve) -> list[str]:
    """Addresses of `place` to connect to, all of them public unless the operator allowed the host.

    Raises:
        Refused: at least one address is not public.
        TransferError: the name is not known.
    """
    found = [place.host] if literal(place.host) else await resolve(place.host, place.port)
    if not found:
        raise TransferError(f"The host {place.host} has no address.", reason="unknown-host", host=place.host)
    if not reach.allows(place):
        for address in found:
            kind = not_public(address)
            if kind is not None:
                named = spelled(place.host, place.port)
                allow = f" If this is meant, the operator can allow it with --allow-host {named}."
                article = "an" if kind[0] in "aeiou" else "a"
                raise Refused(
                    f"{place.host} is at {article} {kind} address, and only public ones are reached from here."
                    + (allow if kind in ("loopback", "private") else " Give a public URL.")
                )
    return found


def _host(url: httpx2.URL) -> str:
    host = plain_host(url.raw_host.decode("ascii"))
    if host is None:
        raise Refused("The URL's host is not a plain host name or IP address. Write it in its ordinary form.")
    return host


def _allowed(text: str) -> tuple[str, int | None]:
    """An entry of `--allow-host` as host and port."""
    given = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    try:
        # The scheme's default port is dropped by the parser, so it is asked twice.
        urls = [httpx2.URL(f"{scheme}://{given}/") for scheme in _PORTS]
        if urls[0].netloc.decode("ascii") == "" or given != given.strip() or any(c in given for c in "/@?#"):
            raise Refused("no host")
        return _host(urls[0]), urls[0].port or urls[1].port
    except (httpx2.InvalidURL, Refused):
        raise ConfigError(f"--allow-host takes HOST or HOST:PORT as written in URLs, not {text!r}.") from None


def _scheme(url: httpx2.URL) -> str:
    return f"{url.scheme[:20]}:" if url.scheme else "Relative"
