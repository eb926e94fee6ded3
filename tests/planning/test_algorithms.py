from __future__ import annotations

import numpy as np
import pytest
from made_up_routing import random_problem, skewed_counts, two_level_problem, uneven_topology

from taot_planning import (
    ALGORITHMS,
    LayerProblem,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    contiguous_homes,
    imbalance,
    plan_layer,
    rank_loads,
)
from taot_planning.options import PPM

PLANNERS = sorted(set(ALGORITHMS) - {"static"})

SPARING = [name for name in PLANNERS if not name.startswith(("eplb", "lplb"))]
"""Those that make guests for a surplus only; the others fill all slots."""

NEARNESS_FIRST = ["taot", "taot-paper", "taot-paper-no-hint"]
"""Those whose score knows the topology."""


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize(("num_experts", "num_ranks"), [(60, 8), (7, 2), (256, 3), (4, 8), (1, 1), (1, 4)])
@pytest.mark.parametrize("slots", [0, 1, 4])
def test_every_token_is_assigned_once_whatever_the_sizes(
    algorithm: str, num_experts: int, num_ranks: int, slots: int
) -> None:
    for seed in range(5):
        counts_RE = skewed_counts(seed, num_ranks=num_ranks, num_experts=num_experts)
        problem = two_level_problem(counts_RE, slots=slots)
        plan = plan_layer(problem, algorithm=algorithm)
        check_plan(plan, problem)
        assert plan.loads_R(problem).sum() == counts_RE.sum()


@pytest.mark.parametrize("algorithm", PLANNERS)
def test_any_homes_nodes_and_slots_give_a_plan_that_holds(algorithm: str) -> None:
    guests = 0
    for seed in range(300):
        problem = random_problem(seed)
        plan = plan_layer(problem, algorithm=algorithm)
        check_plan(plan, problem)
        guests += int((plan.guests_RK >= 0).sum())
    assert guests > 300


@pytest.mark.parametrize("algorithm", PLANNERS)
@pytest.mark.parametrize("num_ranks", [4, 8, 16, 32])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_no_rank_holds_an_expert_twice_or_one_of_its_own(algorithm: str, num_ranks: int, slots: int) -> None:
    held = 0
    for seed in range(4):
        for num_experts in (8, 64):
            counts_RE = skewed_counts(seed, num_ranks=num_ranks, num_experts=num_experts, concentration=0.05)
            problem = two_level_problem(counts_RE, slots=slots)
            for rank, row_K in enumerate(plan_layer(problem, algorithm=algorithm).guests_RK):
                guests = row_K[row_K >= 0].tolist()
                held += len(guests)
                assert len(set(guests)) == len(guests)
                assert all(problem.home_E[guest] != rank for guest in guests)
    assert held > 0


@pytest.mark.parametrize("algorithm", SPARING)
def test_slots_stay_empty_when_nothing_is_left_to_copy(algorithm: str) -> None:
    """More slots than the hot rank has experts: its two experts are copied once each at most."""
    counts_RE = np.zeros((2, 4), dtype=np.int64)
    counts_RE[:, :2] = 500
    problem = two_level_problem(counts_RE, ranks_per_node=2, slots=4)
    plan = plan_layer(problem, algorithm=algorithm, options=PlanningOptions(tolerance_ppm=0))
    guests = plan.guests_RK[plan.guests_RK >= 0].tolist()
    assert 1 <= len(guests) <= 2
    assert len(set(guests)) == len(guests)
    # By default LLEP is content with 1.1 times the mean.
    assert plan.loads_R(problem).tolist() == ([1100, 900] if algorithm == "llep" else [1000, 1000])


def test_taot_is_never_worse_than_moving_nothing() -> None:
    for seed in range(300):
        problem = random_problem(seed)
        before = rank_loads(problem.counts_RE, problem.home_E).max()
        for tolerance_ppm in (0, 15_000, 500_000):
            options = PlanningOptions(tolerance_ppm=tolerance_ppm)
            assert plan_layer(problem, options=options).loads_R(problem).max() <= before


