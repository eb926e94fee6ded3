"""Phase 2 of the published method: cold ranks choose experts, and experts choose among the ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import FloatArray, IntArray
from taot_planning.kernel import kernel


@kernel
def _propose(
    waiting_R: NDArray[np.bool_],
    spill_E: IntArray,
    spare_R: IntArray,
    home_E: IntArray,
    bonus_RR: FloatArray,
    hint_RR: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """Lets every waiting rank with room name the expert that scores best for it.

    Returns:
        The expert (-1: none) and its score. Shapes: [ranks].
    """
    num_ranks = spare_R.size
    choice_R = np.full(num_ranks, -1, dtype=np.int64)
    score_R = np.zeros(num_ranks)
    for rank in range(num_ranks):
        if not waiting_R[rank] or spare_R[rank] == 0:
            continue
        for expert in range(spill_E.size):
            if spill_E[expert] == 0:
                continue
            tokens = min(spill_E[expert], spare_R[rank]) / num_ranks
            score = tokens + bonus_RR[home_E[expert], rank] + hint_RR[home_E[expert], rank]
            if choice_R[rank] < 0 or score > score_R[rank]:
                choice_R[rank], score_R[rank] = expert, score
    return choice_R, score_R


@kernel
def _accept(choice_R: IntArray, score_R: FloatArray, num_experts: int) -> IntArray:
    """Lets every proposed expert take the rank with the highest score. Shape: [experts], -1: not proposed."""
    winner_E = np.full(num_experts, -1, dtype=np.int64)
    for rank in range(choice_R.size):
        expert = choice_R[rank]
        if expert >= 0 and (winner_E[expert] < 0 or score_R[rank] > score_R[winner_E[expert]]):
            winner_E[expert] = rank
    return winner_E


@kernel
def match_columns(
    spill_E: IntArray,
    spare_R: IntArray,
    slots_R: IntArray,
    home_E: IntArray,
    bonus_RR: FloatArray,
    hint_RR: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Matches spilling experts with ranks that have room (arXiv 2608.03676, phase 2, "column-first").

    Each outer round gives a rank at most one guest, in the slot of that round. Within it, ranks propose and
    experts accept until nobody has anything to propose. Ties go to the lowest index. The rules "a pair is
    used once" and "no guest at home" need no mask: a match empties the spill or the spare, and a rank with
    room has no spilling expert. That nothing is left to move is a normal end; slots then stay empty.

    Args:
        spill_E: what each expert gives away, in R-ths of a token. Shape: [experts].
        spare_R: room, in the same unit. Shape: [ranks].
        slots_R: guest slots. Shape: [ranks].
        home_E: home ranks. Shape: [experts].
        bonus_RR: what nearness adds to the score of a match, in tokens. Shape: [home ranks, guest ranks].
        hint_RR: what the flow adds to it, in tokens. Shape: [home ranks, guest ranks].

    Returns:
        guests_RK, the expert in each slot, -1 where empty, and amount_RK, what it takes in R-ths of a token.
        Shapes: [ranks, slots].
    """
    spill_E, spare_R = spill_E.copy(), spare_R.copy()
    num_ranks, num_slots = spare_R.size, slots_R.max()
    guests_RK = np.full((num_ranks, num_slots), -1, dtype=np.int64)
    amount_RK = np.zeros((num_ranks, num_slots), dtype=np.int64)
    for slot in range(num_slots):
        waiting_R = slots_R > slot
        for _ in range(num_ranks):
            choice_R, score_R = _propose(waiting_R, spill_E, spare_R, home_E, bonus_RR, hint_RR)
            if choice_R.max() < 0:
                break
            winner_E = _accept(choice_R, score_R, spill_E.size)
            for expert in range(winner_E.size):
                rank = winner_E[expert]
                if rank < 0:
                    continue
                amount = min(spill_E[expert], spare_R[rank])
                spill_E[expert] -= amount
                spare_R[rank] -= amount
                guests_RK[rank, slot], amount_RK[rank, slot] = expert, amount
                waiting_R[rank] = False
    return guests_RK, amount_RK
