"""Small models of real Megatron `MoELayer`s, their data, and the unmodified layers they are compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.experts import GroupedMLP
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from rank_threads import run_ranks
from tiny_moe import History
from torch import nn

from taot_client import Agent, AgentGroups, AgentOptions, ExpertParallelGroup
from taot_client.adapters.megatron import parallelize

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import megatron_on_cpu

megatron_on_cpu.stand_in()

RANKS = 2

SEQUENCE = (9, 7)
"""Length by rank; every rank has two sequences."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A model and how it is trained."""

    config: dict[str, Any] = field(default_factory=dict)
    """What differs from `plain_config`."""

    num_layers: int = 2
    num_steps: int = 3
    num_micro_batches: int = 1
    learning_rate: float = 0.02


def plain_config(sample: Sample) -> TransformerConfig:
    """Gated experts without biases in fp64, 8 of them with 2 a token."""
    plain = {
        "num_layers": sample.num_layers,
        "hidden_size": 12,
        "num_attention_heads": 2,
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "ffn_hidden_size": 20,
        "moe_ffn_hidden_size": 20,
        "expert_model_parallel_size": RANKS,
        "expert_tensor_parallel_size": 1,
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "params_dtype": torch.float64,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "bias_activation_fusion": False,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": False,
        "cuda_graph_scope": [],
    }
    return TransformerConfig(**{**plain, **sample.config})


