"""In which order guests travel: a pure function of the placement, the same on every rank.

Transfers are laid out in the rounds of a round-robin tournament, in which every rank meets one peer at a time,
so that what one rank sends first is what its peer receives first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, order=True)
class Move:
    """One expert on its way from home to a guest slot; gradients take the same way back."""

    round: int
    """Tournament round in which home and guest rank meet."""

    home: int
    """Rank that owns the expert."""

    rank: int
    """Rank that hosts the guest."""

    slot: int
    """Slot on that rank."""

    expert: int
    """The expert."""


def tournament_round(a: int, b: int, *, num_ranks: int) -> int:
    """The round in which ranks a and b meet when everybody meets everybody once (circle method)."""
    num_places = num_ranks + num_ranks % 2
    fixed = num_places - 1
    if fixed in (a, b):
        return 2 * min(a, b) % fixed
    return (a + b) % fixed


def schedule_moves(guests_RK: IntArray, home_E: IntArray) -> list[Move]:
    """Lists the transfers that fill the given slots, in the order in which every rank posts them.

    Args:
        guests_RK: expert to bring into each slot, -1 where nothing moves. Shape: [ranks, slots].
        home_E: home rank of each expert. Shape: [experts].
    """
    num_ranks = guests_RK.shape[0]
    moves = []
    for rank, slot in np.argwhere(guests_RK != EMPTY_SLOT).tolist():
        expert = int(guests_RK[rank, slot])
        home = int(home_E[expert])
        met = tournament_round(home, rank, num_ranks=num_ranks)
        moves.append(Move(round=met, home=home, rank=rank, slot=slot, expert=expert))
    return sorted(moves)


def align_guests(wanted_RK: IntArray, resident_RK: IntArray) -> IntArray:
    """Re-orders a placement within each rank so that guests which are there already keep their slot.

    Returns:
        The placement with every resident guest in its old slot and the others in the free slots, in order.
        Shape: [ranks, slots].
    """
    aligned_RK = np.full_like(wanted_RK, EMPTY_SLOT)
    for rank, (wanted_K, resident_K) in enumerate(zip(wanted_RK, resident_RK, strict=True)):
        keep_K = np.isin(resident_K, wanted_K) & (resident_K != EMPTY_SLOT)
        aligned_RK[rank, keep_K] = resident_K[keep_K]
        newcomers = [guest for guest in wanted_K if guest != EMPTY_SLOT and guest not in resident_K[keep_K]]
        free = np.flatnonzero(~keep_K)
        aligned_RK[rank, free[: len(newcomers)]] = newcomers
    return aligned_RK
