"""Each promise of a plan is broken on purpose; the check has to name the rank and the rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem

from taot_planning import LayerPlan, LayerProblem, Topology, assign_tokens, check_plan, plan_from_guests, plan_layer
from taot_planning.arrays import IntArray
from taot_planning.layer_plan import check_guests

COUNTS_RE = np.array([[9, 1, 1, 1], [9, 1, 1, 1]])
HOMES_E = np.array([0, 0, 1, 1])
SLOTS_R = np.array([1, 2])


@pytest.fixture
def problem() -> LayerProblem:
    """Two ranks with one and two slots; experts 0 and 1 live on rank 0, 2 and 3 on rank 1."""
    even = two_level_problem(COUNTS_RE, ranks_per_node=2).topology
    topology = Topology(levels=even.levels, domains_RV=even.domains_RV, slots_R=SLOTS_R)
    return LayerProblem(counts_RE=COUNTS_RE, home_E=HOMES_E, topology=topology)


def test_what_the_planner_makes_passes(problem: LayerProblem) -> None:
    for algorithm in ("static", "taot", "taot-paper"):
        check_plan(plan_layer(problem, algorithm=algorithm), problem)


@pytest.mark.parametrize(
    ("guests_RK", "message"),
    [
        ([[2, -1], [4, -1]], r"rank 1 holds guests \[4\], the experts are 0 to 3"),
        ([[2, -1], [-2, -1]], r"rank 1 holds guests \[-2\], the experts are 0 to 3"),
        ([[2, 3], [0, -1]], "rank 0 has 1 guest slots, the plan uses its slot 1"),
        ([[-1, 3], [0, -1]], "rank 0 has 1 guest slots, the plan uses its slot 1"),
        ([[2, -1], [0, 0]], r"rank 1 holds one expert twice: guests \[0, 0\]"),
        ([[1, -1], [-1, -1]], "expert 1 is a guest on rank 0, its own home"),
        ([[2], [0]], r"guests must be \[ranks, slots\] = \[2, 2\], got \[2, 1\]"),
        ([[2, -1]], r"guests must be \[ranks, slots\] = \[2, 2\], got \[1, 2\]"),
    ],
)
def test_a_placement_that_cannot_be_carried_out_is_refused(guests_RK: list[list[int]], message: str) -> None:
    check_guests(np.array([[2, -1], [0, 1]]), home_E=HOMES_E, slots_R=SLOTS_R)
    with pytest.raises(ValueError, match=message):
        check_guests(np.array(guests_RK), home_E=HOMES_E, slots_R=SLOTS_R)


def set_quota(source: int, rank: int, slot: int, tokens: int) -> Callable[[IntArray], None]:
    def change(quota_SRK: IntArray) -> None:
        quota_SRK[source, rank, slot] = tokens

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_quota(1, 1, 0, -1), "source rank 1 sends a negative number of tokens to slot 0 of rank 1"),
        (set_quota(0, 1, 1, 1), "tokens go to slot 1 of rank 1, which is empty"),
        (set_quota(1, 1, 0, 10), "source rank 1 has 9 tokens for expert 0, the plan sends 10 of them to guests"),
        (set_quota(0, 1, 0, 2**40), r"source rank 0 sends more than 2\^31-1 tokens to slot 0 of rank 1"),
    ],
)
def test_a_split_that_does_not_add_up_is_refused(
    problem: LayerProblem, change: Callable[[IntArray], None], message: str
) -> None:
    guests_RK = np.array([[-1, -1], [0, -1]])
    quota_SRK = assign_tokens(problem, guests_RK)
    check_plan(LayerPlan(guests_RK=guests_RK, quota_SRK=quota_SRK), problem)
    change(quota_SRK)
    with pytest.raises(ValueError, match=message):
        check_plan(LayerPlan(guests_RK=guests_RK, quota_SRK=quota_SRK), problem)


def test_sums_that_would_wrap_around_do_not_hide_lost_tokens(problem: LayerProblem) -> None:
    counts_RE = np.array([[9, 1, 1, 1], [9, 1, 1, 1], [0, 0, 0, 0]])
    three = two_level_problem(counts_RE, homes_E=HOMES_E, slots=2)
    guests_RK = np.array([[-1, -1], [0, -1], [0, -1]])
    quota_SRK = np.zeros((3, 3, 2), dtype=np.int64)
    quota_SRK[0, 1, 0] = quota_SRK[0, 2, 0] = 2**63 - 1
    assert quota_SRK[0].sum() < 0
    with pytest.raises(ValueError, match="more than 2"):
        check_plan(LayerPlan(guests_RK=guests_RK, quota_SRK=quota_SRK), three)


def test_a_plan_for_other_ranks_is_refused(problem: LayerProblem) -> None:
    plan = LayerPlan(guests_RK=np.full((2, 2), -1), quota_SRK=np.zeros((3, 2, 2), dtype=np.int64))
    with pytest.raises(ValueError, match=r"quotas must be \[2, 2, 2\], got \[3, 2, 2\]"):
        check_plan(plan, problem)


def test_an_instruction_for_another_layer_is_refused(problem: LayerProblem) -> None:
    """The guests of expert 0 are fine here, but not where expert 0 lives on rank 1."""
    plan = plan_layer(problem)
    moved = LayerProblem(counts_RE=problem.counts_RE, home_E=1 - problem.home_E, topology=problem.topology)
    check_plan(plan, problem)
    with pytest.raises(ValueError, match="expert 0 is a guest on rank 1, its own home"):
        check_plan(plan, moved)


def test_plans_cannot_be_changed(problem: LayerProblem) -> None:
    for plan in (plan_layer(problem), plan_from_guests(problem, plan_layer(problem, algorithm="echo").guests_RK)):
        with pytest.raises(ValueError, match="read-only"):
            plan.guests_RK[0, 0] = 3
        with pytest.raises(ValueError, match="read-only"):
            plan.quota_SRK[0, 0, 0] = 3


def test_loads_and_stats_are_those_of_the_tokens() -> None:
    """Counted one token after another."""
    for seed in range(30):
        problem = random_problem(seed)
        plan = plan_from_guests(problem, random_guests(seed, problem))
        load_R = [0] * problem.num_ranks
        for (_, expert), tokens in np.ndenumerate(problem.counts_RE):
            load_R[problem.home_E[expert]] += int(tokens)
        cost, inter = 0, 0
        for (rank, slot), expert in np.ndenumerate(plan.guests_RK):
            if expert >= 0:
                home = problem.home_E[expert]
                load_R[rank] += int(plan.quota_SRK[:, rank, slot].sum())
                load_R[home] -= int(plan.quota_SRK[:, rank, slot].sum())
                crosses = problem.topology.nodes_R[home] != problem.topology.nodes_R[rank]
                cost, inter = cost + (3 if crosses else 1), inter + int(crosses)
        assert plan.loads_R(problem).tolist() == load_R
        stats = plan.stats(problem)
        assert (stats.weighted_cost, stats.inter_guests) == (cost, inter)
        assert stats.intra_guests + stats.inter_guests == (plan.guests_RK >= 0).sum()


def test_guests_without_tokens_are_left_out() -> None:
    counts_RE = skewed_counts(0, num_ranks=4, num_experts=8)
    counts_RE[:, 7] = 0
    problem = two_level_problem(counts_RE)
    plan = plan_from_guests(problem, np.array([[7, -1], [-1, -1], [-1, -1], [-1, -1]]))
    assert (plan.guests_RK == -1).all()
