"""MCP over streamable HTTP, artifacts for download, and the checks in front of both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mimetypes
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prims.config import Settings
from prims.errors import ConfigError, PrimsError, Refused
from prims.hosts import literal
from prims.isolation.self_protection import protect_server
from prims.server.auth import Verifier, make_verifier
from prims.server.host import PRINCIPAL, Host, running_host
from prims.server.tools import make_server
from prims.session.notebook import FORMS
from prims.session.table import Session, SessionTable, open_file
from prims.session.workspace import checked_parts

_GRACE_SECONDS = 4
# What comes from code is no page of this server's, and nobody else's.
_HARMLESS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-cache",
}
# What a browser may show in place; anything else is a download.
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp", "text/plain", "text/csv")


def serve(settings: Settings) -> int:
    """Serve until a signal comes; gives the exit status.

    Raises:
        ConfigError: others than this machine could call without authentication.
    """
    verifier = make_verifier(settings)
    if verifier is None and not _is_loopback(settings.host) and not settings.insecure_no_auth:
        raise ConfigError(
            f"{settings.host} can be reached from elsewhere, so callers must authenticate: give --token-file FILE "
            "(or jwt_issuer, jwt_audience and jwt_jwks_url), or --insecure-no-auth true if something in front does it"
        )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="prims: %(levelname)s: %(message)s")
    protect_server()
    anyio.run(_serve, settings, verifier)
    return 0


async def _serve(settings: Settings, verifier: Verifier | None) -> None:
    try:
        listener = socket.create_server(
            (settings.host, settings.port), family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        )
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {why}") from problem
    async with running_host(settings) as host:
        server = _Uvicorn(
            uvicorn.Config(
                make_app(host, make_server(host), verifier),
                log_level="warning",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

        def leave() -> None:
            # Calls under way get what their runs gave until now, then the server goes.
            host.stop_runs()
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave)
        address = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"prims: serving http://{address}:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        await server.serve(sockets=[listener])


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: uvicorn raises them again at its end, before sessions are cleaned up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(host: Host, server: Server[Any], verifier: Verifier | None) -> ASGIApp:
    """The whole HTTP face: guard of Host and Origin → CORS → authentication → routes."""
    settings = host.settings

    def of_session(answer: Callable[[SessionTable, Session, Request], Awaitable[Response]]) -> Any:
        async def handler(request: Request) -> Response:
            try:
                table = await host.table()
                session = table.get(request.path_params["session_id"], host.principal(request))
                return await answer(table, session, request)
            except Refused as problem:
                return PlainTextResponse(f"{problem}\n", 404)
            except PrimsError as problem:
                return PlainTextResponse(f"{problem}\n", 503)

        return handler

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    app: ASGIApp = server.streamable_http_app(
        max_request_body_size=settings.request_bytes,
        session_idle_timeout=settings.session_idle_seconds,
        max_sessions=settings.sessions,
        # Checked by our own guard, for all routes and not only for this one.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=[
            Route("/artifacts/{session_id}/{path:path}", of_session(_artifact), methods=["GET", "HEAD"]),
            Route("/sessions/{session_id}/notebook.{form}", of_session(_notebook), methods=["GET", "HEAD"]),
            Route("/healthz", healthz, methods=["GET", "HEAD"]),
        ],
    )
    assert isinstance(app, Starlette)
    app = _Authentication(app, verifier)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            expose_headers=["mcp-session-id"],
            allow_headers=[
                "authorization", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id",
                "last-event-id",
            ],
        )  # fmt: skip
    return _Guard(app, settings)


class _Guard:
    """Refuses what a web page elsewhere could have a browser send: a foreign Host (DNS rebinding) or Origin."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._names = {"127.0.0.1", "localhost", "::1", settings.host.lower(), *map(str.lower, settings.http_hosts)}
        if not _is_loopback(settings.host):
            self._names.add(socket.gethostname().lower())
        self._origins = {origin.lower() for origin in settings.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
            hosts = [value for name, value in headers if name == b"host"]
            origins = [value for name, value in headers if name == b"origin"]
            if len(hosts) != 1 or _host_name(hosts[0]) not in self._names:
                text = "This server is not known by that name; its operator can add it with http_hosts.\n"
                await PlainTextResponse(text, 421)(scope, receive, send)
                return
            if any(not self._is_ours(origin) for origin in origins):
                text = "Pages of that origin may not use this server; its operator can add it with cors_origins.\n"
                await PlainTextResponse(text, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_ours(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and _host_name(parts.netloc) in self._names


class _Authentication:
    """Every route but /healthz asks who is there, when the operator wants to know; notes it in the scope."""

    def __init__(self, app: ASGIApp, verifier: Verifier | None) -> None:
        self._app = app
        self._verifier = verifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._verifier is not None and scope["path"] != "/healthz":
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
            principal = await self._verifier.principal(token.strip()) if scheme.lower() == "bearer" and token else None
            if principal is None:
                error = "invalid_token" if given else "missing_token"
                response = JSONResponse(
                    {"error": error, "error_description": "Send a valid token as Authorization: Bearer TOKEN."},
                    401,
                    {"WWW-Authenticate": f'Bearer realm="prims", error="{error}"'},
                )
                await response(scope, receive, send)
                return
            scope[PRINCIPAL] = principal
            # By this the SDK binds a stateful connection to who has opened it.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        await self._app(scope, receive, send)


async def _artifact(table: SessionTable, session: Session, request: Request) -> Response:
    """A file below output/ of a session, for download: ranges, ETag, nothing that a browser would run."""
    path = "/".join(["output", *checked_parts(request.path_params["path"])])
    descriptor = await anyio.to_thread.run_sync(open_file, session, path)
    mime = mimetypes.guess_type(path, strict=False)[0] or "application/octet-stream"
    status = os.fstat(descriptor)
    etag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
    known = re.split(r"\s*,\s*", request.headers.get("if-none-match", "").strip())
    if known == ["*"] or etag in (tag.removeprefix("W/") for tag in known):
        os.close(descriptor)
        return Response(status_code=304, headers={"ETag": etag})
    if not _is_range(request.headers.get("range", "")):
        # What is no range is to be ignored: https://www.rfc-editor.org/rfc/rfc9110#section-14.2
        request.scope["headers"] = [(name, value) for name, value in request.scope["headers"] if name != b"range"]
    return FileResponse(
        # The open file itself, not its name, which by now could be another's.
        f"/proc/self/fd/{descriptor}",
        media_type=mime,
        filename=path.rsplit("/", 1)[-1],
        content_disposition_type="inline" if mime in _SHOWN else "attachment",
        stat_result=status,
        headers={"ETag": etag, **_HARMLESS},
        background=BackgroundTask(os.close, descriptor),
    )


def _is_range(value: str) -> bool:
    """Whether a Range header names ranges of bytes, each from a first to a last one that is not before it."""
    unit, _, ranges = value.partition("=")
    parts = [re.fullmatch(r"\s*(?:(\d+)-(\d+)?|-\d+)\s*", part) for part in ranges.split(",")]
    sound = (part is not None and (part[2] is None or int(part[1]) <= int(part[2])) for part in parts)
    return unit.strip().lower() == "bytes" and all(sound)


async def _notebook(table: SessionTable, session: Session, request: Request) -> Response:
    """A session as a notebook, a script or a page, for download."""
    form = request.path_params["form"]
    if form not in FORMS:
        raise Refused(f"A session can be had as {', '.join(f'notebook.{suffix}' for suffix in FORMS)}.")
    data = await table.export(session, form)
    name = {"Content-Disposition": f'attachment; filename="session.{form}"'}
    return Response(data, media_type=FORMS[form].mime, headers={**name, **_HARMLESS})


def _host_name(netloc: str) -> str:
    """The name in a Host header or an origin, without its port."""
    name = netloc.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_loopback(host: str) -> bool:
    address = literal(host)
    return host.lower() == "localhost" if address is None else address.is_loopback
