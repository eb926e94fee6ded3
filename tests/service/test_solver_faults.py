"""Slow, failing and wrong algorithms: the server goes on, the plan in force stays, nobody waits for nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from planner_client import CALL_SECONDS, refusal
from routing_samples import make_lone_spec, make_report
from running_planner import running_planner

import taot_service.solver
from taot_api.codec import encode_report
from taot_api.v1 import planner_pb2 as pb
from taot_planning import LayerPlan, plan_layer
from taot_service.config import ServiceConfig
from taot_service.planning_work import Purpose


class Gate:
    """Holds the solver thread until it is opened, and notes which sizes of layers it was asked for."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.experts: list[int] = []

    def plan(self, problem, **options):
        self.experts.append(problem.num_experts)
        self.entered.set()
        assert self.opened.wait(timeout=CALL_SECONDS)
        return plan_layer(problem, **options)


@pytest.fixture(scope="module")
def planner():
    """Has one thread, so that what waits for it goes on waiting, and layers are asked for in order."""
    with running_planner(ServiceConfig(solver_threads=1)) as running:
        yield running


@pytest.fixture
def gate(planner, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(taot_service.solver, "plan_layer", gate.plan)
    yield gate
    gate.opened.set()
    eventually(planner, lambda: not planner.planner._pool._running)


def eventually(planner, predicate: Callable[[], bool]) -> None:
    """Asks the planner's loop again and again, up to a bound against hangs."""
    bound = time.monotonic() + CALL_SECONDS / 2
    while time.monotonic() < bound:
        if planner.on_loop(predicate):
            return
    raise AssertionError("it never came true")


def num_plans(planner, outcome: str) -> float:
    return planner.planner.metrics.registry.get_sample_value("taot_plans_total", {"outcome": outcome}) or 0.0


def num_calls(planner) -> int:
    """PlanNow calls that wait for the solver."""
    return planner.planner._book.queue.num_waiting(Purpose.CALLER)


def occupy(client, gate) -> None:
    """Gives the solver thread something that lasts until the gate opens."""
    spec = make_lone_spec(experts_L=(5,))
    client.report(client.open(spec), make_report(spec, step=0))
    assert gate.entered.wait(timeout=CALL_SECONDS)


def test_everything_but_planning_is_answered_while_the_solver_is_busy(planner, client, gate):
    occupy(client, gate)
    health = health_pb2_grpc.HealthStub(grpc.insecure_channel(planner.address))
    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    for path in ("livez", "readyz", "metrics", "v1/sessions"):
        url = f"http://127.0.0.1:{planner.http_port}/{path}"
        assert httpx.get(url, timeout=CALL_SECONDS, trust_env=False).status_code == 200
    spec = make_lone_spec()
    client.report(client.open(spec), make_report(spec, step=1))


def test_plan_now_fails_at_its_deadline_and_is_not_computed_afterwards(planner, client, gate):
    occupy(client, gate)
    spec = make_lone_spec(experts_L=(6, 6))
    session_id = client.open(spec)
    before = num_plans(planner, "abandoned")
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1)))
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.PlanNow(request, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(planner, lambda: num_plans(planner, "abandoned") == before + 1)
    assert not num_calls(planner), "it holds memory for a caller that is gone"
    gate.opened.set()
    eventually(planner, lambda: not planner.planner._pool._running)
    assert 6 not in gate.experts


def test_a_caller_that_leaves_costs_no_more_than_the_layer_in_work(planner, client, gate):
    spec = make_lone_spec(experts_L=(6, 7))
    session_id = client.open(spec)
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1)))
    call = client.stub.PlanNow.future(request, timeout=CALL_SECONDS)
    assert gate.entered.wait(timeout=CALL_SECONDS)
    before = num_plans(planner, "abandoned")
    call.cancel()
    eventually(planner, lambda: num_plans(planner, "abandoned") == before + 1)
    gate.opened.set()
    eventually(planner, lambda: not planner.planner._pool._running)
    assert gate.experts == [6]


def test_whoever_waits_is_planned_before_the_sessions(planner, client, gate):
    occupy(client, gate)
    for num_experts in (9, 10, 11):
        spec = make_lone_spec(experts_L=(num_experts,))
        client.report(client.open(spec), make_report(spec, step=1))
    spec = make_lone_spec(experts_L=(6,))
    session_id = client.open(spec)
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1)))
    call = client.stub.PlanNow.future(request, timeout=CALL_SECONDS)
    eventually(planner, lambda: num_calls(planner) > 0)
    gate.opened.set()
    call.result(timeout=CALL_SECONDS)
    eventually(planner, lambda: not planner.planner._pool._running)
    assert gate.experts[:5] == [5, 6, 9, 10, 11]  # and then, without haste, once more for better plans


