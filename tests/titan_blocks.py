"""Residual blocks of torchtitan's mixture-of-experts layers, and their training on one rank, or on all data at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from rank_threads import Rank
from tiny_moe import History, loss_of
from torch import nn
from torch.nn import functional
from torchtitan.components.optimizer import register_moe_load_balancing_hook
from torchtitan.models.common.config_utils import make_ffn_config, make_moe_config, make_router_config
from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

from taot_client import Agent, AgentOptions
from taot_client.adapters import torchtitan


class ExactExperts(GroupedExperts):
    """torchtitan's experts compute in bfloat16 whatever they get; these are the same in the dtype of their weights.

    As grouped kernels may, they refuse to be called without any row.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        assert x_RD.shape[0] > 0, "no rows"
        outputs = []
        for local, x in enumerate(x_RD.split(num_tokens_per_expert_E.tolist())):
            h = functional.silu(x @ self.w1_EFD[local].t()) * (x @ self.w3_EFD[local].t())
            outputs.append(h @ self.w2_EDF[local].t())
        return torch.cat(outputs)


class BiasedExperts(GptOssGroupedExperts):
    """GPT-OSS's experts, which have biases; they hand out what they got, as the other experts do."""

    @dataclass(kw_only=True, slots=True)
    class Config(GptOssGroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        return super().forward(x_RD, num_tokens_per_expert_E).type_as(x_RD)


class ScoresFirstDispatcher(LocalTokenDispatcher):
    """Scores before the experts, as earlier releases of torchtitan could."""

    @dataclass(kw_only=True, slots=True)
    class Config(LocalTokenDispatcher.Config):
        pass

    def _local_reorder(self, x_TD, topk_scores_TK, topk_expert_ids_TK):
        rows_ND, tokens_N, scores_N = super()._local_reorder(x_TD, topk_scores_TK, topk_expert_ids_TK)
        return rows_ND * scores_N[:, None], tokens_N, torch.ones_like(scores_N)


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    num_layers: int = 2
    num_experts: int = 8
    top_k: int = 2
    dim: int = 16
    hidden_dim: int = 24
    dtype: torch.dtype = torch.float64
    experts: type[GroupedExperts] = ExactExperts
    dispatcher: type[LocalTokenDispatcher] = AllToAllTokenDispatcher
    has_shared_experts: bool = True
    load_balance_coeff: float | None = 0.01
    checkpointing: Callable[[nn.Module], None] = lambda model: None
    tokens_by_rank: Sequence[tuple[int, int]] = ((2, 20), (3, 12))
    learning_rate: float = 0.002

    def build_moe(self) -> MoE:
        init = {"weight": nn.init.zeros_}
        shared = make_ffn_config(dim=self.dim, hidden_dim=12, w1_param_init=init, w2w3_param_init=init)
        config = make_moe_config(
            num_experts=self.num_experts,
            router=make_router_config(
                dim=self.dim,
                num_experts=self.num_experts,
                gate_param_init=init,
                top_k=self.top_k,
                route_norm=True,
                route_scale=1.5,
            ),
            routed_experts=RoutedExperts.Config(
                inner_experts=self.experts.Config(
                    dim=self.dim, hidden_dim=self.hidden_dim, num_experts=self.num_experts
                ),
                token_dispatcher=self.dispatcher.Config(num_experts=self.num_experts, top_k=self.top_k),
            ),
            shared_experts=shared if self.has_shared_experts else None,
            load_balance_coeff=self.load_balance_coeff,
        )
        return config.build()

    def batch(self, *, step: int, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7 + step * 101 + rank * 11)
        shape = (*self.tokens_by_rank[rank], self.dim)
        return (torch.randn(shape, generator=generator) + 0.5).to(self.dtype)


class Block(nn.Module):
    moe_enabled = True

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.moe = config.build_moe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.moe(x)


class Blocks(nn.Module):
    """Blocks kept as torchtitan's models keep theirs; their routers like the first experts."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(layer): Block(config) for layer in range(config.num_layers)})
        for index, (name, parameter) in enumerate(self.named_parameters()):
            generator = torch.Generator().manual_seed(index)
            scale = 0.6 / math.sqrt(parameter.shape[-1])
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale
            if "gate" in name:
                parameter.data[: max(1, config.num_experts // 4)] += 0.2
        self.to(config.dtype)
        config.checkpointing(self)

    @property
    def moes(self) -> list[MoE]:
        return [block.moe for block in self.layers.values()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers.values():
            x = block(x)
        return x


@dataclass
class BlocksHistory(History):
    """With what torchtitan's balancing counts and sets, by step: counters before the optimizer, bias after it."""

    counters: list[torch.Tensor] = field(default_factory=list)
    biases: list[torch.Tensor] = field(default_factory=list)


def train_whole(config: BlocksConfig, *, num_ranks: int, num_steps: int) -> BlocksHistory:
    """The reference: torchtitan's layers as they are, all experts in one place, on the data of all ranks."""
    model, history = Blocks(config), BlocksHistory()
    optimizer = _optimizer(model, config)
    for step in range(num_steps):
        batches = [config.batch(step=step, rank=rank) for rank in range(num_ranks)]
        loss = sum(loss_of(model(batch)) for batch in batches if batch.numel())
        optimizer.zero_grad()
        loss.backward()
        history.losses.append(loss.item())
        _note(history, model, optimizer, {})
    return history


def train_spread(
    rank: Rank,
    config: BlocksConfig,
    options: AgentOptions | None,
    *,
    num_steps: int,
    home_E: Sequence[int] | None = None,
) -> BlocksHistory:
    """One rank of the run with spread experts; without options there is no agent."""
    model, history = Blocks(config), BlocksHistory()
    torchtitan.parallelize(model, rank.group, home_E=home_E)
    agent = Agent(model, options, groups=rank.agent_groups) if options is not None else None
    optimizer = _optimizer(model, config)
    homes = {id(moe.routed_experts.inner_experts): moe.parallel_experts.home_experts.tolist() for moe in model.moes}
    for step in range(num_steps):
        if agent is not None:
            agent.begin_step()
        loss = loss_of(model(config.batch(step=step, rank=rank.group.rank)))
        optimizer.zero_grad()
        loss.backward()
        if agent is not None:
            history.summaries.append(agent.end_step())
        total = loss.detach().clone()
        local = {id(parameter) for moe in model.moes for parameter in moe.routed_experts.inner_experts.parameters()}
        shared = [parameter.grad for parameter in model.parameters() if id(parameter) not in local]
        for tensor in (total, *shared, *(moe.tokens_per_expert_E for moe in model.moes)):
            rank.group.counts.allreduce([tensor]).wait()
        history.losses.append(total.item())
        _note(history, model, optimizer, homes)
    if agent is not None:
        agent.close()
    return history


def _optimizer(model: Blocks, config: BlocksConfig) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    # The sums over ranks have been made when the hook runs.
    one_process = SimpleNamespace(get_optional_mesh=lambda name: None, ep_enabled=False, tp=1)
    register_moe_load_balancing_hook(optimizer, [model], one_process)
    return optimizer


def _note(history: BlocksHistory, model: Blocks, optimizer: torch.optim.Optimizer, homes: dict[int, list[int]]) -> None:
    """Takes the gradients, expert by expert, and the counters; then steps."""
    named = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, GroupedExperts):
                for local, expert in enumerate(homes.get(id(module), range(parameter.shape[0]))):
                    named[f"{prefix}.{expert}.{name}"] = parameter.grad[local].clone()
            else:
                named[f"{prefix}.{name}"] = parameter.grad.clone()
    history.gradients.append(named)
    history.counters.append(torch.stack([moe.tokens_per_expert_E.clone() for moe in model.moes]))
    optimizer.step()
    if model.moes[0].expert_bias_E is not None:
        history.biases.append(torch.stack([moe.expert_bias_E.clone() for moe in model.moes]))
    for moe in model.moes:
        moe.tokens_per_expert_E.zero_()
