"""What the log says of sessions."""

from __future__ import annotations

import logging

from taot_service.ended_sessions import EndReason
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


def log_end(session: Session, reason: EndReason) -> None:
    """Says that a session has ended, and why."""
    logger.info(
        "session %s of job %s group %s %s after %s reports and %s plans",
        session.session_id,
        session.spec.training_job,
        session.spec.group,
        reason.value,
        session.num_reports,
        session.num_plans,
        extra=session.log_fields,
    )
