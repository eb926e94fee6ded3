"""Who has the solver next: time is an argument, no threads anywhere."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
from routing_samples import make_report, make_spec

from taot_service.planning_work import PlanningWork, Purpose
from taot_service.work_queue import CALLER_CREDIT_SECONDS, SLICE_SECONDS, Pressure, WorkQueue, must_give_way

SPEC = make_spec(experts_L=(4,), top_k=1)
REPORT = make_report(SPEC, step=1, num_tokens=4)


def work(job: str, session: str = "s", purpose: Purpose = Purpose.REPORT, **fields) -> PlanningWork:
    return PlanningWork(
        session_id=f"{job}/{session}",
        spec=replace(SPEC, training_job=job),
        layers=SPEC.layers,
        report=REPORT,
        arrival_seconds=0.0,
        purpose=purpose,
        **fields,
    )


def serve(queue: WorkQueue, seconds: float | dict[str, float], *, times: int) -> Counter[tuple[str, str, str]]:
    """Lets every piece give way after a slice; returns the time that each path got."""
    got: Counter[tuple[str, str, str]] = Counter()
    for _ in range(times):
        piece = queue.take(now_seconds=0.0)
        took = seconds if isinstance(seconds, float) else seconds[piece.spec.training_job]
        got[piece.path] += took
        queue.charge(piece, took)
        queue.add(piece)
    return got


def time_of(got: Counter, **wanted: str) -> float:
    names = ("job", "session", "purpose")
    return sum(
        each for path, each in got.items() if all(path[names.index(name)] == value for name, value in wanted.items())
    )


def test_a_job_of_many_sessions_gets_no_more_than_a_job_of_one():
    queue = WorkQueue()
    for number in range(50):
        queue.add(work("crowd", str(number)))
    queue.add(work("alone"))
    got = serve(queue, 0.01, times=400)
    assert time_of(got, job="alone") == pytest.approx(2.0, abs=0.02)


def test_a_job_of_huge_layers_gets_no_more_time_than_one_of_small_ones():
    queue = WorkQueue()
    queue.add(work("huge"))
    queue.add(work("small"))
    got = serve(queue, {"huge": 0.5, "small": 0.01}, times=1000)
    assert abs(time_of(got, job="huge") - time_of(got, job="small")) <= 0.5


def test_sessions_of_a_job_share_its_time():
    queue = WorkQueue()
    for name in "abc":
        queue.add(work("job", name))
    assert set(map(round, serve(queue, 1.0, times=30).values())) == {10}


def test_idle_time_is_not_saved_up():
    queue = WorkQueue()
    queue.add(work("busy"))
    serve(queue, 1.0, times=100)
    queue.add(work("late"))
    got = serve(queue, 1.0, times=10)
    assert 5 <= time_of(got, job="busy") <= 6


def serve_beside(queue: WorkQueue, reports: PlanningWork, *, times: int) -> float:
    """Like `serve`, while a session wants two slices in every ten; returns the part of the time that it got."""
    due, owed, got = 0, 0, 0
    for now in range(times):
        if now >= due and not owed:
            queue.add(reports)
            due, owed = due + 10, 2
        piece = queue.take(now_seconds=0.0)
        queue.charge(piece, SLICE_SECONDS)
        if piece is reports:
            got, owed = got + 1, owed - 1
        if piece is reports and not owed:
            queue.discard(piece)
        else:
            queue.add(piece)
    return got / times


@pytest.mark.parametrize(("num_calling", "part"), [(1, 0.2), (4, 0.2), (9, 0.1), (19, 0.05)])
def test_callers_of_other_jobs_leave_a_job_its_share(num_calling, part):
    queue = WorkQueue()
    for number in range(num_calling):
        for session in "ab":
            queue.add(work(f"calls-{number}", session, purpose=Purpose.CALLER))
    assert serve_beside(queue, work("reports"), times=5000) == pytest.approx(part, rel=0.1)


def test_callers_of_other_sessions_leave_a_session_its_share():
    queue = WorkQueue()
    for number in range(4):
        queue.add(work("job", f"calls-{number}", purpose=Purpose.CALLER))
    assert serve_beside(queue, work("job", "reports"), times=5000) == pytest.approx(0.2, rel=0.1)


def test_calls_of_a_session_leave_its_own_reports_their_share():
    queue = WorkQueue()
    queue.add(work("job", purpose=Purpose.CALLER))
    assert serve_beside(queue, work("job"), times=5000) == pytest.approx(0.2, rel=0.1)


def test_of_equals_callers_go_first():
    queue = WorkQueue()
    queue.add(work("reports"))
    serve(queue, 1.0, times=10)
    queue.add(work("asks", purpose=Purpose.CALLER))
    queue.charge(queue.take(now_seconds=0.0), 0.0)
    queue.add(work("reports", "new"))
    queue.add(work("asks", "new", purpose=Purpose.CALLER))
    assert queue.pressure() == Pressure(has_urgent=True, has_shared=True)
    assert queue.take(now_seconds=0.0).purpose is Purpose.CALLER


def test_calls_of_a_session_are_ahead_of_its_reports_by_their_credit_and_no_more():
    queue = WorkQueue()
    queue.add(work("job"))
    queue.add(work("job", purpose=Purpose.CALLER))
    got = serve(queue, 0.05, times=200)
    lead = time_of(got, purpose="caller") - time_of(got, purpose="report")
    assert CALLER_CREDIT_SECONDS - 0.06 <= lead <= CALLER_CREDIT_SECONDS + 0.06


def test_a_caller_whose_job_has_had_more_than_others_is_not_urgent():
    queue = WorkQueue()
    queue.add(work("asks", purpose=Purpose.CALLER))
    queue.add(work("reports"))
    piece = queue.take(now_seconds=0.0)
    queue.charge(piece, SLICE_SECONDS)
    queue.add(piece)
    assert queue.pressure() == Pressure(has_shared=True)


def test_a_caller_that_has_given_up_is_never_taken():
    queue = WorkQueue()
    late = work("job", purpose=Purpose.CALLER, deadline_seconds=5.0)
    queue.add(late)
    assert queue.take(now_seconds=5.0) is None
    assert late.progress.is_dropped
    assert late not in queue


def test_improvements_wait_until_nobody_reports_anything():
    queue = WorkQueue()
    improvement = work("job", purpose=Purpose.IMPROVEMENT)
    queue.add(improvement)
    queue.add(work("other"))
    assert queue.pressure() == Pressure(has_shared=True)
    assert queue.take(now_seconds=0.0).spec.training_job == "other"
    assert queue.pressure() == Pressure()
    assert queue.take(now_seconds=0.0) is improvement


@pytest.mark.parametrize(
    ("purpose", "seconds", "pressure", "gives_way"),
    [
        (Purpose.REPORT, 9.0, Pressure(), False),
        (Purpose.REPORT, 0.0, Pressure(has_urgent=True), True),
        (Purpose.REPORT, SLICE_SECONDS / 2, Pressure(has_shared=True), False),
        (Purpose.REPORT, SLICE_SECONDS, Pressure(has_shared=True), True),
        (Purpose.CALLER, 0.0, Pressure(has_urgent=True, has_shared=True), False),
        (Purpose.CALLER, SLICE_SECONDS, Pressure(has_shared=True), True),
        (Purpose.IMPROVEMENT, 0.0, Pressure(has_shared=True), True),
    ],
)
def test_when_work_gives_way(purpose, seconds, pressure, gives_way):
    assert must_give_way(purpose, sliced_seconds=seconds, pressure=pressure) == gives_way


def test_nothing_is_left_of_work_that_is_over():
    queue = WorkQueue()
    for number in range(100):
        piece = work(f"job-{number}")
        queue.add(piece)
        queue.charge(queue.take(now_seconds=0.0), 1.0)
        queue.discard(piece)
    assert not queue._share._root.inner


def test_what_is_next_costs_a_walk_over_what_waits_and_no_more():
    queue, num_calls = WorkQueue(), 0
    for number in range(64):
        queue.add(work(f"calls-{number}", purpose=Purpose.CALLER))
    for number in range(192):
        queue.add(work(f"reports-{number}"))

    def count(_frame, event, _arg) -> None:
        nonlocal num_calls
        num_calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        queue.pressure()
        piece = queue.take(now_seconds=0.0)
    finally:
        sys.setprofile(None)
    assert piece.purpose is Purpose.CALLER
    assert num_calls < 20 * 256, "neither walks all jobs for every caller"
