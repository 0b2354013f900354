"""Who a caller over HTTP is: a bearer token checked against a secret, or a JWT against its issuer's keys."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from prims.config import Settings
from prims.errors import ConfigError

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_SHORTEST_TOKEN = 16
# How long keys of an issuer are taken after it has taken them back.
_KEYS_SECONDS = 300.0
_FETCH_SECONDS = 10.0
# An issuer that does not answer must not take all threads of the server.
_CHECKS_AT_ONCE = 4

_log = logging.getLogger(__name__)


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

    def __init__(self, issuer: str, audience: str, jwks_url: str, *, keys_seconds: float = _KEYS_SECONDS) -> None:
        import jwt

        self._issuer = issuer
        self._audience = audience
        self._turns = anyio.CapacityLimiter(_CHECKS_AT_ONCE)
        try:
            # Single keys are not cached: that cache has no end, and a key that was taken back would stay good.
            self._keys = jwt.PyJWKClient(jwks_url, cache_keys=False, lifespan=keys_seconds, timeout=_FETCH_SECONDS)
        except jwt.PyJWTError as problem:
            raise ConfigError(f"jwt_jwks_url cannot be used: {problem}") from problem

    async def principal(self, token: str) -> str | None:
        return await anyio.to_thread.run_sync(self._check, token, limiter=self._turns)

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
        except jwt.PyJWKClientConnectionError as problem:
            _log.warning("the keys of the JWTs' issuer cannot be had: %s", problem)
            return None
        # The library lets these through: what is not JSON, nested too deeply, or cut off on its way.
        except (jwt.PyJWTError, ValueError, RecursionError, OSError) as problem:
            _log.info("a JWT is refused: %s", problem)
            return None
        return f"{claims['iss']}|{claims['sub']}" if claims["sub"] else None


def make_verifier(settings: Settings) -> Verifier | None:
    """What the settings ask for; None when they ask for nothing.

    Raises:
        ConfigError: the token is too short, cannot be read or cannot be sent, or JWT settings are missing or wrong.
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
    if not re.fullmatch(r"[!-~]+", secret):
        raise ConfigError("the token must be one line of ASCII characters without blanks, as headers can carry it")
    return SharedToken(secret)
