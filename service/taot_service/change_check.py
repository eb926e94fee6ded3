"""The check before every request that changes something."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, HTTPException, Request

from taot_service.browser_guard import BrowserGuard


async def check_change(
    request: Request,
    x_taot_request: Annotated[
        str | None, Header(description="Must be there, with any value: pages of other sites cannot send it.")
    ] = None,
) -> None:
    """Refuses changes that may come from a page of another site."""
    guard: BrowserGuard = request.app.state.guard
    why = guard.why_change_refused(
        origin=request.headers.get("origin"),
        fetch_site=request.headers.get("sec-fetch-site"),
        host_header=request.headers.get("host", ""),
        has_request_header=x_taot_request is not None,
    )
    if why is not None:
        raise HTTPException(403, why)
