"""The experts of one layer, spread over the ranks of a group: dispatch, compute, combine.

Neither routing nor the experts themselves are known here: any layer that has chosen experts for its tokens can hand
them over. Who computes which tokens is the answer of a coordinator: plain expert parallelism by itself, guests once
an `Agent` has been attached to the model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn

# Selective checkpointing counts the operations of a forward and wants the same ones of its recomputation. A
# coordinator's are not: only a forward gathers and packs. They are done where no dispatch mode sees them.
from torch.utils._python_dispatch import _disable_current_modes

from taot_client.coordinator import Coordinator, PlainCoordinator
from taot_client.device import index_to_device
from taot_client.groups import ExpertParallelGroup
from taot_client.home_experts import HomeExperts, Weights, expert_outputs
from taot_client.layer_pass import LayerPass
from taot_client.token_exchange import exchange_rows
from taot_planning import contiguous_homes
from taot_planning.arrays import IntArray, frozen_ints

ATTRIBUTE = "parallel_experts"
"""Where a module keeps its `ParallelExperts`; by this name an agent finds them."""


class ParallelExperts:
    """What a mixture-of-experts module delegates to once it has chosen experts.

    Every rank of the group calls it the same number of times in the same order, with any number of tokens, none
    included.
    """

    def __init__(  # noqa: PLR0913 - what a layer is made of
        self,
        *,
        module: nn.Module,
        experts: HomeExperts,
        num_experts: int,
        top_k: int,
        group: ExpertParallelGroup,
        home_E: IntArray | None = None,
    ) -> None:
        """Prepares the experts of a module, which keeps this object in its attribute `parallel_experts`.

        Args:
            module: the layer; its training flag says whether a forward counts.
            experts: those at home on this rank.
            num_experts: experts in the whole group.
            top_k: choices per token.
            group: the ranks that share the experts.
            home_E: home rank of each expert; expert e on rank e * R // E by default. Shape: [experts].
        """
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be between 1 and the {num_experts} experts, got {top_k}")
        self.module = module
        self.experts = experts
        self.num_experts = num_experts
        self.top_k = top_k
        self.group = group
        self.home_E = homes_of(num_experts, group, home_E)
        self.coordinator: Coordinator = PlainCoordinator(group, self.home_E)

    @property
    def home_experts(self) -> IntArray:
        """The experts at home on this rank, ascending. Shape: [local experts]."""
        return np.flatnonzero(self.home_E == self.group.rank)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self) -> tuple[Weights, torch.Tensor | None]:
        """Begins a pass before its tokens are routed: the earlier, the longer guest gradients may travel in backward.

        Returns:
            The home tensors to hand to `apply`, and the choice to repeat when this forward is a recomputation, else
            None. Shape: [tokens, choices].
        """
        with _unseen():
            return self.coordinator.gate(self.experts.tensors()), self.coordinator.pinned_choice()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def apply(
        self,
        x_TD: torch.Tensor,
        experts_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        *,
        home_tensors: Weights | None = None,
    ) -> torch.Tensor:
        """Applies the chosen experts and adds up their weighted outputs. Collective. Shape: [tokens, dim].

        Args:
            x_TD: tokens. Shape: [tokens, dim].
            experts_TK: chosen experts; ids outside the experts do not count. Shape: [tokens, choices].
            weights_TK: their weights. Shape: [tokens, choices].
            home_tensors: what `begin` returned, where the module has called it.
        """
        pairs_PD = self._outputs_of_pairs(x_TD, experts_TK, rows_per_token=1, home_tensors=home_tensors)
        # In the order of the choices, wherever they were computed.
        return (pairs_PD.view(*weights_TK.shape, x_TD.shape[1]) * weights_TK[..., None]).sum(dim=1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def apply_pairs(self, x_PD: torch.Tensor, experts_P: torch.Tensor) -> torch.Tensor:
        """Applies to every row its expert, for modules that weigh and add up by themselves. Collective.

        Args:
            x_PD: a row for each choice of each token, in any order. Shape: [tokens * choices, dim].
            experts_P: the expert of each row; every id must be one of the experts. Shape: [tokens * choices].

        Returns:
            What the experts made of the rows, in their order. Shape: [tokens * choices, dim].
        """
        # Nothing depends on which rows make up a token: the counts of tokens and of each expert are right anyway.
        return self._outputs_of_pairs(x_PD, experts_P.view(-1, self.top_k), rows_per_token=self.top_k)

    def _outputs_of_pairs(
        self,
        x_MD: torch.Tensor,
        experts_TK: torch.Tensor,
        *,
        rows_per_token: int,
        home_tensors: Weights | None = None,
    ) -> torch.Tensor:
        """What its expert makes of each pair of a token and a choice. Shape: [tokens * choices, dim].

        A token has one row for all of its choices, or a row for each.
        """
        if home_tensors is None:
            home_tensors, pinned_TK = self.begin()
            with _unseen():
                _check_recomputation(experts_TK, pinned_TK)
        if experts_TK.shape[0] * rows_per_token != x_MD.shape[0]:
            raise RuntimeError(
                f"the layer got {x_MD.shape[0] // rows_per_token} tokens and choices for {experts_TK.shape[0]}: a"
                " recomputation must see the tokens of its forward, so wrap both in the same"
                " `agent.micro_batch(index)`"
            )
        with _unseen():
            layer_pass = self.coordinator.admit(experts_TK)

        received_ND, sent_order = self._dispatch(x_MD, layer_pass, pairs_per_row=experts_TK.shape[1] // rows_per_token)
        with _unseen():
            self.coordinator.dispatched()
        computed_ND = self._compute(received_ND, home_tensors, layer_pass)
        returned_MD = exchange_rows(
            computed_ND,
            self.group.tokens,
            send_splits=layer_pass.layout.receive_splits,
            receive_splits=layer_pass.layout.send_splits,
        )
        return returned_MD.new_zeros(experts_TK.numel(), x_MD.shape[1]).index_copy(0, sent_order, returned_MD)

    def _dispatch(
        self, x_MD: torch.Tensor, layer_pass: LayerPass, *, pairs_per_row: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sends every (token, choice) pair to the copy that computes it.

        Returns:
            The rows this rank received, by source, and the flat pair (token * k + choice) of each row it sent.
        """
        choices = layer_pass.experts_TK.flatten()
        # Choices that do not count sort behind the last expert and are not sent.
        valid = (choices >= 0) & (choices < self.num_experts)
        by_expert = torch.where(valid, choices, self.num_experts).argsort(stable=True)
        send_order = index_to_device(torch.from_numpy(layer_pass.layout.send_order), x_MD.device)
        sent_order = by_expert[send_order]
        received_ND = exchange_rows(
            x_MD[sent_order // pairs_per_row],
            self.group.tokens,
            send_splits=layer_pass.layout.send_splits,
            receive_splits=layer_pass.layout.receive_splits,
        )
        return received_ND, sent_order

    def _compute(self, received_ND: torch.Tensor, home_tensors: Weights, layer_pass: LayerPass) -> torch.Tensor:
        """Applies home experts, then guests, to their tokens; rows stay in the order received."""
        layout = layer_pass.layout
        group_order = index_to_device(torch.from_numpy(layout.group_order), received_ND.device)
        grouped_ND = received_ND[group_order]
        num_home_tokens = layout.num_home_tokens
        x_home, x_guest = grouped_ND.split([num_home_tokens, grouped_ND.shape[0] - num_home_tokens])

        # Experts without tokens are computed on none, so that their weights stay in the graph.
        home_tokens = x_home.split(layout.tokens_C[: layout.num_home])
        with self.coordinator.computing(x_home.shape[0]):
            outputs = expert_outputs(self.experts, home_tokens, self.experts.split(home_tensors))
        with _unseen():
            x_guest, guest_weights = self.coordinator.guests(layer_pass, x_guest)
        guest_tokens = [tokens for tokens in layout.tokens_C[layout.num_home :] if tokens]
        # Without guests there are no rows either, but the graph goes on through them.
        computed = [x_guest]
        if guest_weights:
            with self.coordinator.computing(x_guest.shape[0]):
                computed = expert_outputs(self.experts, x_guest.split(guest_tokens), guest_weights)
        with _unseen():
            outputs += self.coordinator.leave_guests(layer_pass, computed)
        # One dtype on all ranks, whatever autocast made of the experts: rows are exchanged next.
        return _ungroup(torch.cat(outputs).to(received_ND.dtype), group_order)


_NOTHING_TO_DISABLE = nullcontext()


def _unseen() -> AbstractContextManager[object]:
    """Hides what is done inside from dispatch modes; where there are none, finding that out is all it costs."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else _NOTHING_TO_DISABLE


def _ungroup(grouped_ND: torch.Tensor, group_order: torch.Tensor) -> torch.Tensor:
    """Puts rows grouped by copy back into the order in which they were received."""
    return torch.empty_like(grouped_ND).index_copy(0, group_order, grouped_ND)


def homes_of(num_experts: int, group: ExpertParallelGroup, home_E: IntArray | None) -> IntArray:
    """The given homes, or the usual ones. Shape: [experts]."""
    if home_E is None:
        home_E = contiguous_homes(num_experts=num_experts, num_ranks=group.size)
    return frozen_ints(home_E, name="homes", num_axes=1)


def _check_recomputation(experts_TK: torch.Tensor, pinned_TK: torch.Tensor | None) -> None:
    if pinned_TK is not None and not torch.equal(experts_TK, pinned_TK):
        raise RuntimeError(
            "a recomputation (activation checkpointing) chose other experts than its forward: make the router"
            " deterministic, or leave it out of what is recomputed"
        )
