"""Weights in bf16, gradient sums and master weights in fp32: guests add no error of their own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import DenseMoE, FixedRouter, TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, AgentOptions

RANKS = 4
MICRO_BATCHES = 3
CHOICES = [[0, 1], [0, 2], [1, 0], [0, 3], [4, 0], [5, 1], [0, 6], [7, 0]]
"""Fixed, so that rounding never changes which experts a token gets; expert 0 is far too hot for its home."""
CONFIG = TinyConfig(
    dtype=torch.bfloat16,
    num_layers=2,
    dim=32,
    hidden_dim=48,
    tokens_by_rank=(160, 160, 160, 160),
    router_of=partial(FixedRouter, choices=CHOICES),
)


class WideGradients:
    """Adds up the gradient of every parameter in fp32, as it comes; `.grad` itself is let go."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.sums = {name: torch.zeros(value.shape) for name, value in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self._add, name))

    def _add(self, name: str, parameter: torch.Tensor) -> None:
        self.sums[name] += parameter.grad.float()
        parameter.grad = None


def gradients(rank: Rank, agent_options: AgentOptions | None) -> tuple[dict[str, torch.Tensor], int]:
    """fp32 sums over the micro-batches, by name and expert; guests moved."""
    model, num_moved = TinyMoE(CONFIG, rank.group), 0
    wide = WideGradients(model)
    agent = Agent(model, agent_options, groups=rank.agent_groups) if agent_options is not None else None
    if agent is not None:
        agent.begin_step()
    for index in range(MICRO_BATCHES):
        loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index)).float()).backward()
    if agent is not None:
        summary = agent.end_step()
        num_moved = summary.guests_intra + summary.guests_inter
        agent.close()
    named = {}
    for layer, moe in enumerate(model.layers):
        for local, expert in enumerate(moe.parallel_experts.home_experts.tolist()):
            for name, _ in moe.experts.named_parameters():
                named[f"{layer}.{expert}.{name}"] = wide.sums[f"layers.{layer}.experts.{name}"][local].clone()
    return named, num_moved


def fp32_reference() -> dict[str, torch.Tensor]:
    """The same rounded weights and tokens, computed in fp32 in one place."""
    model = DenseMoE(CONFIG).float()
    for index in range(MICRO_BATCHES):
        for rank in range(RANKS):
            loss_of(model(batch(CONFIG, step=0, rank=rank, micro_batch=index).float())).backward()
    return {
        f"{layer}.{expert}.{name}": parameter.grad[expert]
        for layer, experts in enumerate(model.experts)
        for name, parameter in experts.named_parameters()
        for expert in range(CONFIG.num_experts)
    }


@pytest.mark.slow
def test_no_expert_is_more_than_twice_as_far_from_fp32_as_without_guests():
    want, errors = fp32_reference(), []
    for each in (None, tiny_options(ranks_per_node=2, debug=True)):
        by_rank = run_ranks(RANKS, lambda rank, each=each: gradients(rank, each))
        got = {name: value for named, _ in by_rank for name, value in named.items()}
        errors.append({name: (got[name] - expected).norm() / expected.norm() for name, expected in want.items()})
    assert by_rank[0][1] > 0
    static, balanced = errors
    worst = max((balanced[name] / static[name]).item() for name in want)
    print(f"largest ratio of errors, with guests / without: {worst:.2f}; largest error {max(balanced.values()):.4f}")
    assert all(static[name] > 0 for name in want)
    assert worst <= 2
