"""Cheaper guests for a placement that keeps every rank within its capacity: dropped, moved, or traded for others.

The search for guests lets hot ranks give and cold ranks take. Cheaper placements may break that rule: two hot ranks of
one node share a way out of it if one collects for the other, and a cold rank can take more than it has room for and
pass tokens of its own on within its node. So each guest is dropped, given to a rank nearer to its home, or traded for
the largest expert of a rank nearer to its own, if the tokens then find their way along augmenting paths.

Axis letters: T trades, N pushes; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.kernel import inner_kernel, kernel

MAX_TRIALS = 100
"""Trades that are tried, at most; most placements have fewer."""

GAIN, RANK, SLOT, EXPERT, TO = 0, 1, 2, 3, 4
"""Columns of a trade: what it saves, the rank and slot of the guest that goes, and the expert that comes, to which
rank; -1: none does."""


class _Flow(NamedTuple):
    """A split of the tokens, and the memory of the path search."""

    home_E: IntArray
    """Home rank of each expert. Shape: [experts]."""

    capacity_R: IntArray
    """The most tokens of each rank. Shape: [ranks]."""

    guests_RK: IntArray
    """Expert in each slot, -1 where empty. Shape: [ranks, slots]."""

    holds_ER: NDArray[np.bool_]
    """Whether the rank has a copy of the expert. Shape: [experts, ranks]."""

    tokens_ER: IntArray
    """Tokens of each expert on each rank. Shape: [experts, ranks]."""

    load_R: IntArray
    """Tokens on each rank. Shape: [ranks]."""

    queue_R: IntArray
    """Ranks in the order in which the search reached them. Shape: [ranks]."""

    giver_R: IntArray
    """The rank that would give tokens to this one, -1 where the search has not been. Shape: [ranks]."""

    given_R: IntArray
    """The expert whose tokens they would be. Shape: [ranks]."""

    pushes_N4: IntArray
    """Tokens moved since the trade began: expert, from, to, number. Shape: [pushes, 4]."""


@kernel
def _start_flow(
    home_E: IntArray, tokens_E: IntArray, guests_RK: IntArray, tokens_RK: IntArray, capacity_R: IntArray
) -> _Flow:
    """Lists what is where."""
    num_experts, num_ranks = home_E.size, capacity_R.size
    holds_ER = np.zeros((num_experts, num_ranks), dtype=np.bool_)
    tokens_ER = np.zeros((num_experts, num_ranks), dtype=np.int64)
    for expert in range(num_experts):
        holds_ER[expert, home_E[expert]] = True
        tokens_ER[expert, home_E[expert]] = tokens_E[expert]
    for rank in range(num_ranks):
        for slot in range(guests_RK.shape[1]):
            expert = guests_RK[rank, slot]
            if expert >= 0:
                holds_ER[expert, rank] = True
                tokens_ER[expert, rank] += tokens_RK[rank, slot]
                tokens_ER[expert, home_E[expert]] -= tokens_RK[rank, slot]
    return _Flow(
        home_E,
        capacity_R,
        guests_RK.copy(),
        holds_ER,
        tokens_ER,
        tokens_ER.sum(axis=0),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty((8 * num_ranks, 4), dtype=np.int64),
    )


@inner_kernel
def _find_room(hot: int, flow: _Flow) -> int:
    """Searches breadth-first for the nearest rank with room that tokens of a rank can reach; -1: there is none."""
    flow.giver_R[:] = -1
    flow.giver_R[hot] = hot
    flow.queue_R[0] = hot
    head, tail = 0, 1
    while head < tail:
        rank = flow.queue_R[head]
        head += 1
        for expert in range(flow.home_E.size):
            if flow.tokens_ER[expert, rank] == 0:
                continue
            for other in range(flow.load_R.size):
                if flow.giver_R[other] < 0 and flow.holds_ER[expert, other]:
                    flow.giver_R[other] = rank
                    flow.given_R[other] = expert
                    flow.queue_R[tail] = other
                    tail += 1
                    if flow.load_R[other] < flow.capacity_R[other]:
                        return other
    return -1


@inner_kernel
def _push(expert: int, giver: int, taker: int, tokens: int, flow: _Flow) -> None:
    """Moves tokens of an expert from one copy to another."""
    flow.tokens_ER[expert, giver] -= tokens
    flow.tokens_ER[expert, taker] += tokens
    flow.load_R[giver] -= tokens
    flow.load_R[taker] += tokens


@inner_kernel
def _relieve(hot: int, num_pushes: int, flow: _Flow) -> tuple[bool, int]:
    """Brings a rank within its capacity.

    Returns:
        Whether that was possible, within the pushes that are remembered; and how many there are now.
    """
    while flow.load_R[hot] > flow.capacity_R[hot]:
        sink = _find_room(hot, flow)
        if sink < 0 or num_pushes + flow.load_R.size > flow.pushes_N4.shape[0]:
            return False, num_pushes
        tokens = min(flow.load_R[hot] - flow.capacity_R[hot], flow.capacity_R[sink] - flow.load_R[sink])
        rank = sink
        while rank != hot:
            tokens = min(tokens, flow.tokens_ER[flow.given_R[rank], flow.giver_R[rank]])
            rank = flow.giver_R[rank]
        rank = sink
        while rank != hot:
            expert, giver = flow.given_R[rank], flow.giver_R[rank]
            _push(expert, giver, rank, tokens, flow)
            for column, value in enumerate((expert, giver, rank, tokens)):
                flow.pushes_N4[num_pushes, column] = value
            num_pushes += 1
            rank = giver
    return True, num_pushes


@inner_kernel
def _put(expert: int, rank: int, flow: _Flow) -> None:
    """Puts a guest into the first empty slot."""
    slot = 0
    while flow.guests_RK[rank, slot] >= 0:
        slot += 1
    flow.guests_RK[rank, slot] = expert
    flow.holds_ER[expert, rank] = True


@inner_kernel
def _try_trade(trade_5: IntArray, flow: _Flow) -> bool:
    """Carries a trade out; if a rank would exceed its capacity, everything is as before."""
    rank, slot, comes, to = trade_5[RANK], trade_5[SLOT], trade_5[EXPERT], trade_5[TO]
    goes = flow.guests_RK[rank, slot]
    home, tokens = flow.home_E[goes], flow.tokens_ER[goes, rank]
    flow.guests_RK[rank, slot] = -1
    flow.holds_ER[goes, rank] = False
    _push(goes, rank, home, tokens, flow)
    if comes >= 0:
        _put(comes, to, flow)
    fits, num_pushes = _relieve(home, 0, flow)
    if fits:
        return True
    for index in range(num_pushes - 1, -1, -1):
        expert, giver, taker, moved = flow.pushes_N4[index]
        _push(expert, taker, giver, moved, flow)
    if comes >= 0:
        flow.holds_ER[comes, to] = False
        for index in range(flow.guests_RK.shape[1]):
            if flow.guests_RK[to, index] == comes:
                flow.guests_RK[to, index] = -1
    _push(goes, home, rank, tokens, flow)
    flow.guests_RK[rank, slot] = goes
    flow.holds_ER[goes, rank] = True
    return False


@kernel
def _largest_experts(home_E: IntArray, tokens_E: IntArray, num_ranks: int) -> IntArray:
    """The expert with the most tokens of each rank, -1 where none has any. Shape: [ranks]."""
    largest_R = np.full(num_ranks, -1, dtype=np.int64)
    for expert in range(home_E.size):
        largest = largest_R[home_E[expert]]
        if tokens_E[expert] > (0 if largest < 0 else tokens_E[largest]):
            largest_R[home_E[expert]] = expert
    return largest_R


@kernel
def _list_trades(largest_R: IntArray, cost_RR: IntArray, slots_R: IntArray, flow: _Flow) -> IntArray:
    """Trades that save something, those that save most first; ties by rank and slot. Shape: [trades, 5]."""
    num_ranks, num_slots = flow.guests_RK.shape
    free_R = slots_R - (flow.guests_RK >= 0).sum(axis=1)
    trades_T5 = np.empty((num_ranks * num_slots * (1 + 2 * num_ranks), 5), dtype=np.int64)
    count = 0
    for rank in range(num_ranks):
        for slot in range(num_slots):
            expert = flow.guests_RK[rank, slot]
            if expert < 0:
                continue
            home = flow.home_E[expert]
            cost = cost_RR[home, rank]
            trades_T5[count] = np.array([cost, rank, slot, -1, -1])
            count += 1
            for other in range(num_ranks):
                saved = cost - cost_RR[home, other]
                if saved > 0 and free_R[other] > 0 and not flow.holds_ER[expert, other]:
                    trades_T5[count] = np.array([saved, rank, slot, expert, other])
                    count += 1
                saved, largest = cost - cost_RR[other, rank], largest_R[other]
                if saved > 0 and largest >= 0 and not flow.holds_ER[largest, rank]:
                    trades_T5[count] = np.array([saved, rank, slot, largest, rank])
                    count += 1
    return trades_T5[:count][np.argsort(-trades_T5[:count, GAIN], kind="mergesort")]


@kernel
def trade_guests(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    home_E: IntArray,
    tokens_E: IntArray,
    guests_RK: IntArray,
    tokens_RK: IntArray,
    capacity_R: IntArray,
    cost_RR: IntArray,
    slots_R: IntArray,
) -> IntArray:
    """Trades guests for cheaper ones, those that save most first, while no rank exceeds its capacity.

    Args:
        home_E: home rank of each expert. Shape: [experts].
        tokens_E: tokens of each expert. Shape: [experts].
        guests_RK: expert in each slot, -1 where empty. Shape: [ranks, slots].
        tokens_RK: tokens of each guest; with them no rank exceeds its capacity. Shape: [ranks, slots].
        capacity_R: the most tokens of each rank. Shape: [ranks].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots. Shape: [ranks].

    Returns:
        Guests that allow such a split too, and cost no more. Shape: [ranks, slots].
    """
    flow = _start_flow(home_E, tokens_E, guests_RK, tokens_RK, capacity_R)
    largest_R = _largest_experts(home_E, tokens_E, capacity_R.size)
    trades_T5 = _list_trades(largest_R, cost_RR, slots_R, flow)
    trials = index = 0
    while index < trades_T5.shape[0] and trials < MAX_TRIALS:
        trials += 1
        if _try_trade(trades_T5[index], flow):
            trades_T5 = _list_trades(largest_R, cost_RR, slots_R, flow)
            index = 0
        else:
            index += 1
    return flow.guests_RK
