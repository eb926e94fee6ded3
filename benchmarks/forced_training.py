"""Training of a stack of layers whose routing is forced: what the ranks of a benchmark run.

Choices are drawn in every step, seeded by step, layer and rank, for a popularity of the experts that gives the wanted
imbalance; the routing weights are learnt. The hot rank moves on from layer to layer, and its surplus lies on one
expert, as far as the tokens can all choose it once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from stand_in_computing import Place, stand_in
from torch import nn

from taot_client import Agent, AgentOptions, ExpertParallelGroup, ExpertParallelMoE
from taot_client.coordinator import PlainCoordinator
from taot_planning.arrays import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the model and its batch."""

    layers: int
    """Expert layers."""

    experts: int
    """Experts of a layer, over all ranks."""

    dim: int
    """Width of a token."""

    hidden_dim: int
    """Width inside an expert."""

    tokens: int
    """Tokens of a rank and step."""

    top_k: int = 2
    """Experts of a token."""

    dense_dim: int = 0
    """Width inside the dense block before each expert layer, which stands for attention; without one where it is 0."""

    stand_in: Place | None = None
    """What computing is replaced by, if anything: an accelerator beside each rank, which leaves the cores to the
    network, or a core that is held as long as it would compute."""

    gigaflops: float = 0.0
    """Its speed."""

    @property
    def expert_bytes(self) -> int:
        """What a guest costs to move, one way."""
        return 3 * self.dim * self.hidden_dim * 4


FULL = 0.9
"""Part of the tokens that choose the hottest expert, at most."""


def popularity(imbalance: float, shape: Shape, *, layer: int, num_ranks: int) -> FloatArray:
    """Shares of the experts with which the hot rank of a layer has (1 + imbalance) times the mean. Shape: [experts]."""
    num_experts, local = shape.experts, shape.experts // num_ranks
    hot = layer % num_ranks
    share_E = np.full(num_experts, (1 - imbalance / (num_ranks - 1)) / num_experts)
    share_E[hot * local : (hot + 1) * local] = 1 / num_experts
    first, second = hot * local, hot * local + 1
    share_E[first] = min(share_E[first] + imbalance / num_ranks, FULL / shape.top_k)
    share_E[second] += 1 - share_E.sum()
    return share_E


