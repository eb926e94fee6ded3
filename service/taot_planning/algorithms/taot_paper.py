"""`taot-paper`: the published method, phase by phase, as the baseline to reproduce (arXiv 2608.03676).

Costs map to the paper's W as `transport_costs` says. The published method works with fractions of tokens;
here what the matching assigns is rounded to whole tokens before the auction, see `whole_tokens`.

The published ablation switches terms of the score off: nearness (`taot-paper-no-topology`), the flow's hint
(`taot-paper-no-hint`), or both (`taot-paper-no-topology-no-hint`). Flow and auction keep seeing the topology, so a hint
carries some of it.
"""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms.auction import auction_tokens
from taot_planning.algorithms.placement import place_guests, transport_costs
from taot_planning.arrays import FloatArray, IntArray
from taot_planning.kernel import kernel
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions
from taot_planning.topology import Topology

OWN_RANK_BONUS = 0.0
"""What a guest's own rank is worth to it in the auction, as in the public code. A known weakness: tokens that
are on the guest's rank already are the cheapest of all, but every other source is preferred to them."""


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans by Sinkhorn flow, column-first matching and token auction (arXiv 2608.03676).

    The method has no tolerance, so `options.tolerance_ppm` is not used; nor does it compare its plan with
    moving nothing. Guests that get no whole token are left out.
    """
    del options
    return _plan(problem, use_topology=True, use_hint=True)


def plan_without_hint(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """The ablation in which the flow does not count in the score: "topology only"."""
    del options
    return _plan(problem, use_topology=True, use_hint=False)


def plan_without_topology(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """The ablation in which nearness counts through the flow only; not among the published figures."""
    del options
    return _plan(problem, use_topology=False, use_hint=True)


def plan_without_topology_or_hint(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """The ablation in which only the tokens that fit count: "no topology, no hint"."""
    del options
    return _plan(problem, use_topology=False, use_hint=False)


def _plan(problem: LayerProblem, *, use_topology: bool, use_hint: bool) -> LayerPlan:
    guests_RK, amount_RK = place_guests(problem, tolerance_ppm=0, use_topology=use_topology, use_hint=use_hint)
    tokens_RK = whole_tokens(guests_RK, amount_RK, problem.num_experts)
    quota_SRK = auction_tokens(problem.counts_RE, guests_RK, tokens_RK, source_bonuses(problem.topology))
    return LayerPlan(guests_RK=np.where(quota_SRK.any(axis=0), guests_RK, EMPTY_SLOT), quota_SRK=quota_SRK)


def source_bonuses(topology: Topology) -> FloatArray:
    """What a source is worth to a guest rank: 1 / W, or `OWN_RANK_BONUS`. Shape: [ranks, source ranks]."""
    bonus_RS = np.ascontiguousarray((1.0 / transport_costs(topology)).T)
    np.fill_diagonal(bonus_RS, OWN_RANK_BONUS)
    return bonus_RS


@kernel
def whole_tokens(guests_RK: IntArray, amount_RK: IntArray, num_experts: int) -> IntArray:
    """Rounds the amounts of guests to whole tokens, expert by expert, half a token up.

    The running sum over an expert's guests is rounded, not each guest: so an expert gives what it spilled to
    within half a token however many guests share it, never more than it has, and every guest is less than one
    token off.

    Args:
        guests_RK: expert in each slot, -1 where empty. Shape: [ranks, slots].
        amount_RK: what each guest is to take, in R-ths of a token. Shape: [ranks, slots].
        num_experts: experts in the layer.

    Returns:
        Tokens of each guest. Shape: [ranks, slots].
    """
    num_ranks, num_slots = guests_RK.shape
    tokens_RK = np.zeros((num_ranks, num_slots), dtype=np.int64)
    given_E = np.zeros(num_experts, dtype=np.int64)
    rounded_E = np.zeros(num_experts, dtype=np.int64)
    for rank in range(num_ranks):
        for slot in range(num_slots):
            expert = guests_RK[rank, slot]
            if expert < 0:
                continue
            given_E[expert] += amount_RK[rank, slot]
            rounded = (2 * given_E[expert] + num_ranks) // (2 * num_ranks)
            tokens_RK[rank, slot] = rounded - rounded_E[expert]
            rounded_E[expert] = rounded
    return tokens_RK
