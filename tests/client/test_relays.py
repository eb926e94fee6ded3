"""With guests passed on inside nodes: the same gradients, fewer crossings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forced_splits import forced_split
from rank_threads import Rank, run_ranks
from tiny_moe import (
    FixedRouter,
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

from taot_client import Agent, AgentOptions, layer_agent
from taot_client.transfers import gloo_mover
from taot_client.transfers.guest_supply import GuestSupply
from taot_client.transfers.slot_table import SlotTable
from taot_client.transfers.transfer_schedule import Move
from taot_planning.arrays import IntArray

LONG_SECONDS = 30.0
"""A bound against hangs; nothing here should come near it."""

HOT = partial(FixedRouter, choices=[[0], [0], [0], [0], [1], [0], [0], [0], [0], [5]])
"""Four fifths of all tokens choose expert 0, at home on rank 0: every rank has to take a share of it."""

CONFIG = TinyConfig(num_layers=2, top_k=1, router_of=HOT, tokens_by_rank=(60,) * 6)


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "debug": True, "plan_source": "inline", "tolerance": 0.01, **changes})


@pytest.fixture
def passed_on(monkeypatch) -> list[Move]:
    """The moves to all ranks so far, of guests that were passed on inside a node."""
    moves: list[Move] = []
    real = GuestSupply._depart

    def depart(supply: GuestSupply, journey: Any, **kwargs: bool) -> None:
        moves.extend(move for move in journey.moves if move.stage and move.rank == supply._route.rank)
        real(supply, journey, **kwargs)

    monkeypatch.setattr(GuestSupply, "_depart", depart)
    return moves


def run(config: TinyConfig, agent_options: AgentOptions, *, num_ranks: int = 4, num_steps: int = 3, **hooks):
    body = lambda rank: train(rank, config, agent_options, num_steps=num_steps, **hooks)  # noqa: E731
    histories = run_ranks(num_ranks, body)
    assert all(each.summaries == histories[0].summaries for each in histories)
    return merged(histories)


def crossings(history) -> tuple[int, int]:
    """Guests that came from inside their node, and from another, over all steps."""
    return tuple(sum(getattr(each, name) for each in history.summaries) for name in ("guests_intra", "guests_inter"))


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "ranks_per_node"), [(4, 2), (6, 3)], ids=["2 x 2", "2 x 3"])
def test_relayed_guests_leave_fp64_gradients_as_those_of_a_dense_model(passed_on, num_ranks, ranks_per_node):
    got = run(CONFIG, options(ranks_per_node=ranks_per_node), num_ranks=num_ranks)
    assert len(passed_on) >= 3 * 2 * (ranks_per_node - 1), "every step and layer"
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=num_ranks, num_steps=3), tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("plan_source", ["ahead", "blocking"])
def test_relayed_guests_of_the_planner_leave_gradients_as_those_of_a_dense_model(planner, passed_on, plan_source):
    def wait_for_plan(agent: Agent, step: int) -> None:
        deadline = time.monotonic() + LONG_SECONDS
        while agent.planner_stats and step and plan_source == "ahead":
            plan = agent.planner_stats["plan"]
            if plan is not None and plan.source_step >= step - 1:
                return
            assert time.monotonic() < deadline, "the planner made no plan"
            threading.Event().wait(0.02)

    agent_options = options(
        planner_address=planner.address, plan_source=plan_source, group=f"relay-{plan_source}", tolerance=0.01
    )
    got = run(CONFIG, agent_options, num_steps=5, before_step=wait_for_plan)
    assert len(passed_on) >= 3 * 2, "every layer, in three of the steps at least"
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=4, num_steps=5), tolerance=1e-10)


@pytest.mark.slow
def test_fp32_gradients_equal_those_of_the_static_run_and_bf16_ones_are_as_far_from_fp64(passed_on):
    dense = train_dense(CONFIG, num_ranks=4, num_steps=1)
    for dtype in (torch.float32, torch.bfloat16):
        config = replace(CONFIG, dtype=dtype)
        static = merged(run_ranks(4, lambda rank, config=config: train(rank, config, None, num_steps=1)))
        passed_on.clear()
        got = run(config, options(), num_steps=1)
        assert passed_on
        if dtype is torch.float32:
            assert_same_gradients(got, static, tolerance=1e-5)
        for name, want in dense.gradients[0].items():
            errors = [(each.gradients[0][name].double() - want).norm() for each in (static, got)]
            assert errors[1] <= 2 * errors[0] + (1e-3 if dtype is torch.bfloat16 else 1e-6) * want.norm(), name


def delayed(function, *, most_seconds: float, seed: int):
    """The function, at random times late."""
    source = np.random.default_rng(seed)
    lock = threading.Lock()

    def late(*args, **kwargs):
        with lock:
            pause = source.random() * most_seconds if source.random() < 0.2 else 0.0
        time.sleep(pause)
        return function(*args, **kwargs)

    return late


@pytest.mark.slow
def test_random_delays_of_pieces_sums_and_arrivals_leave_the_mathematics_alone(monkeypatch, passed_on):
    for owner, name in (
        (gloo_mover._Flight, "complete"),
        (gloo_mover.GlooMover, "_pass_on"),
        (gloo_mover.GlooMover, "_post_piece"),
    ):
        monkeypatch.setattr(owner, name, delayed(getattr(owner, name), most_seconds=0.01, seed=len(name)))
    got = run(CONFIG, options(ranks_per_node=3), num_ranks=6, num_steps=6)
    assert len(passed_on) > 6
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=6, num_steps=6), tolerance=1e-10)


# A placement given by hand: expert 0 on every rank but its home.
EVERYWHERE_RK = np.array([[-1], [0], [0], [0]])


def sent_bytes(rank: Rank, relay: str, *, num_micro_batches: int = 1) -> tuple[int, int, int]:
    """Bytes that a rank sends within its node and across in one step, and the bytes of one expert."""
    config = replace(CONFIG, num_layers=1)
    model = TinyMoE(config, rank.group)
    agent = Agent(model, options(relay=relay, num_slots=1), groups=rank.agent_groups)
    agent.begin_step()
    for index in range(num_micro_batches):
        loss_of(model(batch(config, step=0, rank=rank.group.rank, micro_batch=index))).backward()
    agent.end_step()
    measured = agent._agent.state.measured(1, computed_tokens=0)
    agent.close()
    buffer_bytes = agent._agent.state.layers[0].route.layout.buffer_bytes
    return measured.intra_node_sent_bytes, measured.inter_node_sent_bytes, buffer_bytes


@pytest.mark.parametrize(("relay", "crossing", "inside"), [("off", 2, 1), ("on", 1, 2)])
def test_the_counters_say_that_weights_and_gradients_cross_once_each(monkeypatch, relay, crossing, inside):
    monkeypatch.setattr(layer_agent, "plan_layer", lambda problem, **_: SimpleNamespace(guests_RK=EVERYWHERE_RK))
    sent = run_ranks(4, partial(sent_bytes, relay=relay))
    expert_bytes = sent[0][2]
    assert sum(intra for intra, _, _ in sent) == 2 * inside * expert_bytes
    assert [inter for _, inter, _ in sent] == [
        crossing * expert_bytes,
        0,
        expert_bytes,
        (crossing - 1) * expert_bytes,
    ]


def test_a_rank_whose_own_guest_gets_no_tokens_still_passes_it_on(monkeypatch):
    # Rank 2 relays the weights to rank 3, and has no part in the pass: the gradients of rank 3 cross by themselves.
    def all_to_the_last(counts_SE, guests_RK):
        quota_SRK = np.zeros((counts_SE.shape[0], *guests_RK.shape), dtype=np.int64)
        quota_SRK[:, 3, 0] = counts_SE[:, 0]
        return quota_SRK

    monkeypatch.setattr(layer_agent, "split_pass", forced_split(all_to_the_last))
    monkeypatch.setattr(layer_agent, "plan_layer", lambda problem, **_: SimpleNamespace(guests_RK=EVERYWHERE_RK))
    got = run(CONFIG, options(num_slots=1), num_steps=2)
    assert crossings(got) == (2 * 2 * 2, 1 * 2 * 2)
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=4, num_steps=2), tolerance=1e-10)


def agents_bring(
    rank: Rank, placements: list[IntArray], between: Callable[[Rank, int], None] = lambda rank, index: None
) -> tuple[int, int]:
    """Brings one placement after the other within a step, and checks what lies in the slots at its end."""
    model = TinyMoE(TinyConfig(num_layers=1, num_experts=8), rank.group)
    agent = Agent(model, options(num_slots=1), groups=rank.agent_groups)
    agent.begin_step()
    supply, me = agent._agent.state.layers[0].supply, rank.group.rank
    for index, guests_RK in enumerate(placements):
        supply.bring(guests_RK)
        rank.group.counts.barrier().wait()
        between(rank, index)
    for slot, expert in enumerate(placements[-1][me].tolist()):
        if expert >= 0:
            supply.slots.await_arrival(slot, timeout_seconds=LONG_SECONDS)
            supply.slots.weights(slot, expert=expert, weight_epoch=0)  # compares label and checksum
    summary = agent.end_step()
    agent.close()
    return summary.guests_intra, summary.guests_inter


def test_a_guest_that_is_there_already_is_passed_on_without_another_crossing():
    placements = [np.array([[-1], [-1], [0], [-1]]), np.array([[-1], [-1], [0], [0]])]
    assert run_ranks(4, partial(agents_bring, placements=placements)) == [(1, 1)] * 4


def test_a_slot_gets_its_next_guest_only_after_its_last_has_been_passed_on(monkeypatch):
    # Rank 2 gets expert 0 and should pass it on to rank 3, but is slow; its slot is wanted for expert 2 meanwhile.
    may_pass_on, real = threading.Event(), gloo_mover.GlooMover._pass_on
    monkeypatch.setattr(gloo_mover.GlooMover, "_pass_on", lambda *args: may_pass_on.wait(LONG_SECONDS) and real(*args))
    quiet = SlotTable.await_quiet

    def await_quiet(table: SlotTable, index: int, *, timeout_seconds: float) -> None:
        # Time for the next guest to come too early; who waits for the last one to leave gets it anyway.
        threading.Timer(0.5, may_pass_on.set).start()
        quiet(table, index, timeout_seconds=timeout_seconds)

    placements = [np.array([[-1], [-1], [0], [0]]), np.array([[-1], [-1], [2], [0]])]

    def body(rank: Rank) -> tuple[int, int]:
        def after_first(rank: Rank, index: int) -> None:
            if index == 0 and rank.group.rank == 2:
                monkeypatch.setattr(SlotTable, "await_quiet", await_quiet)
            rank.group.counts.barrier().wait()

        return agents_bring(rank, placements, after_first)

    assert run_ranks(4, body) == [(1, 2)] * 4


@pytest.mark.parametrize(
    ("changes", "has_relay"),
    [
        ({}, True),
        ({"relay": "off"}, False),
        ({"inter_node_cost": 1.0}, False),
        ({"inter_node_cost": 1.0, "relay": "on"}, True),
        ({"ranks_per_node": 1}, False),  # nobody to pass on to
        ({"ranks_per_node": 4, "relay": "on"}, False),  # nothing to cross
    ],
)
def test_the_planner_is_told_whether_guests_are_passed_on(changes, has_relay):
    def body(rank: Rank) -> bool:
        agent = Agent(TinyMoE(TinyConfig(num_layers=1), rank.group), options(**changes), groups=rank.agent_groups)
        agent.close()
        return agent._agent.state.spec.topology.has_relay

    assert run_ranks(4, body) == [has_relay] * 4
