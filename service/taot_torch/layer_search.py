"""What there is to search for in one layer: its hot ranks, its cold ranks, and the experts that may travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taot_planning import EMPTY_SLOT, LayerProblem, PlanningOptions, imbalance, rank_loads
from taot_planning.arrays import IntArray
from taot_planning.capacity import pace_for
from taot_planning.options import PPM

EXACT_PRODUCTS = 2**51
"""Two ratios of whole numbers whose cross products stay below this are equal, or differ as float64 too."""


@dataclass(frozen=True, kw_only=True)
class LayerSearch:
    """Hot ranks are above the cap; cold ranks are below it and have slots."""

    cap: int
    """Tokens that no rank should exceed."""

    ranks_C: IntArray
    """Ranks of the cold ranks. Shape: [cold ranks]."""

    surplus_H: IntArray
    """Tokens above the cap. Shape: [hot ranks]."""

    room_C: IntArray
    """Tokens below the cap. Shape: [cold ranks]."""

    slots_C: IntArray
    """Guest slots. Shape: [cold ranks]."""

    cost_HC: IntArray
    """Cost of a guest, in thousandths. Shape: [hot ranks, cold ranks]."""

    expert_HX: IntArray
    """Experts of each hot rank, largest first, then -1. Shape: [hot ranks, experts of one]."""

    tokens_HX: IntArray
    """Their tokens. Shape: [hot ranks, experts of one]."""


def make_search(problem: LayerProblem, options: PlanningOptions) -> LayerSearch | None:
    """What to search for; None: nothing, or more than the plain search knows.

    The plain search knows the objective `tolerance`, for the counts at hand, without resident guests, relays, speeds,
    token caps, rates or a least number of tokens per guest, and with costs and counts whose ratios fit float64. The cap
    is (1 + tolerance) x mean, rounded up.
    """
    if not _is_plain(problem, options):
        return None
    load_R, topology = rank_loads(problem.counts_RE, problem.home_E), problem.topology
    cap = pace_for(int(load_R.sum()), options.tolerance_ppm, topology)
    ranks_H = np.flatnonzero(load_R > cap)
    ranks_C = np.flatnonzero((load_R < cap) & (topology.slots_R > 0))
    wanted = options.min_imbalance_ppm == 0 or imbalance(load_R) * PPM > options.min_imbalance_ppm
    if ranks_H.size == 0 or ranks_C.size == 0 or not wanted:
        return None
    if int(load_R.max()) * int(topology.cost_milli_RR.max()) >= EXACT_PRODUCTS:
        return None
    tokens_E: IntArray = problem.counts_RE.sum(axis=0)
    order_E = np.argsort(-tokens_E, kind="stable")
    expert_HX = pad([order_E[problem.home_E[order_E] == rank] for rank in ranks_H], fill=EMPTY_SLOT)
    return LayerSearch(
        cap=cap,
        ranks_C=ranks_C,
        surplus_H=load_R[ranks_H] - cap,
        room_C=cap - load_R[ranks_C],
        slots_C=topology.slots_R[ranks_C],
        cost_HC=topology.cost_milli_RR[np.ix_(ranks_H, ranks_C)],
        expert_HX=expert_HX,
        tokens_HX=np.where(expert_HX >= 0, tokens_E[expert_HX], 0),
    )


def _is_plain(problem: LayerProblem, options: PlanningOptions) -> bool:
    topology = problem.topology
    extras = (
        problem.resident_RK,
        problem.recent_tokens_NE,
        problem.rates,
        topology.speed_milli_R,
        topology.token_cap_R,
    )
    return (
        all(extra is None for extra in extras)
        and not topology.has_relay
        and options.objective == "tolerance"
        and options.min_tokens_per_guest <= 1
    )


def pad(arrays: Sequence[IntArray], *, fill: int) -> IntArray:
    """Stacks arrays of different sizes. Shape: [arrays, the largest size along each axis]."""
    padded = np.full((len(arrays), *np.max([array.shape for array in arrays], axis=0)), fill, dtype=np.int64)
    for index, array in enumerate(arrays):
        padded[index][tuple(slice(size) for size in array.shape)] = array
    return padded
