from __future__ import annotations

import grpc
import pytest
from planner_client import CALL_SECONDS, planner_client, read_plan, refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner

from taot_api.v1 import planner_pb2 as pb
from taot_service.config import ServiceConfig


def test_the_newest_plan_comes_first_and_then_each_new_one(client):
    spec = make_spec()
    session_id = client.open(spec)
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    second = client.report_and_wait(session_id, spec, make_report(spec, step=2))
    watch = client.watch(session_id)
    assert read_plan(next(watch).plan, spec).digest() == second.digest()
    for step in (3, 4, 5):
        client.report(session_id, make_report(spec, step=step))
        assert next(watch).plan.source_step == step
    watch.cancel()


def test_plans_that_the_watcher_has_are_not_sent_again(client):
    spec = make_spec()
    session_id = client.open(spec)
    first = client.report_and_wait(session_id, spec, make_report(spec, step=1))
    watch = client.watch(session_id, after_version=first.identity.version)
    client.report(session_id, make_report(spec, step=2))
    assert next(watch).plan.source_step == 2
    watch.cancel()


@pytest.mark.slow
def test_a_watcher_that_does_not_read_misses_plans_and_never_goes_back(client):
    # Plans of a quarter of a megabyte, so that a few of them fill what the transport holds for a reader that sleeps.
    spec = make_spec(num_ranks=64, experts_L=(64,) * 16, top_k=1, slots=64, algorithm="static")
    session_id = client.open(spec)
    sleeper, reader = client.watch(session_id), client.watch(session_id)
    num_plans = 50
    report = make_report(spec, step=0, num_tokens=1)
    for step in range(num_plans):
        client.report(session_id, make_report(spec, step=step, num_tokens=1, counts_L=report.counts_L))
        while next(reader).plan.source_step < step:
            pass
    seen = []
    for response in sleeper:
        seen.append(response.plan.source_step)
        if seen[-1] == num_plans - 1:
            break
    assert seen == sorted(set(seen)), "an older plan came after a newer one"
    assert len(seen) < num_plans / 2, seen
    sleeper.cancel()
    reader.cancel()


def test_a_watch_of_a_replaced_session_ends_with_the_reason(client):
    session_id = client.open(make_spec(training_job="watched", incarnation=1))
    watch = client.watch(session_id)
    client.open(make_spec(training_job="watched", incarnation=2))
    seen = refusal(lambda: next(watch))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_INCARNATION")


def test_a_watch_of_a_closed_session_ends_with_the_reason(client):
    spec = make_spec()
    session_id = client.open(spec)
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    watch = client.watch(session_id)
    next(watch)
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    seen = refusal(lambda: next(watch))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    assert "closed" in seen.message


def test_a_watcher_that_hangs_up_is_forgotten(client, planner):
    spec = make_spec()
    session_id = client.open(spec)
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    watch = client.watch(session_id)
    next(watch)
    session = planner.on_loop(lambda: planner.planner.find_session(session_id))
    assert session.num_watches >= 1
    watch.cancel()
    for _ in range(100_000):
        if planner.on_loop(lambda: session.num_watches) == 0:
            break
    assert planner.on_loop(lambda: session.num_watches) == 0
    assert not planner.on_loop(lambda: planner.planner._feeds[session_id]._subscriptions)


def test_many_watchers_of_one_session_all_get_the_plan(client):
    spec = make_spec()
    session_id = client.open(spec)
    watches = [client.watch(session_id) for _ in range(15)]
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=1))
    digests = {bytes(next(watch).plan.digest) for watch in watches}
    assert digests == {plan.digest()}
    for watch in watches:
        watch.cancel()


def test_a_silent_session_expires_and_a_watched_one_does_not():
    with running_planner(ServiceConfig(lease_seconds=0.3)) as planner, planner_client(planner.address) as client:
        watched, silent = make_spec(), make_spec()
        watched_id = client.open(watched)
        watch = client.watch(watched_id)
        client.report(watched_id, make_report(watched, step=1))
        next(watch)
        client.open(silent)
        # The silent one was opened last and goes first: its end is the clock of this test.
        for _ in range(100_000):
            names = planner.on_loop(lambda: [session.spec.training_job for session in planner.planner.sessions])
            if silent.training_job not in names:
                break
        assert names == [watched.training_job]
        value = planner.planner.metrics.registry.get_sample_value("taot_sessions")
        assert value == 1
        watch.cancel()


def test_a_watch_ends_when_the_planner_shuts_down():
    with running_planner() as planner, planner_client(planner.address) as client:
        spec = make_spec()
        session_id = client.open(spec)
        client.report(session_id, make_report(spec, step=1))
        watch = client.watch(session_id)
        next(watch)
        planner.on_loop(planner.planner.begin_drain)
        seen = refusal(lambda: next(watch))
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        for call in (
            lambda: client.report(session_id, make_report(spec, step=2)),
            lambda: next(client.watch(session_id)),
            lambda: client.open(make_spec()),
            lambda: client.plan_now(session_id, make_report(spec, step=2)),
        ):
            assert refusal(call).info.reason == "SHUTTING_DOWN"
        kept = client.stub.GetPlan(pb.GetPlanRequest(session_id=session_id), timeout=CALL_SECONDS)
        assert kept.plan.source_step == 1