def test_what_waits_and_what_is_planned_is_the_queue(planner, client, gate):
    def queued() -> float:
        return planner.on_loop(lambda: planner.planner.metrics.registry.get_sample_value("taot_queue_length"))

    assert queued() == 0
    occupy(client, gate)
    assert queued() == 1
    spec = make_lone_spec()
    session_id = client.open(spec)
    for step in range(1, 4):
        client.report(session_id, make_report(spec, step=step))
    assert queued() == 2  # a session has one report waiting at most
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1)))
    call = client.stub.PlanNow.future(request, timeout=CALL_SECONDS)
    eventually(planner, lambda: num_calls(planner) > 0)
    assert queued() == 3
    gate.opened.set()
    call.result(timeout=CALL_SECONDS)
    next(client.watch(session_id))
    eventually(planner, lambda: planner.planner.metrics.registry.get_sample_value("taot_queue_length") == 0)


def test_a_plan_for_a_session_that_has_ended_brings_no_series_back(planner, client, gate):
    spec = make_lone_spec(experts_L=(5,), training_job="gone-early")
    session_id = client.open(spec)
    client.report(session_id, make_report(spec, step=0))
    assert gate.entered.wait(timeout=CALL_SECONDS)
    before = num_plans(planner, "session_ended")
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    gate.opened.set()
    eventually(planner, lambda: num_plans(planner, "session_ended") == before + 1)
    late = refusal(lambda: client.report(session_id, make_report(spec, step=1)))
    assert late.info.reason == "SESSION_NOT_FOUND"
    text = httpx.get(f"http://127.0.0.1:{planner.http_port}/metrics", timeout=CALL_SECONDS, trust_env=False).text
    assert "gone-early" not in text


def test_reports_that_pile_up_are_superseded_by_the_latest(planner, client, gate):
    occupy(client, gate)
    spec = make_lone_spec()
    session_id = client.open(spec)
    before = num_plans(planner, "superseded")
    for step in range(1, 11):
        client.report(session_id, make_report(spec, step=step))
    gate.opened.set()
    first = next(client.watch(session_id))
    assert first.plan.source_step == 10
    assert num_plans(planner, "superseded") == before + 9


def _plan_at_home(problem, **options):
    """A plan that puts a guest on its own home."""
    plan = plan_layer(problem, algorithm="static")
    guests_RK = np.array(plan.guests_RK)
    guests_RK[problem.home_E[3], 0] = 3
    return replace(plan, guests_RK=guests_RK)


def _put(guests_K):
    """An algorithm that fills the slots of rank 3 like this, whatever they are."""

    def plan(problem, **options):
        guests_RK = np.full((4, len(guests_K)), -1)
        guests_RK[3] = guests_K
        return LayerPlan(guests_RK=guests_RK, quota_SRK=np.zeros((4, 4, len(guests_K)), dtype=np.int64))

    return plan


def _raise(problem, **options):
    raise ZeroDivisionError("an algorithm's mistake")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (_plan_at_home, "its own home"),
        (_put([0, 0]), "rank 3 holds one expert twice"),
        (_put([0, 8]), "the experts are 0 to 7"),
        (_put([0, 1, 2]), "guests must be [ranks, slots] = [4, 2], got [4, 3]"),
        (_raise, "an algorithm's mistake"),
    ],
)
def test_a_plan_that_is_wrong_or_missing_leaves_the_one_in_force(planner, client, monkeypatch, broken, words):
    spec = make_lone_spec()
    session_id = client.open(spec)
    good = client.report_and_wait(session_id, spec, make_report(spec, step=1))
    before = num_plans(planner, "failed")
    monkeypatch.setattr(taot_service.solver, "plan_layer", broken)
    client.report(session_id, make_report(spec, step=2))
    eventually(planner, lambda: num_plans(planner, "failed") == before + 1)
    response = client.stub.GetPlan(pb.GetPlanRequest(session_id=session_id), timeout=CALL_SECONDS)
    assert response.plan.identity.version == good.identity.version
    seen = refusal(lambda: client.plan_now(session_id, make_report(spec, step=2)))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.INTERNAL, "PLANNING_FAILED")
    assert words in seen.message
    monkeypatch.undo()
    assert client.report_and_wait(session_id, spec, make_report(spec, step=3)).source_step == 3


def test_a_failure_that_goes_on_is_one_trace_in_the_log_and_many_in_the_metrics(planner, client, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    spec = make_lone_spec()
    session_id = client.open(spec)
    before = num_plans(planner, "failed")
    monkeypatch.setattr(taot_service.solver, "plan_layer", _raise)
    for step in range(1, 6):
        client.report(session_id, make_report(spec, step=step))
        eventually(planner, lambda: num_plans(planner, "failed") == before + step)  # noqa: B023 - called at once
    refusal(lambda: client.plan_now(session_id, make_report(spec, step=6)))
    monkeypatch.setattr(taot_service.solver, "plan_layer", _plan_at_home)
    for step in range(7, 9):
        refusal(lambda: client.plan_now(session_id, make_report(spec, step=step)))  # noqa: B023 - called at once
    assert num_plans(planner, "failed") == before + 8
    traces = [record for record in caplog.records if record.exc_info]
    assert [type(record.exc_info[1]).__name__ for record in traces] == ["ZeroDivisionError", "ValueError"]
    for record in traces:
        assert record.session_id == session_id
        assert f"of session {session_id}: planning failed" in record.getMessage()
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    assert caplog.messages[-1].endswith("closed after 5 reports and 0 plans, 8 failures to plan")
