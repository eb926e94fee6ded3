"""Stands before the HTTP application: who may ask what, and headers on every answer."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taot_service.browser_guard import BrowserGuard
from taot_service.config import ServiceConfig
from taot_service.host_names import host_of, is_loopback
from taot_service.locks import Locks
from taot_service.logins import Logins
from taot_service.metrics import ServiceMetrics
from taot_service.page_headers import add_headers
from taot_service.tokens import Grant, Role

PROBES = ("/livez", "/readyz")
"""Answered whoever asks, by whatever name: an orchestrator has no token."""

_PAGES = ("/", "/docs")
"""Where people come with a browser, who can log in."""

_READING = ("GET", "HEAD", "OPTIONS")

RETRY_SECONDS = 10
"""When a caller who was refused too often may come again."""


class _Refusal(NamedTuple):
    reason: str
    response: Response


class HttpGate:
    """ASGI middleware; everything that is not named as open needs a token where tokens are needed."""

    def __init__(
        self, app: ASGIApp, *, config: ServiceConfig, locks: Locks, logins: Logins, metrics: ServiceMetrics
    ) -> None:
        self._app = app
        self._guard = BrowserGuard.of(config)
        self._access, self._logins, self._metrics = locks.access, logins, metrics
        self._has_tls = config.tls_cert is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        keeps_https = self._has_tls and not is_loopback(host_of(headers.get("host", "")))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = add_headers(list(message.get("headers", ())), keeps_https=keeps_https)
            await send(message)

        refusal = self._refuse(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        self._metrics.http_refusals.labels(refusal.reason).inc()
        await refusal.response(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope, headers: Headers) -> _Refusal | None:
        path, method = scope["path"], scope["method"]
        if path in PROBES:
            return None
        why = self._guard.why_host_refused(headers.get("host", ""))
        if why is not None:
            return _Refusal("WRONG_HOST", _error(421, why))
        if not self._access.needs_token or _is_open(path, method):
            return None
        grant = self._find_grant(path, headers)
        if grant is None:
            return self._refuse_unknown(scope, headers)
        wanted = Role.READ if method in _READING or path == "/login" else Role.ADMIN
        if grant.role.value < wanted.value:
            why = f"the token is not for this: it needs the role {wanted.name.lower()}"
            return _Refusal("PERMISSION_DENIED", _error(403, why))
        _state_of(scope)["grant"] = grant
        return None

    def _find_grant(self, path: str, headers: Headers) -> Grant | None:
        authorization = headers.get("authorization")
        # A login that could log in again would never end.
        if authorization is not None or path == "/login":
            return self._access.find(authorization)
        digest = self._logins.find(
            read_cookie(headers.get("cookie", ""), has_tls=self._has_tls), now_seconds=time.monotonic()
        )
        return None if digest is None else self._access.find_digest(digest)

    def _refuse_unknown(self, scope: Scope, headers: Headers) -> _Refusal:
        path, authorization = scope["path"], headers.get("authorization")
        if path in _PAGES and scope["method"] in _READING and authorization is None:
            return _Refusal("UNAUTHENTICATED", RedirectResponse("/login", status_code=303))
        peer = (scope.get("client") or ("an unknown address",))[0]
        what = f"{scope['method']} {ascii(path[:100])}"
        if not self._access.note_failure(peer, what, now_seconds=time.monotonic()):
            again = {"retry-after": str(RETRY_SECONDS)}
            return _Refusal("TOO_MANY_FAILURES", _error(429, "refused too often: come again later", again))
        what = "no token was sent" if authorization is None else "the token is not known here"
        challenge = {"www-authenticate": 'Bearer realm="TAOT planner"'}
        return _Refusal("UNAUTHENTICATED", _error(401, f"{what}: send 'Authorization: Bearer TOKEN'", challenge))


def cookie_name(*, has_tls: bool) -> str:
    """The cookie of a login. Browsers take the prefix from the host itself and over TLS only."""
    return "__Host-taot" if has_tls else "taot"


def read_cookie(header: str, *, has_tls: bool) -> str:
    """What stands for a login in the header `Cookie`; empty where nothing does."""
    # As browsers read it: what another program of this host has set may be odd, and must not hide ours.
    return cookie_parser(header).get(cookie_name(has_tls=has_tls), "")


def _is_open(path: str, method: str) -> bool:
    """What people need before they have logged in; none of it tells of jobs."""
    if path == "/login":
        return method in _READING
    return path == "/logout" or (path.startswith("/pages/") and method in _READING)


def _error(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": why}, status_code=status, headers=headers)


def _state_of(scope: Scope) -> MutableMapping[str, Any]:
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    return state
