"""What the log says of sessions."""

from __future__ import annotations

import logging
import traceback

from taot_service.ended_sessions import EndReason
from taot_service.planning_work import PlanningWork
from taot_service.session import Session
from taot_service.session_book import OpenOutcome

logger = logging.getLogger(__name__)


def log_opening(session: Session, outcome: OpenOutcome) -> None:
    """Says that a session was opened, and whether it replaces another."""
    spec = session.spec
    logger.info(
        "session %s of job %s group %s incarnation %s: %s, %s ranks, %s layers, algorithm %s, client %s",
        session.session_id,
        spec.training_job,
        spec.group,
        spec.incarnation,
        outcome.value,
        spec.topology.num_ranks,
        len(spec.layers),
        spec.algorithm,
        spec.client_release[:64],
        extra=session.log_fields,
    )


def log_pause(session: Session) -> None:
    """Says what an operator wants now."""
    what = "paused" if session.is_paused else "resumed"
    logger.info("session %s %s by an operator", session.session_id, what, extra=session.log_fields)


def log_failure(session: Session, work: PlanningWork, error: Exception) -> None:
    """Says that work could not be planned: once for each place in the code, since the next report may fail there too.

    The others are counted, here and in the metrics.
    """
    session.num_failures += 1
    place = _place_of(error)
    if place in session.failure_places:
        return
    session.failure_places.add(place)
    logger.error(
        "step %s micro-batch %s of session %s: planning failed; the session's further failures there are only counted",
        work.report.step,
        work.report.micro_batch,
        session.session_id,
        exc_info=error,
        extra=session.log_fields,
    )


def log_end(session: Session, reason: EndReason) -> None:
    """Says that a session has ended, and why."""
    failures = f", {session.num_failures} failures to plan" if session.num_failures else ""
    logger.info(
        "session %s of job %s group %s %s after %s reports and %s plans%s",
        session.session_id,
        session.spec.training_job,
        session.spec.group,
        reason.value,
        session.num_reports,
        session.num_plans,
        failures,
        extra=session.log_fields,
    )


def _place_of(error: Exception) -> str:
    """The type of an error and the line that raised it; its message may hold numbers of one report."""
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = frames[-1]
    return f"{type(error).__name__} {frame.f_code.co_filename}:{line}"
