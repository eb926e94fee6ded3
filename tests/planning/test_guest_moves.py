"""What a placement costs: resident guests are free, and guests that are passed on pay from the rank that has them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem
from scipy.sparse.csgraph import minimum_spanning_tree

from taot_planning import (
    LayerProblem,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    plan_from_guests,
    plan_layer,
)
from taot_planning.guest_moves import list_moves
from taot_planning.options import SEARCH_EFFORTS, Effort


def with_relay(problem: LayerProblem) -> LayerProblem:
    return replace(problem, topology=replace(problem.topology, has_relay=True))


def with_residents(problem: LayerProblem, resident_RK: np.ndarray) -> LayerProblem:
    return replace(problem, resident_RK=resident_RK)


@pytest.mark.parametrize("seed", range(20))
def test_relayed_guests_cost_the_least_tree_that_joins_them(seed: int) -> None:
    """SciPy's spanning tree over the home and the guest ranks of each expert."""
    problem = with_relay(random_problem(seed))
    guests_RK = random_guests(seed, problem)
    expected = 0
    for expert, home in enumerate(problem.home_E.tolist()):
        ranks = [home, *np.flatnonzero((guests_RK == expert).any(axis=1)).tolist()]
        cost = problem.topology.cost_milli_RR[np.ix_(ranks, ranks)]
        expected += int(minimum_spanning_tree(cost).sum())
    moves = list_moves(problem, guests_RK)
    assert moves.cost_milli == expected
    holders = {(expert, home) for expert, home in enumerate(problem.home_E.tolist())}
    for expert, source, rank in zip(moves.expert_G, moves.source_G, moves.rank_G, strict=True):
        assert (expert, source) in holders, "a rank passes on what it does not have yet"
        holders.add((expert, rank))


def test_a_relayed_guest_crosses_once_and_costs_one_inside() -> None:
    problem = two_level_problem(np.full((4, 4), 8), ranks_per_node=2)
    guests_RK = np.array([[-1, -1], [-1, -1], [0, -1], [0, -1]])
    assert list_moves(problem, guests_RK).cost_milli == 6000
    assert list_moves(with_relay(problem), guests_RK).cost_milli == 4000


def test_resident_guests_are_free_and_pass_the_expert_on() -> None:
    problem = two_level_problem(np.full((4, 4), 8), ranks_per_node=2)
    guests_RK = np.array([[-1, -1], [-1, -1], [0, -1], [0, -1]])
    resident_RK = np.array([[-1], [-1], [-1], [0]])
    moves = list_moves(with_residents(problem, resident_RK), guests_RK)
    assert (moves.cost_milli, moves.rank_G.tolist(), moves.source_G.tolist()) == (3000, [2], [0])
    moves = list_moves(with_residents(with_relay(problem), resident_RK), guests_RK)
    assert (moves.cost_milli, moves.rank_G.tolist(), moves.source_G.tolist()) == (1000, [2], [3])


@pytest.mark.parametrize("effort", SEARCH_EFFORTS)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_counts_again_move_nothing(effort: Effort, seed: int) -> None:
    problem = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=64), ranks_per_node=8)
    options = PlanningOptions(effort=effort)
    first = plan_layer(problem, options=options)
    assert first.stats(problem).weighted_cost > 0
    again = plan_layer(with_residents(problem, first.guests_RK), options=options)
    stats = again.stats(with_residents(problem, first.guests_RK))
    assert (stats.weighted_cost, stats.intra_guests, stats.inter_guests) == (0, 0, 0)
    assert stats.imbalance_after == first.stats(problem).imbalance_after


@pytest.mark.parametrize("effort", SEARCH_EFFORTS)
def test_resident_guests_that_suffice_stay_though_the_search_would_not_have_found_them(effort: Effort) -> None:
    """Rank 0 gives to rank 1, which is hot itself and gives to rank 2."""
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[0] = 110, 110, 80, 100
    resident_RK = np.array([[-1, -1], [0, -1], [1, -1], [-1, -1]])
    problem = with_residents(two_level_problem(counts_RE, ranks_per_node=2), resident_RK)
    plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0, effort=effort))
    np.testing.assert_array_equal(plan.guests_RK, resident_RK)


def test_a_small_change_of_the_counts_moves_few_guests() -> None:
    """Slots and tolerance as in training; without residents every guest would move again."""
    moved, placed = 0.0, 0.0
    for seed in range(8):
        counts_RE = skewed_counts(seed, num_ranks=16, num_experts=64, concentration=2.0)
        problem = two_level_problem(counts_RE, ranks_per_node=8)
        before = plan_layer(problem)
        noise_RE = np.random.default_rng(seed).poisson(counts_RE * 0.02)
        after = with_residents(two_level_problem(counts_RE + noise_RE, ranks_per_node=8), before.guests_RK)
        plan = plan_layer(after)
        check_plan(plan, after)
        moved += plan.stats(after).weighted_cost
        placed += plan_layer(two_level_problem(counts_RE + noise_RE, ranks_per_node=8)).stats(problem).weighted_cost
    assert moved <= 0.5 * placed


