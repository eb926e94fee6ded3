"""In which order guests travel, and from where: a pure function of the placement, the same on every rank.

Transfers are laid out in the rounds of a round-robin tournament, in which every rank meets one peer at a time,
so that what one rank sends first is what its peer receives first. With relays there are two stages of them: an
expert first crosses to one rank of each remote node, which then passes it on to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import kernel


class Move(NamedTuple):
    """One expert on its way to a guest slot; gradients take the same way back. Moves sort as all ranks post them."""

    stage: int
    """0 from its home, 1 from a rank of the guest's own node that passes it on."""

    round: int
    """Tournament round in which source and guest rank meet."""

    source: int
    """Rank that sends it: the home, or with relays a rank of the guest's node."""

    rank: int
    """Rank that hosts the guest."""

    slot: int
    """Slot on that rank."""

    expert: int
    """The expert."""

    home: int
    """Rank that owns the expert."""

    is_relay: bool = False
    """Whether `rank` passes this guest on to others of its node, and adds up their gradients."""


def tournament_round(a: int, b: int, *, num_ranks: int) -> int:
    """The round in which ranks a and b meet when everybody meets everybody once (circle method)."""
    num_places = num_ranks + num_ranks % 2
    fixed = num_places - 1
    if fixed in (a, b):
        return 2 * min(a, b) % fixed
    return (a + b) % fixed


def schedule_moves(
    guests_RK: IntArray,
    home_E: IntArray,
    *,
    relay_nodes_R: IntArray | None = None,
    resident_RK: IntArray | None = None,
) -> list[Move]:
    """Lists the transfers that fill the given slots, in the order in which every rank posts them.

    With relays each expert crosses at most once to each remote node: to the guest of it whose rank takes the fewest
    crossings so far, or not at all where a rank of the node has it already.

    Args:
        guests_RK: expert to bring into each slot, -1 where nothing moves. Shape: [ranks, slots].
        home_E: home rank of each expert. Shape: [experts].
        relay_nodes_R: node of each rank, where guests are passed on inside it; None: all come from their home.
            Shape: [ranks].
        resident_RK: experts whose weights the ranks have and keep meanwhile; used with relays. Shape: [ranks, slots].
    """
    if relay_nodes_R is None:
        return list(_schedule(_Table.of(guests_RK), _Table.of(home_E), None, None))
    resident = None if resident_RK is None else _Table.of(resident_RK)
    return list(_schedule(_Table.of(guests_RK), _Table.of(home_E), _Table.of(relay_nodes_R), resident))


class _Table(NamedTuple):
    """An array of whole numbers that can be compared."""

    data: bytes
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: IntArray) -> _Table:
        return cls(values.tobytes(), values.shape)

    def array(self) -> IntArray:
        return np.frombuffer(self.data, dtype=np.int64).reshape(self.shape)


# Weights and gradients of a pass take the same ways, and so do those of later micro-batches. Some passes of all layers
# fit in; at 256 ranks an entry has 67 KB.
@lru_cache(maxsize=256)
def _schedule(guests: _Table, homes: _Table, relay_nodes: _Table | None, resident: _Table | None) -> tuple[Move, ...]:
    """Does what `schedule_moves` does."""
    guests_RK, home_E = guests.array(), homes.array()
    nodes_R = None if relay_nodes is None else relay_nodes.array()
    relay_of: dict[tuple[int, int], int] = {}
    if nodes_R is not None:
        relay_of = _choose_relays(guests_RK, home_E, nodes_R, None if resident is None else resident.array())
    moves = []
    for rank, guests_K in enumerate(guests_RK.tolist()):
        for slot, expert in enumerate(guests_K):
            if expert == EMPTY_SLOT:
                continue
            home = home_E.item(expert)
            relay = home if nodes_R is None else relay_of.get((expert, nodes_R.item(rank)), home)
            source = home if relay == rank else relay
            met = tournament_round(source, rank, num_ranks=len(guests_RK))
            moves.append(Move(int(source != home), met, source, rank, slot, expert, home))
    passed_on = {(move.source, move.expert) for move in moves if move.stage}
    if passed_on:
        moves = [move._replace(is_relay=(move.rank, move.expert) in passed_on) for move in moves]
    return tuple(sorted(moves))


def gradient_order(moves: Sequence[Move]) -> list[Move]:
    """The same moves in the order in which every rank posts their gradients: the sums that relays make come last."""
    return sorted(moves, key=lambda move: (move.is_relay, move))


def _choose_relays(
    guests_RK: IntArray, home_E: IntArray, nodes_R: IntArray, resident_RK: IntArray | None
) -> dict[tuple[int, int], int]:
    """The rank through which an expert reaches a remote node, by (expert, node)."""
    hosts = _ranks_by_node(guests_RK, nodes_R)
    holders = {} if resident_RK is None else _ranks_by_node(resident_RK, nodes_R)
    num_crossings = [0] * guests_RK.shape[0]
    relay_of: dict[tuple[int, int], int] = {}
    # Single guests have no choice: they come first, so that the others can avoid their ranks.
    for key in sorted(hosts, key=lambda each: (len(hosts[each]), each)):
        expert, node = key
        if nodes_R[home_E[expert]] == node:
            continue
        if key in holders:
            relay_of[key] = holders[key][0]
            continue
        relay_of[key] = min(hosts[key], key=lambda rank: (num_crossings[rank], rank))
        num_crossings[relay_of[key]] += 1
    return relay_of


