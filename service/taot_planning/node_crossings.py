"""Fewer tokens that are computed in another node than the one they come from, at the loads that ranks have.

Seen as a flow, tokens go from an expert to one of the nodes that hold copies of it, and there to a copy. As many as
come from that node are free, the others cost 1 each. The flow starts where it is cheapest, every token in its own node
if there is a copy; that gives some ranks too many tokens and others too few. They are moved along the cheapest paths,
so that the flow stays the cheapest for its loads (the primal-dual method for flows of least cost).

Axis letters: C and F as in `copies`; G groups, the copies of one expert in one node, each at the index of its first
copy; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.copies import END, EXPERT, FIRST, GROUP, NEXT, RANK, SLOT
from taot_planning.kernel import inner_kernel, kernel

_FAR = 2**31
"""Farther than any rank: paths cost at most one crossing per rank."""


class _Flow(NamedTuple):
    """The flow so far, and the memory of the path search."""

    supply_G: IntArray
    """Tokens of the group's expert that come from its node. Shape: [copies]."""

    demand_G: IntArray
    """Tokens of the group's copies. Shape: [copies]."""

    tokens_C: IntArray
    """Tokens of each copy. Shape: [copies]."""

    head_R: IntArray
    """The first copy on each rank, -1 where there is none. Shape: [ranks]."""

    excess_R: IntArray
    """Tokens that each rank has to hand on, negative where it has to get some. Shape: [ranks]."""

    distance_R: IntArray
    """Crossings that each token costs on its cheapest path to a rank that has to get some. Shape: [ranks]."""

    nearest_G: IntArray
    """The smallest distance of the ranks of a group. Shape: [copies]."""

    queue_R: IntArray
    """Ranks in the order in which the search reached them. Shape: [ranks]."""

    giver_R: IntArray
    """The copy that would give tokens to a copy on this rank. Shape: [ranks]."""

    taker_R: IntArray
    """The copy on this rank that would take them. Shape: [ranks]."""

    seen_R: NDArray[np.bool_]
    """Whether the search has reached the rank. Shape: [ranks]."""

    spread_G: NDArray[np.bool_]
    """Whether the search has gone on from the group's copies. Shape: [copies]."""


@kernel
def _count_supply(counts_RE: IntArray, nodes_R: IntArray, copies_CF: IntArray) -> IntArray:
    """Tokens of the group's expert that come from its node. Shape: [copies]."""
    supply_G = np.zeros(copies_CF.shape[0], dtype=np.int64)
    for group in range(copies_CF.shape[0]):
        if copies_CF[group, GROUP] == group:
            node = nodes_R[copies_CF[group, RANK]]
            for source in range(nodes_R.size):
                if nodes_R[source] == node:
                    supply_G[group] += counts_RE[source, copies_CF[group, EXPERT]]
    return supply_G


@kernel
def _count_tokens(counts_RE: IntArray, copies_CF: IntArray, tokens_RK: IntArray) -> IntArray:
    """Tokens of each copy; the home has what the guests leave. Shape: [copies]."""
    tokens_C = np.zeros(copies_CF.shape[0], dtype=np.int64)
    for copy in range(copies_CF.shape[0]):
        home = copies_CF[copy, FIRST]
        if copy == home:
            for source in range(counts_RE.shape[0]):
                tokens_C[home] += counts_RE[source, copies_CF[copy, EXPERT]]
        else:
            tokens_C[copy] = tokens_RK[copies_CF[copy, RANK], copies_CF[copy, SLOT]]
            tokens_C[home] -= tokens_C[copy]
    return tokens_C


@kernel
def _start_flow(supply_G: IntArray, tokens_C: IntArray, copies_CF: IntArray, num_ranks: int) -> _Flow:
    num_copies = tokens_C.size
    head_R = np.full(num_ranks, -1, dtype=np.int64)
    for copy in range(num_copies - 1, -1, -1):
        head_R[copies_CF[copy, RANK]] = copy
    return _Flow(
        supply_G,
        np.zeros(num_copies, dtype=np.int64),
        tokens_C,
        head_R,
        np.zeros(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_copies, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.bool_),
        np.empty(num_copies, dtype=np.bool_),
    )


