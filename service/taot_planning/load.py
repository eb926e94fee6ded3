"""Load of ranks, and how uneven it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import brief_kernel


class MeasuredLoads(NamedTuple):
    """What the counts add up to."""

    tokens_E: IntArray
    """Tokens of each expert. Shape: [experts]."""

    load_R: IntArray
    """Tokens of each rank when every expert stays home. Shape: [ranks]."""

    total: int
    """All tokens."""


def rank_loads(counts_RE: IntArray, home_E: IntArray) -> IntArray:
    """Tokens each rank computes when every expert stays home. Shape: [ranks]."""
    return measure_loads(read_only(counts_RE), read_only(home_E)).load_R


@brief_kernel
def measure_loads(counts_RE: IntArray, home_E: IntArray) -> MeasuredLoads:
    """Adds the counts up in one pass.

    Args:
        counts_RE: tokens from each source rank to each expert. Shape: [ranks, experts].
        home_E: home rank of each expert. Shape: [experts].
    """
    tokens_E = np.zeros(home_E.size, dtype=np.int64)
    load_R = np.zeros(counts_RE.shape[0], dtype=np.int64)
    for source in range(counts_RE.shape[0]):
        for expert in range(home_E.size):
            tokens_E[expert] += counts_RE[source, expert]
    total = 0
    for expert in range(home_E.size):
        load_R[home_E[expert]] += tokens_E[expert]
        total += tokens_E[expert]
    return MeasuredLoads(tokens_E, load_R, total)


def moved_loads(static_R: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray) -> IntArray:
    """Tokens each rank computes when guests take over their quotas from loads of `static_R`, see `LayerPlan`.

    Shape: [ranks].
    """
    loads_R = static_R.copy()
    _move_quotas(loads_R, read_only(home_E), read_only(guests_RK), read_only(quota_SRK))
    return loads_R


@brief_kernel
def _move_quotas(loads_R: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray) -> None:
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            expert = guests_RK[rank, slot]
            if expert >= 0:
                for source in range(quota_SRK.shape[0]):
                    loads_R[rank] += quota_SRK[source, rank, slot]
                    loads_R[home_E[expert]] -= quota_SRK[source, rank, slot]


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
