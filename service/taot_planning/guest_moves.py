"""Which guests have to move, from where, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import brief_kernel, inner_kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.topology import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class GuestMoves:
    """The moves of a placement, in an order in which each source has the expert before it passes it on."""

    moves_G3: IntArray
    """Expert, source and rank of each. Shape: [moves, 3]."""

    cost_milli: int
    """Cost of all moves, in thousandths."""

    num_intra: int
    """Moves within a node."""

    @property
    def number(self) -> int:
        """Moves."""
        return len(self.moves_G3)

    @property
    def expert_G(self) -> IntArray:
        """Expert. Shape: [moves]."""
        return self.moves_G3[:, 0]

    @property
    def source_G(self) -> IntArray:
        """Rank that sends it: the home, or with relays the cheapest rank that has it. Shape: [moves]."""
        return self.moves_G3[:, 1]

    @property
    def rank_G(self) -> IntArray:
        """Rank that receives it. Shape: [moves]."""
        return self.moves_G3[:, 2]


NO_MOVES = GuestMoves(moves_G3=np.empty((0, 3), dtype=np.int64), cost_milli=0, num_intra=0)
"""Those of a placement without guests."""

NOBODY = read_only(np.empty((0, 0), dtype=np.int64))
"""No resident guests."""


def list_moves(problem: LayerProblem, guests_RK: IntArray) -> GuestMoves:
    """Lists the guests that are not resident, with the rank that each of them comes from.

    With relays the ranks of an expert are joined one by one, the cheapest next (Prim): on a tree of levels that is the
    least there is. Without them every guest comes from its home.
    """
    topology = problem.topology
    resident_RK = NOBODY if problem.resident_RK is None else problem.resident_RK
    return _list_moves(guests_RK, problem.home_E, topology, resident_RK)


def guest_sources(guests_RK: IntArray, *, home_E: IntArray, topology: Topology) -> IntArray:
    """The rank that each guest comes from where none are resident, -1 where a slot is empty. Shape: [ranks, slots]."""
    moves = _list_moves(guests_RK, home_E, topology, NOBODY)
    source_RK = np.full_like(guests_RK, -1)
    for expert, source, rank in moves.moves_G3.tolist():
        source_RK[rank, guests_RK[rank] == expert] = source
    return source_RK


def _list_moves(guests_RK: IntArray, home_E: IntArray, topology: Topology, resident_RK: IntArray) -> GuestMoves:
    moves_G3, cost_milli, num_intra = find_moves(
        read_only(guests_RK), home_E, topology.cost_milli_RR, topology.nodes_R, resident_RK, topology.has_relay
    )
    return GuestMoves(moves_G3=moves_G3, cost_milli=cost_milli, num_intra=num_intra)


@brief_kernel
def find_moves(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    guests_RK: IntArray,
    home_E: IntArray,
    cost_RR: IntArray,
    nodes_R: IntArray,
    resident_RK: IntArray,
    has_relay: bool,
) -> tuple[IntArray, int, int]:
    """Expert, source and rank of each move, the cost of all, and how many are within a node. Shape: [moves, 3]."""
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
    total = num_intra = 0
    for move in range(count):
        source, rank = moves_G3[move, 1], moves_G3[move, 2]
        total += cost_RR[source, rank]
        num_intra += nodes_R[source] == nodes_R[rank]
    return moves_G3[:count], total, num_intra


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
