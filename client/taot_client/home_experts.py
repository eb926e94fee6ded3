"""What the agent must know of the home experts of one layer: the one interface between it and a framework's layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from taot_client.transfers.expert_layout import ExpertLayout

Weights = tuple[torch.Tensor, ...]


class HomeExperts(Protocol):
    """The home experts of one rank, in ascending order; an adapter writes one for each framework."""

    @property
    def dim(self) -> int:
        """Width of a token; also known where no expert is at home."""

    def tensors(self) -> Weights:
        """Every tensor that the experts are made of, as the optimizer knows them."""

    def split(self, tensors: Weights) -> list[Weights]:
        """What belongs to each home expert, as differentiable views of `tensors`: of `tensors()` or of the same shapes.

        The views of all experts together cover the tensors: state that is kept per expert travels with it.
        """

    def layout(self) -> ExpertLayout:
        """How one expert lies in a flat buffer; also known where no expert is at home."""

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """What the framework's own code makes of tokens with one home expert: the self-test's oracle. [tokens, dim].

        Not collective, and without routing weights.
        """

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """Applies one expert, given what `split` says it consists of, to its tokens, also to none. [tokens, dim]."""


def allows_main_grad(experts: HomeExperts) -> bool:
    """Whether parameters may have a `main_grad`: the experts say so by an attribute of this name, false by default.

    It says that such gradients are filled from `.grad` after autograd has accumulated there, never past autograd: guest
    gradients are added on the way to `.grad`.
    """
    return bool(getattr(experts, "allows_main_grad", False))


def split_fused(tensors: Weights) -> list[Weights]:
    """The experts of fused tensors, whose first axis is the local expert."""
    # unbind and not indexing: its backward makes one fused gradient, not one of full size for every expert.
    return list(zip(*(fused.unbind(0) for fused in tensors), strict=True))


class FusedExperts:
    """Home experts kept in fused tensors whose first axis is the local expert; a base for adapters."""

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        raise NotImplementedError

    def tensors(self) -> Weights:
        """See `HomeExperts`."""
        raise NotImplementedError

    def split(self, tensors: Weights) -> list[Weights]:
        """See `HomeExperts`."""
        return split_fused(tensors)

    def layout(self) -> ExpertLayout:
        """See `HomeExperts`."""
        return ExpertLayout.of(self.tensors())


class HomeViews:
    """The tensors of each home expert, for reading: views that are made anew when the memory is another."""

    def __init__(self, experts: HomeExperts, *, are_kept: bool) -> None:
        """Makes none yet; each time again unless they `are_kept`."""
        self._experts = experts
        self._are_kept = are_kept
        self._addresses: list[int] | None = None
        self._views: list[Weights] = []

    def all(self) -> list[Weights]:
        """What belongs to each home expert now."""
        tensors = self._experts.tensors()
        # Nobody else can have got these addresses meanwhile: the views keep the memory they were made of.
        addresses = [tensor.data_ptr() for tensor in tensors]
        if self._are_kept and addresses == self._addresses:
            return self._views
        with torch.no_grad():
            views = self._experts.split(tensors)
        if self._are_kept:
            self._views, self._addresses = views, addresses
        return views


def expert_outputs(
    experts: HomeExperts, x_by_expert: Sequence[torch.Tensor], weights: Sequence[Weights]
) -> list[torch.Tensor]:
    """Applies each expert to its tokens."""
    return [experts.compute(x_ND, expert) for x_ND, expert in zip(x_by_expert, weights, strict=True)]
