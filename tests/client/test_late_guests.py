"""Late guests are waited for; where they never come the layer stays unbalanced, and that is counted and said once."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest
from link_samples import eventually
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from tiny_moe import FixedRouter, TinyConfig, TinyMoE, batch, loss_of, merged, tiny_options, train

from taot_client import Agent, StepSummary
from taot_client.layer_agent import LayerAgent
from taot_client.transfers import gloo_mover, guest_supply
from taot_client.transfers.slot_table import SlotTable

RANKS = 4
DEAF_RANK = 1
LIMIT = 4
# All tokens go to the experts of rank 0: every plan has guests on all other ranks.
CONFIG = TinyConfig(num_layers=1, tokens_by_rank=(40, 40, 40, 40), router_of=partial(FixedRouter, choices=[[0, 1]]))


@pytest.mark.slow
def test_a_rank_whose_guests_never_become_ready_is_told_once_by_all_ranks(planner, monkeypatch, caplog):
    monkeypatch.setattr(guest_supply, "LATE_LIMIT_STEPS", LIMIT)
    real = SlotTable.ready_bits
    monkeypatch.setattr(
        SlotTable,
        "ready_bits",
        lambda self, **now: 0 if self._route.rank == DEAF_RANK else real(self, **now),
    )
    agent_options = tiny_options(
        ranks_per_node=2, planner_address=planner.address, group="never-ready", recent_reports=0
    )

    def body(rank: Rank) -> list[StepSummary]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, agent_options, groups=rank.agent_groups)
        summaries = []
        for step in range(3 * LIMIT):
            await_plan(agent, step)
            agent.begin_step()
            for slot in agent._agent.state.layers[0].supply.slots.slots:  # what is ready does not depend on the machine
                assert slot.shipment is None or eventually(slot.shipment.is_done)
            loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank))).backward()
            summaries.append(agent.end_step())
        agent.close()
        return summaries

    with caplog.at_level(logging.WARNING, logger="taot_client"):
        by_rank = run_ranks(RANKS, body)
    assert all(summaries == by_rank[0] for summaries in by_rank)
    told = [summary.step for summary in by_rank[0] if "never_arrived" in summary.fallbacks]
    late = [summary.step for summary in by_rank[0] if "not_arrived" in summary.fallbacks]
    assert told == [late[0] + LIMIT]
    assert sum(summary.fallbacks.get("never_arrived", 0) for summary in by_rank[0]) == 1
    (message,) = [record.message for record in caplog.records if "too late" in record.message]
    assert f"guests of layer 'layers.0' on ranks [{DEAF_RANK}] came too late in {LIMIT} steps in a row" in message


@pytest.mark.slow
def test_a_rank_waits_for_late_guests_before_it_says_which_have_arrived(planner, monkeypatch):
    real, pause, flight_seconds = gloo_mover._Flight.complete, threading.Event(), 0.5

    def slowly(flight: gloo_mover._Flight) -> None:
        pause.wait(flight_seconds)  # far longer than the tiny model takes to reach its layer
        real(flight)

    monkeypatch.setattr(gloo_mover._Flight, "complete", slowly)
    monkeypatch.setattr(LayerAgent, "_patience_seconds", lambda self: 20.0)
    agent_options = tiny_options(ranks_per_node=2, planner_address=planner.address, group="waited", recent_reports=0)
    histories = run_ranks(RANKS, lambda rank: train(rank, CONFIG, agent_options, num_steps=4, before_step=await_plan))
    summaries = merged(histories).summaries
    assert [summary.mode.name for summary in summaries[2:]] == ["PLAN"] * 2
    assert all(summary.guests_intra + summary.guests_inter > 0 for summary in summaries[2:])
    assert [summary.fallbacks.get("not_arrived", 0) for summary in summaries] == [0] * 4
