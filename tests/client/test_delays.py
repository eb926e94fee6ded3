"""Ranks that receive things at different times, or stand still for a while, never diverge and never hang."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from link_samples import eventually
from rank_threads import run_ranks
from tiny_moe import (
    TinyConfig,
    TinyMoE,
    assert_same_gradients,
    batch,
    loss_of,
    merged,
    tiny_options,
    train,
    train_dense,
)

from taot_client import Agent, layer_agent
from taot_client.planner import step_control
from taot_client.planner.planner_link import PlannerLink
from taot_client.transfers import gloo_mover

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
@pytest.mark.parametrize(
    ("plan_source", "residency", "num_steps"),
    [
        ("ahead", "resident", 500),
        ("blocking", "resident", 40),
        ("inline", "resident", 30),
        ("ahead", "shared", 25),
        ("inline", "shared", 8),
    ],
)
def test_random_delays_on_every_rank_and_message_leave_the_mathematics_alone(
    planner, monkeypatch, plan_source, residency, num_steps
):
    config = replace(CONFIG, num_layers=3) if residency == "shared" else CONFIG
    # Arrivals of guest weights and gradients, gathers, records, plans: each at its own time on each rank.
    for owner, name in (
        (gloo_mover._Flight, "complete"),
        (layer_agent, "gather_counts"),
        (step_control.StepControl, "take"),
        (step_control.StepControl, "offer"),
        (PlannerLink, "_decode"),
    ):
        monkeypatch.setattr(
            owner, name, delayed(getattr(owner, name), chance=0.1, most_seconds=0.012, seed=hash(name) % 1000)
        )
    address = None if plan_source == "inline" else planner.address
    agent_options = tiny_options(
        ranks_per_node=2,
        planner_address=address,
        plan_source=plan_source,
        group=f"delays-{plan_source}-{residency}",
        slot_residency=residency,
        debug=True,
        plan_deadline=timedelta(milliseconds=40),
    )
    histories = run_ranks(
        RANKS,
        lambda rank: train(rank, config, agent_options, num_steps=num_steps),
        timeout_seconds=300,
    )
    for history in histories[1:]:  # what the ranks did is the same on all of them, pass by pass
        assert history.summaries == histories[0].summaries
    got = merged(histories)
    moved = sum(summary.guests_intra + summary.guests_inter for summary in got.summaries)
    late = sum(summary.fallbacks.get("not_arrived", 0) for summary in got.summaries)
    print(f"{plan_source}, {residency}: {moved} guests moved, {late} passes with a guest that had not arrived")
    assert moved > num_steps
    if plan_source == "ahead":
        assert late > 0, "the delays were too short to matter"
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=num_steps), tolerance=1e-7)


@pytest.mark.slow
def test_a_rank_that_stalls_anywhere_in_a_step_is_not_a_fault(planner):
    # The transfer wait is far shorter than the stalls: its clock must not run while a peer is merely late.
    agent_options = tiny_options(
        ranks_per_node=2,
        planner_address=planner.address,
        group="stall",
        plan_deadline=timedelta(milliseconds=100),
        transfer_timeout=timedelta(seconds=1),
    )
    stalls = {("before step", 2): 10, ("after begin", 3): 3, ("before backward", 4): 3, ("before end", 5): 3}
    pause = threading.Event()

    def body(rank):
        def at(place: str, step: int) -> None:
            if rank.group.rank == 2 and (place, step) in stalls:
                pause.wait(stalls[place, step])

        return train(rank, CONFIG, agent_options, num_steps=7, at=at)

    got = merged(run_ranks(RANKS, body))
    assert sum(summary.guests_intra + summary.guests_inter for summary in got.summaries[2:6]) > 8
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=7), tolerance=1e-10)


def test_a_guest_that_has_not_arrived_is_left_out_by_all_ranks_and_used_once_it_has(planner, monkeypatch):
    config = TinyConfig(num_layers=1, tokens_by_rank=(40, 40, 40, 40))
    gate, real_complete = threading.Event(), gloo_mover._Flight.complete
    gate.set()
    monkeypatch.setattr(gloo_mover._Flight, "complete", lambda flight: gate.wait(50) and real_complete(flight))
    agent_options = tiny_options(ranks_per_node=2, planner_address=planner.address, group="late-guests", debug=True)

    def body(rank):
        model = TinyMoE(config, rank.group)
        agent = Agent(model, agent_options, groups=rank.agent_groups)
        for step in range(3):
            if step and agent.planner_stats:
                assert eventually(lambda step=step: (p := agent.planner_stats["plan"]) and p.source_step >= step - 1)
            rank.group.counts.barrier().wait()
            if step == 2 and rank.group.rank == 0:
                gate.clear()  # from here on nothing arrives
            rank.group.counts.barrier().wait()
            agent.begin_step()
            first = model(batch(config, step=step, rank=rank.group.rank))
            rank.group.counts.barrier().wait()
            gate.set()
            slots = [slot for layer in agent._agent.state.layers for slot in layer.supply.slots.slots]
            for slot in slots:
                assert slot.shipment is None or eventually(slot.shipment.is_done)
            second = model(batch(config, step=step, rank=rank.group.rank, micro_batch=1))
            (loss_of(first) + loss_of(second)).backward()
            summary = agent.end_step()
        agent.close()
        return summary

    summaries = run_ranks(RANKS, body)
    assert summaries[0].fallbacks == {"not_arrived": 1}  # the first micro-batch, not the second
    assert all(summary == summaries[0] for summary in summaries)
    assert summaries[0].imbalance["layers.0"] < summaries[0].imbalance_static["layers.0"]
