"""Phases 1 and 2 of the published method together: where guests go, and how much each is to take."""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms.matching import match_columns
from taot_planning.algorithms.sinkhorn import sinkhorn_flow
from taot_planning.algorithms.surplus import measure_surplus
from taot_planning.arrays import FloatArray, IntArray
from taot_planning.layer_problem import LayerProblem
from taot_planning.topology import INNERMOST_COST_MILLI, Topology

HINT_WEIGHT = 0.1
"""Weight of the flow against the topology in the score (arXiv 2608.03676, phase 2)."""

SHARE_DIGITS = 9
"""Decimals of the flow's shares that count in the score."""


def transport_costs(topology: Topology) -> FloatArray:
    """W of the paper: 1 on the diagonal and within a node, lambda between nodes. Shape: [ranks, ranks].

    Further levels and cost matrices keep their own costs, relative to the innermost level. The largest entry
    takes the part of lambda as eps of the flow, and 1 / W that of 1 / lambda in scores and bonuses.
    """
    cost_RR = topology.cost_milli_RR / INNERMOST_COST_MILLI
    np.fill_diagonal(cost_RR, 1.0)
    return cost_RR


def place_guests(
    problem: LayerProblem, *, tolerance_ppm: int, use_topology: bool = True, use_hint: bool = True
) -> tuple[IntArray, IntArray]:
    """Places guests by Sinkhorn flow and column-first matching (arXiv 2608.03676, phases 1 and 2).

    The score of a match is min(spill, spare) + alpha / W[home, rank] + 0.1 alpha x the share of the home's
    surplus that flows to the rank; alpha is the mean load of an expert.

    The model ignores the bytes of an expert, congestion of links, the speed of ranks, and which sources the
    tokens come from.

    Args:
        problem: the layer.
        tolerance_ppm: residual imbalance to leave alone and to fill up to, in parts per million; the
            published method has none, which is 0.
        use_topology: whether nearness counts in the score; off for the published ablation only.
        use_hint: whether the flow counts in the score; off for the published ablation only.

    Returns:
        guests_RK, the expert in each slot, -1 where empty, and amount_RK, what it is to take in R-ths of a
        token. Shapes: [ranks, slots].
    """
    surplus = measure_surplus(problem, tolerance_ppm=tolerance_ppm)
    cost_RR = transport_costs(problem.topology)
    surplus_R, spare_R = surplus.surplus_R / problem.num_ranks, surplus.spare_R / problem.num_ranks
    flow_RR = sinkhorn_flow(surplus_R, spare_R, cost_RR)
    # Homes in one node mostly have equal shares: rounded, they are ties for the lowest index and not for noise.
    share_RR = np.round(flow_RR / np.maximum(surplus_R, 1.0)[:, None], SHARE_DIGITS)
    alpha = surplus.total_tokens / problem.num_experts
    # Weights of 0.0 rather than other arrays: the kernel is compiled for these.
    bonus_RR = (alpha * float(use_topology)) * (1.0 / cost_RR)
    hint_RR = (HINT_WEIGHT * alpha * float(use_hint)) * share_RR
    return match_columns(surplus.spill_E, surplus.spare_R, problem.topology.slots_R, problem.home_E, bonus_RR, hint_RR)