@inner_kernel
def _add(copy: int, amount: int, flow: _Flow, copies_CF: IntArray) -> None:
    """Gives tokens to a copy, or takes them away."""
    flow.tokens_C[copy] += amount
    flow.demand_G[copies_CF[copy, GROUP]] += amount
    flow.excess_R[copies_CF[copy, RANK]] += amount


@inner_kernel
def _go_local(first: int, beyond_C: IntArray, flow: _Flow, copies_CF: IntArray) -> None:
    """Moves the tokens of one expert into the nodes they come from, as few as possible from copy to copy."""
    end = copies_CF[first, END]
    loose = 0
    for copy in range(first, end):
        group = copies_CF[copy, GROUP]
        flow.demand_G[group] += flow.tokens_C[copy]
        beyond_C[copy] = max(flow.demand_G[group] - flow.supply_G[group], 0)
        _add(copy, -beyond_C[copy], flow, copies_CF)
        loose += beyond_C[copy]
    for copy in range(first, end):
        group = copies_CF[copy, GROUP]
        missing = flow.supply_G[group] - flow.demand_G[group]
        _add(copy, missing, flow, copies_CF)
        loose -= missing
    # Tokens of nodes without a copy cross wherever they go.
    for copy in range(first, end):
        amount = min(loose, beyond_C[copy])
        _add(copy, amount, flow, copies_CF)
        loose -= amount


@inner_kernel
def _measure_once(flow: _Flow, copies_CF: IntArray) -> bool:
    """Shortens distances by paths over one more expert, and says whether any became shorter."""
    any_shorter = False
    first = 0
    while first < copies_CF.shape[0]:
        end = copies_CF[first, END]
        for copy in range(first, end):
            flow.nearest_G[copies_CF[copy, GROUP]] = _FAR
        nearest = _FAR
        for copy in range(first, end):
            group, distance = copies_CF[copy, GROUP], flow.distance_R[copies_CF[copy, RANK]]
            flow.nearest_G[group] = min(flow.nearest_G[group], distance)
            nearest = min(nearest, distance + (flow.demand_G[group] >= flow.supply_G[group]))
        for copy in range(first, end):
            group = copies_CF[copy, GROUP]
            distance = min(flow.nearest_G[group], nearest - (flow.demand_G[group] > flow.supply_G[group]))
            if flow.tokens_C[copy] > 0 and distance < flow.distance_R[copies_CF[copy, RANK]]:
                flow.distance_R[copies_CF[copy, RANK]] = distance
                any_shorter = True
        first = end
    return any_shorter


@inner_kernel
def _cost(giver: int, taker: int, flow: _Flow, copies_CF: IntArray) -> int:
    """Crossings that a token adds when it moves from one copy of an expert to another: -1, 0 or 1."""
    left, entered = copies_CF[giver, GROUP], copies_CF[taker, GROUP]
    if left == entered:
        return 0
    cost = 0
    if flow.demand_G[left] > flow.supply_G[left]:
        cost -= 1
    if flow.demand_G[entered] >= flow.supply_G[entered]:
        cost += 1
    return cost


@inner_kernel
def _room(giver: int, taker: int, flow: _Flow, copies_CF: IntArray) -> int:
    """Tokens that can move from one copy of an expert to another until the cost changes."""
    left, entered = copies_CF[giver, GROUP], copies_CF[taker, GROUP]
    room = flow.tokens_C[giver]
    if left != entered and flow.demand_G[left] > flow.supply_G[left]:
        room = min(room, flow.demand_G[left] - flow.supply_G[left])
    if left != entered and flow.demand_G[entered] < flow.supply_G[entered]:
        room = min(room, flow.supply_G[entered] - flow.demand_G[entered])
    return int(room)


