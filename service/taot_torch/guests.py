"""The guests of a batch of searches: the only thing that a search changes, and everything else follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taot_torch.search_batch import SearchBatch

FREE = -1
"""Expert and hot rank of a slot without guest."""


@dataclass(frozen=True, kw_only=True)
class Guests:
    """Guests in the slots of the cold ranks."""

    expert_BCK: Tensor
    """Which expert: hot rank x X + its number within the hot rank; -1: free. Shape: [searches, cold ranks, slots]."""

    tokens_BCK: Tensor
    """Tokens it carries; 0 where free. Shape: [searches, cold ranks, slots]."""

    turn_BCK: Tensor
    """Orders the guests of one hot rank, the latest has the largest. Shape: [searches, cold ranks, slots]."""

    def where(self, mask_B: Tensor, other: Guests) -> Guests:
        """These guests in the searches of the mask, the others elsewhere."""
        mask_B11 = mask_B[:, None, None]
        return Guests(
            expert_BCK=torch.where(mask_B11, self.expert_BCK, other.expert_BCK),
            tokens_BCK=torch.where(mask_B11, self.tokens_BCK, other.tokens_BCK),
            turn_BCK=torch.where(mask_B11, self.turn_BCK, other.turn_BCK),
        )

    def without(self, leaving_BCK: Tensor) -> Guests:
        """The guests that do not leave."""
        return Guests(
            expert_BCK=self.expert_BCK.masked_fill(leaving_BCK, FREE),
            tokens_BCK=self.tokens_BCK.masked_fill(leaving_BCK, 0),
            turn_BCK=self.turn_BCK,
        )


def no_guests(batch: SearchBatch) -> Guests:
    """All slots free."""
    zero_BCK = batch.slots_BC.new_zeros((*batch.slots_BC.shape, batch.num_slots))
    return Guests(expert_BCK=zero_BCK + FREE, tokens_BCK=zero_BCK, turn_BCK=zero_BCK)


def hot_ranks(batch: SearchBatch, guests: Guests) -> Tensor:
    """The hot rank of each guest, -1 where free. Shape: [searches, cold ranks, slots]."""
    return guests.expert_BCK // batch.expert_BHX.shape[2]


def measure(batch: SearchBatch, guests: Guests) -> tuple[Tensor, Tensor]:
    """Tokens that stay above the cap, and the cost of the guests in thousandths. Shape: [searches] each."""
    left_B = batch.surplus_BH.sum(1) - guests.tokens_BCK.sum((1, 2))
    hot_BCK = hot_ranks(batch, guests)
    cost_BCK = batch.cost_BHC.transpose(1, 2).gather(2, hot_BCK.clamp(min=0))
    return left_B, cost_BCK.masked_fill(hot_BCK == FREE, 0).sum((1, 2))


def put_back(guests: Guests, place_BCK: Tensor) -> Guests:
    """The guests after some were taken out and put back: the same guests, but in other slots of their cold ranks.

    They come back hot rank by hot rank, the latest guest of each first, each into the first free slot.

    Args:
        guests: before they were taken out.
        place_BCK: place of the guest's hot rank among those that were moved, -1: was not moved. Shape: [searches,
            cold ranks, slots].
    """
    leaving_BCK = place_BCK >= 0
    num_guests, num_slots = guests.turn_BCK[0].numel(), place_BCK.shape[2]
    # Turns are within +- the number of guests.
    key_BCK = torch.where(leaving_BCK, place_BCK * (2 * num_guests + 1) - guests.turn_BCK, 2**62)
    returning_BCK = key_BCK.argsort(dim=2, stable=True)
    open_BCK = leaving_BCK | (guests.expert_BCK == FREE)
    nth_BCK = (open_BCK.cumsum(2) - 1).clamp(min=0)
    source_BCK = torch.where(
        open_BCK, returning_BCK.gather(2, nth_BCK), torch.arange(num_slots, device=place_BCK.device)
    )
    turn_BCK = guests.turn_BCK.gather(2, source_BCK)
    back = Guests(
        expert_BCK=guests.expert_BCK.gather(2, source_BCK),
        tokens_BCK=guests.tokens_BCK.gather(2, source_BCK),
        # Those that come back are added in reverse.
        turn_BCK=torch.where(open_BCK, ~turn_BCK, turn_BCK),
    )
    return back.without(open_BCK & (nth_BCK >= leaving_BCK.sum(2, keepdim=True)))
