"""How many tokens each copy of an expert takes, so that all ranks end as early as the placement allows.

The smallest pace is found by augmenting paths and Newton steps on the cut that blocks them (the discrete Newton method
for parametric maximum flow). Ranks are its nodes; tokens of an expert can move between the ranks that hold a copy.

Axis letters: C and F as in `copies`, S source ranks or their sum; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray, read_only
from taot_planning.copies import END, EXPERT, FIRST, NEXT, RANK, SLOT
from taot_planning.kernel import inner_kernel, kernel

NO_CAPS = read_only(np.empty(0, dtype=np.int64))
"""Ranks may have any number of tokens."""

_UNLIMITED = 2**62
"""More tokens than any layer has."""


class _Search(NamedTuple):
    """The loads so far, what bounds them, and the memory of the path search."""

    head_R: IntArray
    """The first copy on each rank, -1 where there is none. Shape: [ranks]."""

    speed_R: IntArray
    """Speeds in thousandths. Shape: [ranks]."""

    cap_R: IntArray
    """Tokens each rank may have whatever the pace. Shape: [ranks]."""

    limit_R: IntArray
    """Tokens each rank may have at the pace that is tried. Shape: [ranks]."""

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

    spread_C: NDArray[np.bool_]
    """At the first copy of an expert: whether the search has reached all its copies. Shape: [copies]."""


@kernel
def _start_search(copies_CF: IntArray, speeds_R: IntArray, caps_R: IntArray) -> _Search:
    """Starts without tokens; without caps every rank may have any number."""
    num_ranks = speeds_R.size
    num_copies = copies_CF.shape[0]
    head_R = np.full(num_ranks, -1, dtype=np.int64)
    for copy in range(num_copies - 1, -1, -1):
        head_R[copies_CF[copy, RANK]] = copy
    cap_R = np.full(num_ranks, _UNLIMITED, dtype=np.int64)
    if caps_R.size > 0:
        cap_R[:] = caps_R
    return _Search(
        head_R,
        speeds_R,
        cap_R,
        np.full(num_ranks, -1, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_copies, dtype=np.int64),
        np.arange(num_ranks),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty(num_ranks, dtype=np.bool_),
        np.empty(num_copies, dtype=np.bool_),
    )


@inner_kernel
def _send_home(tokens_E: IntArray, home_E: IntArray, copies_CF: IntArray, search: _Search) -> None:
    """Puts every token at its home."""
    search.load_R[:] = 0
    for expert in range(home_E.size):
        search.load_R[home_E[expert]] += tokens_E[expert]
    for copy in range(copies_CF.shape[0]):
        search.tokens_C[copy] = tokens_E[copies_CF[copy, EXPERT]] if copies_CF[copy, SLOT] < 0 else 0


@inner_kernel
def _find_sink(hot: int, search: _Search, copies_CF: IntArray) -> tuple[int, int]:
    """Searches breadth-first for the nearest rank below its limit, remembering how each rank was reached.

    Returns:
        The rank, or -1 if there is none, and how many ranks were reached.
    """
    search.seen_R[:] = False
    search.spread_C[:] = False
    search.seen_R[hot] = True
    search.queue_R[0] = hot
    head, tail = 0, 1
    while head < tail:
        rank = search.queue_R[head]
        head += 1
        following = search.head_R[rank]
        while following >= 0:
            giver = following
            following = copies_CF[giver, NEXT]
            first = copies_CF[giver, FIRST]
            if search.tokens_C[giver] == 0 or search.spread_C[first]:
                continue
            search.spread_C[first] = True
            for taker in range(first, copies_CF[giver, END]):
                other = copies_CF[taker, RANK]
                if search.seen_R[other]:
                    continue
                search.seen_R[other] = True
                search.giver_R[other] = giver
                search.taker_R[other] = taker
                search.queue_R[tail] = other
                tail += 1
                if search.load_R[other] < search.limit_R[other]:
                    return other, tail
    return -1, tail


@inner_kernel
def _push(hot: int, sink: int, search: _Search, copies_CF: IntArray) -> None:
    """Moves as many tokens as fit along the path that `_find_sink` left."""
    amount = min(search.load_R[hot] - search.limit_R[hot], search.limit_R[sink] - search.load_R[sink])
    rank = sink
    while rank != hot:
        amount = min(amount, search.tokens_C[search.giver_R[rank]])
        rank = copies_CF[search.giver_R[rank], RANK]
    rank = sink
    while rank != hot:
        search.tokens_C[search.giver_R[rank]] -= amount
        search.tokens_C[search.taker_R[rank]] += amount
        rank = copies_CF[search.giver_R[rank], RANK]
    search.load_R[hot] -= amount
    search.load_R[sink] += amount


@inner_kernel
def _relieve(hot: int, search: _Search, copies_CF: IntArray) -> int:
    """Brings a rank down to its limit if there is a way.

    Returns:
        0, or if the rank stays above its limit, how many ranks can be reached from it: the first of `queue_R`. They
        hold tokens that no other rank can take.
    """
    while search.load_R[hot] > search.limit_R[hot]:
        sink, num_reached = _find_sink(hot, search, copies_CF)
        if sink < 0:
            return num_reached
        _push(hot, sink, search, copies_CF)
    return 0


@inner_kernel
def _capacity(pace: int, speed: int, fastest: int) -> int:
    """The same as `capacity.capacities_at`, for one rank without a cap."""
    return pace // fastest * speed - (-(pace % fastest) * speed // fastest)


@kernel
def _pace_of_reached(num_reached: int, pace: int, search: _Search) -> int:
    """The smallest pace at which the first ranks of `queue_R` may hold what they hold.

    Caps bind those that they bind at the present pace and no others, so this is a lower bound.
    """
    fastest = int(search.speed_R.max())
    speed, num_open, trapped = 0, 0, 0
    for rank in search.queue_R[:num_reached]:
        trapped += search.load_R[rank]
        if search.limit_R[rank] == search.cap_R[rank]:
            trapped -= search.cap_R[rank]
        else:
            speed += search.speed_R[rank]
            num_open += 1
    # In parts that cannot overflow. Rounding up adds less than one token per rank.
    enough = trapped // speed * fastest - (-(trapped % speed) * fastest // speed)
    too_small = max(pace, enough - num_open * fastest // speed - 2)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        room = -trapped
        for rank in search.queue_R[:num_reached]:
            if search.limit_R[rank] != search.cap_R[rank]:
                room += _capacity(middle, search.speed_R[rank], fastest)
        if room < 0:
            too_small = middle
        else:
            enough = middle
    return enough


@kernel
def _find_pace(search: _Search, copies_CF: IntArray) -> None:
    """Spreads the tokens at the smallest pace.

    Every pace that is tried is a lower bound and they rise, so the first that all ranks meet is the smallest. Some
    pace will do, because caps are such that the tokens fit.
    """
    num_ranks = search.load_R.size
    fastest = int(search.speed_R.max())
    pace = -1
    bound = _pace_of_reached(num_ranks, pace, search)
    while bound > pace:
        pace = bound
        for rank in range(num_ranks):
            search.limit_R[rank] = min(_capacity(pace, search.speed_R[rank], fastest), search.cap_R[rank])
        for rank in range(num_ranks):
            num_reached = _relieve(rank, search, copies_CF)
            if num_reached > 0:
                bound = max(bound, _pace_of_reached(num_reached, pace, search))


@kernel
def _raise_caps(search: _Search, copies_CF: IntArray) -> None:
    """Raises the caps of ranks that cannot be relieved down to them, to what is left there."""
    search.limit_R[:] = search.cap_R
    for rank in range(search.load_R.size):
        _relieve(rank, search, copies_CF)
        search.cap_R[rank] = max(search.cap_R[rank], search.load_R[rank])
    search.limit_R[:] = -1
    search.queue_R[:] = np.arange(search.queue_R.size)


@kernel
def load_copies(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    counts_SE: IntArray, home_E: IntArray, copies_CF: IntArray, speeds_R: IntArray, caps_R: IntArray, num_slots: int
) -> IntArray:
    """Finds how many tokens each guest takes over so that the pace is the smallest possible (see `assign_tokens`).

    Args:
        counts_SE: tokens from each source rank to each expert, read-only. Shape: [source ranks, experts].
        home_E: home rank of each expert, read-only. Shape: [experts].
        copies_CF: the copies of experts that have guests, see `list_copies`. Shape: [copies, 7].
        speeds_R: speeds of the ranks, in thousandths. Shape: [ranks].
        caps_R: tokens that each rank can take, or `NO_CAPS`. Shape: [ranks].
        num_slots: the largest number of guest slots of any rank.

    Returns:
        Tokens per guest slot. Shape: [ranks, slots].
    """
    tokens_E = np.zeros(home_E.size, dtype=np.int64)
    for source in range(counts_SE.shape[0]):
        for expert in range(home_E.size):
            tokens_E[expert] += counts_SE[source, expert]
    search = _start_search(copies_CF, speeds_R, caps_R)
    if caps_R.size > 0:
        _send_home(tokens_E, home_E, copies_CF, search)
        _raise_caps(search, copies_CF)
    _send_home(tokens_E, home_E, copies_CF, search)
    _find_pace(search, copies_CF)
    tokens_RK = np.zeros((speeds_R.size, num_slots), dtype=np.int64)
    for copy in range(copies_CF.shape[0]):
        if copies_CF[copy, SLOT] >= 0:
            tokens_RK[copies_CF[copy, RANK], copies_CF[copy, SLOT]] = search.tokens_C[copy]
    return tokens_RK