@inner_kernel
def _find_taker(start: int, flow: _Flow, copies_CF: IntArray) -> int:
    """Searches the cheapest paths for one over the fewest ranks, remembering how each rank was reached.

    Returns:
        The rank that takes the tokens, -1 if there is none on a path that is the cheapest for `start`.
    """
    flow.seen_R[:] = False
    flow.spread_G[:] = False
    flow.seen_R[start] = True
    flow.queue_R[0] = start
    head, tail = 0, 1
    while head < tail:
        rank = flow.queue_R[head]
        head += 1
        following = flow.head_R[rank]
        while following >= 0:
            giver = following
            following = copies_CF[giver, NEXT]
            group = copies_CF[giver, GROUP]
            if flow.tokens_C[giver] == 0 or flow.spread_G[group]:
                continue
            flow.spread_G[group] = True
            for taker in range(copies_CF[giver, FIRST], copies_CF[giver, END]):
                other = copies_CF[taker, RANK]
                cost = _cost(giver, taker, flow, copies_CF)
                if flow.seen_R[other] or flow.distance_R[rank] != cost + flow.distance_R[other]:
                    continue
                flow.seen_R[other] = True
                flow.giver_R[other] = giver
                flow.taker_R[other] = taker
                flow.queue_R[tail] = other
                tail += 1
                if flow.excess_R[other] < 0 and flow.distance_R[other] == 0:
                    return int(other)
    return -1


@inner_kernel
def _push(start: int, end: int, flow: _Flow, copies_CF: IntArray) -> None:
    """Moves as many tokens as the path that `_find_taker` left can take at its cost."""
    amount = min(flow.excess_R[start], -flow.excess_R[end])
    rank = end
    while rank != start:
        amount = min(amount, _room(flow.giver_R[rank], flow.taker_R[rank], flow, copies_CF))
        rank = copies_CF[flow.giver_R[rank], RANK]
    rank = end
    while rank != start:
        _add(flow.giver_R[rank], -amount, flow, copies_CF)
        _add(flow.taker_R[rank], amount, flow, copies_CF)
        rank = copies_CF[flow.giver_R[rank], RANK]


@inner_kernel
def _settle(flow: _Flow, copies_CF: IntArray) -> None:
    """Moves what ranks have too much to those that have too little."""
    any_left = True
    while any_left:
        for rank in range(flow.excess_R.size):
            flow.distance_R[rank] = 0 if flow.excess_R[rank] < 0 else _FAR
        while _measure_once(flow, copies_CF):
            pass
        any_left = False
        for rank in range(flow.excess_R.size):
            while flow.excess_R[rank] > 0:
                taker = _find_taker(rank, flow, copies_CF)
                if taker < 0:
                    any_left = True
                    break
                _push(rank, taker, flow, copies_CF)


@kernel
def reduce_crossings(counts_RE: IntArray, nodes_R: IntArray, copies_CF: IntArray, tokens_RK: IntArray) -> IntArray:
    """Exchanges tokens between copies, at constant loads of ranks, so that the fewest cross nodes.

    Args:
        counts_RE: tokens from each source rank to each expert. Shape: [ranks, experts].
        nodes_R: node of each rank. Shape: [ranks].
        copies_CF: the copies, see `copies.list_copies`. Shape: [copies, 7].
        tokens_RK: tokens each guest takes over. Shape: [ranks, slots].

    Returns:
        Tokens each guest takes over after that. Shape: [ranks, slots].
    """
    supply_G = _count_supply(counts_RE, nodes_R, copies_CF)
    tokens_C = _count_tokens(counts_RE, copies_CF, tokens_RK)
    flow = _start_flow(supply_G, tokens_C, copies_CF, nodes_R.size)
    beyond_C = np.empty(tokens_C.size, dtype=np.int64)
    for copy in range(tokens_C.size):
        if copies_CF[copy, FIRST] == copy:
            _go_local(copy, beyond_C, flow, copies_CF)
    _settle(flow, copies_CF)
    reduced_RK = tokens_RK.copy()
    for copy in range(tokens_C.size):
        if copies_CF[copy, SLOT] >= 0:
            reduced_RK[copies_CF[copy, RANK], copies_CF[copy, SLOT]] = flow.tokens_C[copy]
    return reduced_RK
