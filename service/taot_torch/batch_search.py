"""The search for the cheapest guests in many layers at once: ruin and recreate, all searches round by round.

See `taot_planning.algorithms.guest_search` for the method; the draws and the guests are the same here. A round is
`choose_moved`, `insert_guest` as often as it takes, and `settle`: each of fixed shapes and without a wait for the
device, so that a CUDA graph can capture it. Only `_insert` asks the device, before each guest, whether any search still
needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taot_planning.algorithms.guest_search import BLINKS
from taot_torch.guests import Guests, hot_ranks, measure, no_guests, put_back
from taot_torch.insertion import Queue, insert_guest
from taot_torch.moved_ranks import choose_moved
from taot_torch.search_batch import SearchBatch


@dataclass(frozen=True, kw_only=True)
class Found:
    """Guests of each search with what they achieve."""

    guests: Guests
    """The guests."""

    left_B: Tensor
    """Tokens that stay above the cap. Shape: [searches]."""

    cost_B: Tensor
    """Cost of the guests, in thousandths. Shape: [searches]."""

    def is_better(self, other: Found) -> Tensor:
        """Fewer tokens above the cap, or as many and cheaper. Shape: [searches]."""
        return (self.left_B < other.left_B) | ((self.left_B == other.left_B) & (self.cost_B < other.cost_B))

    def where(self, mask_B: Tensor, other: Found) -> Found:
        """These in the searches of the mask, the others elsewhere."""
        return Found(
            guests=self.guests.where(mask_B, other.guests),
            left_B=torch.where(mask_B, self.left_B, other.left_B),
            cost_B=torch.where(mask_B, self.cost_B, other.cost_B),
        )


def search_guests(batch: SearchBatch, *, rounds: Sequence[int], chance_B: Tensor) -> Found:
    """Finds guests that bring every rank down to the cap, or as many tokens as possible, at the least cost.

    Args:
        batch: what to search for.
        rounds: rounds of improvement of each search.
        chance_B: where each search starts in the pseudo-random sequence.
    """
    rounds_B = torch.tensor(rounds).to(chance_B)
    queue = Queue(hot_BM=(-batch.surplus_BH).argsort(dim=1, stable=True), count_B=batch.num_hot_B, blinks=0)
    guests, chance_B = _insert(batch, no_guests(batch), queue, chance_B)
    kept = best = _found(batch, guests)
    for round_number in range(max(rounds)):
        kept, chance_B = _improve(batch, kept, chance_B, round_number < rounds_B)
        best = kept.where(kept.is_better(best), best)
    return best


def _improve(batch: SearchBatch, before: Found, chance_B: Tensor, going_B: Tensor) -> tuple[Found, Tensor]:
    """One round: moves some hot ranks and keeps what is no worse.

    Searches that have ended insert nothing, which is never better: they end up with the guests they had.
    """
    hot_BCK = hot_ranks(batch, before.guests)
    moved, chance_B = choose_moved(batch, hot_BCK, chance_B)
    is_moved_BCKM = hot_BCK[..., None] == moved.met_BM[:, None, None, :]
    leaving_BCK = is_moved_BCKM.any(3)
    queue = Queue(hot_BM=moved.ordered_BM, count_B=moved.count_B * going_B, blinks=BLINKS)
    guests, chance_B = _insert(batch, before.guests.without(leaving_BCK), queue, chance_B)
    place_BCK = torch.where(leaving_BCK, is_moved_BCKM.byte().argmax(3), -1)
    return settle(before, _found(batch, guests), place_BCK), chance_B


def settle(before: Found, after: Found, place_BCK: Tensor) -> Found:
    """Keeps what is no worse; where it is worse, the moved hot ranks get their guests back.

    Args:
        before: before the round.
        after: after it.
        place_BCK: place of the guest's hot rank among those that were moved, -1: was not moved. Shape: [searches,
            cold ranks, slots].
    """
    back = Found(guests=put_back(before.guests, place_BCK), left_B=before.left_B, cost_B=before.cost_B)
    return back.where(before.is_better(after), after)


def _insert(batch: SearchBatch, guests: Guests, queue: Queue, chance_B: Tensor) -> tuple[Guests, Tensor]:
    """Gives each hot rank of the queue guests until its surplus is carried or nothing has room."""
    at_B = torch.zeros_like(queue.count_B)
    while bool((at_B < queue.count_B).any()):
        guests, chance_B, at_B = insert_guest(batch, guests, queue, chance_B, at_B)
    return guests, chance_B


def _found(batch: SearchBatch, guests: Guests) -> Found:
    left_B, cost_B = measure(batch, guests)
    return Found(guests=guests, left_B=left_B, cost_B=cost_B)
