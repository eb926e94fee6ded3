"""One pass of one micro-batch through one layer: everything the ranks have agreed on for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from taot_client.counts_gather import CallSite, GatheredCounts
from taot_client.token_layout import TokenLayout
from taot_client.transfers.guest_gradients import GradientExchange
from taot_planning import LayerPlan


@dataclass(eq=False, kw_only=True, slots=True)
class LayerPass:
    """Made in forward; kept until its backward has ended, so that a recomputation repeats it exactly."""

    site: CallSite
    """Which pass this is."""

    experts_TK: torch.Tensor
    """What the router chose; recomputation keeps the choice. Shape: [tokens, choices]."""

    gathered: GatheredCounts
    """The counts of all ranks."""

    plan: LayerPlan
    """Guests in use and the exact split of the tokens at hand; slots without tokens are empty."""

    layout: TokenLayout
    """This rank's share of the token exchange."""

    exchange: GradientExchange | None = None
    """The guests' gradients; None when the layer is not trained."""

    slots: list[int] = field(default_factory=list)
    """This rank's guest slots in use, in the order of their tokens."""

    has_guests: bool = False
    """Whether any rank computes a guest."""

    holds_slots: bool = False
    """Whether the slots are kept for this pass's backward."""
