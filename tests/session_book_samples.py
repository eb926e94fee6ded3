"""A book of sessions and what tests do with it, without any server."""

from __future__ import annotations

import itertools
import math

import numpy as np
from routing_samples import make_report, make_spec

from taot_api.published_plan import PublishedStats
from taot_service.config import ServiceConfig
from taot_service.planning_work import PlanningWork, SolvedPlan
from taot_service.session_book import SessionBook


def make_book(*, publish_within_seconds=math.inf, lease_seconds=60.0, **limits) -> SessionBook:
    return SessionBook(
        planner_epoch="epoch",
        lease_seconds=lease_seconds,
        publish_within_seconds=publish_within_seconds,
        limits=ServiceConfig(**({"max_sessions": 4} | limits)),
    )


def open_session(book, spec=None, *, now=0.0, ids=itertools.count()):  # noqa: B008 - ids go on over all calls
    return book.open(spec or make_spec(), session_id=f"s{next(ids)}", create_time_seconds=1.75e9, now_seconds=now)


def solved(work: PlanningWork) -> SolvedPlan:
    guests_L = tuple(np.full((4, 2), -1) for _ in work.layers)
    return SolvedPlan(
        guests_L=guests_L,
        quota_L=(),
        stats=PublishedStats(),
        layer_stats_L=(),
        gates_L=(),
        intra_guests=0,
        inter_guests=0,
    )


def report_step(book, session, step, *, now=0.0, **fields):
    report = make_report(session.spec, step=step, num_tokens=4, **fields)
    return book.accept_report(session.session_id, report, now_seconds=now)
