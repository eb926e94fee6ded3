"""Streams take turns, and leave the event loop time for others."""

from __future__ import annotations

import heapq

import pytest

from taot_service.intake_pace import LONG_SECONDS, MOST_SECONDS, REST_FACTOR, IntakePace


def played(*, num_streams: int, spent_seconds: float, until_seconds: float) -> list[int]:
    """Reports that each of some streams gets in when all have always more; taking one holds the loop."""
    pace, taken, loop_seconds = IntakePace(), [0] * num_streams, 0.0
    ready = [(0.0, stream) for stream in range(num_streams)]
    while ready[0][0] < until_seconds:
        due_seconds, stream = heapq.heappop(ready)
        loop_seconds = max(loop_seconds, due_seconds) + spent_seconds
        taken[stream] += 1
        rest_seconds = pace.rest_after(spent_seconds, now_seconds=loop_seconds)
        heapq.heappush(ready, (loop_seconds + rest_seconds, stream))
    return taken


@pytest.mark.parametrize("num_streams", [1, 8, 40])
@pytest.mark.parametrize("spent_seconds", [LONG_SECONDS, 0.0025])
def test_taking_reports_leaves_most_of_the_loop_to_others_and_streams_share_it(num_streams, spent_seconds):
    taken = played(num_streams=num_streams, spent_seconds=spent_seconds, until_seconds=10.0)
    busy = sum(taken) * spent_seconds / 10.0
    assert 0.8 / (REST_FACTOR + 1) <= busy <= 1.1 / REST_FACTOR
    assert max(taken) <= 1.1 * min(taken) + 1


def test_small_reports_wait_for_nothing():
    pace = IntakePace()
    assert {pace.rest_after(LONG_SECONDS / 2, now_seconds=step * 0.0001) for step in range(100)} == {0.0}
    assert pace.rest_after(0.002, now_seconds=10.0) == pytest.approx(REST_FACTOR * 0.002)


def test_no_flood_is_felt_long_after_its_end():
    pace = IntakePace()
    for _ in range(10_000):  # calls that are opened for one large report each
        assert pace.rest_after(0.004, now_seconds=1.0) <= MOST_SECONDS
    assert pace.rest_after(0.004, now_seconds=1.0 + MOST_SECONDS) == pytest.approx(REST_FACTOR * 0.004)
