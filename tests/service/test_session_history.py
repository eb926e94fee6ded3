from __future__ import annotations

import numpy as np
from routing_samples import make_report, make_spec
from session_book_samples import make_book, open_session, report_step, solved

from taot_api import PlanIdentity, RankTelemetry
from taot_service.session_history import HISTORY_POINTS


def test_the_history_is_bounded_and_keeps_the_newest():
    book = make_book()
    session = open_session(book).session
    for step in range(HISTORY_POINTS + 10):
        report_step(book, session, step)
        work = book.take_work(now_seconds=0.0)
        book.install(work, solved(work), create_time_seconds=0.0)
    for points in (session.history.reports, session.history.plans):
        assert len(points) == HISTORY_POINTS
    assert session.history.reports[-1].step == session.history.plans[-1].source_step == HISTORY_POINTS + 9


def test_repeats_and_rehearsals_leave_no_trace():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1)
    report_step(book, session, 1)
    report_step(book, session, 2, is_rehearsal=True)
    assert [point.step for point in session.history.reports] == [1]


def test_a_report_is_remembered_with_what_the_ranks_measured():
    spec = make_spec()
    session = open_session(make_book(), spec).session
    ranks = tuple(
        RankTelemetry(
            computed_tokens_L=np.array([40 if rank == 3 else 0, 10]),
            exposed_transfer_seconds=0.25,
            fallbacks={"paused": 2} if rank == 0 else {},
        )
        for rank in range(4)
    )
    session.is_paused = True
    applied = PlanIdentity(planner_epoch="epoch", version=7)
    session.accept(make_report(spec, step=5, telemetry_R=ranks, applied_plan=applied), now_seconds=0.0)
    [point] = session.history.reports
    assert (point.step, point.applied_version, point.fallbacks, point.is_paused) == (5, 7, 2, True)
    assert point.exposed_transfer_seconds == 1.0
    assert point.imbalance_realised == 1.5  # (40 - 10) / 10 in one layer, even in the other
    assert session.history.realised_L == (3.0, 0.0)
    assert session.history.realised_LR.tolist() == [[0, 0, 0, 40], [10, 10, 10, 10]]
