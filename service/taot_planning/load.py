"""Load of ranks, and how uneven it is."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray


def rank_loads(counts_RE: IntArray, home_E: IntArray) -> IntArray:
    """Tokens each rank computes when every expert stays home. Shape: [ranks]."""
    loads_R = np.zeros(counts_RE.shape[0], dtype=np.int64)
    np.add.at(loads_R, home_E, counts_RE.sum(axis=0))
    return loads_R


def imbalance(loads_R: IntArray) -> float:
    """(max - mean) / mean of the ranks' loads: 0 is perfect, and so is a layer without tokens."""
    total = int(loads_R.sum())
    if total == 0:
        return 0.0
    # One division at the end of exact integer arithmetic, so that every machine gets the same float.
    return (int(loads_R.max()) * loads_R.size - total) / total
