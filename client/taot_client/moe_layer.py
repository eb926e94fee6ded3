"""A drop-in mixture-of-experts layer under expert parallelism: route, dispatch, compute, combine.

The layer knows its experts and its group. Who computes which tokens it asks its coordinator: plain expert
parallelism by itself, guests once an `Agent` has been attached to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

from taot_client.coordinator import Coordinator, PlainCoordinator
from taot_client.device import index_to_device
from taot_client.groups import ExpertParallelGroup
from taot_client.guest_gradients import Weights
from taot_client.layer_pass import LayerPass
from taot_client.token_exchange import exchange_rows
from taot_planning import contiguous_homes
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


class GatedExperts(nn.Module):
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
            for fused in self.weights():
                bound = fused.shape[1] ** -0.5
                fused.data[local] = torch.empty(fused.shape[1:]).uniform_(-bound, bound, generator=generator)

    def weights(self) -> tuple[nn.Parameter, ...]:
        """The fused tensors whose first axis is the local expert: what one expert consists of."""
        return self.w_gate, self.w_up, self.w_down

    @staticmethod
    def compute(x_ND: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Applies one expert, given its tensors, to its tokens; also to none."""
        w_gate, w_up, w_down = weights
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
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be between 1 and the {num_experts} experts, got {top_k}")
        self.group = group
        self.num_experts = num_experts
        self.top_k = top_k
        self.home_E = (
            contiguous_homes(num_experts=num_experts, num_ranks=group.size)
            if home_E is None
            else np.asarray(home_E, dtype=np.int64)
        )
        self.router = router if router is not None else TopKRouter(dim=dim, num_experts=num_experts, top_k=top_k)
        self.experts = GatedExperts(
            dim=dim, hidden_dim=hidden_dim, experts=np.flatnonzero(self.home_E == group.rank), seed=seed
        )
        self.coordinator: Coordinator = PlainCoordinator(group, self.home_E)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer. `x` and the result: [..., dim]."""
        x_TD = x.reshape(-1, x.shape[-1])
        home_weights = self.coordinator.gate(self.experts.weights())
        weights_TK, experts_TK = self.router(x_TD, self.coordinator.pinned_choice())
        if experts_TK.shape[0] != x_TD.shape[0]:
            raise RuntimeError(
                f"the layer got {x_TD.shape[0]} tokens and choices for {experts_TK.shape[0]}: a recomputation must see"
                " the tokens of its forward, so wrap both in the same `agent.micro_batch(index)`"
            )
        layer_pass = self.coordinator.admit(experts_TK)

        received_ND, sent_order = self._dispatch(x_TD, layer_pass)
        computed_ND = self._compute(received_ND, home_weights, layer_pass)
        returned_MD = exchange_rows(
            computed_ND,
            self.group.tokens,
            send_splits=layer_pass.layout.receive_splits,
            receive_splits=layer_pass.layout.send_splits,
        )
        return self._combine(returned_MD, sent_order, weights_TK).view_as(x)

    def _dispatch(self, x_TD: torch.Tensor, layer_pass: LayerPass) -> tuple[torch.Tensor, torch.Tensor]:
        """Sends every (token, choice) pair to the copy that computes it.

        Returns:
            The rows this rank received, by source, and the flat pair (token * k + choice) of each row it sent.
        """
        choices = layer_pass.experts_TK.flatten()
        # Choices that do not count sort behind the last expert and are not sent.
        valid = (choices >= 0) & (choices < self.num_experts)
        by_expert = torch.where(valid, choices, self.num_experts).argsort(stable=True)
        send_order = index_to_device(torch.from_numpy(layer_pass.layout.send_order), x_TD.device)
        sent_order = by_expert[send_order]
        received_ND = exchange_rows(
            x_TD[sent_order // layer_pass.experts_TK.shape[1]],
            self.group.tokens,
            send_splits=layer_pass.layout.send_splits,
            receive_splits=layer_pass.layout.receive_splits,
        )
        return received_ND, sent_order

    def _compute(self, received_ND: torch.Tensor, home_weights: Weights, layer_pass: LayerPass) -> torch.Tensor:
        """Applies home experts, then guests, to their tokens; rows stay in the order received."""
        layout = layer_pass.layout
        group_order = index_to_device(torch.from_numpy(layout.group_order), received_ND.device)
        grouped_ND = received_ND[group_order]
        num_home_tokens = layout.num_home_tokens
        x_home, x_guest = grouped_ND.split([num_home_tokens, grouped_ND.shape[0] - num_home_tokens])

        # Experts without tokens are computed on none, so that their weights stay in the graph.
        outputs = [
            self.experts.compute(x_ND, weights)
            for x_ND, *weights in zip(
                x_home.split(layout.tokens_C[: layout.num_home]),
                *(fused.unbind(0) for fused in home_weights),
                strict=True,
            )
        ]
        x_guest, guest_weights = self.coordinator.guests(layer_pass, x_guest)
        guest_tokens = [tokens for tokens in layout.tokens_C[layout.num_home :] if tokens]
        if guest_weights:
            outputs += [
                self.experts.compute(x_ND, weights)
                for x_ND, weights in zip(x_guest.split(guest_tokens), guest_weights, strict=True)
            ]
        else:
            outputs.append(x_guest)
        # One dtype on all ranks, whatever autocast made of the experts: rows are exchanged next.
        return _ungroup(torch.cat(outputs).to(received_ND.dtype), group_order)

    def _combine(self, returned_MD: torch.Tensor, sent_order: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
        """Adds up the weighted outputs of each token in the order of its choices, wherever they were computed."""
        dim = returned_MD.shape[1]
        pairs_PD = returned_MD.new_zeros(weights_TK.numel(), dim).index_copy(0, sent_order, returned_MD)
        return (pairs_PD.view(*weights_TK.shape, dim) * weights_TK[..., None]).sum(dim=1)


def _ungroup(grouped_ND: torch.Tensor, group_order: torch.Tensor) -> torch.Tensor:
    """Puts rows grouped by copy back into the order in which they were received."""
    return torch.empty_like(grouped_ND).index_copy(0, group_order, grouped_ND)
