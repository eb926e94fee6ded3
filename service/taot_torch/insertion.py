"""Giving hot ranks guests, one guest of every search at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taot_torch.guests import FREE, Guests, hot_ranks
from taot_torch.search_batch import SearchBatch

_NONE = 2**62
"""More than any cost or number of tokens."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The hot ranks of each search that wait for guests."""

    hot_BM: Tensor
    """Hot ranks in order. Shape: [searches, moved ranks]."""

    count_B: Tensor
    """How many of them count. Shape: [searches]."""

    blinks: int
    """Of 1024 candidates so many are overlooked by chance."""


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """What one hot rank of each search has to give, and what its cold ranks can take."""

    want_B: Tensor
    """Surplus that no guest carries yet. Shape: [searches]."""

    num_guests_B: Tensor
    """Guests that it has. Shape: [searches]."""

    left_BX: Tensor
    """Tokens of its experts that no guest carries. Shape: [searches, experts of one]."""

    single_B: Tensor
    """The most that one guest could carry. Shape: [searches]."""

    room_BC: Tensor
    """Tokens that fit; 0 also where no slot is free. Shape: [searches, cold ranks]."""

    cost_BC: Tensor
    """Cost of a guest, in thousandths. Shape: [searches, cold ranks]."""


def insert_guest(
    batch: SearchBatch, guests: Guests, queue: Queue, chance_B: Tensor, at_B: Tensor
) -> tuple[Guests, Tensor, Tensor]:
    """The next guest of each search.

    Args:
        batch: what to search for.
        guests: the guests so far.
        queue: the hot ranks that wait for guests.
        chance_B: state of the pseudo-random sequence.
        at_B: place in the queue; a search at its end is left as it is.

    Returns:
        Guests, state of the sequence and place in the queue after that. The place moves on when the hot rank's surplus
        is carried or nothing has room.
    """
    waiting_B = at_B < queue.count_B
    last = queue.hot_BM.shape[1] - 1
    hot_B = queue.hot_BM.gather(1, at_B.clamp(max=last)[:, None])[:, 0].clamp(min=0)
    offer = _make_offer(batch, guests, hot_B)
    seen_BC, next_chance_B = _look(batch, offer.room_BC > 0, chance_B, queue.blinks)
    cold_B = _choose_cold(offer, seen_BC)
    row_B = cold_B.clamp(min=0)
    amount_B = torch.minimum(offer.want_B, offer.room_BC[batch.index_B, row_B])
    expert_B = _choose_expert(offer.left_BX, amount_B)
    added_B = waiting_B & (cold_B >= 0)
    tokens_B = torch.minimum(amount_B, offer.left_BX[batch.index_B, expert_B])
    index_B = hot_B * batch.expert_BHX.shape[2] + expert_B
    slot_BCK = _first_free(guests) & (added_B[:, None] & _one_hot(row_B, offer.room_BC))[:, :, None]
    guests = Guests(
        expert_BCK=torch.where(slot_BCK, index_B[:, None, None], guests.expert_BCK),
        tokens_BCK=torch.where(slot_BCK, tokens_B[:, None, None], guests.tokens_BCK),
        turn_BCK=torch.where(slot_BCK, offer.num_guests_B[:, None, None], guests.turn_BCK),
    )
    done_B = waiting_B & ~(added_B & (tokens_B < offer.want_B))
    return guests, torch.where(waiting_B, next_chance_B, chance_B), at_B + done_B


def _make_offer(batch: SearchBatch, guests: Guests, hot_B: Tensor) -> _Offer:
    """What the hot rank has left, and what the cold ranks have left."""
    num_experts = batch.expert_BHX.shape[2]
    mine_BCK = hot_ranks(batch, guests) == hot_B[:, None, None]
    carried_BCK = guests.tokens_BCK * mine_BCK
    number_BCK = guests.expert_BCK % num_experts
    left_BX = batch.tokens_BHX[batch.index_B, hot_B].scatter_add(1, number_BCK.flatten(1), -carried_BCK.flatten(1))
    has_slot_BC = (guests.expert_BCK != FREE).sum(2) < batch.slots_BC
    return _Offer(
        want_B=batch.surplus_BH[batch.index_B, hot_B] - carried_BCK.sum((1, 2)),
        num_guests_B=mine_BCK.sum((1, 2)),
        left_BX=left_BX,
        single_B=left_BX.amax(1),
        room_BC=(batch.room_BC - guests.tokens_BCK.sum(2)) * has_slot_BC,
        cost_BC=batch.cost_BHC[batch.index_B, hot_B],
    )


