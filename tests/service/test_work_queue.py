"""Who has the solver next: time is an argument, no threads anywhere."""

from __future__ import annotations

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


def test_callers_go_first_and_are_charged_for_it():
    queue = WorkQueue()
    queue.add(work("reports"))
    queue.add(work("asks", purpose=Purpose.CALLER))
    assert queue.take(now_seconds=0.0).purpose is Purpose.CALLER
    queue = WorkQueue()
    queue.add(work("reports"))
    queue.add(work("asks", purpose=Purpose.CALLER))
    got = serve(queue, 0.05, times=200)
    lead = time_of(got, job="asks") - time_of(got, job="reports")
    assert 0 < lead <= CALLER_CREDIT_SECONDS + 0.1, "ahead of others by its credit, and no more"


def test_calls_of_a_session_do_not_starve_its_own_reports_for_long():
    queue = WorkQueue()
    queue.add(work("job"))
    queue.add(work("job", purpose=Purpose.CALLER))
    got = serve(queue, 0.05, times=200)
    assert time_of(got, purpose="report") >= 4.5


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
