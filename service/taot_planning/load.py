"""Load of ranks, and how uneven it is."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import kernel


def rank_loads(counts_RE: IntArray, home_E: IntArray) -> IntArray:
    """Tokens each rank computes when every expert stays home. Shape: [ranks]."""
    return _add_up(read_only(counts_RE), read_only(home_E))


@kernel
def _add_up(counts_RE: IntArray, home_E: IntArray) -> IntArray:
    loads_R = np.zeros(counts_RE.shape[0], dtype=np.int64)
    for source in range(counts_RE.shape[0]):
        for expert in range(counts_RE.shape[1]):
            loads_R[home_E[expert]] += counts_RE[source, expert]
    return loads_R


def imbalance(loads_R: IntArray, speed_milli_R: IntArray | None = None) -> float:
    """(max - mean) / mean of the ranks' loads: 0 is perfect, and so is a layer without tokens.

    Args:
        loads_R: tokens each rank computes. Shape: [ranks].
        speed_milli_R: speeds of the ranks, None where all are alike; then each load counts as the time it takes,
            and the mean is the time that a perfect split would take. Shape: [ranks].
    """
    total = int(loads_R.sum())
    if total == 0:
        return 0.0
    # One division at the end of exact integer arithmetic, so that every machine gets the same float.
    if speed_milli_R is None:
        return (int(loads_R.max()) * loads_R.size - total) / total
    all_speeds = int(speed_milli_R.sum())
    times = [
        (load * all_speeds - total * speed) / (total * speed)
        for load, speed in zip(loads_R.tolist(), speed_milli_R.tolist(), strict=True)
    ]
    return float(max(times))
