"""Ranks that receive things at different times, or stand still for a while, never diverge and never hang."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta

import pytest
from rank_threads import run_ranks
from tiny_moe import TinyConfig, assert_same_gradients, merged, train, train_dense

from taot_client import Agent, AgentOptions, gloo_mover, layer_agent, step_control
from taot_client.planner_link import PlannerLink

CONFIG = TinyConfig(num_layers=2, tokens_by_rank=(20, 11, 0, 26), dim=6, hidden_dim=8)
RANKS = 4


def delayed(function, *, chance: float, most_seconds: float, seed: int):
    """The function, at random times late."""
    source = random.Random(seed)

    def late(*args, **kwargs):
        if source.random() < chance:
            time.sleep(source.random() * most_seconds)
        return function(*args, **kwargs)

    return late


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("plan_source", "num_steps"), [("ahead", 500), ("blocking", 120), ("inline", 120)])
def test_random_delays_on_every_rank_and_message_leave_the_mathematics_alone(
    planner, monkeypatch, plan_source, num_steps
):
    # Arrivals of guest weights and gradients, gathers, records, plans: each at its own time on each rank.
    for owner, name in (
        (gloo_mover._Flight, "complete"),
        (layer_agent, "gather_counts"),
        (step_control.StepControl, "take"),
        (step_control.StepControl, "offer"),
        (PlannerLink, "_decode"),
    ):
        monkeypatch.setattr(
            owner, name, delayed(getattr(owner, name), chance=0.1, most_seconds=0.02, seed=hash(name) % 1000)
        )
    address = None if plan_source == "inline" else planner.address
    agent_options = AgentOptions(
        ranks_per_node=2,
        planner_address=address,
        plan_source=plan_source,
        group=f"delays-{plan_source}",
        debug=True,
        plan_deadline=timedelta(milliseconds=40),
    )
    histories = run_ranks(
        RANKS,
        lambda rank: train(rank, CONFIG, agent_options, num_steps=num_steps),
        timeout_seconds=300,
    )
    for history in histories[1:]:  # what the ranks did is the same on all of them, pass by pass
        assert history.summaries == histories[0].summaries
    got = merged(histories)
    moved = sum(summary.guests_intra + summary.guests_inter for summary in got.summaries)
    late = sum(summary.fallbacks.get("not_arrived", 0) for summary in got.summaries)
    print(f"{plan_source}: {moved} guests moved, {late} passes with a guest that had not arrived")
    assert moved > num_steps
    if plan_source == "ahead":
        assert late > 0, "the delays were too short to matter"
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=num_steps), tolerance=1e-7)


@pytest.mark.slow
def test_a_rank_that_stalls_for_ten_seconds_is_not_a_fault():
    # The transfer wait is far shorter than the stall: its clock must not run while a peer is merely late.
    agent_options = AgentOptions(
        ranks_per_node=2,
        plan_source="inline",
        plan_deadline=timedelta(milliseconds=100),
        transfer_timeout=timedelta(seconds=2),
    )
    pause = threading.Event()

    def body(rank):
        def before_step(agent: Agent, step: int) -> None:
            if step == 1 and rank.group.rank == 2:
                pause.wait(10)

        return train(rank, CONFIG, agent_options, num_steps=3, before_step=before_step)

    got = merged(run_ranks(RANKS, body))
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=3), tolerance=1e-10)
