"""Sessions over HTTP, for the live page and for people with curl.

Asking for a session does not keep it alive: only its ranks do.
"""

from __future__ import annotations

import time
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

from taot_service.change_check import check_change
from taot_service.change_feed import TooManyReadersError
from taot_service.event_stream import stream_events, view_sessions
from taot_service.http_refusal import REFUSALS, Refusal
from taot_service.layer_view import LayerDetail, plan_document, view_layer_detail
from taot_service.planner import Planner
from taot_service.session import Session
from taot_service.session_view import SessionDetail, SessionsView, SessionView, view_detail, view_session


async def find_planner(request: Request) -> Planner:
    """The planner of this application."""
    planner: Planner = request.app.state.planner
    return planner


ThePlanner: TypeAlias = Annotated[Planner, Depends(find_planner)]


async def find_session(session_id: str, planner: ThePlanner) -> Session:
    """The open session of the path."""
    session = planner.open_session_of(session_id)
    if session is None:
        raise HTTPException(404, f"no session {session_id[:64]!r} is open: see /v1/sessions")
    return session


TheSession: TypeAlias = Annotated[Session, Depends(find_session)]


router = APIRouter(
    prefix="/v1",
    responses={**REFUSALS, 404: {"model": Refusal, "description": "No such session is open, or it has no such thing."}},
)


@router.get("/sessions")
async def sessions(planner: ThePlanner) -> SessionsView:
    """Lists the open sessions."""
    return view_sessions(planner)


@router.get("/sessions/{session_id}")
async def session_detail(session: TheSession) -> SessionDetail:
    """Tells of one session: its topology, its layers, its recent reports and plans."""
    return view_detail(session, now_seconds=time.monotonic(), wall_seconds=time.time())


@router.get("/sessions/{session_id}/layers/{index}")
async def layer_detail(session: TheSession, index: int) -> LayerDetail:
    """Tells of one layer: loads of the ranks, guests, and why the plan is what it is."""
    if not 0 <= index < len(session.spec.layers):
        raise HTTPException(404, f"the session has {len(session.spec.layers)} layers, got index {index}")
    return view_layer_detail(session, index, wall_seconds=time.time())


@router.get("/sessions/{session_id}/plan")
async def plan_file(session: TheSession, version: int | None = None) -> JSONResponse:
    """Hands out a whole plan as a file: the newest, or one of the last few by its version."""
    plan = session.newest_plan if version is None else session.find_plan(version)
    if plan is None:
        raise HTTPException(404, "no plan yet" if version is None else f"plan {version} is not kept any more")
    name = f"{session.spec.training_job}-{session.spec.group}-plan-{plan.identity.version}.json"
    return JSONResponse(plan_document(session, plan), headers={"content-disposition": f'attachment; filename="{name}"'})


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={503: {"model": Refusal, "description": "Too many readers."}},
)
async def events(planner: ThePlanner) -> StreamingResponse:
    """Streams changes of sessions as server-sent events."""
    try:
        reader = planner.changes.subscribe()
    except TooManyReadersError as error:
        raise HTTPException(503, str(error), headers={"retry-after": "10"}) from error
    return StreamingResponse(
        stream_events(planner, reader), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


@router.post("/sessions/{session_id}/pause", dependencies=[Depends(check_change)])
async def pause(session: TheSession, planner: ThePlanner) -> SessionView:
    """Asks the ranks to move no guests: they run plain expert parallelism until the session is resumed."""
    planner.set_paused(session, is_paused=True)
    return view_session(session, now_seconds=time.monotonic(), wall_seconds=time.time())


@router.post("/sessions/{session_id}/resume", dependencies=[Depends(check_change)])
async def resume(session: TheSession, planner: ThePlanner) -> SessionView:
    """Lets the ranks move guests again."""
    planner.set_paused(session, is_paused=False)
    return view_session(session, now_seconds=time.monotonic(), wall_seconds=time.time())
