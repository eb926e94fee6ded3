"""Where every token of a micro-batch goes: a pure function of what all ranks know.

A copy is one place where an expert is computed on a rank: its home experts in ascending order, then its guest
slots. Tokens travel sorted by destination rank and, within it, by copy; a rank receives them sorted by source
and copy and regroups them by copy.

Axis letters: S source ranks, R destination ranks, C copies on a rank, E experts, K guest slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import kernel


class TokenLayout(NamedTuple):
    """One rank's share of the token exchange of one layer."""

    send_order: IntArray
    """Positions in the expert-sorted list of this rank's (token, choice) pairs, in sending order."""

    send_splits: list[int]
    """Pairs sent to each rank."""

    receive_splits: list[int]
    """Pairs received from each rank."""

    group_order: IntArray
    """Positions in the received list, grouped by copy."""

    tokens_C: list[int]
    """Pairs of each copy on this rank: home experts in ascending order, then guest slots."""

    num_home: int
    """How many of the copies are home experts."""

    @property
    def num_home_tokens(self) -> int:
        """Pairs computed by home experts."""
        return sum(self.tokens_C[: self.num_home])


def lay_out_tokens(
    *, rank: int, counts_SE: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray
) -> TokenLayout:
    """Lays out the token exchange of one rank.

    Args:
        rank: the rank whose share is wanted.
        counts_SE: tokens of each source rank for each expert. Shape: [ranks, experts].
        home_E: home rank of each expert. Shape: [experts].
        guests_RK: expert in each guest slot, -1 where empty. Shape: [ranks, slots].
        quota_SRK: tokens of each source rank for each guest slot. Shape: [ranks, ranks, slots].
    """
    # Read-only arrays all: the kernels are compiled once, not again for every caller in the middle of a step.
    arrays = read_only(counts_SE), read_only(home_E), read_only(guests_RK), read_only(quota_SRK)
    send_order, group_order, sizes_N = lay_out(rank, *arrays)
    return made_layout(send_order, group_order, sizes_N.tolist(), shape=guests_RK.shape)


def made_layout(
    send_order: IntArray, group_order: IntArray, sizes: list[int], *, shape: tuple[int, ...]
) -> TokenLayout:
    """The layout of what `lay_out` returns for guests of a shape, [ranks, slots]."""
    num_ranks, num_slots = shape
    return TokenLayout(
        send_order=send_order,
        send_splits=sizes[:num_ranks],
        receive_splits=sizes[num_ranks : 2 * num_ranks],
        group_order=group_order,
        tokens_C=sizes[2 * num_ranks :],
        num_home=len(sizes) - 2 * num_ranks - num_slots,
    )


def warm_up() -> None:
    """Compiles the kernels, so that no first call in a training step does."""
    empty = np.zeros((1, 1, 1), dtype=np.int64)
    lay_out_tokens(rank=0, counts_SE=empty[0], home_E=empty[0, 0], guests_RK=empty[0] - 1, quota_SRK=empty)


@kernel
def _at_home(counts_SE: IntArray, guests_RK: IntArray, quota_SRK: IntArray) -> IntArray:
    """Tokens of each source that stay with the expert's home. Shape: [sources, experts]."""
    num_ranks, num_slots = guests_RK.shape
    at_home_SE = counts_SE.copy()
    for rank in range(num_ranks):
        for slot in range(num_slots):
            if guests_RK[rank, slot] >= 0:
                for source in range(num_ranks):
                    at_home_SE[source, guests_RK[rank, slot]] -= quota_SRK[source, rank, slot]
    return at_home_SE


@kernel
def _lay_out_sending(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    rank: int, counts_SE: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray, at_home_SE: IntArray
) -> tuple[IntArray, IntArray]:
    """The sending order of `rank`, and how many pairs go to each rank.

    In the expert-sorted list, an expert's pairs go to its home first, then to its guests by rank and slot.
    """
    num_ranks, num_slots = guests_RK.shape
    first_E = np.zeros(home_E.size, dtype=np.int64)
    for expert in range(1, home_E.size):
        first_E[expert] = first_E[expert - 1] + counts_SE[rank, expert - 1]
    next_guest_E = first_E + at_home_SE[rank]
    order = np.empty(counts_SE[rank].sum(), dtype=np.int64)
    splits_R = np.zeros(num_ranks, dtype=np.int64)
    filled = 0
    for destination in range(num_ranks):
        before = filled
        for expert in range(home_E.size):
            if home_E[expert] == destination:
                for pair in range(at_home_SE[rank, expert]):
                    order[filled] = first_E[expert] + pair
                    filled += 1
        for slot in range(num_slots):
            expert = guests_RK[destination, slot]
            if expert >= 0:
                for pair in range(quota_SRK[rank, destination, slot]):
                    order[filled] = next_guest_E[expert] + pair
                    filled += 1
                next_guest_E[expert] += quota_SRK[rank, destination, slot]
        splits_R[destination] = filled - before
    return order, splits_R


@kernel
def _lay_out_receiving(
    rank: int, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray, at_home_SE: IntArray
) -> tuple[IntArray, IntArray]:
    """The order that groups what `rank` receives by copy, and the pairs per source and copy."""
    num_ranks, num_slots = guests_RK.shape
    num_home = 0
    for expert in range(home_E.size):
        if home_E[expert] == rank:
            num_home += 1
    received_SC = np.zeros((num_ranks, num_home + num_slots), dtype=np.int64)
    for source in range(num_ranks):
        copy = 0
        for expert in range(home_E.size):
            if home_E[expert] == rank:
                received_SC[source, copy] = at_home_SE[source, expert]
                copy += 1
        for slot in range(num_slots):
            if guests_RK[rank, slot] >= 0:
                received_SC[source, num_home + slot] = quota_SRK[source, rank, slot]
    order = np.empty(received_SC.sum(), dtype=np.int64)
    first_S = np.zeros(num_ranks, dtype=np.int64)
    for source in range(1, num_ranks):
        first_S[source] = first_S[source - 1] + received_SC[source - 1].sum()
    filled = 0
    for copy in range(num_home + num_slots):
        for source in range(num_ranks):
            for pair in range(received_SC[source, copy]):
                order[filled] = first_S[source] + pair
                filled += 1
            first_S[source] += received_SC[source, copy]
    return order, received_SC


@kernel
def lay_out(
    rank: int, counts_SE: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """The orders of sending and of grouping, and in one array the pairs sent to each rank, from each, of each copy."""
    at_home_SE = _at_home(counts_SE, guests_RK, quota_SRK)
    send_order, sent_R = _lay_out_sending(rank, counts_SE, home_E, guests_RK, quota_SRK, at_home_SE)
    group_order, received_SC = _lay_out_receiving(rank, home_E, guests_RK, quota_SRK, at_home_SE)
    return send_order, group_order, np.concatenate((sent_R, received_SC.sum(axis=1), received_SC.sum(axis=0)))
