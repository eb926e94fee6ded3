"""Which guests have to move, from where, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import brief_kernel, inner_kernel
from taot_planning.layer_problem import LayerProblem


@dataclass(frozen=True, kw_only=True, eq=False)
class GuestMoves:
    """The moves of a placement, in an order in which each source has the expert before it passes it on."""

    expert_G: IntArray
    """Expert. Shape: [moves]."""

    source_G: IntArray
    """Rank that sends it: the home, or with relays the cheapest rank that has it. Shape: [moves]."""

    rank_G: IntArray
    """Rank that receives it. Shape: [moves]."""

    cost_milli: int
    """Cost of all moves, in thousandths."""


def list_moves(problem: LayerProblem, guests_RK: IntArray) -> GuestMoves:
    """Lists the guests that are not resident, with the rank that each of them comes from.

    With relays the ranks of an expert are joined one by one, the cheapest next (Prim): on a tree of levels that is the
    least there is. Without them every guest comes from its home.
    """
    resident_RK = problem.resident_RK
    if resident_RK is None:
        resident_RK = np.empty((problem.num_ranks, 0), dtype=np.int64)
    topology = problem.topology
    moves_G3, cost_milli = _list(
        read_only(guests_RK), problem.home_E, topology.cost_milli_RR, read_only(resident_RK), topology.has_relay
    )
    return GuestMoves(expert_G=moves_G3[:, 0], source_G=moves_G3[:, 1], rank_G=moves_G3[:, 2], cost_milli=cost_milli)


@brief_kernel
def _list(
    guests_RK: IntArray, home_E: IntArray, cost_RR: IntArray, resident_RK: IntArray, has_relay: bool
) -> tuple[IntArray, int]:
    """Expert, source and rank of each move, and the cost of all. Shape: [moves, 3]."""
    num_ranks, num_slots = guests_RK.shape
    moves_G3 = np.empty((num_ranks * num_slots, 3), dtype=np.int64)
    count = 0
    for rank in range(num_ranks):
        for slot in range(num_slots):
            expert = guests_RK[rank, slot]
            is_new = expert >= 0
            for other in range(resident_RK.shape[1]):
                is_new = is_new and resident_RK[rank, other] != expert
            if is_new:
                moves_G3[count, 0], moves_G3[count, 1], moves_G3[count, 2] = expert, home_E[expert], rank
                count += 1
    if has_relay:
        _relay(moves_G3[:count], cost_RR, resident_RK)
    total = 0
    for move in range(count):
        total += cost_RR[moves_G3[move, 1], moves_G3[move, 2]]
    return moves_G3[:count], total


@inner_kernel
def _relay(moves_G3: IntArray, cost_RR: IntArray, resident_RK: IntArray) -> None:
    """Orders the moves so that the cheapest comes next, and lets it come from the cheapest rank that has the expert."""
    for move in range(moves_G3.shape[0]):
        for rank in range(resident_RK.shape[0]):
            for slot in range(resident_RK.shape[1]):
                if resident_RK[rank, slot] == moves_G3[move, 0]:
                    _offer(moves_G3, move, rank, cost_RR)
    for done in range(moves_G3.shape[0]):
        cheapest = done
        for move in range(done + 1, moves_G3.shape[0]):
            if cost_RR[moves_G3[move, 1], moves_G3[move, 2]] < cost_RR[moves_G3[cheapest, 1], moves_G3[cheapest, 2]]:
                cheapest = move
        for column in range(3):
            kept = moves_G3[done, column]
            moves_G3[done, column] = moves_G3[cheapest, column]
            moves_G3[cheapest, column] = kept
        for move in range(done + 1, moves_G3.shape[0]):
            if moves_G3[move, 0] == moves_G3[done, 0]:
                _offer(moves_G3, move, moves_G3[done, 2], cost_RR)


@inner_kernel
def _offer(moves_G3: IntArray, move: int, source: int, cost_RR: IntArray) -> None:
    """Lets the move come from `source` if that is cheaper."""
    rank = moves_G3[move, 2]
    if cost_RR[source, rank] < cost_RR[moves_G3[move, 1], rank]:
        moves_G3[move, 1] = source
