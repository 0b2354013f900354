"""Who may use a server over HTTP: JWTs against the keys of a real JWKS, tokens, and pages of other origins."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from mcp.shared.exceptions import MCPError

from prims import config
from prims.errors import ConfigError
from prims.server.auth import JwtIssuer, SharedToken, make_verifier
from prims.trees import remove_tree
from tests import kit, web
from tests.test_http import TOKEN, Served, client_of, served

ISSUER = "https://issuer.example"
AUDIENCE = "prims"

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE_KEY = ec.generate_private_key(ec.SECP256R1())
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Any, kid: str, algorithm: str = "RS256") -> dict[str, Any]:
    """A public key as an issuer publishes it."""
    kind = jwt.algorithms.ECAlgorithm if algorithm.startswith("ES") else jwt.algorithms.RSAAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig", "alg": algorithm}


@dataclass(slots=True)
class Issuer:
    """What publishes keys: `body` is what it answers, `asked` how often it was asked."""

    url: str = ""
    body: bytes = field(
        default_factory=lambda: json.dumps({"keys": [jwk(KEY, "k1"), jwk(CURVE_KEY, "k2", "ES256")]}).encode()
    )
    asked: int = 0


@contextmanager
def publishing() -> Iterator[Issuer]:
    """An issuer on loopback for the block."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(issuer.body)))
            self.end_headers()
            self.wfile.write(issuer.body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_port}/jwks"
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def claims(**changed: Any) -> dict[str, Any]:
    """The claims of a good token of Ada's; one that is changed to None is left out."""
    now = int(time.time())
    told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 3600, **changed}
    return {name: value for name, value in told.items() if value is not None}


def signed(key: Any = KEY, kid: str | None = "k1", algorithm: str = "RS256", **changed: Any) -> str:
    """A token: a good one unless told otherwise."""
    return jwt.encode(claims(**changed), key, algorithm, headers={"kid": kid} if kid else {})


def by_hand(header: dict[str, Any], secret: bytes | None) -> str:
    """A token that no decent library makes: without a signature, or an HMAC with any secret."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims())]
    body = b".".join(parts)
    mac = hmac.digest(secret, body, hashlib.sha256) if secret else b""
    return (body + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def deep() -> str:
    """A token whose payload is nested beyond what a reader of JSON takes."""
    parts = [b'{"alg":"RS256","kid":"k1"}', b"[" * 30_000, b"x"]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()


BAD = {
    "another issuer's": lambda: signed(iss="https://evil.example"),
    "for another audience": lambda: signed(aud="another"),
    "for other audiences": lambda: signed(aud=["another", "prims2"]),
    "expired": lambda: signed(exp=int(time.time()) - 60),
    "not yet valid": lambda: signed(nbf=int(time.time()) + 600),
    "issued in the future": lambda: signed(iat=int(time.time()) + 600),
    "signed with another key": lambda: signed(OTHER_KEY),
    "of an unknown key": lambda: signed(OTHER_KEY, "k9"),
    "of no key": lambda: signed(kid=None),
    "of the key of another kind": lambda: signed(kid="k2"),
    "with an algorithm that is not the key's": lambda: signed(algorithm="PS256"),
    "not signed": lambda: by_hand({"alg": "none", "typ": "JWT", "kid": "k1"}, None),
    "not signed, in capitals": lambda: by_hand({"alg": "NONE", "typ": "JWT", "kid": "k1"}, None),
    "an HMAC with the public key": lambda: by_hand({"alg": "HS256", "typ": "JWT", "kid": "k1"}, PEM),
    "an HMAC with nothing": lambda: by_hand({"alg": "HS256", "typ": "JWT"}, b"\0"),
    "that says where its key is": lambda: jwt.encode(
        claims(), OTHER_KEY, "RS256", headers={"kid": "k1", "jwk": jwk(OTHER_KEY, "k1"), "jku": "http://127.0.0.1:9/"}
    ),
    "with a key id that is a path": lambda: signed(OTHER_KEY, "../../../dev/null"),
    "of nobody": lambda: signed(sub=None),
    "of somebody without a name": lambda: signed(sub=""),
    "that does not expire": lambda: signed(exp=None),
    "for no audience": lambda: signed(aud=None),
    "of no issuer": lambda: signed(iss=None),
    "with a bit turned": lambda: signed()[:-20] + ("A" if signed()[-20] != "A" else "B") + signed()[-19:],
    "without its signature": lambda: signed().rpartition(".")[0] + ".",
    "not a token": lambda: "abc.def.ghi",
    "hardly a token": lambda: "..",
    "nested deeply": deep,
}

INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
ACCEPT = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with publishing() as running:
        yield running


@pytest.fixture(scope="module")
def server(issuer: Issuer) -> Iterator[Served]:
    """A server that asks for JWTs of that issuer, and that a page of https://app.example may use."""
    state = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        with served(
            state, "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks-url", issuer.url,
            "--cors-origins", "https://app.example",
        ) as running:  # fmt: skip
            yield running
    finally:
        remove_tree(state)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# ------------------------------------------------------------------------------------------ JWTs


