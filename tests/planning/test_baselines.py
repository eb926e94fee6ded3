"""The baselines: what each method is known for, on problems small enough to see, and promises that all keep."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_routing import random_problem, skewed_counts, two_level_problem
from no_scipy import hide_scipy
from scipy.optimize import LinearConstraint, milp

from taot_planning import (
    ALGORITHMS,
    LayerPlan,
    LayerProblem,
    PlanningOptions,
    check_plan,
    imbalance,
    plan_layer,
    rank_loads,
    two_level_topology,
    warm_up,
)
from taot_planning.algorithms import echo, llep, lplb
from taot_planning.algorithms.replica_graph import cube_graph, torus_graph
from taot_planning.arrays import MAX_COUNT

BASELINES = ("echo", "eplb", "eplb-global", "llep", "llep-exact", "lplb", "lplb-torus")
ABLATIONS = ("taot-paper-no-hint", "taot-paper-no-topology", "taot-paper-no-topology-no-hint")


def plan_by(algorithm: str, problem: LayerProblem) -> LayerPlan:
    """Past the gates of `plan_layer`."""
    return ALGORITHMS[algorithm](problem, PlanningOptions())


@pytest.mark.parametrize("algorithm", BASELINES + ABLATIONS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_problem_gets_a_plan_that_holds_and_the_same_one_again(algorithm: str, seed: int) -> None:
    problem = random_problem(seed)
    plan, again = plan_by(algorithm, problem), plan_by(algorithm, problem)
    check_plan(plan, problem)
    assert ((plan.guests_RK >= 0).sum(axis=1) <= problem.topology.slots_R).all()
    assert plan.loads_R(problem).sum() == problem.counts_RE.sum()
    assert np.array_equal(plan.guests_RK, again.guests_RK)
    assert np.array_equal(plan.quota_SRK, again.quota_SRK)


@pytest.mark.parametrize("algorithm", BASELINES)
def test_the_largest_counts_do_not_overflow(algorithm: str) -> None:
    counts_RE = np.zeros((8, 16), dtype=np.int64)
    counts_RE[:, :5] = MAX_COUNT
    problem = two_level_problem(counts_RE)
    plan = plan_by(algorithm, problem)
    check_plan(plan, problem)
    assert plan.quota_SRK.any()
    loads_R = plan.loads_R(problem)
    assert loads_R.min() >= 0
    assert imbalance(loads_R) < imbalance(rank_loads(problem.counts_RE, problem.home_E))


@pytest.mark.parametrize("algorithm", BASELINES + ABLATIONS)
def test_without_tokens_nothing_is_sent_and_only_the_fixed_graph_moves_experts(algorithm: str) -> None:
    problem = two_level_problem(np.zeros((8, 16)))
    plan = plan_by(algorithm, problem)
    assert not plan.quota_SRK.any()
    assert (plan.guests_RK >= 0).any() == algorithm.startswith("lplb")


@pytest.mark.parametrize("algorithm", ["echo", "llep", "llep-exact", "taot-paper"])
def test_guests_that_get_no_tokens_are_left_out(algorithm: str) -> None:
    for seed in range(40):
        plan = plan_by(algorithm, random_problem(seed))
        assert np.array_equal(plan.guests_RK >= 0, plan.quota_SRK.any(axis=0))


# ECHO


def test_echo_lays_spills_beside_spares_from_the_largest_on() -> None:
    """Loads 200, 140, 80, 40, 40 on five ranks, mean 100: spills 100 of A and 40 of C, spares 60, 60, 20.

    Side by side: A 0-100, C 100-140 against rank 3 0-60, rank 4 60-120, rank 2 120-140. So rank 3 gets 60 of A,
    rank 4 gets 40 of A and 20 of C, rank 2 gets 20 of C.
    """
    tokens_E = np.array([160, 40, 140, 80, 40, 40])
    counts_RE = np.tile(tokens_E // 5, (5, 1))
    homes_E = np.array([0, 0, 1, 2, 3, 4])
    plan = plan_by("echo", two_level_problem(counts_RE, ranks_per_node=5, homes_E=homes_E))
    assert plan.guests_RK.tolist() == [[-1, -1], [-1, -1], [2, -1], [0, -1], [0, 2]]
    assert plan.tokens_RK.tolist() == [[0, 0], [0, 0], [20, 0], [60, 0], [40, 20]]
    # With one slot rank 4 keeps the larger chunk, and what C had there stays home.
    plan = plan_by("echo", two_level_problem(counts_RE, ranks_per_node=5, slots=1, homes_E=homes_E))
    assert plan.guests_RK.ravel().tolist() == [-1, -1, 2, 0, 0]
    assert plan.tokens_RK.ravel().tolist() == [0, 0, 20, 60, 40]


def test_echo_splits_tokens_proportionally_to_within_what_rounding_leaves() -> None:
    checked = 0
    for seed in range(60):
        problem = random_problem(seed)
        plan = plan_by("echo", problem)
        tokens_E = problem.counts_RE.sum(axis=0)
        for (rank, slot), expert in np.ndenumerate(plan.guests_RK):
            if expert >= 0:
                copies = 1 + int((plan.guests_RK == expert).sum())
                share = Fraction(int(plan.tokens_RK[rank, slot]), int(tokens_E[expert]))
                for source, tokens in enumerate(problem.counts_RE[:, expert].tolist()):
                    # Every copy's share is rounded down, so a source has fewer tokens left than copies.
                    given_back = int(plan.quota_SRK[source, rank, slot]) - tokens * share
                    assert -1 < given_back < copies
                    checked += 1
    assert checked > 300


@given(left=st.lists(st.integers(0, 9), max_size=8), right=st.lists(st.integers(0, 9), max_size=8))
@settings(max_examples=200, deadline=None)
def test_overlaps_are_those_of_the_units_one_by_one(left: list[int], right: list[int]) -> None:
    units = zip(
        (index for index, length in enumerate(left) for _ in range(length)),
        (index for index, length in enumerate(right) for _ in range(length)),
        strict=False,
    )
    counted: dict[tuple[int, int], int] = {}
    for pair in units:
        counted[pair] = counted.get(pair, 0) + 1
    assert [((i, j), length) for i, j, length in echo.overlaps(left, right)] == list(counted.items())


# LLEP


def with_loads(*loads: int, slots: int = 2) -> LayerProblem:
    """One expert a rank, every token from rank 0."""
    counts_RE = np.zeros((len(loads), len(loads)), dtype=np.int64)
    counts_RE[0] = loads
    return two_level_problem(counts_RE, ranks_per_node=len(loads), slots=slots)


def test_llep_leaves_layers_alone_below_a_maximum_of_1_3_means() -> None:
    assert not plan_layer(with_loads(1299, 701, 1000, 1000), algorithm="llep").quota_SRK.any()
    assert plan_layer(with_loads(1300, 700, 1000, 1000), algorithm="llep").quota_SRK.any()
    assert plan_layer(with_loads(1001, 999, 1000, 1000), algorithm="llep-exact").quota_SRK.any()


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_llep_fills_nobody_above_the_cap_and_reaches_it_with_slots_enough(seed: int) -> None:
    problem = random_problem(seed)
    before_R = rank_loads(problem.counts_RE, problem.home_E)
    after_R = plan_by("llep", problem).loads_R(problem)
    if before_R.max() * problem.num_ranks * 10 < before_R.sum() * 13:
        assert np.array_equal(before_R, after_R)
        return
    cap = -(-int(before_R.sum()) * 11 // (problem.num_ranks * 10))
    assert (after_R <= np.maximum(before_R, cap)).all()
    assert (after_R[before_R <= cap] >= before_R[before_R <= cap]).all()
    roomy = LayerProblem(
        counts_RE=problem.counts_RE,
        home_E=problem.home_E,
        topology=two_level_topology(num_ranks=problem.num_ranks, ranks_per_node=2, slots=14, inter_cost=3),
    )
    assert plan_by("llep", roomy).loads_R(roomy).max() <= cap


def test_llep_sends_to_the_least_loaded_rank_first() -> None:
    """Mean 100, exact: the 50 of rank 0 all go to rank 3; of the 30 of rank 1, rank 2 takes 20, then rank 3 10."""
    plan = plan_by("llep-exact", with_loads(150, 130, 80, 40))
    assert plan.guests_RK.tolist() == [[-1, -1], [-1, -1], [1, -1], [0, 1]]
    assert plan.tokens_RK.tolist() == [[0, 0], [0, 0], [20, 0], [50, 10]]


def test_llep_sends_no_chunk_below_its_least_tokens() -> None:
    problem = with_loads(190, 70, 40)
    plan = llep.plan_by_rule(problem, llep.LlepRule(cap_ppm=1_000_000, min_tokens=31))
    assert plan.tokens_RK.tolist() == [[0, 0], [0, 0], [60, 0]]


def test_llep_passes_over_ranks_without_a_free_slot() -> None:
    """Mean 100: the first expert spills 60 into the one slot of rank 2; the second finds room there, but no slot."""
    counts_RE = np.zeros((3, 3), dtype=np.int64)
    counts_RE[0] = [160, 130, 10]
    tight, roomy = (two_level_problem(counts_RE, ranks_per_node=3, slots=slots) for slots in (1, 2))
    assert plan_by("llep-exact", tight).loads_R(tight).tolist() == [100, 130, 70]
    assert plan_by("llep-exact", roomy).loads_R(roomy).tolist() == [100, 100, 100]


# LPLB


def lowest_maximum(problem: LayerProblem, plan: LayerPlan) -> float:
    """Another formulation: loads of home and guest copies apart, with free mass between, by HiGHS's `milp`."""
    tokens_E = problem.counts_RE.sum(axis=0)
    copies = [(expert, home) for expert, home in enumerate(problem.home_E.tolist())]
    copies += [(int(expert), rank) for (rank, _), expert in np.ndenumerate(plan.guests_RK) if expert >= 0]
    mass = np.zeros((problem.num_experts, len(copies) + 1))
    load = np.zeros((problem.num_ranks, len(copies) + 1))
    load[:, -1] = -1
    for index, (expert, rank) in enumerate(copies):
        mass[expert, index] = load[rank, index] = 1
    constraints = [LinearConstraint(mass, tokens_E, tokens_E), LinearConstraint(load, -np.inf, 0)]
    result = milp(np.eye(len(copies) + 1)[-1], constraints=constraints)
    assert result.status == 0
    return float(result.fun)


