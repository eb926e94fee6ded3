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


class GuestState(NamedTuple):
    """The ranks in question, and the guests so far."""

    cost_HC: IntArray
    """Cost of a guest, in thousandths. Shape: [hot ranks, cold ranks]."""

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
    """Per place: hot rank (-1: free), expert as index of `expert_X`, tokens, and the place of the hot rank's
    guest before (-1: none). Shape: [places, 4]."""

    total: IntArray
    """Surplus that no guest carries, cost of the guests, and the state of the pseudo-random sequence. Shape: [3]."""


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
def start_state(
    tokens_E: IntArray, home_E: IntArray, excess_R: IntArray, cost_RR: IntArray, slots_R: IntArray
) -> tuple[GuestState, IntArray]:
    """Finds out which ranks are hot and cold, and starts with no guests.

    Args:
        tokens_E: tokens of each expert. Shape: [experts].
        home_E: home rank of each expert. Shape: [experts].
        excess_R: load above the cap, negative below it. Shape: [ranks].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots. Shape: [ranks].

    Returns:
        The state, and the ranks of its cold ranks. Shape: [cold ranks].
    """
    ranks_H = np.flatnonzero(excess_R > 0)
    ranks_C = np.flatnonzero((excess_R < 0) & (slots_R > 0))
    hot_H = np.full((ranks_H.size, 4), -1, dtype=np.int64)
    cold_C = np.empty((ranks_C.size, 2), dtype=np.int64)
    cost_HC = np.empty((ranks_H.size, ranks_C.size), dtype=np.int64)
    total = np.array([0, 0, 1])
    for hot in range(ranks_H.size):
        hot_H[hot, LEFT] = excess_R[ranks_H[hot]]
        total[0] += excess_R[ranks_H[hot]]
        for cold in range(ranks_C.size):
            cost_HC[hot, cold] = cost_RR[ranks_H[hot], ranks_C[cold]]
    for cold in range(ranks_C.size):
        cold_C[cold, ROOM], cold_C[cold, FREE] = -excess_R[ranks_C[cold]], slots_R[ranks_C[cold]]
    expert_X = _list_experts(tokens_E, home_E, ranks_H, hot_H)
    guest_P = np.full((ranks_C.size * slots_R.max(), 4), -1, dtype=np.int64)
    return GuestState(cost_HC, hot_H, cold_C, expert_X, tokens_E[expert_X], guest_P, total), ranks_C


@kernel
def measure_loads(counts_RE: IntArray, home_E: IntArray) -> tuple[IntArray, IntArray, int, int]:
    """Adds the counts up in one pass: tokens of experts, loads of ranks, all tokens, and the highest load.

    Args:
        counts_RE: tokens from each source rank to each expert. Shape: [ranks, experts].
        home_E: home rank of each expert. Shape: [experts].
    """
    tokens_E = np.zeros(home_E.size, dtype=np.int64)
    load_R = np.zeros(counts_RE.shape[0], dtype=np.int64)
    for source in range(counts_RE.shape[0]):
        for expert in range(home_E.size):
            tokens_E[expert] += counts_RE[source, expert]
    total = 0
    for expert in range(home_E.size):
        load_R[home_E[expert]] += tokens_E[expert]
        total += tokens_E[expert]
    return tokens_E, load_R, total, load_R.max()
