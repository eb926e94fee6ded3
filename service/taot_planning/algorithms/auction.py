"""Phase 3 of the published method: guests bid for the tokens of source ranks.

Axis letters: S source ranks; the others as in the package.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import FloatArray, IntArray
from taot_planning.kernel import inner_kernel, kernel

MAX_ROUNDS = 300
"""Rounds after which demand that is left is given up (arXiv 2608.03676, phase 3)."""

PRICE_STEP = 1.0
"""Rise of a source's price when it gave (arXiv 2608.03676, phase 3)."""


@inner_kernel
def _best_source(expert: int, bonus_S: FloatArray, price_S: FloatArray, supply_SE: IntArray) -> int:
    """The source with the largest bonus - price among those that have tokens left, -1 if none has."""
    best = -1
    for source in range(price_S.size):
        if supply_SE[source, expert] == 0:
            continue
        if best < 0 or bonus_S[source] - price_S[source] > bonus_S[best] - price_S[best]:
            best = source
    return best


@kernel
def _collect_bids(
    demand_RK: IntArray, guests_RK: IntArray, bonus_RS: FloatArray, price_S: FloatArray, supply_SE: IntArray
) -> IntArray:
    """Lets every slot with demand bid, and every source keep its best bidder, the first of equals.

    Returns:
        Flat slot whose bid each source accepts, -1 where there was none. Shape: [source ranks].
    """
    num_ranks, num_slots = demand_RK.shape
    winner_S = np.full(num_ranks, -1, dtype=np.int64)
    for rank in range(num_ranks):
        for slot in range(num_slots):
            if demand_RK[rank, slot] == 0:
                continue
            source = _best_source(guests_RK[rank, slot], bonus_RS[rank], price_S, supply_SE)
            if source < 0:
                continue
            holder = winner_S[source]
            if holder < 0 or bonus_RS[rank, source] > bonus_RS[holder // num_slots, source]:
                winner_S[source] = rank * num_slots + slot
    return winner_S


@kernel
def auction_tokens(counts_SE: IntArray, guests_RK: IntArray, tokens_RK: IntArray, bonus_RS: FloatArray) -> IntArray:
    """Distributes the tokens that guests are to take over the source ranks (arXiv 2608.03676, phase 3).

    In each round every slot with demand left bids for one source, every source accepts the bidder with the
    largest bonus, and pair by pair the smaller of supply and demand changes hands; a source that gave becomes
    dearer. After 300 rounds what is still in demand stays home, so no token is lost or taken twice.

    Args:
        counts_SE: tokens of each source rank for each expert. Shape: [source ranks, experts].
        guests_RK: expert in each guest slot, -1 where empty. Shape: [ranks, slots].
        tokens_RK: tokens each guest is to take. Shape: [ranks, slots].
        bonus_RS: what a source is worth to a guest's rank. Shape: [ranks, source ranks].

    Returns:
        Tokens of each source rank that go to each guest slot. Shape: [source ranks, ranks, slots].
    """
    num_ranks, num_slots = guests_RK.shape
    supply_SE, demand_RK = counts_SE.copy(), tokens_RK.copy()
    price_S = np.zeros(num_ranks)
    quota_SRK = np.zeros((num_ranks, num_ranks, num_slots), dtype=np.int64)
    for _ in range(MAX_ROUNDS):
        winner_S = _collect_bids(demand_RK, guests_RK, bonus_RS, price_S, supply_SE)
        if winner_S.max() < 0:
            break
        for source in range(num_ranks):
            if winner_S[source] < 0:
                continue
            rank, slot = winner_S[source] // num_slots, winner_S[source] % num_slots
            amount = min(supply_SE[source, guests_RK[rank, slot]], demand_RK[rank, slot])
            supply_SE[source, guests_RK[rank, slot]] -= amount
            demand_RK[rank, slot] -= amount
            quota_SRK[source, rank, slot] += amount
            price_S[source] += PRICE_STEP
    return quota_SRK
