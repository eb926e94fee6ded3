"""Token assignment: how the tokens at hand are split over a given placement.

Every rank derives the split from the gathered counts by itself, so the rule is integer arithmetic with ties
broken by index: the same answer on every machine.

The rule has two stages. First the load: the smallest possible maximum load of a rank is found by augmenting
paths and Newton steps on the cut that blocks them (the discrete Newton method for parametric maximum flow).
Then the sources: each copy takes tokens of its own rank first, then of its own node, then of the others,
which leaves as few node crossings as those loads of the copies allow.

Axis letters: C copies of experts that have guests (homes included); the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.token_sources import split_sources


def assign_tokens(problem: LayerProblem, guests_RK: IntArray) -> IntArray:
    """Splits the tokens of a micro-batch over homes and guests.

    The placement may be older than the counts. The maximum load over ranks is the smallest that the placement
    allows, in whole tokens. Ranks count alike: the rule ignores what a transfer of tokens costs beyond the
    order own rank, own node, other node.

    Args:
        problem: the counts at hand.
        guests_RK: expert in each guest slot, -1 where empty, as `check_guests` accepts it.
            Shape: [ranks, slots].

    Returns:
        Tokens of each source rank that go to each guest slot; the rest stays with the expert's home.
        Shape: [source ranks, ranks, slots].
    """
    guests_RK = read_only(guests_RK)
    tokens_RK = _split_loads(problem.counts_RE.sum(axis=0), problem.home_E, guests_RK)
    return split_sources(problem, guests_RK, tokens_RK)


class _Copies(NamedTuple):
    """The copies of experts that have guests, expert by expert: the home, then its guests by rank."""

    first_E: IntArray
    """Index of each expert's first copy; the next entry ends it. Shape: [experts + 1]."""

    rank_C: IntArray
    """Rank of each copy. Shape: [copies]."""

    expert_C: IntArray
    """Expert of each copy. Shape: [copies]."""

    slot_C: IntArray
    """Flat slot of each copy, rank * slots + slot; -1 for the home. Shape: [copies]."""


class _Search(NamedTuple):
    """The loads so far, and the memory of the path search."""

    end_R: IntArray
    """Where each rank's copies begin in `by_rank_C`; the next entry ends them. Shape: [ranks + 1]."""

    by_rank_C: IntArray
    """Copies ordered by rank. Shape: [copies]."""

    load_R: IntArray
    """Tokens on each rank. Shape: [ranks]."""

    tokens_C: IntArray
    """Tokens of each copy. Shape: [copies]."""

    queue_R: IntArray
    """Ranks in the order in which the search reached them. Shape: [ranks]."""

    giver_R: IntArray
    """The copy that would give tokens to a copy on this rank. Shape: [ranks]."""

    taker_R: IntArray
    """The copy on this rank that would take them. Shape: [ranks]."""

    seen_R: NDArray[np.bool_]
    """Whether the search has reached the rank. Shape: [ranks]."""


@kernel
def _first_copies(num_experts: int, guests_RK: IntArray) -> IntArray:
    """Counts the copies of each expert and sums the counts up: `first_E` of `_Copies`."""
    first_E = np.zeros(num_experts + 1, dtype=np.int64)
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if guests_RK[rank, slot] >= 0:
                first_E[guests_RK[rank, slot] + 1] += 1
    for expert in range(num_experts):
        if first_E[expert + 1] > 0:
            first_E[expert + 1] += 1
        first_E[expert + 1] += first_E[expert]
    return first_E


@kernel
def _list_copies(home_E: IntArray, guests_RK: IntArray) -> _Copies:
    num_experts = home_E.size
    num_ranks, num_slots = guests_RK.shape
    first_E = _first_copies(num_experts, guests_RK)
    num_copies = first_E[num_experts]
    rank_C = np.empty(num_copies, dtype=np.int64)
    expert_C = np.empty(num_copies, dtype=np.int64)
    slot_C = np.full(num_copies, -1, dtype=np.int64)
    next_E = first_E[:-1].copy()
    for expert in range(num_experts):
        if first_E[expert + 1] > first_E[expert]:
            rank_C[next_E[expert]] = home_E[expert]
            expert_C[next_E[expert]] = expert
            next_E[expert] += 1
    for rank in range(num_ranks):
        for slot in range(num_slots):
            expert = guests_RK[rank, slot]
            if expert >= 0:
                copy = next_E[expert]
                rank_C[copy] = rank
                expert_C[copy] = expert
                slot_C[copy] = rank * num_slots + slot
                next_E[expert] += 1
    return _Copies(first_E, rank_C, expert_C, slot_C)


@kernel
def _order_by_rank(rank_C: IntArray, num_ranks: int) -> tuple[IntArray, IntArray]:
    """Lists the copies rank by rank: `end_R` and `by_rank_C` of `_Search`."""
    end_R = np.zeros(num_ranks + 1, dtype=np.int64)
    for copy in range(rank_C.size):
        end_R[rank_C[copy] + 1] += 1
    for rank in range(num_ranks):
        end_R[rank + 1] += end_R[rank]
    by_rank_C = np.empty(rank_C.size, dtype=np.int64)
    next_R = end_R[:-1].copy()
    for copy in range(rank_C.size):
        by_rank_C[next_R[rank_C[copy]]] = copy
        next_R[rank_C[copy]] += 1
    return end_R, by_rank_C


