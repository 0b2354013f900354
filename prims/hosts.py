"""Hosts and addresses as people and programs write them, and which of them are for everybody. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Beside what `is_global` knows, which differs between versions of Python.
# https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry
_NOT_PUBLIC_4 = tuple(
    ipaddress.IPv4Network(n)
    for n in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT; some clouds keep their metadata here
        "168.63.129.16/32",  # Azure's host agent: a public number that only the machine itself can reach
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
    )
)
_NOT_PUBLIC_6 = tuple(ipaddress.IPv6Network(n) for n in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def literal(host: str) -> Address | None:
    """The address that `host` is written as; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def plain_host(host: str) -> str | None:
    """A name or address, without brackets, in its one spelling: lower case, no final dot. None for an odd one."""
    host = host.lower()
    address = literal(host)
    if isinstance(address, ipaddress.IPv6Address) and not address.scope_id:
        return str(address)
    host = host.removesuffix(".")
    address = literal(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    # A name whose last part is a number is read as an IPv4 address by many: 127.1, 0x7f.1, 2130706433.
    if len(host) > 253 or not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return None
    return host


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """HOST or HOST:PORT, IPv6 in brackets when a port follows; None when it is neither."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@?#\s]+))(?::([0-9]{1,5}))?", text)
    if match is None:
        return None
    host = plain_host(match[1] or match[2])
    port = int(match[3]) if match[3] else None
    if host is None or (match[1] and ":" not in host) or (port is not None and not 0 < port < 65536):
        return None
    return host, port


def spelled(host: str, port: int) -> str:
    """HOST:PORT as `host_and_port` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def not_public(text: str) -> str | None:
    """What kind of address this is when it is not for everybody on the Internet; None for a public one."""
    address = literal(text)
    return "malformed" if address is None else _kind(address)


def _kind(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _kind(inner)
    for kind, holds in (
        ("loopback", address.is_loopback),
        ("link-local", address.is_link_local),
        ("multicast", address.is_multicast),
        ("unspecified", address.is_unspecified),
        ("private", address.is_private),
        ("reserved", address.is_reserved or not address.is_global),
    ):
        if holds:
            return kind
    if isinstance(address, ipaddress.IPv4Address):
        return "reserved" if any(address in network for network in _NOT_PUBLIC_4) else None
    if address not in _GLOBAL_UNICAST or address.scope_id or any(address in network for network in _NOT_PUBLIC_6):
        return "reserved"
    return None


@dataclass(frozen=True, slots=True)
class Reachable:
    """Where code may go: to hosts in `entries` (`every`: to all), at addresses that are public or entries themselves.

    An entry is HOST or HOST:PORT; `*.` at its start stands for one or more parts of a name. Naming a host does not
    allow a private address behind its name, which whoever owns the name could change: that address must be an entry.

    Raises:
        ValueError: an entry is malformed; the message says how.
    """

    entries: tuple[str, ...] = ()
    every: bool = False

    def __post_init__(self) -> None:
        list(self._places())

    def _places(self) -> Iterable[tuple[str, int | None]]:
        for text in self.entries:
            below = text.startswith("*.")
            place = host_and_port(text.removeprefix("*."))
            if place is None or (below and literal(place[0]) is not None):
                raise ValueError(f"it takes HOST, HOST:PORT or *.HOST, not {text!r}")
            yield ("." + place[0] if below else place[0], place[1])

    def names(self, host: str, port: int) -> bool:
        """Whether a plain host is allowed by its name."""
        return self.every or self.has(host, port)

    def reaches(self, address: str, port: int) -> bool:
        """Whether an address, to which an allowed host has led, may be connected to."""
        return not_public(address) is None or self.has(address, port)

    def has(self, host: str, port: int) -> bool:
        """Whether there is an entry for this name or address."""
        return any(
            (host == name or (name.startswith(".") and host.endswith(name))) and of in (None, port)
            for name, of in self._places()
        )
