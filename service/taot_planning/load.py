"""Load of ranks, and how uneven it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_planning.arrays import MAX_COUNT, IntArray, read_only
from taot_planning.kernel import brief_kernel


class MeasuredLoads(NamedTuple):
    """What the counts add up to."""

    tokens_E: IntArray
    """Tokens of each expert. Shape: [experts]."""

    load_R: IntArray
    """Tokens of each rank when every expert stays home. Shape: [ranks]."""

    total: int
    """All tokens."""

    is_valid: bool
    """Whether all homes and counts are in range; where they are not, the rest means nothing."""


def rank_loads(counts_RE: IntArray, home_E: IntArray) -> IntArray:
    """Tokens each rank computes when every expert stays home. Shape: [ranks]."""
    return measure_loads(read_only(counts_RE), read_only(home_E)).load_R


@brief_kernel
def measure_loads(counts_RE: IntArray, home_E: IntArray) -> MeasuredLoads:
    """Checks the counts and adds them up in one pass, since ranks do it in the middle of a training step.

    Args:
        counts_RE: tokens from each source rank to each expert. Shape: [ranks, experts].
        home_E: home rank of each expert. Shape: [experts].
    """
    tokens_E = np.zeros(home_E.size, dtype=np.int64)
    load_R = np.zeros(counts_RE.shape[0], dtype=np.int64)
    is_valid, total = True, 0
    for source in range(counts_RE.shape[0]):
        for expert in range(home_E.size):
            is_valid = is_valid and 0 <= counts_RE[source, expert] <= MAX_COUNT
            tokens_E[expert] += counts_RE[source, expert]
    for expert in range(home_E.size):
        if 0 <= home_E[expert] < load_R.size:
            load_R[home_E[expert]] += tokens_E[expert]
        else:
            is_valid = False
        total += tokens_E[expert]
    return MeasuredLoads(tokens_E, load_R, total, is_valid)


@brief_kernel
def add_up_quotas(quota_SRK: IntArray) -> IntArray:
    """Tokens each guest takes over, over all sources. Shape: [ranks, slots]."""
    num_sources, num_ranks, num_slots = quota_SRK.shape
    tokens_RK = np.zeros((num_ranks, num_slots), dtype=np.int64)
    for source in range(num_sources):
        for rank in range(num_ranks):
            for slot in range(num_slots):
                tokens_RK[rank, slot] += quota_SRK[source, rank, slot]
    return tokens_RK


@brief_kernel
def moved_loads(static_R: IntArray, home_E: IntArray, guests_RK: IntArray, tokens_RK: IntArray) -> IntArray:
    """Tokens each rank computes when guests take over theirs from their homes; all arrays are read-only.

    Args:
        static_R: tokens of each rank without guests. Shape: [ranks].
        home_E: home rank of each expert. Shape: [experts].
        guests_RK: expert in each guest slot, -1 where empty. Shape: [ranks, slots].
        tokens_RK: tokens of each guest. Shape: [ranks, slots].

    Returns:
        Tokens of each rank. Shape: [ranks].
    """
    loads_R = static_R.copy()
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if guests_RK[rank, slot] >= 0:
                loads_R[rank] += tokens_RK[rank, slot]
                loads_R[home_E[guests_RK[rank, slot]]] -= tokens_RK[rank, slot]
    return loads_R


def imbalance(loads_R: IntArray, speed_milli_R: IntArray | None = None) -> float:
    """(max - mean) / mean of the ranks' loads: 0 is perfect, and so is a layer without tokens.

    Args:
        loads_R: tokens each rank computes. Shape: [ranks].
        speed_milli_R: speeds of the ranks, None where all are alike; then each load counts as the time it takes,
            and the mean is the time that a perfect split would take. Shape: [ranks].
    """
    loads = loads_R.tolist()
    total = sum(loads)
    if total == 0:
        return 0.0
    # One division at the end of exact integer arithmetic, so that every machine gets the same float.
    if speed_milli_R is None:
        return float((max(loads) * len(loads) - total) / total)
    all_speeds = int(speed_milli_R.sum())
    times = [
        (load * all_speeds - total * speed) / (total * speed)
        for load, speed in zip(loads, speed_milli_R.tolist(), strict=True)
    ]
    return float(max(times))
