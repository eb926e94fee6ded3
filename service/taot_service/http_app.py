"""The HTTP front end for people, probes and Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from taot_planning import __version__
from taot_service.browser_guard import BrowserGuard
from taot_service.http_gate import HttpGate
from taot_service.http_refusal import REFUSALS
from taot_service.locks import Locks
from taot_service.login_routes import login_routes
from taot_service.logins import Logins
from taot_service.page_routes import page_routes
from taot_service.planner import Planner
from taot_service.session_routes import router as session_router


def create_http_app(planner: Planner, locks: Locks | None = None) -> FastAPI:
    """The application. Its handlers run on the planner's event loop, so that they see whole states.

    Args:
        planner: whose application it is.
        locks: its tokens; read from the files of its configuration where left out.
    """
    # FastAPI's own documentation loads scripts from the internet, which a training cluster may not reach.
    app = FastAPI(title="TAOT planner", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        """Answers while the process lives."""
        return "ok\n"

    @app.get(
        "/readyz",
        response_class=PlainTextResponse,
        responses={503: {"content": {"text/plain": {}}, "description": "Warming up, or draining."}},
    )
    async def readyz() -> Response:
        """Says whether training jobs should be sent here."""
        if planner.is_ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("draining\n" if planner.is_draining else "warming up\n", status_code=503)

    @app.get("/metrics/", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse, responses=REFUSALS)
    async def metrics(request: Request) -> Response:
        """Hands the metrics to Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # What is seen is of one moment; writing out two thousand lines takes longer than the loop should stand still.
        text = await asyncio.to_thread(encode, planner.metrics.snapshot())
        return Response(text, headers={"content-type": content_type})

    config, logins = planner.config, Logins()
    app.state.planner, app.state.guard = planner, BrowserGuard.of(config)
    app.add_middleware(HttpGate, config=config, locks=locks or Locks(config), logins=logins, metrics=planner.metrics)
    app.include_router(session_router)
    app.include_router(login_routes(config, logins))
    app.include_router(page_routes())
    return app
