"""What the search for robust guests works on: one placement, and in every scenario the tokens split over it.

A *scenario* is a histogram that the placement must hold for. Every expert has copies: the one at home, and its guests.
In each scenario tokens lie on the copies of their expert. The search changes the arrays in place. Tokens are whole
numbers in floats, which processors compare and add several at a time.

Axis letters: J scenarios, P places for guests (slots of ranks, rank by rank), C copies (the places, then the homes of
all experts), H experts home by home; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import FloatArray, IntArray
from taot_planning.kernel import kernel


class ScenarioState(NamedTuple):
    """The placement so far, the tokens of all scenarios, and the memory of the path search."""

    cost_RR: IntArray
    """Cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks]."""

    cap_R: FloatArray
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

    tokens_JC: FloatArray
    """Tokens on each copy. Shape: [scenarios, places + experts]."""

    load_JR: FloatArray
    """Tokens on each rank. Shape: [scenarios, ranks]."""

    excess_J: FloatArray
    """Tokens above their caps, over all ranks. Shape: [scenarios]."""

    reached_JR: NDArray[np.bool_]
    """Whether tokens of ranks above their caps can reach the rank. Shape: [scenarios, ranks]."""

    total: IntArray
    """Cost of the guests, and the state of the pseudo-random sequence. Shape: [2]."""

    worth_RR: FloatArray
    """One guest divided by its cost from home to guest rank, 0 at home. Shape: [ranks, ranks]."""

    most_worth_R: FloatArray
    """The largest of each home. Shape: [ranks]."""

    is_stale_J: NDArray[np.bool_]
    """Whether `movable_JE` is yet to be measured. Shape: [scenarios]."""

    movable_JE: FloatArray
    """Tokens of each expert that could leave full ranks, up to the excess. Shape: [scenarios, experts]."""

    rise_E: FloatArray
    """By how much they have become more, over all scenarios. Shape: [experts]."""

    room_JR: FloatArray
    """Tokens below the cap on each rank. Shape: [scenarios, ranks]."""

    gain_R: FloatArray
    """Tokens that a guest of the expert in hand would take off full ranks from each rank. Shape: [ranks]."""

    merit_E: FloatArray
    """Tokens that a guest of each expert takes off full ranks for its cost, at most. Shape: [experts]."""

    queue_R: IntArray
    """Ranks in the order in which the path search reached them. Shape: [ranks]."""

    giver_R: IntArray
    """The copy that would give tokens to a copy on this rank. Shape: [ranks]."""

    taker_R: IntArray
    """The copy on this rank that would take them. Shape: [ranks]."""


@kernel
def _worths(cost_RR: IntArray) -> tuple[FloatArray, FloatArray]:
    """Fills `worth_RR` and `most_worth_R`."""
    worth_RR = np.zeros(cost_RR.shape, dtype=np.float64)
    most_worth_R = np.zeros(cost_RR.shape[0], dtype=np.float64)
    for home in range(cost_RR.shape[0]):
        for rank in range(cost_RR.shape[0]):
            if rank != home:
                worth_RR[home, rank] = 1.0 / cost_RR[home, rank]
                most_worth_R[home] = max(most_worth_R[home], worth_RR[home, rank])
    return worth_RR, most_worth_R


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
    tokens_JC = np.zeros((num_scenarios, num_places + num_experts), dtype=np.float64)
    load_JR = np.zeros((num_scenarios, num_ranks), dtype=np.float64)
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
    worth_RR, most_worth_R = _worths(cost_RR)
    return ScenarioState(
        cost_RR,
        cap_R.astype(np.float64),
        rank_C,
        np.cumsum(first_R),
        np.argsort(home_E, kind="mergesort") + num_places,
        expert_C,
        np.full(num_places + num_experts, -1, dtype=np.int64),
        slots_R.copy(),
        tokens_JC,
        load_JR,
        np.zeros(num_scenarios, dtype=np.float64),
        np.zeros((num_scenarios, num_ranks), dtype=np.bool_),
        np.array([0, 1]),
        worth_RR,
        most_worth_R,
        np.empty(num_scenarios, dtype=np.bool_),
        np.empty((num_scenarios, num_experts), dtype=np.float64),
        np.empty(num_experts, dtype=np.float64),
        np.empty((num_scenarios, num_ranks), dtype=np.float64),
        np.empty(num_ranks, dtype=np.float64),
        np.empty(num_experts, dtype=np.float64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
    )
