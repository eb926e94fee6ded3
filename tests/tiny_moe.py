"""A tiny model of expert-parallel layers, its data, and the dense single-process reference it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from rank_threads import Rank
from torch import nn

from taot_client import Agent, AgentOptions, ExpertParallelGroup, ExpertParallelMoE, StepSummary
from taot_client.moe_layer import GatedExperts


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    num_layers: int = 3
    num_experts: int = 8
    num_experts_by_layer: Sequence[int] = ()
    hidden_dim_by_layer: Sequence[int] = ()
    top_k: int = 2
    dim: int = 12
    hidden_dim: int = 20
    dtype: torch.dtype = torch.float64
    tokens_by_rank: Sequence[int] = (40, 33, 0, 51)
    home_E: Sequence[int] | None = None
    router_of: Callable[[TinyConfig, int], nn.Module] | None = None
    learning_rate: float = 0.05

    def experts_of(self, layer: int) -> int:
        return self.num_experts_by_layer[layer] if self.num_experts_by_layer else self.num_experts

    def hidden_dim_of(self, layer: int) -> int:
        return self.hidden_dim_by_layer[layer] if self.hidden_dim_by_layer else self.hidden_dim


def tiny_options(**changes) -> AgentOptions:
    """Options for tiny models: their gains are microseconds and their ranks share cores, so no times decide."""
    return AgentOptions(**{"measured_gates": False, **changes})


class SkewedRouter(nn.Module):
    """A softmax router that likes the first experts; made from a generator of its own, since ranks are threads."""

    def __init__(self, config: TinyConfig, layer: int) -> None:
        super().__init__()
        self.top_k = config.top_k
        generator = torch.Generator().manual_seed(1000 + layer)
        num_experts = config.experts_of(layer)
        weight = torch.randn(num_experts, config.dim, generator=generator)
        weight[: max(1, num_experts // 4)] += 0.8
        self.weight = nn.Parameter(weight)

    def forward(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (x_TD @ self.weight.t()).softmax(-1)
        if experts_TK is None:
            experts_TK = scores.detach().topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, experts_TK)
        return weights / weights.sum(-1, keepdim=True), experts_TK


class FixedRouter(nn.Module):
    """Sends token t to given experts, the same on every rank, with learnt weights."""

    def __init__(self, config: TinyConfig, layer: int, *, choices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        del layer
        self.choices = torch.tensor(choices)
        self.weight = nn.Parameter(torch.linspace(0.3, 0.7, config.num_experts))

    def forward(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if experts_TK is None:
            experts_TK = self.choices[torch.arange(x_TD.shape[0]) % len(self.choices)]
        return self.weight[experts_TK.clamp(0, self.weight.numel() - 1)], experts_TK


class TinyMoE(nn.Module):
    """Residual expert-parallel layers."""

    def __init__(self, config: TinyConfig, group: ExpertParallelGroup) -> None:
        super().__init__()
        router_of = config.router_of or SkewedRouter
        self.layers = nn.ModuleList(
            ExpertParallelMoE(
                dim=config.dim,
                hidden_dim=config.hidden_dim_of(layer),
                num_experts=config.experts_of(layer),
                top_k=config.top_k,
                group=group,
                router=router_of(config, layer),
                home_E=None if config.home_E is None else np.array(config.home_E),
                seed=layer,
            )
            for layer in range(config.num_layers)
        )
        self.to(config.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class DenseMoE(nn.Module):
    """The same model with all experts in one place and no exchange of tokens at all."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        router_of = config.router_of or SkewedRouter
        self.routers = nn.ModuleList(router_of(config, layer) for layer in range(config.num_layers))
        self.experts = nn.ModuleList(
            GatedExperts(
                dim=config.dim,
                hidden_dim=config.hidden_dim_of(layer),
                experts=np.arange(config.experts_of(layer)),
                seed=layer,
            )
            for layer in range(config.num_layers)
        )
        self.to(config.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for router, experts in zip(self.routers, self.experts, strict=True):
            weights_TK, experts_TK = router(x)
            every = torch.stack([experts.compute(x, w) for w in zip(*experts.tensors(), strict=True)])
            chosen = every[experts_TK.t().clamp(0, len(every) - 1), torch.arange(x.shape[0])]
            counts = ((experts_TK >= 0) & (experts_TK < len(every))).t()[..., None]
            x = x + (chosen * weights_TK.t()[..., None] * counts).sum(0)
        return x


def batch(config: TinyConfig, *, step: int, rank: int, micro_batch: int = 0) -> torch.Tensor:
    """Tokens of one rank, different in every step and micro-batch."""
    generator = torch.Generator().manual_seed(7 + step * 101 + rank * 11 + micro_batch * 1009)
    tokens = config.tokens_by_rank[rank % len(config.tokens_by_rank)]
    return (torch.randn(tokens, config.dim, generator=generator) + 0.5).to(config.dtype)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum() / 100


@dataclass
class History:
    """What a run leaves behind, by step: losses and gradients of rank-local parameters, before the optimizer."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    summaries: list[StepSummary] = field(default_factory=list)


def sum_shared_gradients(model: TinyMoE, rank: Rank) -> None:
    """Adds up router gradients over the ranks, as data parallelism would."""
    for layer in model.layers:
        for parameter in layer.router.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            rank.group.counts.allreduce([parameter.grad]).wait()


def named_gradients(model: TinyMoE) -> dict[str, torch.Tensor]:
    """Gradients by the names of the dense model, one entry per expert tensor."""
    named = {}
    for index, layer in enumerate(model.layers):
        for name, parameter in layer.router.named_parameters():
            named[f"{index}.router.{name}"] = parameter.grad.clone()
        for local, expert in enumerate(layer.parallel_experts.home_experts.tolist()):
            for name, parameter in layer.experts.named_parameters():
                named[f"{index}.{expert}.{name}"] = parameter.grad[local].clone()
    return named


def train_dense(config: TinyConfig, *, num_ranks: int, num_steps: int) -> History:
    """The reference run: SGD on the sum of all ranks' losses."""
    model, history = DenseMoE(config), History()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    for step in range(num_steps):
        loss = sum(loss_of(model(batch(config, step=step, rank=rank))) for rank in range(num_ranks))
        optimizer.zero_grad()
        loss.backward()
        gradients = {}
        for index in range(config.num_layers):
            for name, parameter in model.routers[index].named_parameters():
                gradients[f"{index}.router.{name}"] = parameter.grad.clone()
            for name, parameter in model.experts[index].named_parameters():
                for expert in range(config.experts_of(index)):
                    gradients[f"{index}.{expert}.{name}"] = parameter.grad[expert].clone()
        history.losses.append(loss.item())
        history.gradients.append(gradients)
        optimizer.step()
    return history


def train(
    rank: Rank,
    config: TinyConfig,
    options: AgentOptions | None,
    *,
    num_steps: int,
    before_step: Callable[[Agent, int], None] = lambda agent, step: None,
    at: Callable[[str, int], None] = lambda place, step: None,
) -> History:
    """One rank of an expert-parallel run; without options there is no agent. `at` is called all over a step."""
    model, history = TinyMoE(config, rank.group), History()
    agent = Agent(model, options, groups=rank.agent_groups) if options is not None else None
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    for step in range(num_steps):
        at("before step", step)
        if agent is not None:
            before_step(agent, step)
            agent.begin_step()
        at("after begin", step)
        loss = loss_of(model(batch(config, step=step, rank=rank.group.rank)))
        optimizer.zero_grad()
        at("before backward", step)
        loss.backward()
        at("before end", step)
        if agent is not None:
            history.summaries.append(agent.end_step())
        sum_shared_gradients(model, rank)
        total = loss.detach().clone()
        rank.group.counts.allreduce([total]).wait()
        history.losses.append(total.item())
        history.gradients.append(named_gradients(model))
        optimizer.step()
    if agent is not None:
        agent.close()
    return history


def merged(histories: Sequence[History]) -> History:
    """All ranks' gradients together, so that they can be compared with the dense model's."""
    steps = range(len(histories[0].losses))
    return History(
        losses=histories[0].losses,
        gradients=[{k: v for history in histories for k, v in history.gradients[step].items()} for step in steps],
        summaries=histories[0].summaries,
    )


def assert_same_gradients(got: History, want: History, *, tolerance: float, steps: Sequence[int] | None = None) -> None:
    """Compares every tensor: norm of the difference / norm, in double precision."""
    for step in steps if steps is not None else range(len(want.gradients)):
        assert got.gradients[step].keys() == want.gradients[step].keys()
        for name, expected in want.gradients[step].items():
            difference = (got.gradients[step][name].double() - expected.double()).norm()
            assert difference <= tolerance * expected.double().norm(), (
                f"step {step}, {name}: |difference| {difference:.3e}, |gradient| {expected.double().norm():.3e}"
            )
