"""Guests that a pass has decided on are sent after its tokens, which do not share links with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from noting_group import NotingGroup
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, parallel_experts
from taot_client.transfers.shipment import Shipment

CONFIG = TinyConfig(num_layers=2, tokens_by_rank=(40, 40))


@pytest.mark.parametrize("slot_residency", ["resident", "shared"])
def test_inline_guests_travel_between_the_tokens_way_out_and_their_way_back(slot_residency, monkeypatch):
    def body(rank: Rank) -> list[str]:
        notes: list[str] = []
        model = TinyMoE(CONFIG, replace(rank.group, tokens=NotingGroup(rank.group.tokens, notes)))
        agent = Agent(model, tiny_options(slot_residency=slot_residency), groups=rank.agent_groups)
        mover = agent._agent.state.weight_mover
        real_post = mover.post

        def post(shipments: list[Shipment]) -> None:
            notes.append("guests")
            real_post(shipments)

        monkeypatch.setattr(mover, "post", post)
        agent.begin_step()
        notes.clear()
        output = model(batch(CONFIG, step=0, rank=rank.group.rank))
        forward = list(notes)
        loss_of(output).backward()
        assert agent.end_step().guests_intra, "nothing was moved"
        agent.close()
        return forward

    for forward in run_ranks(2, body):
        assert forward == ["tokens", "guests", "tokens"] * CONFIG.num_layers


@pytest.mark.parametrize("slot_residency", ["resident", "shared"])
def test_guests_held_back_by_a_forward_that_broke_off_do_not_stand_in_the_way_of_the_next_step(
    slot_residency, monkeypatch
):
    real = parallel_experts.exchange_rows
    is_broken = {0: False, 1: False}

    def body(rank: Rank) -> tuple[float, float]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, tiny_options(slot_residency=slot_residency), groups=rank.agent_groups)
        x = batch(CONFIG, step=0, rank=rank.group.rank)
        agent.begin_step()
        is_broken[rank.group.rank] = True
        with pytest.raises(RuntimeError, match="on purpose"):
            model(x)
        is_broken[rank.group.rank] = False
        agent.end_step()
        agent.begin_step()
        loss = loss_of(model(x))
        loss.backward()
        assert agent.end_step().guests_intra
        agent.close()
        plain = loss_of(model(x))
        return loss.item(), plain.item()

    def exchange_rows(rows_ND: torch.Tensor, group: object, **splits: list[int]) -> torch.Tensor:
        if any(is_broken.values()):
            raise RuntimeError("broken on purpose")
        return real(rows_ND, group, **splits)

    monkeypatch.setattr(parallel_experts, "exchange_rows", exchange_rows)
    for with_guests, plain in run_ranks(2, body):
        assert with_guests == pytest.approx(plain, rel=1e-12)
