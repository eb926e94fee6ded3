"""Logging in and out with a browser, and what a caller may do."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from taot_service.change_check import check_change
from taot_service.config import ServiceConfig
from taot_service.http_gate import cookie_name, read_cookie
from taot_service.http_refusal import REFUSALS
from taot_service.logins import LIFETIME_SECONDS, Logins
from taot_service.tokens import Grant, Role


class AccessView(BaseModel):
    """What whoever asks may do."""

    needs_token: bool = Field(description="Whether callers must show who they are.")
    role: Literal["read", "admin"] = Field(description="read: look. admin: pause and resume too.")


def login_routes(config: ServiceConfig, logins: Logins) -> APIRouter:
    """The routes. Who comes here has passed the gate."""
    router = APIRouter(responses=REFUSALS)
    has_tls = config.tls_cert is not None
    name = cookie_name(has_tls=has_tls)

    @router.post("/login", status_code=204, dependencies=[Depends(check_change)])
    async def login(request: Request) -> Response:
        """Logs a browser in: takes the token as `Authorization: Bearer`, and sets a cookie that stands for it."""
        response, grant = Response(status_code=204), _grant_of(request)
        if grant is not None:
            response.set_cookie(
                name,
                logins.open(grant.digest, now_seconds=time.monotonic()),
                max_age=round(LIFETIME_SECONDS),
                path="/",
                secure=has_tls,
                httponly=True,
                samesite="strict",
            )
        return response

    @router.post("/logout", status_code=204, dependencies=[Depends(check_change)])
    async def logout(request: Request) -> Response:
        """Logs a browser out."""
        logins.close(read_cookie(request.headers.get("cookie", ""), has_tls=has_tls))
        response = Response(status_code=204)
        response.delete_cookie(name, path="/", secure=has_tls, httponly=True, samesite="strict")
        return response

    @router.get("/v1/access")
    async def access(request: Request) -> AccessView:
        """Tells what whoever asks may do."""
        grant = _grant_of(request)
        is_admin = grant is None or grant.role is Role.ADMIN
        return AccessView(needs_token=grant is not None, role="admin" if is_admin else "read")

    return router


def _grant_of(request: Request) -> Grant | None:
    """What the gate has found out about a caller; None where no tokens are needed."""
    grant: Grant | None = getattr(request.state, "grant", None)
    return grant
