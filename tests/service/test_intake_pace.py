"""Jobs take turns with large reports, and leave the event loop time for others."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import pytest

from taot_service.intake_pace import LONG_SECONDS, MOST_SECONDS, REST_FACTOR, IntakeClock, IntakePace


def played(jobs: Sequence[str], *, spent_seconds: float, until_seconds: float) -> list[int]:
    """Reports that each of some streams gets in when all have always more; taking one holds the loop."""
    pace, taken, loop_seconds = IntakePace(), [0] * len(jobs), 0.0
    ready = [(0.0, stream) for stream in range(len(jobs))]
    while ready[0][0] < until_seconds:
        due_seconds, stream = heapq.heappop(ready)
        loop_seconds = max(loop_seconds, due_seconds) + spent_seconds
        taken[stream] += 1
        rest_seconds = pace.rest_after(spent_seconds, training_job=jobs[stream], now_seconds=loop_seconds)
        heapq.heappush(ready, (loop_seconds + rest_seconds, stream))
    return taken


@pytest.mark.parametrize("num_streams", [1, 8, 40])
@pytest.mark.parametrize("spent_seconds", [LONG_SECONDS, 0.0025])
@pytest.mark.parametrize("is_one_job", [True, False], ids=["one job", "a job each"])
def test_taking_reports_leaves_most_of_the_loop_to_others_and_streams_share_it(num_streams, spent_seconds, is_one_job):
    jobs = ["a" if is_one_job else f"job-{stream}" for stream in range(num_streams)]
    taken = played(jobs, spent_seconds=spent_seconds, until_seconds=10.0)
    busy = sum(taken) * spent_seconds / 10.0
    assert 0.8 / (REST_FACTOR + 1) <= busy <= 1.1 / REST_FACTOR
    assert max(taken) <= 1.1 * min(taken) + 1


@pytest.mark.parametrize("num_streams", [2, 40])
def test_a_job_has_as_many_turns_as_another_however_many_streams_it_has(num_streams):
    taken = played(["few", *["many"] * num_streams], spent_seconds=LONG_SECONDS, until_seconds=10.0)
    assert sum(taken[1:]) <= 1.3 * taken[0]
    assert sum(taken) * LONG_SECONDS / 10.0 <= 1.1 / REST_FACTOR


def test_small_reports_wait_for_nothing():
    pace = IntakePace()
    assert {pace.rest_after(LONG_SECONDS / 2, training_job="a", now_seconds=step * 0.0001) for step in range(100)} == {
        0.0
    }
    assert pace.rest_after(0.002, training_job="a", now_seconds=10.0) == pytest.approx(REST_FACTOR * 0.002)


def test_no_flood_is_felt_long_after_its_end():
    pace = IntakePace()
    for _ in range(10_000):  # calls that are opened for one large report each
        assert pace.rest_after(0.004, training_job="a", now_seconds=1.0) <= MOST_SECONDS
    now_seconds = 1.0 + MOST_SECONDS
    rest_seconds = pace.rest_after(0.004, training_job="a", now_seconds=now_seconds)
    assert rest_seconds == pytest.approx(REST_FACTOR * 0.004)


def test_the_clock_counts_work_and_not_what_the_thread_has_waited_for_others():
    worked = IntakeClock()
    end = time.thread_time() + 4 * LONG_SECONDS
    while time.thread_time() < end:
        pass
    assert worked.spent_seconds() >= 4 * LONG_SECONDS
    waited = IntakeClock()
    time.sleep(10 * LONG_SECONDS)
    assert waited.spent_seconds() < 5 * LONG_SECONDS
