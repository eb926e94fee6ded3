"""The published ablation: each variant scores matches by the terms that it names and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_routing import skewed_counts, two_level_problem

from taot_planning import LayerProblem, plan_layer
from taot_planning.algorithms.matching import match_columns
from taot_planning.algorithms.placement import transport_costs
from taot_planning.algorithms.sinkhorn import sinkhorn_flow
from taot_planning.algorithms.surplus import measure_surplus
from taot_planning.arrays import IntArray

VARIANTS = {
    "taot-paper": (1, 1),
    "taot-paper-no-hint": (1, 0),
    "taot-paper-no-topology": (0, 1),
    "taot-paper-no-topology-no-hint": (0, 0),
}


def problems() -> list[LayerProblem]:
    return [
        two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=64, concentration=3.0)) for seed in range(8)
    ]


def matched_by(problem: LayerProblem, topology_weight: int, hint_weight: int) -> IntArray:
    """Phase 2 with the two terms of the score written out (arXiv 2608.03676, phase 2)."""
    surplus = measure_surplus(problem, tolerance_ppm=0)
    surplus_R, spare_R = surplus.surplus_R / problem.num_ranks, surplus.spare_R / problem.num_ranks
    cost_RR = transport_costs(problem.topology)
    share_RR = sinkhorn_flow(surplus_R, spare_R, cost_RR) / np.maximum(surplus_R, 1.0)[:, None]
    alpha = problem.counts_RE.sum() / problem.num_experts
    bonus_RR = topology_weight * alpha / cost_RR
    hint_RR = hint_weight * 0.1 * alpha * np.round(share_RR, 9)
    slots_R = problem.topology.slots_R
    return match_columns(surplus.spill_E, surplus.spare_R, slots_R, problem.home_E, bonus_RR, hint_RR)[0]


@pytest.mark.parametrize("algorithm", VARIANTS)
def test_a_variant_places_by_its_own_terms_of_the_score(algorithm: str) -> None:
    differ = dict.fromkeys(VARIANTS, 0)
    for problem in problems():
        guests_RK = plan_layer(problem, algorithm=algorithm).guests_RK
        for other, weights in VARIANTS.items():
            differ[other] += int(not np.array_equal(guests_RK, matched_by(problem, *weights)))
    assert differ.pop(algorithm) == 0
    assert all(differ.values()), "the problems do not tell the variants apart"


def test_without_both_terms_the_topology_does_not_matter_to_the_placement() -> None:
    for problem in problems():
        elsewhere = two_level_problem(problem.counts_RE, ranks_per_node=3)
        plans = [plan_layer(each, algorithm="taot-paper-no-topology-no-hint") for each in (problem, elsewhere)]
        assert np.array_equal(plans[0].guests_RK, plans[1].guests_RK)
