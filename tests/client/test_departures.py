"""Guests of a plan leave in forward order, and no more of them are under way than are needed next."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from noting_group import NotingGroup
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from tiny_moe import FixedRouter, TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, StepSummary
from taot_client.transfers.departures import Departures
from taot_client.transfers.shipment import Shipment


def waiting(layers: list[int]) -> tuple[Departures, list[int]]:
    """Departures of these layers' guests, and whose have left."""
    departures, left = Departures(), []
    for layer in layers:
        departures.add(layer, partial(left.append, layer))
    return departures, left


def test_the_first_layer_with_guests_leaves_at_once_and_the_next_with_each_that_has_sent_its_tokens() -> None:
    departures, left = waiting([1, 2, 5, 6, 7])
    departures.begin()
    assert left == [1]
    departures.dispatched(0)
    assert left == [1], "a layer without guests makes no room"
    departures.dispatched(1)
    assert left == [1, 2]
    departures.dispatched(1)
    assert left == [1, 2], "a later micro-batch makes none either"
    departures.dispatched(2)
    assert left == [1, 2, 5]
    for layer in (3, 4, 5, 6, 7):
        departures.dispatched(layer)
    assert left == [1, 2, 5, 6, 7]


def test_guests_of_a_layer_that_is_reached_leave_with_all_before_it() -> None:
    departures, left = waiting([0, 1, 2, 3, 4])
    departures.begin()
    departures.reach(3)
    assert left == [0, 1, 2, 3]


def test_what_waited_is_forgotten_with_the_plan_and_leaves_together_where_nothing_is_to_wait_for() -> None:
    departures, left = waiting([0, 1, 2])
    departures.begin()
    departures.clear()
    departures.depart_all()
    assert left == [0]
    for layer in (0, 1, 2):
        departures.add(layer, partial(left.append, layer))
    departures.depart_all()
    assert left == [0, 0, 1, 2]


@pytest.mark.slow
def test_planned_guests_leave_a_layer_ahead_once_its_tokens_have_been_sent(planner, monkeypatch) -> None:
    # All tokens go to the experts of rank 0: every layer has guests.
    config = TinyConfig(num_layers=4, tokens_by_rank=(40, 40), router_of=partial(FixedRouter, choices=[[0, 1]]))
    agent_options = tiny_options(planner_address=planner.address, group="in-turn", recent_reports=0)

    def body(rank: Rank) -> tuple[list[str], StepSummary]:
        notes: list[str] = []
        model = TinyMoE(config, replace(rank.group, tokens=NotingGroup(rank.group.tokens, notes)))
        agent = Agent(model, agent_options, groups=rank.agent_groups)
        mover = agent._agent.state.weight_mover
        real_post = mover.post

        def post(shipments: list[Shipment]) -> None:
            notes.append(shipments[0].cargo.layer)
            real_post(shipments)

        monkeypatch.setattr(mover, "post", post)
        for step in range(4):
            await_plan(agent, step)
            notes.clear()
            agent.begin_step()
            loss = loss_of(model(batch(config, step=step, rank=rank.group.rank)))
            forward = list(notes)
            loss.backward()
            summary = agent.end_step()
        agent.close()
        return forward, summary

    for forward, summary in run_ranks(2, body):
        assert summary.mode.name == "PLAN"
        assert forward[:7] == ["layers.0", "tokens", "layers.1", "tokens", "tokens", "layers.2", "tokens"]
        assert forward[7:] == ["tokens", "layers.3", *["tokens"] * 3]
