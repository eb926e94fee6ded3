from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from link_samples import eventually, report

from taot_api import RoutingReport
from taot_client.planner.report_queue import ReportQueue

HANG_SECONDS = 10


def drained(queue: ReportQueue, count: int) -> list[int]:
    """The steps of the next reports."""
    reports = [queue.get() for _ in range(count)]
    return [each.step for each in reports if each is not None]


def start_waiting(queue: ReportQueue, got: list[RoutingReport | None], *, count: int) -> list[threading.Thread]:
    """Threads that take one report each, returned once all of them stand still for it."""
    threads = [threading.Thread(target=lambda: got.append(queue.get()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    waiting: Callable[[], bool] = lambda: len(queue._changed._waiters) == count  # noqa: E731
    assert eventually(waiting)
    return threads


def assert_gone(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert not any(thread.is_alive() for thread in threads)


def test_reports_leave_in_the_order_in_which_they_came() -> None:
    queue = ReportQueue(capacity=4)
    for step in range(4):
        queue.put(report(step))
    assert drained(queue, 4) == [0, 1, 2, 3]
    assert queue.num_dropped == 0


@pytest.mark.parametrize("capacity", [1, 4])
def test_the_oldest_gives_way_when_the_queue_is_full(capacity: int) -> None:
    queue = ReportQueue(capacity=capacity)
    for step in range(100):
        queue.put(report(step))
        assert queue.num_dropped == max(0, step + 1 - capacity)
    assert drained(queue, capacity) == list(range(100 - capacity, 100))


def test_room_that_has_been_made_is_used_again() -> None:
    queue = ReportQueue(capacity=2)
    for step in range(3):
        queue.put(report(step))
    assert drained(queue, 2) == [1, 2]
    queue.put(report(3))
    queue.put(report(4))
    assert drained(queue, 2) == [3, 4]
    assert queue.num_dropped == 1


def test_one_who_waits_gets_the_report_that_comes() -> None:
    queue, got = ReportQueue(capacity=4), []
    threads = start_waiting(queue, got, count=1)
    assert got == []
    queue.put(report(8))
    assert_gone(threads)
    assert [each.step for each in got] == [8]


def test_each_report_goes_to_one_of_those_who_wait() -> None:
    queue, got = ReportQueue(capacity=4), []
    threads = start_waiting(queue, got, count=3)
    for step in range(3):
        queue.put(report(step))
    assert_gone(threads)
    assert sorted(each.step for each in got) == [0, 1, 2]


def test_closing_lets_everyone_who_waits_go() -> None:
    queue, got = ReportQueue(capacity=4), []
    threads = start_waiting(queue, got, count=3)
    queue.close()
    assert_gone(threads)
    assert got == [None] * 3


def test_a_closed_queue_gives_out_nothing_whatever_is_left_in_it() -> None:
    queue = ReportQueue(capacity=4)
    queue.put(report(0))
    queue.close()
    assert queue.get() is None
    # Training does not know that the link has ended: its reports are taken, kept within bounds and never sent.
    for step in range(10):
        queue.put(report(step))
    assert queue.get() is None
    assert queue.num_dropped == 7


def test_reports_of_several_threads_are_kept_or_counted() -> None:
    queue = ReportQueue(capacity=16)
    reports = [report(step) for step in range(200)]
    threads = [
        threading.Thread(target=lambda part: [queue.put(each) for each in part], args=(reports[start::4],), daemon=True)
        for start in range(4)
    ]
    for thread in threads:
        thread.start()
    assert_gone(threads)
    assert queue.num_dropped == 200 - 16
    assert len(set(drained(queue, 16))) == 16
