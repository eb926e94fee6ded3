"""Solver threads that nobody else wants plan layers of a report that another has in hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client
from routing_samples import make_lone_spec, make_report
from running_planner import running_planner

import taot_service.solver
from taot_planning import plan_layer
from taot_service.config import ServiceConfig
from taot_service.progress import Progress

EXPERTS_L = (5, 6, 7, 8, 9, 10)


@pytest.fixture(scope="module")
def planner():
    with running_planner(ServiceConfig(solver_threads=2)) as running:
        yield running


def is_idle(planner) -> bool:
    pool = planner.planner._pool
    return not pool._running and not pool._helping and pool._num_free == 2


def wait_until_idle(planner) -> None:
    idle = eventually(lambda: planner.on_loop(lambda: is_idle(planner)), seconds=CALL_SECONDS)
    assert idle, "a thread does not come back"


def test_two_threads_plan_layers_of_one_report_at_a_time(planner, client, monkeypatch):
    spec = make_lone_spec(experts_L=EXPERTS_L)
    with running_planner(ServiceConfig(solver_threads=1)) as alone, planner_client(alone.address) as lonely:
        expected = lonely.report_and_wait(lonely.open(spec), spec, make_report(spec, step=1))
    together = threading.Barrier(2, timeout=CALL_SECONDS)

    def plan(problem, **options):
        together.wait()  # broken, and no plan made, unless two threads are here
        return plan_layer(problem, **options)

    monkeypatch.setattr(taot_service.solver, "plan_layer", plan)
    got = client.report_and_wait(client.open(spec), spec, make_report(spec, step=1))
    assert len(got.guests_L) == len(EXPERTS_L)
    for got_RK, expected_RK in zip(got.guests_L, expected.guests_L, strict=True):
        np.testing.assert_array_equal(got_RK, expected_RK)
    wait_until_idle(planner)


def test_a_thread_that_helps_is_free_for_others_after_its_layer(planner, client, monkeypatch):
    asked, two_here, go_on = [], threading.Semaphore(0), threading.Event()

    def plan(problem, **options):
        asked.append(problem.num_experts)
        two_here.release()
        assert go_on.wait(timeout=CALL_SECONDS)
        return plan_layer(problem, **options)

    monkeypatch.setattr(taot_service.solver, "plan_layer", plan)
    large, other = make_lone_spec(experts_L=EXPERTS_L), make_lone_spec(training_job="other", experts_L=(64,))
    large_id, other_id = client.open(large), client.open(other)
    client.report(large_id, make_report(large, step=1))
    for _ in range(2):
        assert two_here.acquire(timeout=CALL_SECONDS)
    client.report(other_id, make_report(other, step=1))
    go_on.set()
    assert next(client.watch(other_id)).plan.source_step == 1
    assert next(client.watch(large_id)).plan.source_step == 1
    wait_until_idle(planner)
    assert asked.index(64) <= 4, "both threads had a layer in hand, and the report of the other job came next"
    assert sorted(asked[: len(EXPERTS_L) + 1]) == sorted((*EXPERTS_L, 64))


@pytest.mark.parametrize("failing", EXPERTS_L)
def test_a_layer_that_fails_in_any_thread_fails_the_plan_and_no_other(planner, client, monkeypatch, failing):
    spec = make_lone_spec(experts_L=EXPERTS_L)
    session_id = client.open(spec)
    first = client.report_and_wait(session_id, spec, make_report(spec, step=1))

    def plan(problem, **options):
        if problem.num_experts == failing:
            raise ZeroDivisionError("an algorithm's mistake")
        return plan_layer(problem, **options)

    with monkeypatch.context() as patch:
        patch.setattr(taot_service.solver, "plan_layer", plan)
        client.report(session_id, make_report(spec, step=2))
        wait_until_idle(planner)
    second = client.report_and_wait(session_id, spec, make_report(spec, step=3))
    assert second.identity.version == first.identity.version + 1
    assert second.source_step == 3


class Solution(int):
    """Stands for the solution of the layer of that number."""

    effort = "fast"


def test_threads_get_batches_of_layers_alike_and_every_layer_once():
    experts_L = [8] * 40 + [9] * 25 + [8] * 35
    progress = Progress(experts_L)
    begun: list[range] = []

    def plan() -> None:
        while layers := progress.begin_layers(7):
            begun.append(layers)
            progress.note(layers, [Solution(index) for index in layers], seconds=0.0)

    threads = [threading.Thread(target=plan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=CALL_SECONDS)
    progress.wait_for_begun()
    assert sorted(index for layers in begun for index in layers) == list(range(100))
    assert all(len({experts_L[index] for index in layers}) == 1 for layers in begun)
    assert max(map(len, begun)) == 7
    assert progress.solution_L == list(range(100))


def test_a_batch_that_fails_ends_the_work_and_nobody_waits_for_it():
    progress = Progress([8] * 20)
    first, second = progress.begin_layers(4), progress.begin_layers(4)
    progress.fail(first, ZeroDivisionError("an algorithm's mistake"))
    assert not progress.begin_layers(4)
    assert progress.layers_left == 0
    progress.fail(second, ValueError("later"))
    with pytest.raises(ZeroDivisionError):
        progress.wait_for_begun()
    assert progress.solution_L is None
