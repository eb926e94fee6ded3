"""How many tokens each rank may have for all of them to end in time.

A *pace* is a point in time at which ranks end, measured in tokens of the fastest rank. At a pace every rank has a
capacity, so that ranks of different speeds are compared by one number; where all are alike a pace is a load.
Capacities are rounded up to whole tokens, so that the capacities of a perfect split hold all tokens.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.options import PPM
from taot_planning.topology import Topology


def capacities_at(pace: int, topology: Topology) -> IntArray:
    """Tokens that each rank computes within a pace, and can take at all. Shape: [ranks]."""
    if topology.speed_milli_R is None and topology.token_cap_R is None:
        return np.full(topology.num_ranks, pace, dtype=np.int64)
    speeds_R = topology.speeds_R
    fastest = int(speeds_R.max())
    # pace * speed / fastest, in parts that cannot overflow.
    capacity_R: IntArray = pace // fastest * speeds_R - (-(pace % fastest) * speeds_R // fastest)
    return capacity_R if topology.token_cap_R is None else np.minimum(capacity_R, topology.token_cap_R)


def excess_at(pace: int, loads_R: IntArray, topology: Topology) -> IntArray:
    """Tokens of each rank above its capacity, negative below it. Shape: [ranks]."""
    if topology.speed_milli_R is None and topology.token_cap_R is None:
        return loads_R - pace
    return loads_R - capacities_at(pace, topology)


def is_within(loads_R: IntArray, pace: int, topology: Topology) -> bool:
    """Whether ranks with these loads have ended at a pace, all within their token caps."""
    if topology.speed_milli_R is None and topology.token_cap_R is None:
        fullest: int = max(loads_R.tolist())  # of a few numbers that is quicker
        return fullest <= pace
    return int(excess_at(pace, loads_R, topology).max()) <= 0


def strain(loads_R: IntArray, topology: Topology) -> tuple[int, int]:
    """Tokens above token caps, and the pace: what token assignment makes small, in this order."""
    above = 0
    if topology.token_cap_R is not None:
        above = int(np.maximum(loads_R - topology.token_cap_R, 0).sum())
    return above, pace_of(loads_R, topology)


def pace_of(loads_R: IntArray, topology: Topology) -> int:
    """The smallest pace at which ranks with these loads have ended, whatever their token caps."""
    if topology.speed_milli_R is None:
        fullest: int = max(loads_R.tolist())  # of a few numbers that is quicker
        return fullest
    speeds_R = topology.speed_milli_R
    fastest = int(speeds_R.max())
    # Capacities are rounded up, so all but the last token must be done before the pace.
    done_R = loads_R - 1
    pace_R = done_R // speeds_R * fastest + done_R % speeds_R * fastest // speeds_R + 1
    return int(np.where(loads_R > 0, pace_R, 0).max())


def pace_for(total: int, tolerance_ppm: int, topology: Topology) -> int:
    """The pace of a split of `total` tokens with this residual imbalance, rounded up."""
    if topology.speed_milli_R is None:
        return -(-total * (PPM + tolerance_ppm) // (PPM * topology.num_ranks))
    speeds_R = topology.speed_milli_R
    return -(-total * (PPM + tolerance_ppm) * int(speeds_R.max()) // (PPM * int(speeds_R.sum())))