@pytest.mark.anyio
@pytest.mark.parametrize("mode", kit.ERAS)
async def test_a_good_token_runs_code(server: Served, mode: str) -> None:
    async with client_of(server, mode, signed()) as client:
        assert (await kit.run_code(client, "6 * 7")).structured_content["result"] == "42"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "token",
    [
        lambda: signed(CURVE_KEY, "k2", "ES256"),
        lambda: signed(aud=["another", AUDIENCE]),
        lambda: signed(nbf=int(time.time()) - 5),
    ],
    ids=["of an elliptic curve", "for several audiences", "valid by now"],
)
async def test_other_good_tokens_are_taken(server: Served, token: Any) -> None:
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        assert (await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | bearer(token()))).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_token_is_refused_on_every_route(server: Served, kind: str) -> None:
    headers = bearer(BAD[kind]())
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        for answer in (
            await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | headers),
            await http.get("/mcp", headers=ACCEPT | headers),
            await http.get("/artifacts/s_0/a.txt", headers=headers),
        ):
            assert answer.status_code == 401, answer.text
            assert answer.json()["error"] == "invalid_token"
            assert answer.headers["www-authenticate"].startswith("Bearer ")


@pytest.mark.anyio
async def test_unknown_keys_do_not_make_the_server_ask_its_issuer_each_time(server: Served, issuer: Issuer) -> None:
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        await http.get("/artifacts/a/b", headers=bearer(signed()))
        before = issuer.asked
        for number in range(10):
            await http.get("/artifacts/a/b", headers=bearer(signed(OTHER_KEY, f"unknown-{number}")))
        assert issuer.asked <= before + 1


@pytest.mark.anyio
async def test_an_issuer_without_usable_keys_lets_nobody_in() -> None:
    with publishing() as issuer:
        for body in (b"<html>down for maintenance</html>", b"[]", b'{"keys": []}', b"\xff\xfe", b""):
            issuer.body = body
            assert await JwtIssuer(ISSUER, AUDIENCE, issuer.url).principal(signed()) is None, body
    with web.silent_port() as port:
        assert await JwtIssuer(ISSUER, AUDIENCE, f"http://127.0.0.1:{port}/").principal(signed()) is None


@pytest.mark.anyio
async def test_a_key_that_its_issuer_takes_back_is_not_taken_for_long() -> None:
    with publishing() as issuer:
        verifier = JwtIssuer(ISSUER, AUDIENCE, issuer.url, keys_seconds=1e-9)
        assert await verifier.principal(signed()) == f"{ISSUER}|ada"
        issuer.body = json.dumps({"keys": [jwk(OTHER_KEY, "k3")]}).encode()
        assert await verifier.principal(signed()) is None
        assert await verifier.principal(signed(OTHER_KEY, "k3")) == f"{ISSUER}|ada"


# ------------------------------------------------------------------------------------------ two principals


@pytest.mark.anyio
async def test_two_principals_share_no_session_no_artifact_and_no_resource(server: Served) -> None:
    async with client_of(server, token=signed(sub="ada")) as ada, client_of(server, token=signed(sub="bob")) as bob:
        made = await kit.run_code(ada, "open('output/private.txt', 'w').write('of Ada')")
        session_id = made.structured_content["session_id"]
        [artifact] = made.structured_content["artifacts"]

        for tool, arguments in (
            ("run_code", {"code": "print(open('output/private.txt').read())"}),
            ("list_dir", {"dir_path": "output"}),
            ("preview_file", {"relative_path": "output/private.txt"}),
            ("mount_file", {"url": "data:,x", "mount_path": "x"}),
            ("persist_artifact", {"relative_path": "output/private.txt", "presigned_url": "https://example.com/"}),
        ):
            refused = await bob.call_tool(tool, {**arguments, "session_id": session_id})
            assert refused.is_error
            assert "session_id is unknown" in kit.text_of(refused)
            assert "of Ada" not in kit.text_of(refused)
        with pytest.raises(MCPError, match="unknown"):
            await bob.read_resource(artifact["uri"])
        assert (await ada.read_resource(artifact["uri"])).contents[0].text == "of Ada"

        async with httpx2.AsyncClient(base_url=server.base) as http:
            path = f"/artifacts/{session_id}/private.txt"
            theirs = await http.get(path, headers=bearer(signed(sub="bob")))
            nobodys = await http.get(f"/artifacts/s_{'0' * 32}/private.txt", headers=bearer(signed(sub="bob")))
            assert (theirs.status_code, theirs.text) == (nobodys.status_code, nobodys.text) == (404, nobodys.text)
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers=bearer(signed(sub="ada")))).text == "of Ada"

        # Another token of the same person's is the same principal.
        async with client_of(server, token=signed(sub="ada", exp=int(time.time()) + 60)) as again:
            listed = await again.call_tool("list_dir", {"dir_path": "output", "session_id": session_id})
            assert [entry["name"] for entry in listed.structured_content["entries"]] == ["private.txt"]


