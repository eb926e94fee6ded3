"""Changes of sessions as server-sent events.

Events: `sessions` with the answer of /v1/sessions at the start and whenever sessions were opened or have ended,
`session` with one row of it whenever that session has changed, `end` when the planner shuts down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from pydantic import TypeAdapter

from taot_planning import __version__
from taot_service.change_feed import ChangeReader
from taot_service.planner import Planner
from taot_service.session_view import SessionsView, SessionView, view_session

HEARTBEAT_SECONDS = 15.0
"""How often a comment is sent when nothing changes, so that proxies and readers see that the stream is alive."""

PACE_SECONDS = 0.25
"""Least time between two messages to one reader; what changes meanwhile travels together."""

_SESSIONS, _SESSION = TypeAdapter(SessionsView), TypeAdapter(SessionView)


def view_sessions(planner: Planner) -> SessionsView:
    """All open sessions."""
    now_seconds, wall_seconds = time.monotonic(), time.time()
    return SessionsView(
        planner_epoch=planner.planner_epoch,
        release=__version__,
        state="draining" if planner.is_draining else "ready" if planner.is_warm else "warming up",
        sessions=[
            view_session(session, now_seconds=now_seconds, wall_seconds=wall_seconds) for session in planner.sessions
        ],
    )


async def stream_events(
    planner: Planner,
    reader: ChangeReader,
    *,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    pace_seconds: float = PACE_SECONDS,
) -> AsyncIterator[bytes]:
    """Yields events until the planner shuts down or the reader goes; closes `reader`."""
    try:
        while True:
            changes = await reader.next_changes(timeout_seconds=heartbeat_seconds)
            if changes.is_end:
                yield _event("end", b"{}")
                return
            if changes.has_other_sessions:
                yield _event("sessions", _SESSIONS.dump_json(view_sessions(planner)))
            elif changes.session_ids:
                yield _session_events(planner, changes.session_ids)
            else:
                yield b": nothing new\n\n"
                continue
            await asyncio.sleep(pace_seconds)
    finally:
        reader.close()


def _session_events(planner: Planner, session_ids: frozenset[str]) -> bytes:
    now_seconds, wall_seconds = time.monotonic(), time.time()
    return b"".join(
        _event("session", _SESSION.dump_json(view_session(session, now_seconds=now_seconds, wall_seconds=wall_seconds)))
        for session in planner.sessions
        if session.session_id in session_ids
    )


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