@pytest.mark.parametrize("effort", SEARCH_EFFORTS)
def test_relays_make_plans_cheaper_and_keep_what_they_promise(effort: Effort) -> None:
    """One rank of a node is so hot that both ranks of another node have to take guests of it."""
    cheaper = 0
    for seed in range(12):
        plain = two_level_problem(
            skewed_counts(seed, num_ranks=16, num_experts=32, concentration=0.4), ranks_per_node=4, slots=3
        )
        relayed = with_relay(plain)
        options = PlanningOptions(effort=effort)
        without, plan = plan_layer(plain, options=options), plan_layer(relayed, options=options)
        check_plan(plan, relayed)
        assert plan.loads_R(relayed).max() <= without.loads_R(plain).max() * 1.02
        cost, unaware = plan.stats(relayed).weighted_cost, without.stats(relayed).weighted_cost
        cheaper += int(cost < unaware) - int(cost > unaware)
    assert cheaper > 0


def test_residents_that_cannot_stay_are_not_kept() -> None:
    """Beside those that suffice, and fill a rank: one twice, and one that is at home there."""
    full = 0
    for seed in range(20):
        counts_RE = skewed_counts(seed, num_ranks=4, num_experts=8, concentration=1.0)
        problem = two_level_problem(counts_RE, slots=2)
        enough_RK = plan_layer(problem, options=PlanningOptions(tolerance_ppm=50_000)).guests_RK
        full += int((enough_RK >= 0).all(axis=1).any())
        for column_R in (enough_RK[:, :1], np.arange(4)[:, None] * 2):
            asked = with_residents(problem, np.concatenate([column_R, enough_RK], axis=1))
            plan = plan_layer(asked, options=PlanningOptions(tolerance_ppm=50_000))
            check_plan(plan, asked)
            assert plan.stats(asked).weighted_cost == 0
    assert full > 0


def test_a_free_guest_is_preferred_where_others_have_to_move() -> None:
    """Both cold ranks could take either surplus; one of them has an expert of rank 0 already."""
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[0] = 120, 80, 80, 120
    resident_RK = np.array([[-1], [-1], [0], [-1]])
    problem = with_residents(two_level_problem(counts_RE, slots=1), resident_RK)
    for effort in SEARCH_EFFORTS:
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0, effort=effort))
        assert plan.stats(problem).weighted_cost == 1
        assert plan.guests_RK.tolist() == [[-1], [3], [0], [-1]]


def test_a_resident_guest_is_passed_on_where_that_is_cheaper_than_from_home() -> None:
    """From home within the rack it is 2; from the resident guest beside the other cold rank it is 1."""
    names = (("node", 1000), ("rack", 2000), ("cluster", 6000))
    topology = Topology(
        levels=tuple(Level(name=name, transfer_cost_milli=cost) for name, cost in names),
        domains_RV=[[0, 0, 0], [1, 0, 0], [2, 1, 0], [2, 1, 0]],
        slots_R=[0, 1, 1, 1],
        has_relay=True,
    )
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[0] = 130, 70, 75, 95
    problem = LayerProblem(
        counts_RE=counts_RE, home_E=np.arange(4), topology=topology, resident_RK=[[-1], [-1], [-1], [0]]
    )
    for effort in SEARCH_EFFORTS:
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=90_000, effort=effort))
        assert plan.stats(problem).imbalance_after <= 0.09
        assert plan.guests_RK[2].tolist() == [0]
        assert plan.stats(problem).weighted_cost == 1


def test_trades_never_give_up_a_free_guest() -> None:
    """Whatever was considered and reaches the tolerance costs no less than the plan."""
    for seed in range(30):
        counts_RE = skewed_counts(seed, num_ranks=8, num_experts=24, concentration=1.0)
        problem = two_level_problem(counts_RE, slots=3)
        problem = with_residents(problem, random_guests(seed, problem)[:, :1])
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=50_000))
        reached = [
            each.plan.stats(problem).weighted_cost
            for each in plan.explanation.considered
            if each.plan.stats(problem).imbalance_after <= 0.05
        ]
        assert not reached or plan.stats(problem).weighted_cost == min(reached)


def test_unknown_residents_are_refused() -> None:
    problem = two_level_problem(np.full((2, 4), 8))
    with pytest.raises(ValueError, match="one row per rank"):
        with_residents(problem, np.array([[0]]))
    for expert in (-2, 4):
        with pytest.raises(ValueError, match="experts below 4"):
            with_residents(problem, np.array([[0], [expert]]))


def test_every_way_to_hold_one_expert_costs_its_own_tree() -> None:
    """All sets of guest ranks of one expert on three nodes of two."""
    problem = with_relay(two_level_problem(np.full((6, 6), 8), ranks_per_node=2, slots=1))
    for held in itertools.product((False, True), repeat=5):
        guests_RK = np.array([[-1], *([0] if here else [-1] for here in held)])
        nodes = {rank // 2 for rank, here in enumerate(held, start=1) if here}
        remote = len(nodes - {0})
        expected = 3 * remote + (sum(held) - remote)
        assert list_moves(problem, guests_RK).cost_milli == 1000 * expected
        assert plan_from_guests(problem, guests_RK).stats(problem).intra_guests <= sum(held)