def _look(batch: SearchBatch, has_room_BC: Tensor, chance_B: Tensor, blinks: int) -> tuple[Tensor, Tensor]:
    """The cold ranks with room that are not overlooked; one draw for each with room, in order of index."""
    draws_BC = has_room_BC.cumsum(1)
    state_BN = batch.sequence.ahead(chance_B)
    state_BC = state_BN.gather(1, draws_BC)
    return has_room_BC & ((state_BC >> 16) & 1023 >= blinks), state_BC[:, -1]


def _choose_cold(offer: _Offer, seen_BC: Tensor) -> Tensor:
    """The cold rank for the next guest; -1: none has room. Shape: [searches].

    That is the tightest of the cheapest ranks that can take the whole surplus, unless two guests on cheaper
    ranks can; then, and where nothing takes the whole, it is the rank that takes most for its cost.
    """
    want_B1, cost_BC = offer.want_B[:, None], offer.cost_BC
    fits_BC = seen_BC & (offer.room_BC >= want_B1) & (offer.single_B[:, None] >= want_B1)
    fit_cost_B1 = torch.where(fits_BC, cost_BC, _NONE).amin(1, keepdim=True)
    tightest_BC = fits_BC & (cost_BC == fit_cost_B1)
    fit_B1 = torch.where(tightest_BC, offer.room_BC, _NONE).argmin(1, keepdim=True)

    tokens_BC = torch.minimum(offer.room_BC, torch.minimum(offer.want_B, offer.single_B)[:, None])
    # The quotient is as good as the comparison of products in `taot_planning` up to `EXACT_PRODUCTS`.
    per_cost_BC = torch.where(seen_BC & ~fits_BC, tokens_BC.double() / cost_BC.double(), 0.0)
    best_B1, most_B1 = per_cost_BC.max(1, keepdim=True)
    most_cost_B1 = cost_BC.gather(1, most_B1)
    rest_B1 = want_B1 - tokens_BC.gather(1, most_B1)
    takes_rest_BC = (
        (offer.room_BC >= rest_B1) & (most_cost_B1 + cost_BC < fit_cost_B1) & ~_one_hot(most_B1[:, 0], cost_BC)
    )

    has_fit_B1, has_most_B1 = fit_cost_B1 < _NONE, best_B1 > 0
    in_two_B1 = has_most_B1 & (takes_rest_BC.any(1, keepdim=True) | ~has_fit_B1)
    return torch.where(in_two_B1, most_B1, torch.where(has_fit_B1, fit_B1, FREE))[:, 0]


def _choose_expert(left_BX: Tensor, amount_B: Tensor) -> Tensor:
    """The hot rank's smallest expert that can carry the amount, else the largest. Shape: [searches].

    A cold rank never gets one expert twice: the first guest has used up the expert, the room or the surplus.

    Args:
        left_BX: tokens of its experts that no guest carries; not all 0.
        amount_B: tokens to carry.
    """
    return torch.where(left_BX >= amount_B[:, None], _NONE - left_BX, left_BX).argmax(1)


def _first_free(guests: Guests) -> Tensor:
    """The first free slot of each cold rank. Shape: [searches, cold ranks, slots]."""
    free_BCK = guests.expert_BCK == FREE
    return free_BCK & (free_BCK.cumsum(2) == 1)


def _one_hot(index_B: Tensor, like_BC: Tensor) -> Tensor:
    """Whether a column is the one of the index. Shape: that of `like_BC`."""
    return torch.arange(like_BC.shape[1], device=like_BC.device) == index_B[:, None]
