"""Clipping, fused and multi-tensor optimizers between `end_step` and `begin_step`: the same updates with guests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, sum_shared_gradients, tiny_options

from taot_client import Agent, AgentOptions

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4
STEPS = 5
MAX_NORM = 0.3


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one rank of a run leaves behind."""

    norms: list[float]
    parameters: dict[str, torch.Tensor]
    num_moved: int


def total_norm(model: TinyMoE, rank: Rank) -> torch.Tensor:
    """The norm over all experts of all ranks and, once, what the ranks share."""
    experts, shared = [], []
    for name, parameter in model.named_parameters():
        (experts if ".experts." in name else shared).append(parameter.grad.double())
    squared = torch.nn.utils.get_total_norm(experts) ** 2
    rank.group.counts.allreduce([squared]).wait()
    return (squared + torch.nn.utils.get_total_norm(shared) ** 2).sqrt()


def train(rank: Rank, config: TinyConfig, agent_options: AgentOptions | None, **optimizer_options) -> Run:
    model = TinyMoE(config, rank.group)
    agent = Agent(model, agent_options, groups=rank.agent_groups) if agent_options is not None else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, **optimizer_options)
    norms, num_moved = [], 0
    for step in range(STEPS):
        if agent is not None:
            agent.begin_step()
        optimizer.zero_grad()
        for index in range(2):
            loss_of(model(batch(config, step=step, rank=rank.group.rank, micro_batch=index))).backward()
        if agent is not None:
            summary = agent.end_step()
            num_moved += summary.guests_intra + summary.guests_inter
        sum_shared_gradients(model, rank)
        norm = total_norm(model, rank)
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, norm)
        norms.append(norm.item())
        optimizer.step()
    if agent is not None:
        agent.close()
    return Run(
        norms=norms,
        parameters={name: value.detach().clone() for name, value in model.named_parameters()},
        num_moved=num_moved,
    )


def both(config: TinyConfig, **optimizer_options) -> tuple[list[Run], list[Run]]:
    agent_options = tiny_options(ranks_per_node=2, debug=True)
    static, got = (
        run_ranks(RANKS, lambda rank, each=each: train(rank, config, each, **optimizer_options))
        for each in (None, agent_options)
    )
    assert got[0].num_moved > STEPS
    return static, got


@pytest.mark.parametrize("optimizer_options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_clipped_adamw_updates_are_those_of_plain_expert_parallelism(optimizer_options):
    static, got = both(TinyConfig(num_layers=2), **optimizer_options)
    assert min(static[0].norms) > 2 * MAX_NORM, "clipping does something"
    for plain, balanced in zip(static, got, strict=True):
        assert balanced.norms == pytest.approx(plain.norms, rel=1e-10)
        for name, expected in plain.parameters.items():
            difference = (balanced.parameters[name] - expected).norm()
            assert difference <= 1e-8 * expected.norm(), name


def test_fp32_gradient_norms_are_those_of_plain_expert_parallelism():
    static, got = both(TinyConfig(num_layers=2, dtype=torch.float32), fused=True)
    assert got[0].norms[0] == pytest.approx(static[0].norms[0], rel=1e-6)
    assert got[0].norms == pytest.approx(static[0].norms, rel=1e-3)  # AdamW enlarges what rounding leaves
