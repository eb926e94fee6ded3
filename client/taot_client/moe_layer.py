"""A drop-in mixture-of-experts layer under expert parallelism: a router and gated experts."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import nn

from taot_client.groups import ExpertParallelGroup
from taot_client.home_experts import FusedExperts, Weights
from taot_client.parallel_experts import ParallelExperts, homes_of
from taot_planning.arrays import IntArray


class Router(Protocol):
    """Chooses experts for tokens. Any module with this call will do."""

    def __call__(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (weights, experts), both [tokens, choices].

        Ids outside the experts mark choices that do not count, such as those of padding tokens. When
        `experts_TK` is given (activation checkpointing recomputes the layer), the choice is repeated and only
        the weights are computed. The choice itself needs no gradient: make it on detached scores, so that both
        ways save the same tensors for backward, as non-reentrant checkpointing demands.
        """


class TopKRouter(nn.Module):
    """Softmax over all experts, then the k largest, renormalised."""

    def __init__(self, *, dim: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.score = nn.Linear(dim, num_experts, bias=False)

    def forward(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Router`."""
        scores_TE = self.score(x_TD).softmax(dim=-1)
        if experts_TK is None:
            experts_TK = scores_TE.detach().topk(self.top_k, dim=-1).indices
        weights_TK = scores_TE.gather(1, experts_TK)
        return weights_TK / weights_TK.sum(dim=-1, keepdim=True), experts_TK


class GatedExperts(FusedExperts, nn.Module):
    """The home experts of one rank: gated SiLU feed-forward networks in fused tensors.

    Expert e starts from the same values whatever the number of ranks: they are drawn from a generator seeded
    with `seed` and e.
    """

    def __init__(self, *, dim: int, hidden_dim: int, experts: IntArray, seed: int) -> None:
        super().__init__()
        num_local = experts.size
        self.w_gate = nn.Parameter(torch.empty(num_local, dim, hidden_dim))
        self.w_up = nn.Parameter(torch.empty(num_local, dim, hidden_dim))
        self.w_down = nn.Parameter(torch.empty(num_local, hidden_dim, dim))
        for local, expert in enumerate(experts.tolist()):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + expert)
            for fused in self.tensors():
                bound = fused.shape[1] ** -0.5
                fused.data[local] = torch.empty(fused.shape[1:]).uniform_(-bound, bound, generator=generator)

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        return self.w_gate.shape[1]

    def tensors(self) -> Weights:
        """See `HomeExperts`."""
        return self.w_gate, self.w_up, self.w_down

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """See `HomeExperts`."""
        hidden_ND = nn.functional.silu(x_ND @ self.w_gate[local]) * (x_ND @ self.w_up[local])
        return hidden_ND @ self.w_down[local]

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """See `HomeExperts`."""
        w_gate, w_up, w_down = expert
        return (nn.functional.silu(x_ND @ w_gate) * (x_ND @ w_up)) @ w_down


class ExpertParallelMoE(nn.Module):
    """Mixture-of-experts layer whose experts are spread over the ranks of a group.

    Every rank of the group calls forward the same number of times in the same order, with any number of tokens,
    none included.
    """

    def __init__(  # noqa: PLR0913 - the dimensions of a layer
        self,
        *,
        dim: int,
        hidden_dim: int,
        num_experts: int,
        top_k: int,
        group: ExpertParallelGroup,
        router: Router | None = None,
        home_E: IntArray | None = None,
        seed: int = 0,
    ) -> None:
        """Builds the layer with this rank's share of the experts.

        Args:
            dim: width of a token.
            hidden_dim: width inside an expert.
            num_experts: experts in the whole group.
            top_k: choices per token.
            group: the ranks that share the experts.
            router: chooses experts; a `TopKRouter` by default.
            home_E: home rank of each expert; expert e on rank e * R // E by default. Shape: [experts].
            seed: start of the experts' weights, the same on every rank.
        """
        super().__init__()
        self.router = router if router is not None else TopKRouter(dim=dim, num_experts=num_experts, top_k=top_k)
        at_home = np.flatnonzero(homes_of(num_experts, group, home_E) == group.rank)
        self.experts = GatedExperts(dim=dim, hidden_dim=hidden_dim, experts=at_home, seed=seed)
        self.parallel_experts = ParallelExperts(
            module=self, experts=self.experts, num_experts=num_experts, top_k=top_k, group=group, home_E=home_E
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer. `x` and the result: [..., dim]."""
        x_TD = x.reshape(-1, x.shape[-1])
        home_tensors, pinned_TK = self.parallel_experts.begin()
        weights_TK, experts_TK = self.router(x_TD, pinned_TK)
        y_TD: torch.Tensor = self.parallel_experts.apply(x_TD, experts_TK, weights_TK, home_tensors=home_tensors)
        return y_TD.view_as(x)
