"""The HTTP front end for people, probes and Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from taot_planning import __version__
from taot_service.planner import Planner
from taot_service.session import Session


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """The newest plan of a session."""

    version: int
    source_step: int
    source_micro_batch: int
    imbalance_before: float
    imbalance_after: float
    weighted_cost: float
    planning_seconds: float
    age_seconds: float


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """One row of /v1/sessions."""

    session_id: str
    training_job: str
    group: str
    incarnation: int
    ranks: int
    layers: int
    algorithm: str
    reports: int
    rehearsals: int
    plans: int
    watches: int
    is_paused: bool
    age_seconds: float
    idle_seconds: float
    last_plan: PlanView | None


@dataclass(frozen=True, kw_only=True)
class SessionsView:
    """The answer of /v1/sessions."""

    planner_epoch: str
    release: str
    sessions: list[SessionView]


def create_http_app(planner: Planner) -> FastAPI:
    """The application. Its handlers run on the planner's event loop, so that they see whole states."""
    # The interactive documentation loads scripts from the internet, which a training cluster may not reach.
    app = FastAPI(title="TAOT planner", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        if planner.is_ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("draining\n" if planner.is_draining else "warming up\n", status_code=503)

    @app.get("/metrics/", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(planner.metrics.registry), headers={"content-type": content_type})

    @app.get("/v1/sessions")
    async def sessions() -> SessionsView:
        now_seconds, wall_seconds = time.monotonic(), time.time()
        return SessionsView(
            planner_epoch=planner.planner_epoch,
            release=__version__,
            sessions=[
                _view_session(session, now_seconds=now_seconds, wall_seconds=wall_seconds)
                for session in planner.sessions
            ],
        )

    return app


def _view_session(session: Session, *, now_seconds: float, wall_seconds: float) -> SessionView:
    spec = session.spec
    return SessionView(
        session_id=session.session_id,
        training_job=spec.training_job,
        group=spec.group,
        incarnation=spec.incarnation,
        ranks=spec.topology.num_ranks,
        layers=len(spec.layers),
        algorithm=spec.algorithm,
        reports=session.num_reports,
        rehearsals=session.num_rehearsals,
        plans=session.num_plans,
        watches=session.num_watches,
        is_paused=session.is_paused,
        age_seconds=now_seconds - session.open_seconds,
        idle_seconds=now_seconds - session.seen_seconds,
        last_plan=_view_plan(session, wall_seconds=wall_seconds),
    )


def _view_plan(session: Session, *, wall_seconds: float) -> PlanView | None:
    plan = session.newest_plan
    if plan is None:
        return None
    return PlanView(
        version=plan.identity.version,
        source_step=plan.source_step,
        source_micro_batch=plan.source_micro_batch,
        imbalance_before=plan.stats.imbalance_before,
        imbalance_after=plan.stats.imbalance_after,
        weighted_cost=plan.stats.weighted_cost,
        planning_seconds=plan.stats.planning_seconds,
        age_seconds=max(0.0, wall_seconds - plan.create_time_seconds),
    )
