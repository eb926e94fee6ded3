"""What the search for guests works on: hot ranks, cold ranks, and the guests so far.

Hot ranks are above the cap; cold ranks are below it and have slots. The search changes the arrays in place.

Axis letters: H hot ranks, C cold ranks, P places for guests (slots of cold ranks, cold rank by cold rank), X experts
of hot ranks, hot rank by hot rank; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel

LEFT, LATEST, FROM, TO = 0, 1, 2, 3
"""Columns of `GuestState.hot_H`."""

ROOM, FREE = 0, 1
"""Columns of `GuestState.cold_C`."""

HOT, EXPERT, TOKENS, BEFORE, PAID = 0, 1, 2, 3, 4
"""Columns of `GuestState.guest_P`."""


class GuestState(NamedTuple):
    """The ranks in question, and the guests so far."""

    price_XC: IntArray
    """Cost of a guest that comes from its home, in thousandths, 0 where it is resident. Shape: [experts of hot ranks,
    cold ranks]."""

    cost_CC: IntArray
    """Cost of a guest that is passed on; empty without relays. Shape: [cold ranks, cold ranks]."""

    hot_H: IntArray
    """Per hot rank: `LEFT` surplus that no guest carries yet, `LATEST` place of its latest guest (-1: none), and its
    experts `FROM` and up to `TO` as indices of `expert_X`. Shape: [hot ranks, 4]."""

    cold_C: IntArray
    """Per cold rank: `ROOM` for tokens under the cap, `FREE` slots. Shape: [cold ranks, 2]."""

    expert_X: IntArray
    """Experts of hot ranks, largest first within a rank. Shape: [experts of hot ranks]."""

    left_X: IntArray
    """Tokens of each of them that no guest carries. Shape: [experts of hot ranks]."""

    guest_P: IntArray
    """Per place: `HOT` rank (-1: free), `EXPERT` as index of `expert_X`, `TOKENS`, the place of the hot rank's guest
    `BEFORE` (-1: none), and the cost `PAID`. Shape: [places, 5]."""

    total: IntArray
    """Surplus that no guest carries, cost of the guests, the state of the pseudo-random sequence, whether experts of
    one hot rank may differ in price, and whether any may be resident. Shape: [5]."""


@kernel
def _list_experts(tokens_E: IntArray, home_E: IntArray, ranks_H: IntArray, hot_H: IntArray) -> IntArray:
    """The experts with tokens of each hot rank, largest first; fills `FROM` and `TO`. Shape: [their number]."""
    expert_X = np.empty(home_E.size, dtype=np.int64)
    end = 0
    for hot in range(ranks_H.size):
        hot_H[hot, FROM] = end
        for expert in range(home_E.size):
            if home_E[expert] != ranks_H[hot] or tokens_E[expert] == 0:
                continue
            at = end
            while at > hot_H[hot, FROM] and tokens_E[expert_X[at - 1]] < tokens_E[expert]:
                expert_X[at] = expert_X[at - 1]
                at -= 1
            expert_X[at] = expert
            end += 1
        hot_H[hot, TO] = end
    return expert_X[:end]


@kernel
def _list_prices(
    expert_X: IntArray, ranks_C: IntArray, home_E: IntArray, cost_RR: IntArray, resident_RK: IntArray
) -> IntArray:
    """Cost of each expert from its home to each cold rank, 0 where it is resident. Shape: [experts, cold ranks]."""
    price_XC = np.empty((expert_X.size, ranks_C.size), dtype=np.int64)
    for index in range(expert_X.size):
        home = home_E[expert_X[index]]
        for cold in range(ranks_C.size):
            price_XC[index, cold] = cost_RR[home, ranks_C[cold]]
            for slot in range(resident_RK.shape[1]):
                if resident_RK[ranks_C[cold], slot] == expert_X[index]:
                    price_XC[index, cold] = 0
    return price_XC


@kernel
def start_state(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    tokens_E: IntArray,
    home_E: IntArray,
    excess_R: IntArray,
    cost_RR: IntArray,
    slots_R: IntArray,
    resident_RK: IntArray,
    has_relay: bool,
) -> tuple[GuestState, IntArray]:
    """Finds out which ranks are hot and cold, and starts with no guests.

    Args:
        tokens_E: tokens of each expert. Shape: [experts].
        home_E: home rank of each expert. Shape: [experts].
        excess_R: load above the cap, negative below it. Shape: [ranks].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots. Shape: [ranks].
        resident_RK: experts that each rank has already, -1 where none; no columns where nobody has any.
            Shape: [ranks, any number].
        has_relay: whether guests are passed on.

    Returns:
        The state, and the ranks of its cold ranks. Shape: [cold ranks].
    """
    ranks_H = np.flatnonzero(excess_R > 0)
    ranks_C = np.flatnonzero((excess_R < 0) & (slots_R > 0))
    hot_H = np.full((ranks_H.size, 4), -1, dtype=np.int64)
    cold_C = np.empty((ranks_C.size, 2), dtype=np.int64)
    total = np.array([0, 0, 1, has_relay or resident_RK.size > 0, resident_RK.size > 0])
    for hot in range(ranks_H.size):
        hot_H[hot, LEFT] = excess_R[ranks_H[hot]]
        total[0] += excess_R[ranks_H[hot]]
    for cold in range(ranks_C.size):
        cold_C[cold, ROOM], cold_C[cold, FREE] = -excess_R[ranks_C[cold]], slots_R[ranks_C[cold]]
    expert_X = _list_experts(tokens_E, home_E, ranks_H, hot_H)
    guest_P = np.full((ranks_C.size * slots_R.max(), 5), -1, dtype=np.int64)
    passed_on = ranks_C if has_relay else ranks_C[:0]
    cost_CC = np.empty((passed_on.size, passed_on.size), dtype=np.int64)
    for cold in range(passed_on.size):
        for other in range(passed_on.size):
            cost_CC[cold, other] = cost_RR[passed_on[cold], passed_on[other]]
    price_XC = _list_prices(expert_X, ranks_C, home_E, cost_RR, resident_RK)
    return GuestState(price_XC, cost_CC, hot_H, cold_C, expert_X, tokens_E[expert_X], guest_P, total), ranks_C
