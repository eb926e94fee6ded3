"""The layer that docs/adapters.md shows is one that the agent takes and balances."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from rank_threads import run_ranks
from tiny_moe import SkewedRouter, TinyConfig, batch, loss_of, tiny_options
from torch import nn

from taot_client import Agent
from taot_client.home_experts import FusedExperts
from taot_client.parallel_experts import ParallelExperts

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


class BiasedExperts(nn.Module):
    def __init__(self, num_experts: int, config: TinyConfig) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shapes = {
            "up": (config.dim, config.hidden_dim),
            "up_bias": (config.hidden_dim,),
            "down": (config.hidden_dim, config.dim),
        }
        for name, shape in shapes.items():
            drawn = torch.randn(num_experts, *shape, generator=generator, dtype=config.dtype) / 5
            self.register_parameter(name, nn.Parameter(drawn))
        self.dim = config.dim
        self.activation = nn.functional.silu

    def run_expert(self, local: int, x_ND: torch.Tensor) -> torch.Tensor:
        return self.activation(x_ND @ self.up[local] + self.up_bias[local]) @ self.down[local]


def shown_classes() -> dict[str, type]:
    block = next(
        each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "MyExperts" in each
    )
    names = {"FusedExperts": FusedExperts, "ParallelExperts": ParallelExperts, "nn": nn}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_layer_of_the_page_is_trained_with_guests():
    config, names = TinyConfig(num_layers=1), shown_classes()

    def body(rank):
        layer = names["MyLayer"](SkewedRouter(config, 0).double(), BiasedExperts(4, config), rank.group)
        agent = Agent(layer, tiny_options(ranks_per_node=1), groups=rank.agent_groups)
        agent.begin_step()
        loss_of(layer(batch(config, step=0, rank=rank.group.rank))).backward()
        summary = agent.end_step()
        agent.close()
        return summary

    for summary in run_ranks(2, body):
        assert summary.guests_intra + summary.guests_inter > 0
        assert summary.imbalance["moe"] < summary.imbalance_static["moe"]


def test_the_layer_of_the_page_without_its_bias_is_refused():
    config, names = TinyConfig(num_layers=1), shown_classes()
    names["MyExperts"].tensors = lambda experts: (experts._module.up, experts._module.down)
    names["MyExperts"].compute = lambda experts, x_ND, expert: experts._module.activation(x_ND @ expert[0]) @ expert[1]

    def body(rank):
        layer = names["MyLayer"](SkewedRouter(config, 0).double(), BiasedExperts(4, config), rank.group)
        with pytest.raises(ValueError, match="computes something else than the framework does at home"):
            Agent(layer, tiny_options(ranks_per_node=1), groups=rank.agent_groups)

    run_ranks(2, body)