@pytest.mark.parametrize("algorithm", ["lplb", "lplb-torus"])
def test_lplb_reaches_the_smallest_maximum_that_its_graph_allows(algorithm: str) -> None:
    improved = 0
    for seed in range(60):
        problem = random_problem(seed, max_ranks=16, max_experts=40)
        plan = plan_by(algorithm, problem)
        loads_R = plan.loads_R(problem)
        # Half a token for each guest that a rank gives or holds.
        rounding = problem.topology.max_slots + len(cube_graph(problem.topology))
        assert lowest_maximum(problem, plan) - 1e-6 <= loads_R.max() <= lowest_maximum(problem, plan) + rounding / 2
        improved += int(loads_R.max() < rank_loads(problem.counts_RE, problem.home_E).max())
    assert improved > 20


@pytest.mark.parametrize("make_graph", [cube_graph, torus_graph])
@pytest.mark.parametrize(("num_ranks", "ranks_per_node"), [(16, 8), (32, 8), (8, 4), (12, 5), (24, 16), (9, 9), (1, 1)])
def test_nobody_gives_twice_along_one_step_nor_to_itself(make_graph, num_ranks: int, ranks_per_node: int) -> None:
    topology = two_level_topology(num_ranks=num_ranks, ranks_per_node=ranks_per_node, slots=2, inter_cost=3)
    for step in make_graph(topology):
        assert len(set(step.values())) == len(step)
        assert all(taker != giver for taker, giver in step.items())
        if make_graph is cube_graph:
            assert all(topology.nodes_R[taker] == topology.nodes_R[giver] for taker, giver in step.items())


