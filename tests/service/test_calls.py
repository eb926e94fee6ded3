"""What a leader gets for right requests, over a real channel."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planner_client import CALL_SECONDS, PlannerClient, planner_client, read_plan, refusal
from routing_samples import make_report, make_spec

from taot_api import PublishedPlan, RoutingReport, SessionSpec
from taot_api.v1 import planner_pb2 as pb


def assert_plan_keeps_every_promise(plan: PublishedPlan, spec: SessionSpec, report: RoutingReport) -> None:
    """Recounts in plain loops what the planner computes with arrays."""
    slots_R = spec.topology.slots_R.tolist()
    for index, (layer, counts_RE) in enumerate(zip(spec.layers, report.counts_L, strict=True)):
        home_E = layer.home_E.tolist()
        guests = plan.guests_L[index].tolist()
        loads = [0] * len(slots_R)
        for expert, home in enumerate(home_E):
            loads[home] += int(counts_RE[:, expert].sum())
        mean = sum(loads) / len(loads)
        assert plan.layer_stats_L[index].imbalance_before == pytest.approx((max(loads) - mean) / mean)
        left = counts_RE.copy()
        for rank, row in enumerate(guests):
            held = [expert for expert in row if expert != -1]
            assert len(held) <= slots_R[rank]
            assert len(set(held)) == len(held)
            for slot, expert in enumerate(row):
                quota_S = plan.quota_L[index][:, rank, slot]
                if expert == -1:
                    assert not quota_S.any()
                    continue
                assert home_E[expert] != rank
                left[:, expert] -= quota_S
                loads[rank] += int(quota_S.sum())
                loads[home_E[expert]] -= int(quota_S.sum())
        assert left.min() >= 0, "a token is computed twice"
        assert plan.layer_stats_L[index].imbalance_after == pytest.approx((max(loads) - mean) / mean)


@pytest.mark.parametrize("algorithm", ["static", "taot", "taot-paper"])
@pytest.mark.parametrize(
    ("num_ranks", "experts_L", "top_k"),
    [(4, (8, 12), 2), (8, (60,), 4), (2, (7, 2), 2), (3, (256,), 8), (8, (4,), 1), (1, (4,), 2), (4, (), 2)],
)
def test_plans_of_any_layout_keep_every_promise(client, num_ranks, experts_L, top_k, algorithm):
    spec = make_spec(num_ranks=num_ranks, experts_L=experts_L, top_k=top_k, algorithm=algorithm)
    report = make_report(spec, step=1)
    plan = read_plan(client.plan_now(client.open(spec), report).plan, spec)
    assert len(plan.guests_L) == len(experts_L)
    assert_plan_keeps_every_promise(plan, spec, report)


def test_homes_may_be_uneven_and_in_any_order(client):
    layer = dataclasses.replace(make_spec().layers[0], home_E=[3, 0, 0, 2, 0, 0, 3, 0])
    spec = make_spec(layers=(layer,))
    report = make_report(spec, step=1)
    plan = read_plan(client.plan_now(client.open(spec), report).plan, spec)
    assert_plan_keeps_every_promise(plan, spec, report)
    assert plan.stats.imbalance_after < plan.stats.imbalance_before


def test_a_session_without_layers_is_welcome_and_gets_no_plan(client):
    spec = make_spec(experts_L=())
    session_id = client.open(spec)
    response = client.report(session_id, make_report(spec, step=1))
    assert not response.HasField("latest_plan")
    seen = refusal(lambda: client.stub.GetPlan(pb.GetPlanRequest(session_id=session_id), timeout=CALL_SECONDS))
    assert seen.info.reason == "PLAN_NOT_FOUND"


def test_a_report_becomes_a_plan_that_get_plan_and_the_next_answer_name(client):
    spec = make_spec()
    session_id = client.open(spec)
    assert not client.report(session_id, make_report(spec, step=1)).HasField("latest_plan")
    first = client.report_and_wait(session_id, spec, make_report(spec, step=2))
    latest = client.report(session_id, make_report(spec, step=3)).latest_plan
    assert latest.version >= first.identity.version
    request = pb.GetPlanRequest(session_id=session_id, version=first.identity.version)
    kept = read_plan(client.stub.GetPlan(request, timeout=CALL_SECONDS).plan, spec)
    assert kept.digest() == first.digest()
    assert kept.source_step == 2
    assert not kept.quota_L, "ranks split the tokens at hand by themselves"


def test_stats_are_the_mean_of_imbalances_and_the_sum_of_costs_and_sizes(client):
    spec = make_spec(experts_L=(8, 12, 16))
    plan = client.report_and_wait(client.open(spec), spec, make_report(spec, step=1))
    stats_L = plan.layer_stats_L
    assert plan.stats.imbalance_before == pytest.approx(np.mean([stats.imbalance_before for stats in stats_L]))
    assert plan.stats.imbalance_after == pytest.approx(np.mean([stats.imbalance_after for stats in stats_L]))
    assert plan.stats.weighted_cost == pytest.approx(sum(stats.weighted_cost for stats in stats_L))
    sizes = [
        int((guests_RK != -1).sum()) * layer.expert_size_bytes
        for guests_RK, layer in zip(plan.guests_L, spec.layers, strict=True)
    ]
    assert [stats.transfer_size_bytes for stats in stats_L] == sizes
    assert plan.stats.transfer_size_bytes == sum(sizes) > 0
    assert 0 < plan.stats.planning_seconds == pytest.approx(sum(stats.planning_seconds for stats in stats_L))


def test_a_report_sent_again_plans_nothing(client, planner):
    spec = make_spec()
    session_id = client.open(spec)
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=1))
    for _ in range(3):
        again = client.report(session_id, make_report(spec, step=1))
        assert again.latest_plan.version == plan.identity.version
    other = client.report_and_wait(session_id, spec, make_report(spec, step=2))
    assert other.identity.version == plan.identity.version + 1
    session = planner.on_loop(lambda: planner.planner.find_session(session_id))
    assert (session.num_reports, session.num_plans) == (2, 2)


def test_plan_now_answers_for_the_layers_asked_for_and_keeps_nothing(client):
    spec = make_spec(experts_L=(8, 12, 16))
    session_id = client.open(spec)
    full = make_report(spec, step=1)
    partial = dataclasses.replace(full, counts_L=(full.counts_L[2], full.counts_L[0]))
    plan = read_plan(client.plan_now(session_id, partial, layer_indices=(2, 0)).plan, spec)
    asked = dataclasses.replace(spec, layers=(spec.layers[2], spec.layers[0]))
    assert_plan_keeps_every_promise(plan, asked, partial)
    request = pb.GetPlanRequest(session_id=session_id)
    assert refusal(lambda: client.stub.GetPlan(request, timeout=CALL_SECONDS)).info.reason == "PLAN_NOT_FOUND"
    later = client.report_and_wait(session_id, spec, full)
    assert later.identity.version > plan.identity.version, "an identity never means two plans"


def test_the_same_counts_give_the_same_plan_ahead_and_now(client):
    spec = make_spec(experts_L=(16, 16), recent_reports=0)
    session_id, report = client.open(spec), make_report(spec, step=1)
    ahead = client.report_and_wait(session_id, spec, report)
    now = read_plan(client.plan_now(session_id, report).plan, spec)
    for left, right in zip(ahead.guests_L, now.guests_L, strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_operators_pause_travels_with_the_answer_to_a_report(client, planner):
    spec = make_spec()
    session_id = client.open(spec)
    assert not client.report(session_id, make_report(spec, step=1)).is_paused

    def pause():
        planner.planner.find_session(session_id).is_paused = True

    planner.on_loop(pause)
    assert client.report(session_id, make_report(spec, step=2)).is_paused


def test_closing_twice_is_fine_and_the_session_is_gone(client):
    spec = make_spec()
    session_id = client.open(spec)
    for _ in range(2):
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    seen = refusal(lambda: client.report(session_id, make_report(spec, step=1)))
    assert (seen.info.reason, "closed" in seen.message) == ("SESSION_NOT_FOUND", True)


def test_a_restarted_job_of_the_same_name_works_at_once_and_the_dead_one_is_told(client):
    old_spec = make_spec(training_job="restarted", incarnation=1)
    old_id = client.open(old_spec)
    client.report(old_id, make_report(old_spec, step=7))
    new_spec = make_spec(training_job="restarted", incarnation=2, num_ranks=2)
    new_id = client.open(new_spec)
    assert client.report_and_wait(new_id, new_spec, make_report(new_spec, step=0)).source_step == 0
    seen = refusal(lambda: client.report(old_id, make_report(old_spec, step=8)))
    assert seen.info.reason == "STALE_INCARNATION"


def test_reflection_lists_the_service(planner):
    import grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with grpc.insecure_channel(planner.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(stub.ServerReflectionInfo(iter([request]), timeout=CALL_SECONDS))
    names = {service.name for service in answer.list_services_response.service}
    assert {"taot_api.v1.PlannerService", "grpc.health.v1.Health"} <= names


def test_many_ranks_and_many_jobs_at_once_are_all_answered(planner):
    """No call waits for another rank or job, so a small machine cannot lock up."""
    from concurrent.futures import ThreadPoolExecutor

    def live(number: int) -> int:
        with planner_client(planner.address) as one:
            return _live_one_job(one, number)

    with ThreadPoolExecutor(max_workers=40) as pool:
        assert sorted(pool.map(live, range(40))) == list(range(40))


def _live_one_job(client: PlannerClient, number: int) -> int:
    spec = make_spec(training_job=f"crowd-{number}", num_ranks=8)
    session_id = client.open(spec)
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=number))
    client.plan_now(session_id, make_report(spec, step=number + 1))
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    return plan.source_step