@pytest.mark.anyio
async def test_a_connection_of_one_principal_is_nothing_to_another_that_knows_its_id(server: Served) -> None:
    ada, bob = (ACCEPT | bearer(signed(sub=name)) for name in ("ada", "bob"))
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        opened = await http.post("/mcp", json=INITIALIZE, headers=ada)
        name = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert (await http.post("/mcp", json=listing, headers=bob | name)).status_code == 404
        assert (await http.get("/mcp", headers=bob | name)).status_code == 404
        assert (await http.delete("/mcp", headers=bob | name)).status_code == 404
        assert (await http.post("/mcp", json=listing, headers=ada | name)).status_code == 200
        assert (await http.delete("/mcp", headers=ada | name)).status_code == 200
        assert (await http.post("/mcp", json=listing, headers=ada | name)).status_code == 404


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe" * 20, "cannot be read"),
        (b"short", "at least 16 characters"),
        (b"sixteen characters with blanks", "blanks"),
        (b"first-line-is-a-token\nsecond-line-too\n", "blanks"),
        ("schlüssel-schlüssel".encode(), "ASCII"),
    ],
)
def test_a_token_file_that_cannot_serve_is_an_error_that_says_why(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as told:
        make_verifier(config.load({"token_file": str(file)}, {}))
    assert words in str(told.value)
    if content and content.strip():
        assert content.strip().decode("latin-1") not in str(told.value)


def test_a_short_token_in_the_environment_keeps_the_server_from_starting(state: Path) -> None:
    done = prims_serve(state, "--transport", "http", "--port", "0", PRIMS_TOKEN="secret")
    assert done.returncode != 0
    assert "at least 16 characters" in done.stderr
    assert "secret" not in done.stderr.replace("secrets", "")
    assert "Traceback" not in done.stderr


@pytest.mark.anyio
async def test_a_token_file_may_end_with_a_newline(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    verifier = make_verifier(config.load({"token_file": str(file)}, {}))
    assert isinstance(verifier, SharedToken)
    assert await verifier.principal(TOKEN) == "token"
    assert await verifier.principal(TOKEN + "\n") is None
    assert await verifier.principal(TOKEN[:-1]) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"jwt_issuer": ISSUER}, "give all three"),
        ({"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}, "give all three"),
        (
            {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks_url": "https://i.example/k", "token": TOKEN},
            "not both",
        ),
        ({"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks_url": "file:///etc/passwd"}, "jwt_jwks_url"),
    ],
)
def test_settings_of_authentication_that_do_not_fit_are_errors(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_verifier(config.load(settings, {}))


def test_the_settings_that_are_shown_hold_no_secret(state: Path) -> None:
    done = prims_serve(state, "--show-config", "--run-seconds", "7", PRIMS_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert 'token = "(set)"' in done.stdout
    assert "run_seconds = 7" in done.stdout
    assert 'token = ""' in prims_serve(state, "--show-config").stdout


def prims_serve(state: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A `prims serve` that must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "prims", "serve", *arguments],
        env={**kit.server_environment(state), **environ}, cwd=state, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ pages of other origins

PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version,mcp-session-id",
}


@pytest.mark.anyio
async def test_a_page_of_a_listed_origin_may_ask_and_read(server: Served) -> None:
    origin = {"Origin": "https://app.example"}
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        asked = await http.options("/mcp", headers=PREFLIGHT | origin)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in asked.headers["access-control-allow-methods"]
        allowed = asked.headers["access-control-allow-headers"].lower()
        for name in PREFLIGHT["Access-Control-Request-Headers"].split(","):
            assert name in allowed
        assert "access-control-allow-credentials" not in asked.headers
        answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | bearer(signed()) | origin)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"].lower()
        # A page must be able to read that its token is not good any more.
        refused = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.evil.example", "http://app.example:8080", "null"]
)
async def test_a_page_of_another_origin_may_do_neither(server: Served, origin: str) -> None:
    async with httpx2.AsyncClient(base_url=server.base, timeout=kit.SECONDS) as http:
        asked = await http.options("/mcp", headers=PREFLIGHT | {"Origin": origin})
        assert asked.status_code == 403
        assert "access-control-allow-origin" not in asked.headers
        answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | bearer(signed()) | {"Origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
