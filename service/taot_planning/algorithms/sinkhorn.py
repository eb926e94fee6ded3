"""Phase 1 of the published method: an entropic transport plan from hot ranks to cold ones.

Axis letters: the first R of a flow is the rank that gives, the second the rank that takes.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import FloatArray
from taot_planning.kernel import kernel

ITERATIONS = 50
"""Fixed (arXiv 2608.03676, phase 1)."""

DENOMINATOR_FLOOR = 1e-8
"""Keeps the scalings finite (arXiv 2608.03676, phase 1)."""

_TAYLOR_TERMS = 14
"""At |x| <= 1/4 the first term left out is below 1e-20."""


@kernel
def exponential(x: float) -> float:
    """exp(x) for -1 <= x <= 0 from +, * and / alone: the math library's result depends on the machine."""
    quarter = x * 0.25
    series = 1.0
    for term in range(_TAYLOR_TERMS, 0, -1):
        series = 1.0 + quarter / term * series
    square = series * series
    return square * square


@kernel
def _gibbs_kernel(cost_RR: FloatArray) -> FloatArray:
    """exp(-cost / eps) where eps is the largest cost. Shape: [giving ranks, taking ranks]."""
    epsilon = cost_RR.max()
    gibbs_RR = np.empty_like(cost_RR)
    last_cost, last_value = epsilon, exponential(-1.0)
    for giver in range(cost_RR.shape[0]):
        for taker in range(cost_RR.shape[1]):
            # Costs of neighbours are mostly equal.
            if cost_RR[giver, taker] != last_cost:
                last_cost = cost_RR[giver, taker]
                last_value = exponential(-last_cost / epsilon)
            gibbs_RR[giver, taker] = last_value
    return gibbs_RR


@kernel
def _scaling(margin_R: FloatArray, gibbs_RR: FloatArray, other_R: FloatArray) -> FloatArray:
    """Gives margin / max(other @ gibbs, floor), every sum taken in index order. Shape: [ranks]."""
    sum_R = np.zeros_like(margin_R)
    for inner in range(other_R.size):
        for outer in range(margin_R.size):
            sum_R[outer] += other_R[inner] * gibbs_RR[inner, outer]
    for rank in range(margin_R.size):
        sum_R[rank] = margin_R[rank] / max(sum_R[rank], DENOMINATOR_FLOOR)
    return sum_R


@kernel
def _total(values_R: FloatArray) -> float:
    total = 0.0
    for rank in range(values_R.size):
        total += values_R[rank]
    return total


@kernel
def sinkhorn_flow(surplus_R: FloatArray, spare_R: FloatArray, cost_RR: FloatArray) -> FloatArray:
    """How the surplus would flow to the spare ranks (arXiv 2608.03676, phase 1; Sinkhorn and Knopp).

    A hint for the matching, not a plan: it ignores experts, slots and whole tokens. Surplus beyond the spare
    is scaled down first.

    Args:
        surplus_R: tokens to give, >= 0. Shape: [ranks].
        spare_R: tokens that can be taken, >= 0. Shape: [ranks].
        cost_RR: cost of a move, > 0 everywhere. Shape: [giving ranks, taking ranks].

    Returns:
        Tokens from rank to rank; a column adds up to at most its spare. Shape: [giving ranks, taking ranks].
    """
    num_ranks = surplus_R.size
    flow_RR = np.zeros((num_ranks, num_ranks))
    total_surplus, total_spare = _total(surplus_R), _total(spare_R)
    if total_surplus == 0.0:
        return flow_RR
    surplus_R = surplus_R * min(1.0, total_spare / total_surplus)
    gibbs_RR = _gibbs_kernel(cost_RR)
    transposed_RR = np.empty_like(gibbs_RR)
    for giver in range(num_ranks):
        for taker in range(num_ranks):
            transposed_RR[taker, giver] = gibbs_RR[giver, taker]
    give_R, take_R = np.ones(num_ranks), np.ones(num_ranks)
    for _ in range(ITERATIONS):
        give_R = _scaling(surplus_R, transposed_RR, take_R)
        take_R = _scaling(spare_R, gibbs_RR, give_R)
    for taker in range(num_ranks):
        column = 0.0
        for giver in range(num_ranks):
            flow_RR[giver, taker] = give_R[giver] * gibbs_RR[giver, taker] * take_R[taker]
            column += flow_RR[giver, taker]
        # Published, though the last scaling leaves no more than rounding errors to cap.
        if column > spare_R[taker]:
            for giver in range(num_ranks):
                flow_RR[giver, taker] *= spare_R[taker] / column
    return flow_RR
