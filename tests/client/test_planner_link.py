"""The leader's link to a real planner: reports go out, plans come in, and nothing of it disturbs training."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta

import numpy as np
import pytest
from link_samples import WAIT, eventually, report, spec
from rank_threads import Rank, run_ranks
from running_planner import planner_process
from tiny_moe import TinyConfig, TinyMoE

from taot_api import LayerSpec, PlanIdentity, PublishedPlan, codec
from taot_client import Agent, AgentOptions
from taot_client.planner.planner_link import PlannerLink


def test_a_report_becomes_a_plan(planner):
    link = PlannerLink(planner.address, spec("report"))
    assert link.start(wait=WAIT) is None
    link.report(report())
    assert eventually(lambda: link.plan is not None)
    assert link.plan.source_step == 0
    assert (link.plan.guests_L[0] == 0).any()
    link.close()


def test_plan_now_answers_for_one_layer(planner):
    layers = tuple(LayerSpec(name=name, top_k=1, expert_size_bytes=1, home_E=np.arange(8) // 2) for name in "ab")
    link = PlannerLink(planner.address, spec("now", layers=layers))
    assert link.start(wait=WAIT) is None
    plan = link.plan_now(report(), layer=1, deadline=timedelta(seconds=10))
    assert len(plan.guests_L) == 1
    assert (plan.guests_L[0] == 0).any()
    link.close()


def test_a_job_that_is_wrong_is_refused_with_the_reason_of_the_planner(planner):
    first = PlannerLink(planner.address, spec("fenced", incarnation=10**9))
    assert first.start(wait=WAIT) is None
    older = PlannerLink(planner.address, spec("fenced"))
    assert "incarnation" in older.start(wait=WAIT)
    older.close()
    first.close()


def test_every_rank_learns_that_the_planner_refuses_the_job(planner):
    # The planner knows a newer life of this group: all ranks must stop at start, not the leader alone.
    newer = PlannerLink(planner.address, spec("taken", incarnation=2**62))
    assert newer.start(wait=WAIT) is None

    def body(rank: Rank) -> str:
        options = AgentOptions(planner_address=planner.address, training_job="link-test", group="taken")
        with pytest.raises(ValueError, match="the planner refuses this job") as caught:
            Agent(TinyMoE(TinyConfig(), rank.group), options, groups=rank.agent_groups)
        return str(caught.value)

    messages = run_ranks(2, body)
    assert messages[0] == messages[1]
    newer.close()


def test_proxy_variables_do_not_come_between_agent_and_planner(planner, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    link = PlannerLink(planner.address, spec("proxy"))
    assert link.start(wait=WAIT) is None
    assert link.is_connected
    link.close()


def test_a_refused_plan_leaves_the_last_one_in_force(planner):
    link = PlannerLink(planner.address, spec("rubbish"))
    assert link.start(wait=WAIT) is None
    link.report(report())
    assert eventually(lambda: link.plan is not None)
    good = link.plan
    for guests in ([0, 0], [9, -1], [1, -1]):  # twice the same, no such expert, its own home
        guests_RK = np.full((4, 2), -1)
        guests_RK[0 if guests == [1, -1] else 1] = guests
        bad = PublishedPlan(
            identity=PlanIdentity(planner_epoch="other", version=1),
            source_step=5,
            source_micro_batch=0,
            guests_L=(guests_RK,),
        )
        with pytest.raises(ValueError, match="rank"):
            link._decode(codec.encode_plan(bad), link._spec.layers, link._session)
    assert link.plan is good
    link.close()


def test_a_plan_whose_digest_does_not_match_is_refused():
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="e", version=1),
        source_step=0,
        source_micro_batch=0,
        guests_L=(np.full((4, 2), -1),),
    )
    message = codec.encode_plan(plan)
    message.identity.version = 2
    with pytest.raises(ValueError, match="digest"):
        codec.decode_plan(message, num_ranks=4, num_slots=2)


def test_reports_never_wait_and_the_oldest_give_way_while_the_planner_is_away():
    link = PlannerLink("127.0.0.1:1", spec("away"))
    assert link.start(wait=timedelta(milliseconds=50)) is None
    assert not link.is_connected
    for step in range(100):
        link.report(report(step))
    assert link.plan_now(report(), layer=0, deadline=timedelta(seconds=5)) is None
    link.close()


@pytest.mark.slow
def test_a_planner_that_comes_back_on_its_port_is_found_and_plans_flow_again():
    with planner_process() as first:
        port = first.grpc_port
        link = PlannerLink(first.address, spec("restart"))
        assert link.start(wait=WAIT) is None
        link.report(report(0))
        assert eventually(lambda: link.plan is not None)
        first_epoch = link.plan.identity.planner_epoch
        first.kill()
        assert eventually(lambda: not link.is_connected)
    with planner_process(grpc_port=port):
        listening = time.monotonic()
        assert eventually(lambda: link.is_connected)
        print(f"connected {time.monotonic() - listening:.2f} s after the planner was ready")
        step = itertools.count(1)

        def replanned() -> bool:
            link.report(report(next(step)))
            return link.plan.identity.planner_epoch != first_epoch

        assert eventually(replanned)
        assert link.num_reconnects >= 1
        link.close()


def test_a_link_says_goodbye_also_where_its_threads_end_first(planner, monkeypatch):
    link = PlannerLink(planner.address, spec("goodbye"))
    assert link.start(wait=WAIT) is None
    end_watch = link._end_watch

    def end_watch_and_wait():
        end_watch()
        for thread in link._threads:
            thread.join(timeout=WAIT.total_seconds())

    monkeypatch.setattr(link, "_end_watch", end_watch_and_wait)
    link.close()
    assert not any(thread.is_alive() for thread in link._threads)
    assert "goodbye" not in [session.spec.group for session in planner.planner.sessions]
