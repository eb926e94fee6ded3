"""The first layer's guests have the backward of all that comes before that layer to send their gradients home."""

from __future__ import annotations

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options
from torch import nn
from torch.utils.checkpoint import checkpoint

from taot_client import Agent
from taot_client.transfers.guest_gradients import GradientExchange

CONFIG = TinyConfig(num_layers=2, tokens_by_rank=(40, 40))


class DenseFirst(nn.Module):
    """A dense block, as models begin with, and expert-parallel layers behind it."""

    def __init__(self, rank: Rank, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(CONFIG.dim, CONFIG.dim, bias=False, dtype=CONFIG.dtype)
        nn.init.eye_(self.dense.weight)  # chance would route evenly now and then
        self.sparse = TinyMoE(CONFIG, rank.group)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = self.dense(x)
        if self.is_checkpointed:
            return checkpoint(self.sparse, entered, use_reentrant=False)
        return self.sparse(entered)


def trained_order(monkeypatch: pytest.MonkeyPatch, *, is_checkpointed: bool = False) -> list[list[str]]:
    """In which order each rank's backward has collected the guests' gradients of each layer and passed the block."""
    notes: list[list[str]] = [[], []]
    real_collect = GradientExchange.collect

    def collect(exchange: GradientExchange, **how: object) -> object:
        notes[exchange._route.rank].append(exchange._route.name)
        return real_collect(exchange, **how)

    def body(rank: Rank) -> None:
        model = DenseFirst(rank, is_checkpointed=is_checkpointed)
        agent = Agent(model, tiny_options(), groups=rank.agent_groups)
        own = notes[rank.group.rank]
        model.dense.weight.register_post_accumulate_grad_hook(lambda _: own.append("dense"))
        for step in range(2):
            agent.begin_step()
            own.clear()
            loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank))).backward()
            assert agent.end_step().guests_intra, "nothing was moved"
        agent.close()
        own.append("closed")
        model(batch(CONFIG, step=2, rank=rank.group.rank))

    monkeypatch.setattr(GradientExchange, "collect", collect)
    run_ranks(2, body)
    return notes


def test_the_first_gate_waits_behind_what_the_model_does_before_its_layer(monkeypatch):
    for order in trained_order(monkeypatch):
        assert order == ["sparse.layers.1", "dense", "sparse.layers.0", "closed"]


def test_a_recomputation_makes_its_own_gates(monkeypatch):
    for order in trained_order(monkeypatch, is_checkpointed=True):
        assert sorted(order[:-1]) == ["dense", "sparse.layers.0", "sparse.layers.1"]
