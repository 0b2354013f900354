"""Who a caller over HTTP is: a bearer token checked against a secret, or a JWT against its issuer's keys."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

from prims.config import Settings
from prims.errors import ConfigError

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_SHORTEST_TOKEN = 16


class Verifier(Protocol):
    """Names the principal behind a token."""

    async def principal(self, token: str) -> str | None:
        """Who sent this token; None when it is not valid."""


class SharedToken:
    """One secret; whoever has it is the same principal."""

    def __init__(self, secret: str) -> None:
        self._digest = hashlib.sha256(secret.encode()).digest()

    async def principal(self, token: str) -> str | None:
        given = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        return "token" if hmac.compare_digest(given, self._digest) else None


class JwtIssuer:
    """JWTs of one issuer for one audience, checked with the keys that it publishes; the principal is `sub`."""

    def __init__(self, issuer: str, audience: str, jwks_url: str) -> None:
        import jwt

        self._issuer = issuer
        self._audience = audience
        self._keys = jwt.PyJWKClient(jwks_url, cache_keys=True, timeout=10)

    async def principal(self, token: str) -> str | None:
        return await anyio.to_thread.run_sync(self._check, token)

    def _check(self, token: str) -> str | None:
        import jwt

        try:
            key = self._keys.get_signing_key_from_jwt(token)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError:
            return None
        return f"{claims['iss']}|{claims['sub']}"


def make_verifier(settings: Settings) -> Verifier | None:
    """What the settings ask for; None when they ask for nothing.

    Raises:
        ConfigError: the token is too short or cannot be read, or half of the JWT settings are missing.
    """
    jwt_settings = (settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks_url)
    if any(jwt_settings):
        if not all(jwt_settings):
            raise ConfigError("jwt_issuer, jwt_audience and jwt_jwks_url belong together; give all three")
        if settings.token_file or settings.token:
            raise ConfigError("give either a token or an issuer of JWTs, not both")
        return JwtIssuer(*jwt_settings)
    secret = settings.token
    if settings.token_file:
        try:
            secret = Path(settings.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"token_file {settings.token_file} cannot be read: {problem}") from problem
    if not secret:
        if settings.token_file:
            raise ConfigError(f"token_file {settings.token_file} is empty")
        return None
    if len(secret) < _SHORTEST_TOKEN:
        raise ConfigError(f"the token must have at least {_SHORTEST_TOKEN} characters")
    return SharedToken(secret)