def test_a_cube_is_connected_by_two_steps_and_its_diagonals_cross_it() -> None:
    topology = two_level_topology(num_ranks=8, ranks_per_node=8, slots=2, inter_cost=3)
    around, across, opposite, back = cube_graph(topology)
    reached = {0}
    for _ in range(8):
        reached |= {taker for step in (around, across) for taker, giver in step.items() if giver in reached}
    assert reached == set(range(8))
    assert all(around[back[rank]] == rank for rank in range(8))
    # A far corner is as far as three edges: not a neighbour of a neighbour by edges alone.
    edges = {rank: {around[rank], back[rank], opposite[rank]} for rank in range(8)}
    for rank in range(8):
        near = edges[rank] | {far for near in edges[rank] for far in edges[near]}
        assert across[rank] not in near


@pytest.mark.parametrize(
    ("algorithm", "num_ranks", "intra", "inter"),
    [("lplb", 16, 32, 0), ("lplb", 32, 64, 0), ("lplb-torus", 16, 16, 16), ("lplb-torus", 32, 32, 32)],
)
def test_lplb_fills_every_slot_with_different_experts(algorithm: str, num_ranks: int, intra: int, inter: int) -> None:
    """EP16 on cubes and EP32 on a torus are the published 32/0 and 32/32."""
    counts_RE = skewed_counts(1, num_ranks=num_ranks, num_experts=128)
    problem = two_level_problem(counts_RE, ranks_per_node=8)
    plan = plan_by(algorithm, problem)
    stats = plan.stats(problem)
    assert (stats.intra_guests, stats.inter_guests) == (intra, inter)
    assert np.unique(plan.guests_RK).size == 2 * num_ranks


def test_without_scipy_lplb_names_the_extra_and_the_rest_works(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_scipy(monkeypatch)
    warmed = []

    def plan_and_note(problem: LayerProblem, *, algorithm: str) -> LayerPlan:
        warmed.append(algorithm)
        return plan_layer(problem, algorithm=algorithm)

    # By its module's name: in the package, `warm_up` is the function.
    monkeypatch.setattr(sys.modules["taot_planning.warm_up"], "plan_layer", plan_and_note)
    warm_up()
    assert set(warmed) == set(ALGORITHMS) - {"lplb", "lplb-torus"}
    with pytest.raises(ValueError, match=r"lplb needs scipy.*taot-planner\[exact\]"):
        lplb.plan(with_loads(150, 50), PlanningOptions())
