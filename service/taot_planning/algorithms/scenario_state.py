"""What the search for robust guests works on: one placement, and in every scenario the tokens split over it.

A *scenario* is a histogram that the placement must hold for. Every expert has copies: the one at home, and its
guests. In each scenario tokens lie on the copies of their expert. The search changes the arrays in place.

Axis letters: J scenarios, P places for guests (slots of ranks, rank by rank), C copies (the places, then the homes of
all experts), H experts home by home; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel


class ScenarioState(NamedTuple):
    """The placement so far, the tokens of all scenarios, and the memory of the path search."""

    cost_RR: IntArray
    """Cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks]."""

    cap_R: IntArray
    """The most tokens of each rank, the same in all scenarios. Shape: [ranks]."""

    rank_C: IntArray
    """Rank of each copy. Shape: [places + experts]."""

    first_R: IntArray
    """Where each rank's experts begin in `home_H`; the next entry ends them. Shape: [ranks + 1]."""

    home_H: IntArray
    """Copies at home, ordered by rank. Shape: [experts]."""

    expert_C: IntArray
    """Expert of each copy, -1 where the place is empty. Shape: [places + experts]."""

    next_C: IntArray
    """The next copy of the same expert, home first; -1 ends. Shape: [places + experts]."""

    free_R: IntArray
    """Slots without a guest. Shape: [ranks]."""

    tokens_JC: IntArray
    """Tokens on each copy. Shape: [scenarios, places + experts]."""

    load_JR: IntArray
    """Tokens on each rank. Shape: [scenarios, ranks]."""

    excess_J: IntArray
    """Tokens above their caps, over all ranks. Shape: [scenarios]."""

    reached_JR: NDArray[np.bool_]
    """Whether tokens of ranks above their caps can reach the rank. Shape: [scenarios, ranks]."""

    total: IntArray
    """Cost of the guests, and the state of the pseudo-random sequence. Shape: [2]."""

    least_cost_R: IntArray
    """Cost of the cheapest guest from each home to another rank; 0 where there is no other. Shape: [ranks]."""

    movable_JE: IntArray
    """Tokens of each expert that could leave full ranks. Shape: [scenarios, experts]."""

    room_JR: IntArray
    """Tokens below the cap on each rank with a free slot. Shape: [scenarios, ranks]."""

    bound_E: IntArray
    """Tokens that a guest of each expert could take off full ranks at most, over all scenarios. Shape: [experts]."""

    bound_R: IntArray
    """Tokens that a guest on each rank could take off full ranks at most, over all scenarios. Shape: [ranks]."""

    queue_R: IntArray
    """Ranks in the order in which the path search reached them. Shape: [ranks]."""

    giver_R: IntArray
    """The copy that would give tokens to a copy on this rank. Shape: [ranks]."""

    taker_R: IntArray
    """The copy on this rank that would take them. Shape: [ranks]."""


@kernel
def _least_costs(cost_RR: IntArray) -> IntArray:
    least_R = np.zeros(cost_RR.shape[0], dtype=np.int64)
    for home in range(cost_RR.shape[0]):
        for rank in range(cost_RR.shape[0]):
            if rank != home and (least_R[home] == 0 or cost_RR[home, rank] < least_R[home]):
                least_R[home] = cost_RR[home, rank]
    return least_R


@kernel
def start_scenarios(
    tokens_JE: IntArray, home_E: IntArray, cost_RR: IntArray, slots_R: IntArray, cap_R: IntArray
) -> ScenarioState:
    """Starts with no guests and every token at home; no excess is known yet.

    Args:
        tokens_JE: tokens of each expert. Shape: [scenarios, experts].
        home_E: home rank of each expert. Shape: [experts].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots. Shape: [ranks].
        cap_R: the most tokens of each rank, the same in all scenarios. Shape: [ranks].
    """
    num_scenarios, num_experts = tokens_JE.shape
    num_ranks = slots_R.size
    num_places = num_ranks * slots_R.max()
    rank_C = np.empty(num_places + num_experts, dtype=np.int64)
    expert_C = np.full(num_places + num_experts, -1, dtype=np.int64)
    tokens_JC = np.zeros((num_scenarios, num_places + num_experts), dtype=np.int64)
    load_JR = np.zeros((num_scenarios, num_ranks), dtype=np.int64)
    first_R = np.zeros(num_ranks + 1, dtype=np.int64)
    for place in range(num_places):
        rank_C[place] = place // slots_R.max()
    for expert in range(num_experts):
        rank_C[num_places + expert] = home_E[expert]
        expert_C[num_places + expert] = expert
        first_R[home_E[expert] + 1] += 1
        for scenario in range(num_scenarios):
            tokens_JC[scenario, num_places + expert] = tokens_JE[scenario, expert]
            load_JR[scenario, home_E[expert]] += tokens_JE[scenario, expert]
    return ScenarioState(
        cost_RR,
        cap_R,
        rank_C,
        np.cumsum(first_R),
        np.argsort(home_E, kind="mergesort") + num_places,
        expert_C,
        np.full(num_places + num_experts, -1, dtype=np.int64),
        slots_R.copy(),
        tokens_JC,
        load_JR,
        np.zeros(num_scenarios, dtype=np.int64),
        np.zeros((num_scenarios, num_ranks), dtype=np.bool_),
        np.array([0, 1]),
        _least_costs(cost_RR),
        np.empty((num_scenarios, num_experts), dtype=np.int64),
        np.empty((num_scenarios, num_ranks), dtype=np.int64),
        np.empty(num_experts, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
    )