class Model(nn.Module):
    """Residual `MoELayer`s."""

    def __init__(self, sample: Sample, groups: ProcessGroupCollection) -> None:
        super().__init__()
        config = plain_config(sample)
        submodules = get_gpt_layer_local_spec(num_experts=8, moe_grouped_gemm=False).submodules.mlp.submodules
        if config.moe_grouped_gemm:
            submodules = MoESubmodules(experts=ModuleSpec(module=GroupedMLP), shared_experts=submodules.shared_experts)
        self.layers = nn.ModuleList(
            MoELayer(config, submodules, layer_number=index + 1, pg_collection=groups)
            for index in range(sample.num_layers)
        )
        with torch.no_grad():
            for name, tensor in named_parts(dict(self.named_parameters()), self):
                tensor.copy_(drawn(name, tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y, bias = layer(x)
            assert bias is None
            assert y.dtype == x.dtype
            x = x + y
        return x


@pytest.fixture(scope="module")
def distributed() -> Iterator[None]:
    """Megatron asks whether torch.distributed is initialised before it asks a group for its size."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def alone() -> dist.ProcessGroup:
    """A group of one rank."""
    return run_ranks(1, lambda rank: rank.group.tokens)[0]


def groups_of(expert_parallel: dist.ProcessGroup, alone: dist.ProcessGroup) -> ProcessGroupCollection:
    """Megatron's groups: one of all ranks for the experts, and this rank alone for everything else."""
    groups = ProcessGroupCollection()
    groups.ep = groups.tp_ep = expert_parallel
    for name in ("tp", "cp", "expt_tp", "expt_dp", "tp_cp", "tp_dp_cp"):
        setattr(groups, name, alone)
    return groups


def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
    """Values that depend on the name alone: the same for an expert wherever it lives. Routers like experts 0 and 1."""
    generator = torch.Generator().manual_seed(sum(ord(char) * (index + 1) for index, char in enumerate(name)))
    values = torch.randn(like.shape, generator=generator, dtype=torch.float64) * 0.2
    if name.endswith("router.weight"):
        values[:2] += 0.6
    return values.to(like.dtype)


def named_parts(tensors: dict[str, torch.Tensor], model: Model) -> list[tuple[str, torch.Tensor]]:
    """Tensors by the names of a model with all experts: those of experts one by one, by their global number."""
    parts = []
    for name, tensor in tensors.items():
        layer = model.layers[int(name.split(".")[1])]
        first = layer.local_expert_indices[0]
        prefix, _, local = name.partition("local_experts.")
        if local:
            number, _, rest = local.partition(".")
            parts.append((f"{prefix}{first + int(number)}.{rest}", tensor))
        elif name.endswith((".weight1", ".weight2")):
            shape = (-1, tensor.shape[0], tensor.shape[1] // len(layer.local_expert_indices))
            if name.endswith(".weight2"):
                shape = (-1, tensor.shape[0] // len(layer.local_expert_indices), tensor.shape[1])
            views = tensor.view(shape)
            parts += [(f"{name}.{first + number}", views[number]) for number in range(views.shape[0])]
        else:
            parts.append((name, tensor))
    return parts


def batch(sample: Sample, *, step: int, rank: int, micro_batch: int = 0) -> torch.Tensor:
    """Tokens of one rank. Shape: [sequence, batch, dim]."""
    generator = torch.Generator().manual_seed(7 + step * 101 + rank * 11 + micro_batch * 1009)
    x = torch.randn(SEQUENCE[rank], 2, 12, generator=generator, dtype=torch.float64) + 0.5
    return x.to(sample.config.get("params_dtype", torch.float64))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.double().square().sum() / 100


def gradients_of(model: Model, *, attribute: str = "grad") -> dict[str, torch.Tensor]:
    """Gradients by the names of a model with all experts."""
    found = {name: getattr(parameter, attribute) for name, parameter in model.named_parameters()}
    return {name: part.detach().clone() for name, part in named_parts(found, model)}


def sum_shared_gradients(model: Model, group: dist.ProcessGroup) -> None:
    """Adds up over the ranks the gradients of what every rank holds."""
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.allreduce([parameter.grad]).wait()


def train_unmodified(sample: Sample, groups: ProcessGroupCollection, *, ranks: Sequence[int]) -> History:
    """Megatron's own layers on the data of `ranks`, one after the other, with plain SGD."""
    model, history = Model(sample, groups), History()
    optimizer = torch.optim.SGD(model.parameters(), lr=sample.learning_rate)
    for step in range(sample.num_steps):
        optimizer.zero_grad()
        total = 0.0
        for rank in ranks:
            for micro_batch in range(sample.num_micro_batches):
                loss = loss_of(model(batch(sample, step=step, rank=rank, micro_batch=micro_batch).requires_grad_()))
                loss.backward()
                total += loss.item()
        history.losses.append(total)
        sum_shared_gradients(model, groups.ep)
        history.gradients.append(gradients_of(model))
        optimizer.step()
    return history


def train_with_agent(
    sample: Sample,
    groups: ProcessGroupCollection,
    group: ExpertParallelGroup | None = None,
    agent_groups: AgentGroups | None = None,
) -> History:
    """The same with an agent, on the data of this rank."""
    model, history = Model(sample, groups), History()
    before = list(model.state_dict())
    assert parallelize(model, group) == [f"layers.{index}" for index in range(sample.num_layers)]
    assert list(model.state_dict()) == before
    agent = Agent(
        model,
        AgentOptions(plan_source="inline", ranks_per_node=1, measured_gates=False, debug=True),
        groups=agent_groups,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=sample.learning_rate)
    counts = model.layers[0].parallel_experts.group.counts
    rank = model.layers[0].parallel_experts.group.rank
    for step in range(sample.num_steps):
        optimizer.zero_grad()
        agent.begin_step()
        total = torch.zeros((), dtype=torch.float64)
        for micro_batch in range(sample.num_micro_batches):
            loss = loss_of(model(batch(sample, step=step, rank=rank, micro_batch=micro_batch).requires_grad_()))
            loss.backward()
            total += loss.detach()
        history.summaries.append(agent.end_step())
        counts.allreduce([total]).wait()
        history.losses.append(total.item())
        sum_shared_gradients(model, counts)
        history.gradients.append(gradients_of(model))
        optimizer.step()
    agent.close()
    return history
