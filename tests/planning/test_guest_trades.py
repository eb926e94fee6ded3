"""Trades leave a placement that holds and costs no more, whatever they start from."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem

from taot_planning import LayerProblem, plan_from_guests
from taot_planning.algorithms.guest_trades import trade_guests
from taot_planning.arrays import IntArray, read_only
from taot_planning.guest_moves import list_moves
from taot_planning.layer_plan import check_guests


def trade(problem: LayerProblem, guests_RK: IntArray) -> tuple[IntArray, IntArray]:
    """The guests after trades at the loads that they allowed before, and those loads."""
    plan = plan_from_guests(problem, guests_RK)
    capacity_R = np.full(problem.num_ranks, plan.loads_R(problem).max())
    topology = problem.topology
    traded_RK = trade_guests(
        problem.home_E,
        read_only(problem.counts_RE.sum(axis=0)),
        plan.guests_RK,
        read_only(plan.tokens_RK),
        read_only(capacity_R),
        topology.cost_milli_RR,
        topology.slots_R,
    )
    return traded_RK, capacity_R


def test_a_traded_placement_holds_within_the_same_loads_and_costs_no_more() -> None:
    cheaper = 0
    problems = [random_problem(seed) for seed in range(150)]
    problems += [
        two_level_problem(skewed_counts(seed, num_ranks=12, num_experts=24, concentration=1.0), slots=slots)
        for seed in range(20)
        for slots in (1, 2)
    ]
    for seed, problem in enumerate(problems):
        guests_RK = random_guests(seed, problem)
        traded_RK, capacity_R = trade(problem, guests_RK)
        check_guests(traded_RK, home_E=problem.home_E, slots_R=problem.topology.slots_R)
        assert (plan_from_guests(problem, traded_RK).loads_R(problem) <= capacity_R).all()
        before = list_moves(problem, plan_from_guests(problem, guests_RK).guests_RK).cost_milli
        after = list_moves(problem, traded_RK).cost_milli
        assert after <= before
        cheaper += after < before
    assert cheaper > len(problems) // 4


@pytest.mark.parametrize("slots", [1, 2])
def test_nothing_moves_to_a_rank_without_a_free_slot(slots: int) -> None:
    """Rank 1 is nearer to the home of expert 0 than rank 3 but full of guests that it needs."""
    counts_RE = np.zeros((4, 8), dtype=np.int64)
    counts_RE[0] = 80, 60, 30, 10, 60, 60, 30, 10
    problem = two_level_problem(counts_RE, ranks_per_node=2, slots=slots)
    guests_RK = np.full((4, slots), -1)
    guests_RK[1] = np.array([4, 5])[:slots]
    guests_RK[3, 0] = 0
    traded_RK, _ = trade(problem, guests_RK)
    check_guests(traded_RK, home_E=problem.home_E, slots_R=problem.topology.slots_R)
    assert (traded_RK >= 0).sum(axis=1).max() <= slots
