"""Training goes on, with the same losses, when the planner is killed, comes back, stalls or was never there."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta

import pytest
from link_samples import eventually
from rank_threads import run_ranks
from running_planner import planner_process
from tiny_moe import TinyConfig, assert_same_gradients, merged, tiny_options, train, train_dense

from taot_client import Agent, AgentOptions

CONFIG = TinyConfig(num_layers=2)
RANKS = 4
DEADLINE = timedelta(milliseconds=500)


def options(address: str, **changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "planner_address": address, "plan_deadline": DEADLINE, **changes})


def wait_for_a_plan_of(agent: Agent, step: int) -> None:
    stats = agent.planner_stats
    if stats and step:
        assert eventually(lambda: (plan := agent.planner_stats["plan"]) and plan.source_step >= step - 1)


@pytest.mark.slow
@pytest.mark.parametrize("plan_source", ["ahead", "blocking"])
def test_a_planner_killed_and_restarted_in_the_middle_costs_balance_and_nothing_else(plan_source):
    num_steps, kill_at, restart_at = 30, 8, 16
    planners, modes, pauses = [], [], []

    with planner_process() as first:
        port = first.grpc_port
        lock = threading.Lock()

        def before_step(agent: Agent, step: int) -> None:
            stats = agent.planner_stats
            if not stats:  # not the leader
                return
            pauses.append(time.monotonic())
            with lock:
                if step == kill_at:
                    first.kill()
                if step == restart_at:
                    planners.append(planner_process(grpc_port=port))
                    planners[-1].__enter__()
                    assert eventually(lambda: agent.planner_stats["connected"])
            if plan_source == "ahead" and (step < kill_at or step > restart_at):
                wait_for_a_plan_of(agent, step)

        try:
            histories = run_ranks(
                RANKS,
                lambda rank: train(
                    rank,
                    CONFIG,
                    options(first.address, plan_source=plan_source),
                    num_steps=num_steps,
                    before_step=before_step,
                ),
                timeout_seconds=100,
            )
        finally:
            for planner in planners:
                planner.__exit__(None, None, None)

    got = merged(histories)
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=num_steps), tolerance=1e-9)
    modes = [summary.mode.name for summary in got.summaries]
    served = "PLAN" if plan_source == "ahead" else "BLOCKING"
    assert set(modes[2:kill_at]) == {served}
    assert "INLINE" in modes[kill_at + 1 : restart_at], modes  # away: planned by the ranks themselves
    assert modes[restart_at + 2 :] == [served] * (num_steps - restart_at - 2), modes
    # While the planner is away no step waits for it: the longest includes at most one plan deadline.
    away = [b - a for a, b in zip(pauses[kill_at:restart_at], pauses[kill_at + 1 : restart_at], strict=False)]
    print(f"longest step while the planner was away: {max(away):.3f} s")
    assert max(away) < 30 * DEADLINE.total_seconds()  # a hang bound: no step waits for call after call


@pytest.mark.slow
def test_a_stopped_planner_is_away_and_its_return_is_noticed():
    with planner_process() as planner:

        def before_step(agent: Agent, step: int) -> None:
            if not agent.planner_stats:
                return
            if step == 3:
                planner.signal(signal.SIGSTOP)
            if step == 5:  # reports go unanswered until their deadline
                assert eventually(lambda: not agent.planner_stats["connected"])
            if step == 8:
                planner.signal(signal.SIGCONT)
            if step == 10:
                assert eventually(lambda: agent.planner_stats["connected"])

        histories = run_ranks(
            RANKS,
            lambda rank: train(rank, CONFIG, options(planner.address), num_steps=14, before_step=before_step),
            timeout_seconds=100,
        )
    got = merged(histories)
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=14), tolerance=1e-9)
    modes = [summary.mode.name for summary in got.summaries]
    assert "INLINE" in modes[5:9]
    assert modes[-1] == "PLAN"


def test_without_any_planner_training_starts_and_plans_inline():
    got = merged(
        run_ranks(
            RANKS,
            lambda rank: train(
                rank, CONFIG, options("127.0.0.1:1", connect_timeout=timedelta(milliseconds=50)), num_steps=3
            ),
        )
    )
    assert [summary.mode.name for summary in got.summaries] == ["INLINE"] * 3
    assert {summary.reason.name for summary in got.summaries} == {"PLANNER_AWAY"}
    assert sum(summary.fallbacks["planner_away"] for summary in got.summaries) == 3 * CONFIG.num_layers
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=3), tolerance=1e-10)


def test_when_away_none_leaves_every_expert_home():
    got = run_ranks(
        RANKS,
        lambda rank: train(
            rank,
            CONFIG,
            options("127.0.0.1:1", connect_timeout=timedelta(milliseconds=50), when_away="none"),
            num_steps=2,
        ),
    )[0]
    assert [summary.mode.name for summary in got.summaries] == ["HOME_ONLY"] * 2
    assert sum(summary.guests_intra + summary.guests_inter for summary in got.summaries) == 0
