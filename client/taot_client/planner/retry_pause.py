"""How long the link waits before it tries a call again. Pure; chance is an argument."""

from __future__ import annotations

import grpc

from taot_client.planner.refusal_details import RefusalDetails

RETRY_SECONDS = 0.2
"""Between attempts to reach a planner that does not answer: it is found soon after it listens again."""

MAX_ADVISED_SECONDS = 30.0
"""Whatever a planner advises, it is tried again after this long, and a jitter."""

JITTER = 0.5
"""Pauses are longer by up to this part, so that jobs that were refused together do not come back together."""


def pause_seconds(code: grpc.StatusCode, details: RefusalDetails, *, chance: float) -> float:
    """The pause after a call that failed.

    Args:
        code: its status.
        details: what the planner said, which may advise a pause. A planner without room that advises none has too low a
            limit for this job: nothing but its restart will help.
        chance: a number between 0 and 1.
    """
    seconds = RETRY_SECONDS
    if details.retry_seconds is not None:
        seconds = min(max(details.retry_seconds, RETRY_SECONDS), MAX_ADVISED_SECONDS)
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        seconds = MAX_ADVISED_SECONDS
    return seconds * (1 + JITTER * chance)