class ForcedRouter(nn.Module):
    """Draws the choices, and learns their weights."""

    def __init__(self, shape: Shape, group: ExpertParallelGroup, *, layer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((shape.experts,), 1 / shape.top_k))
        self._shape, self._group, self._layer = shape, group, layer
        self._share_E: FloatArray | None = None
        self._step = 0

    def force(self, imbalance: float) -> None:
        """Changes the imbalance from now on; 0 gives all experts the same number of tokens, without any noise."""
        self._share_E = None
        if imbalance > 0:
            self._share_E = popularity(imbalance, self._shape, layer=self._layer, num_ranks=self._group.size)

    def begin_step(self, step: int) -> None:
        """Says which step is next: its number alone decides the draw."""
        self._step = step

    def forward(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Router`."""
        if experts_TK is None:
            experts_TK = torch.from_numpy(self._draw(x_TD.shape[0]))
        return self.weight[experts_TK], experts_TK

    def _draw(self, tokens: int) -> IntArray:
        """Distinct experts of each token, by systematic sampling: each expert with its probability."""
        generator = np.random.default_rng([self._step, self._layer, self._group.rank])
        top_k = self._shape.top_k
        if self._share_E is None:
            return generator.permutation((np.arange(tokens * top_k) % self._shape.experts).reshape(tokens, top_k))
        points_TK = generator.random(tokens)[:, None] + np.arange(top_k)
        drawn_TK = np.searchsorted(np.cumsum(self._share_E) * top_k, points_TK, side="right")
        return np.minimum(drawn_TK, self._shape.experts - 1).astype(np.int64)


class DenseBlock(nn.Module):
    """What every rank computes of its own tokens, without any exchange."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up_and_gate = nn.Linear(shape.dim, 2 * shape.dense_dim, bias=False)
        self.down = nn.Linear(shape.dense_dim, shape.dim, bias=False)
        self._shape = shape

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Shape: as `x_TD`."""
        if self._shape.stand_in:
            return stand_in(self._shape.stand_in, self._shape.gigaflops, x_TD, [*self.parameters()])
        up, gate = self.up_and_gate(x_TD).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class Stack(nn.Module):
    """Residual layers: expert layers, each behind a dense block where the shape has them."""

    def __init__(self, shape: Shape, group: ExpertParallelGroup) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ExpertParallelMoE(
                dim=shape.dim,
                hidden_dim=shape.hidden_dim,
                num_experts=shape.experts,
                top_k=shape.top_k,
                group=group,
                router=ForcedRouter(shape, group, layer=layer),
                seed=layer,
            )
            for layer in range(shape.layers)
        )
        self.dense_blocks = nn.ModuleList(DenseBlock(shape) for _ in range(shape.layers if shape.dense_dim else 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape: as `x`."""
        for dense, layer in zip_longest(self.dense_blocks, self.layers):
            if dense is not None:
                x = x + dense(x)
            x = x + layer(x)
        return x


class Run:
    """One way to train, of several whose steps alternate; each has a model of its own. Methods are collective."""

    def __init__(self, shape: Shape, group: ExpertParallelGroup, options: AgentOptions | None) -> None:
        """Without options there is no agent."""
        self.shape, self.group = shape, group
        self.model = Stack(shape, group)
        self.agent = Agent(self.model, options) if options is not None else None
        if shape.stand_in:  # once the agent has seen that real experts compute the same as guests
            for layer in self.model.layers:
                layer.experts.compute = partial(stand_in, shape.stand_in, shape.gigaflops)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self._x = torch.randn(shape.tokens, shape.dim, generator=torch.Generator().manual_seed(group.rank))
        self.summary: Any = None

    def force(self, imbalance: float) -> None:
        """Changes the imbalance of all layers from now on."""
        for layer in self.model.layers:
            layer.router.force(imbalance)

    def train_step(self, step: int) -> float:
        """Trains one step; seconds until the last rank has ended it."""
        for layer in self.model.layers:
            layer.router.begin_step(step)
        barrier(self.group)
        started = time.perf_counter()
        if self.agent is not None:
            self.agent.begin_step()
        self._optimizer.zero_grad()
        self.model(self._x).square().mean().backward()
        if self.agent is not None:
            self.summary = self.agent.end_step()
        self._optimizer.step()
        barrier(self.group)
        return time.perf_counter() - started

    def close(self) -> None:
        """Ends the agent."""
        if self.agent is not None:
            self.agent.close()


class Detached:
    """Trains the model of a run without its agent: two models of one kind may differ by more than an agent costs."""

    def __init__(self, run: Run) -> None:
        self.group = run.group
        self._run = run

    def train_step(self, step: int) -> float:
        """See `Run`. Collective."""
        run, layers = self._run, [layer.parallel_experts for layer in self._run.model.layers]
        agent, coordinators = run.agent, [layer.coordinator for layer in layers]
        run.agent = None
        for layer in layers:
            layer.coordinator = PlainCoordinator(layer.group, layer.home_E)
        try:
            return run.train_step(step)
        finally:
            run.agent = agent
            for layer, coordinator in zip(layers, coordinators, strict=True):
                layer.coordinator = coordinator


def barrier(group: ExpertParallelGroup) -> None:
    """Waits for all ranks."""
    group.counts.allreduce([torch.zeros(1)]).wait()


def alternate(
    runs: Sequence[Run | Detached], *, rounds: int, first_step: int, limit_seconds: float
) -> list[list[float]]:
    """Trains the runs in turn. Ends early, on all ranks together, when the time is over.

    Returns:
        Seconds of each step, by run and round.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    began = time.monotonic()
    for number in range(rounds):
        for run, own in zip(runs, seconds, strict=True):
            own.append(run.train_step(first_step + number))
        is_over = torch.tensor([float(time.monotonic() - began > limit_seconds)])
        runs[0].group.counts.allreduce([is_over]).wait()
        if is_over.item() > 0 and number >= 2:
            break
    return seconds


def guest_options(planner: str | None, *, algorithm: str = "taot", **others: Any) -> AgentOptions:
    """Options for one run; with a planner its plans are made ahead. Waits are long: these machines may be busy."""
    return AgentOptions(
        algorithm=algorithm,
        planner_address=planner,
        transfer_timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=30),
        **others,
    )


def expert_seconds(run: Run) -> float:
    """Seconds that the experts alone of a balanced step take on this rank, forward and backward; the best of three."""
    shape, best = run.shape, float("inf")
    local = shape.experts // run.group.size
    pairs = shape.tokens * shape.top_k
    for _ in range(3):
        started = time.perf_counter()
        for layer in run.model.layers:
            x_ND = torch.randn(pairs // local, shape.dim, requires_grad=True)
            outputs = [layer.experts.compute(x_ND, each) for each in layer.experts.split(layer.experts.tensors())]
            torch.cat(outputs).sum().backward()
        best = min(best, time.perf_counter() - started)
    return best


def join_ranks(address: str, *, rank: int, size: int) -> None:
    """Makes the default group; `address` is host:port of the first rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}", rank=rank, world_size=size, timeout=timedelta(minutes=3)
    )