def test_taot_leaves_layers_within_the_tolerance_alone() -> None:
    problem = two_level_problem(skewed_counts(2, num_ranks=8, num_experts=64))
    before = imbalance(rank_loads(problem.counts_RE, problem.home_E))
    within = PlanningOptions(tolerance_ppm=int(before * PPM) + 1)
    beyond = PlanningOptions(tolerance_ppm=int(before * PPM) - 1000)
    assert not plan_layer(problem, options=within).quota_SRK.any()
    assert plan_layer(problem, options=beyond).quota_SRK.any()


def test_a_tolerance_saves_cost_and_enough_slots_reach_it() -> None:
    costs = {0: 0.0, 15_000: 0.0, 100_000: 0.0}
    for seed in range(20):
        problem = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=64), ranks_per_node=8, slots=40)
        for tolerance_ppm in costs:
            plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=tolerance_ppm))
            costs[tolerance_ppm] += plan.stats(problem).weighted_cost
            loads_R = plan.loads_R(problem)
            assert loads_R.max() <= loads_R.mean() * (1 + tolerance_ppm / PPM) + 1
    assert costs[0] > costs[15_000] > costs[100_000]


def test_the_paper_ignores_the_tolerance_and_balances_most_of_the_load() -> None:
    before, after = 0.0, 0.0
    for seed in range(20):
        problem = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=128), ranks_per_node=8)
        plans = [
            plan_layer(problem, algorithm="taot-paper", options=PlanningOptions(tolerance_ppm=ppm))
            for ppm in (0, 500_000)
        ]
        assert np.array_equal(plans[0].quota_SRK, plans[1].quota_SRK)
        before += plans[0].stats(problem).imbalance_before
        after += plans[0].stats(problem).imbalance_after
    assert after < before / 5


@pytest.mark.parametrize("algorithm", NEARNESS_FIRST)
def test_guests_stay_in_the_node_where_the_node_has_room(algorithm: str) -> None:
    """Each node of two has one hot and one idle rank, all alike: crossing would cost three times as much."""
    counts_RE = np.tile([400, 0, 400, 0, 400, 0], (6, 1))
    problem = two_level_problem(counts_RE, ranks_per_node=2, slots=1)
    stats = plan_layer(problem, algorithm=algorithm).stats(problem)
    assert (stats.intra_guests, stats.inter_guests) == (3, 0)


@pytest.mark.parametrize("algorithm", NEARNESS_FIRST)
def test_cost_matrices_and_deeper_trees_steer_guests_to_cheap_ranks(algorithm: str) -> None:
    """Rank 0 is hot; ranks 1 to 3 have equal room; the cheapest of them is preferred."""
    counts_RE = np.tile([400, 100, 100, 100], (4, 1))
    levels = (Level(name="node", transfer_cost_milli=1000), Level(name="all", transfer_cost_milli=1000))
    for cheap in (1, 2, 3):
        matrix_RR = np.full((4, 4), 9000)
        matrix_RR[0, cheap] = 1000
        np.fill_diagonal(matrix_RR, 0)
        topology = Topology(
            levels=levels,
            domains_RV=[[rank, 0] for rank in range(4)],
            slots_R=[0 if rank == 0 else 1 for rank in range(4)],
            cost_matrix_milli=matrix_RR,
        )
        problem = LayerProblem(
            counts_RE=counts_RE, home_E=contiguous_homes(num_experts=4, num_ranks=4), topology=topology
        )
        options = PlanningOptions(tolerance_ppm=500_000)
        plan = plan_layer(problem, algorithm=algorithm, options=options)
        check_plan(plan, problem)
        assert plan.guests_RK[cheap, 0] == 0


def test_ranks_without_slots_get_no_guests() -> None:
    for seed in range(20):
        counts_RE = skewed_counts(seed, num_ranks=8, num_experts=32)
        topology = uneven_topology(seed, num_ranks=8, max_slots=2)
        problem = LayerProblem(
            counts_RE=counts_RE, home_E=contiguous_homes(num_experts=32, num_ranks=8), topology=topology
        )
        for algorithm in PLANNERS:
            guests_RK = plan_layer(problem, algorithm=algorithm).guests_RK
            assert ((guests_RK >= 0).sum(axis=1) <= topology.slots_R).all()