@kernel
def _start_search(tokens_E: IntArray, home_E: IntArray, num_ranks: int, copies: _Copies) -> _Search:
    """Starts with every token at home."""
    end_R, by_rank_C = _order_by_rank(copies.rank_C, num_ranks)
    load_R = np.zeros(num_ranks, dtype=np.int64)
    tokens_C = np.zeros(copies.rank_C.size, dtype=np.int64)
    for expert in range(home_E.size):
        load_R[home_E[expert]] += tokens_E[expert]
        if copies.first_E[expert + 1] > copies.first_E[expert]:
            tokens_C[copies.first_E[expert]] = tokens_E[expert]
    return _Search(
        end_R,
        by_rank_C,
        load_R,
        tokens_C,
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.zeros(num_ranks, dtype=np.bool_),
    )


@kernel
def _find_sink(hot: int, cap: int, search: _Search, copies: _Copies) -> tuple[int, int]:
    """Searches breadth-first for the nearest rank below the cap, remembering how each rank was reached.

    Returns:
        The rank, or -1 if there is none, and how many ranks were reached.
    """
    search.seen_R[:] = False
    search.seen_R[hot] = True
    search.queue_R[0] = hot
    head, tail = 0, 1
    while head < tail:
        rank = search.queue_R[head]
        head += 1
        for index in range(search.end_R[rank], search.end_R[rank + 1]):
            giver = search.by_rank_C[index]
            if search.tokens_C[giver] == 0:
                continue
            expert = copies.expert_C[giver]
            for taker in range(copies.first_E[expert], copies.first_E[expert + 1]):
                other = copies.rank_C[taker]
                if search.seen_R[other]:
                    continue
                search.seen_R[other] = True
                search.giver_R[other] = giver
                search.taker_R[other] = taker
                search.queue_R[tail] = other
                tail += 1
                if search.load_R[other] < cap:
                    return other, tail
    return -1, tail


@kernel
def _push(hot: int, sink: int, cap: int, search: _Search, copies: _Copies) -> None:
    """Moves as many tokens as fit along the path that `_find_sink` left."""
    amount = min(search.load_R[hot] - cap, cap - search.load_R[sink])
    rank = sink
    while rank != hot:
        amount = min(amount, search.tokens_C[search.giver_R[rank]])
        rank = copies.rank_C[search.giver_R[rank]]
    rank = sink
    while rank != hot:
        search.tokens_C[search.giver_R[rank]] -= amount
        search.tokens_C[search.taker_R[rank]] += amount
        rank = copies.rank_C[search.giver_R[rank]]
    search.load_R[hot] -= amount
    search.load_R[sink] += amount


@kernel
def _level(cap: int, search: _Search, copies: _Copies) -> int:
    """Brings every rank down to the cap where there is a way.

    Returns:
        The cap, or a higher lower bound of the maximum load where some rank stays above it: the ranks that
        can be reached from it hold tokens that nobody else can take, so one of them has at least their
        average.
    """
    bound = cap
    for hot in range(search.load_R.size):
        while search.load_R[hot] > cap:
            sink, num_reached = _find_sink(hot, cap, search, copies)
            if sink < 0:
                trapped = 0
                for index in range(num_reached):
                    trapped += search.load_R[search.queue_R[index]]
                bound = max(bound, (trapped + num_reached - 1) // num_reached)
                break
            _push(hot, sink, cap, search, copies)
    return bound


@kernel
def _split_loads(tokens_E: IntArray, home_E: IntArray, guests_RK: IntArray) -> IntArray:
    """Finds how many tokens each guest takes over so that the maximum load is the smallest possible.

    Ranks are nodes; tokens of an expert can move between the ranks that hold a copy of it. Every cap is a
    lower bound of the optimum and they rise, so the first cap that all ranks meet is the optimum, rounded up
    to whole tokens.

    Returns:
        Tokens per guest slot. Shape: [ranks, slots].
    """
    num_ranks, num_slots = guests_RK.shape
    copies = _list_copies(home_E, guests_RK)
    search = _start_search(tokens_E, home_E, num_ranks, copies)
    cap = -1
    total = 0
    for load in search.load_R:
        total += load
    bound = (total + num_ranks - 1) // num_ranks
    while bound > cap:
        cap = bound
        bound = _level(cap, search, copies)
    tokens_RK = np.zeros((num_ranks, num_slots), dtype=np.int64)
    for copy in range(copies.slot_C.size):
        if copies.slot_C[copy] >= 0:
            tokens_RK[copies.rank_C[copy], copies.slot_C[copy] % num_slots] = search.tokens_C[copy]
    return tokens_RK