def _ranks_by_node(placed_RK: IntArray, nodes_R: IntArray) -> dict[tuple[int, int], list[int]]:
    """The ranks with a copy of an expert, in order, by (expert, node)."""
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank, slot in np.argwhere(placed_RK != EMPTY_SLOT).tolist():
        ranks.setdefault((int(placed_RK[rank, slot]), int(nodes_R[rank])), []).append(rank)
    return ranks


def align_guests(wanted_RK: IntArray, resident_RK: IntArray) -> IntArray:
    """Re-orders a placement within each rank so that guests which are there already keep their slot.

    Returns:
        The placement with every resident guest in its old slot and the others in the free slots, in order.
        Shape: [ranks, slots].
    """
    placed_RK = _align(read_only(wanted_RK), read_only(resident_RK))
    placed_RK.setflags(write=False)  # kernels take it as it is, in every pass
    return placed_RK


def part_guests(placed_RK: IntArray, resident_RK: IntArray) -> tuple[IntArray, IntArray]:
    """Parts a placement into guests that are missing in their slots, and those that are there already.

    Returns:
        Two placements, which together are the given one. Shapes: [ranks, slots].
    """
    missing_RK, kept_RK = _part(read_only(placed_RK), read_only(resident_RK))
    return missing_RK, kept_RK


def guests_there(guests_RK: IntArray, ready_bits_R: IntArray) -> IntArray:
    """The guests whose slot is ready, the same array if all are.

    Args:
        guests_RK: expert in each guest slot, -1 where empty. Shape: [ranks, slots].
        ready_bits_R: one bit per slot that is ready. Shape: [ranks].
    """
    there_RK, num_late = _leave_out_late(read_only(guests_RK), ready_bits_R)
    return there_RK if num_late else guests_RK


def warm_up() -> None:
    """Compiles the kernels, so that no first call in a training step does."""
    none_RK = np.full((1, 1), EMPTY_SLOT, dtype=np.int64)
    align_guests(none_RK, none_RK)
    part_guests(none_RK, none_RK)
    # A column as gathered, of two rows: numba takes one row for contiguous. And what replaces it when weights change.
    gathered_R = np.zeros((2, 2), dtype=np.int64)[:, 0]
    for ready_bits_R in (gathered_R, np.zeros_like(gathered_R)):
        guests_there(np.full((2, 1), EMPTY_SLOT, dtype=np.int64), ready_bits_R)


@kernel
def _align(wanted_RK: IntArray, resident_RK: IntArray) -> IntArray:
    placed_RK = np.full(wanted_RK.shape, EMPTY_SLOT, dtype=np.int64)
    for rank in range(wanted_RK.shape[0]):
        for wanted in range(wanted_RK.shape[1]):
            for slot in range(wanted_RK.shape[1]):
                if resident_RK[rank, slot] == wanted_RK[rank, wanted]:
                    placed_RK[rank, slot] = wanted_RK[rank, wanted]
        free = 0
        for wanted in range(wanted_RK.shape[1]):
            expert = wanted_RK[rank, wanted]
            is_newcomer = expert != EMPTY_SLOT
            for slot in range(wanted_RK.shape[1]):
                is_newcomer &= placed_RK[rank, slot] != expert
            if is_newcomer:
                while free < wanted_RK.shape[1] and placed_RK[rank, free] != EMPTY_SLOT:
                    free += 1
                if free < wanted_RK.shape[1]:  # else the slots hold one expert twice, which no placement does
                    placed_RK[rank, free] = expert
    return placed_RK


@kernel
def _part(placed_RK: IntArray, resident_RK: IntArray) -> tuple[IntArray, IntArray]:
    missing_RK, kept_RK = placed_RK.copy(), placed_RK.copy()
    for rank in range(placed_RK.shape[0]):
        for slot in range(placed_RK.shape[1]):
            if placed_RK[rank, slot] == resident_RK[rank, slot]:
                missing_RK[rank, slot] = EMPTY_SLOT
            else:
                kept_RK[rank, slot] = EMPTY_SLOT
    return missing_RK, kept_RK


@kernel
def _leave_out_late(guests_RK: IntArray, ready_bits_R: IntArray) -> tuple[IntArray, int]:
    there_RK, num_late = guests_RK.copy(), 0
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if guests_RK[rank, slot] != EMPTY_SLOT and not ready_bits_R[rank] >> slot & 1:
                there_RK[rank, slot] = EMPTY_SLOT
                num_late += 1
    return there_RK, num_late
