from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem
from scipy.optimize import linprog

from taot_planning import LayerPlan, LayerProblem, assign_tokens, check_plan, rank_loads
from taot_planning.arrays import IntArray, read_only
from taot_planning.capacity import capacities_at, pace_of
from taot_planning.copies import list_copies
from taot_planning.copy_loads import NO_CAPS, load_copies
from taot_planning.topology import SPEED_LIMITS_MILLI


def uneven_problem(seed: int, *, speeds: bool = False, caps: bool = False) -> LayerProblem:
    """A small layer whose ranks differ in speed, or in the tokens they can take: half of them little."""
    problem = random_problem(seed)
    rng = np.random.default_rng([seed, 2])
    num_ranks = problem.num_ranks
    mean = int(problem.counts_RE.sum()) // num_ranks
    speed_R = rng.choice([10, 500, 800, 1000, 1001, 3000, 10_000], num_ranks) if speeds else None
    cap_R = rng.integers(0, 2 * mean + 2, num_ranks) * rng.choice([1, 4], num_ranks) if caps else None
    topology = replace(problem.topology, speed_milli_R=speed_R, token_cap_R=cap_R)
    return LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=topology)


def loads_of(problem: LayerProblem, guests_RK: IntArray) -> IntArray:
    plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
    check_plan(plan, problem)
    return plan.loads_R(problem)


def fewest_above(limit_R: IntArray, problem: LayerProblem, guests_RK: IntArray) -> float:
    """The LP: tokens of each copy, and those above the limits of each rank, whose sum is minimised."""
    ranks, slots = np.nonzero(guests_RK >= 0)
    expert_C = np.concatenate([np.arange(problem.num_experts), guests_RK[ranks, slots]])
    rank_C = np.concatenate([problem.home_E, ranks])
    of_expert = (np.arange(problem.num_experts)[:, None] == expert_C).astype(float)
    on_rank = (np.arange(problem.num_ranks)[:, None] == rank_C).astype(float)
    result = linprog(
        np.concatenate([np.zeros(rank_C.size), np.ones(problem.num_ranks)]),
        A_eq=np.hstack([of_expert, np.zeros((problem.num_experts, problem.num_ranks))]),
        b_eq=problem.counts_RE.sum(axis=0),
        A_ub=np.hstack([on_rank, -np.eye(problem.num_ranks)]),
        b_ub=limit_R,
        method="highs",
    )
    assert result.status == 0
    return float(result.fun)


@pytest.mark.parametrize("block", range(4))
def test_ranks_of_different_speed_end_as_early_as_the_linear_program_allows(block: int) -> None:
    paces = set()
    for seed in range(block * 30, block * 30 + 30):
        problem = uneven_problem(seed, speeds=True)
        guests_RK = random_guests(seed, problem)
        pace = pace_of(loads_of(problem, guests_RK), problem.topology)
        if pace > 0:
            sooner_R = capacities_at(pace - 1, problem.topology)
            assert fewest_above(sooner_R, problem, guests_RK) > 0.5, f"seed {seed}"
        paces.add(pace)
    assert len(paces) > 10


@pytest.mark.parametrize("speeds", [False, True])
def test_as_few_tokens_are_above_caps_as_the_linear_program_allows(speeds: bool) -> None:
    held = broken = 0
    for seed in range(60):
        problem = uneven_problem(seed, speeds=speeds, caps=True)
        cap_R = problem.topology.token_cap_R
        assert cap_R is not None
        guests_RK = random_guests(seed, problem)
        loads_R = loads_of(problem, guests_RK)
        above = int(np.maximum(loads_R - cap_R, 0).sum())
        assert above == pytest.approx(fewest_above(cap_R, problem, guests_RK), abs=1e-6), f"seed {seed}"
        assert (loads_R <= np.maximum(cap_R, rank_loads(problem.counts_RE, problem.home_E))).all()
        held += above == 0
        broken += above > 0
    assert held > 12
    assert broken > 12


@pytest.mark.parametrize("speeds", [False, True])
def test_ranks_end_as_early_as_their_caps_and_the_linear_program_allow(speeds: bool) -> None:
    bound = 0
    for seed in range(60):
        problem = uneven_problem(seed, speeds=speeds, caps=True)
        uncapped = replace(problem.topology, token_cap_R=None)
        guests_RK = random_guests(seed, problem)
        loads_R = loads_of(problem, guests_RK)
        pace = pace_of(loads_R, uncapped)
        # What stays above a cap has to stay there, as the test above shows.
        cap_R = np.maximum(problem.topology.token_cap_R, loads_R * (loads_R > problem.topology.token_cap_R))
        if pace > 0:
            sooner_R = np.minimum(capacities_at(pace - 1, uncapped), cap_R)
            assert fewest_above(sooner_R, problem, guests_RK) > 0.5, f"seed {seed}"
        free = LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=uncapped)
        bound += pace > pace_of(loads_of(free, guests_RK), uncapped)
    assert bound > 6


def smallest_pace_by_subsets(problem: LayerProblem, guests_RK: IntArray) -> int:
    """Exact, by duality: every set of ranks must have the capacity for what cannot leave it."""
    tokens_E = problem.counts_RE.sum(axis=0).tolist()
    speeds = problem.topology.speeds_R.tolist()
    ranks_of = {expert: {home} for expert, home in enumerate(problem.home_E.tolist())}
    for (rank, _), expert in np.ndenumerate(guests_RK):
        if expert >= 0:
            ranks_of[int(expert)].add(rank)
    low, high = -1, sum(tokens_E) * max(speeds)
    sets = [s for size in range(1, len(speeds) + 1) for s in combinations(range(len(speeds)), size)]
    trapped = [sum(tokens_E[expert] for expert, where in ranks_of.items() if where <= set(s)) for s in sets]
    while high - low > 1:
        middle = (low + high) // 2
        rooms = [sum(-(-middle * speeds[rank] // max(speeds)) for rank in ranks) for ranks in sets]
        if all(room >= load for room, load in zip(rooms, trapped, strict=True)):
            high = middle
        else:
            low = middle
    return high


def test_the_pace_is_exact_at_the_largest_counts_and_the_extremes_of_speed() -> None:
    for seed in range(60):
        small = random_problem(seed, max_ranks=6)
        rng = np.random.default_rng(seed)
        counts_RE = rng.integers(2**31 - 1000, 2**31, small.counts_RE.shape)
        counts_RE[:, rng.random(small.num_experts) < 0.5] //= 1000
        speed_R = rng.choice([*SPEED_LIMITS_MILLI, 999], small.num_ranks)
        topology = replace(small.topology, speed_milli_R=speed_R, token_cap_R=np.full(small.num_ranks, 2**62))
        problem = LayerProblem(counts_RE=counts_RE, home_E=small.home_E, topology=topology)
        guests_RK = random_guests(seed, problem)
        pace = pace_of(loads_of(problem, guests_RK), problem.topology)
        assert pace == smallest_pace_by_subsets(problem, guests_RK), f"seed {seed}"


@pytest.mark.parametrize("num_guests", [0, 7])
def test_no_count_overflows_in_a_large_group(num_guests: int) -> None:
    """A rank of a thousandth of the others' speed is the last to end, however many of its eight experts have guests."""
    most = 2**31 - 1
    homes_E = np.where(np.arange(8192) < 8, 0, 1 + np.arange(8192) % 63)
    problem = two_level_problem(np.full((64, 8192), most), slots=1, homes_E=homes_E)
    topology = replace(problem.topology, speed_milli_R=[10, *[10_000] * 63])
    slow = LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=topology)
    guests_RK = np.full((64, 1), -1)
    guests_RK[1 : 1 + num_guests, 0] = range(num_guests)
    loads_R = loads_of(slow, guests_RK)
    assert int(loads_R.sum()) == 64 * 8192 * most
    assert loads_R[0] == (8 - num_guests) * 64 * most
    assert pace_of(loads_R, topology) == loads_R[0] * 1000 - 999


def test_equal_speeds_and_loose_caps_change_nothing() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        guests_RK = random_guests(seed, problem)
        same = replace(
            problem.topology,
            speed_milli_R=np.full(problem.num_ranks, 700),
            token_cap_R=np.full(problem.num_ranks, 10**9),
        )
        other = LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=same)
        assert np.array_equal(assign_tokens(problem, guests_RK), assign_tokens(other, guests_RK))


def test_a_rank_of_half_the_speed_gets_half_the_tokens() -> None:
    problem = two_level_problem(np.array([[600, 0, 0], [0, 0, 0], [0, 0, 0]]), slots=1)
    topology = replace(problem.topology, speed_milli_R=[1000, 500, 1000])
    slower = LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=topology)
    assert loads_of(slower, np.array([[-1], [0], [0]])).tolist() == [240, 120, 240]


def test_a_rank_above_its_cap_is_relieved_by_all_that_guests_can_take() -> None:
    # 50 tokens have nowhere to go, and 100 only a rank that may take 60; balance alone would leave 95 on rank 0.
    problem = two_level_problem(np.array([[100, 50, 40], [0, 0, 0]]), slots=1, homes_E=np.array([0, 0, 1]))
    topology = replace(problem.topology, token_cap_R=[30, 100])
    capped = LayerProblem(counts_RE=problem.counts_RE, home_E=problem.home_E, topology=topology)
    assert loads_of(capped, np.array([[-1], [0]])).tolist() == [90, 100]


def test_fewer_crossings_leave_the_loads_of_ranks_as_they_are() -> None:
    for seed in range(20):
        problem = two_level_problem(skewed_counts(seed, num_ranks=8, num_experts=32))
        guests_RK = random_guests(seed, problem)
        copies_CF = list_copies(problem.home_E, problem.topology.nodes_R, read_only(guests_RK))
        topology = problem.topology
        caps_R = NO_CAPS if topology.token_cap_R is None else topology.token_cap_R
        tokens_RK = load_copies(
            problem.counts_RE, problem.home_E, copies_CF, topology.speeds_R, caps_R, guests_RK.shape[1]
        )
        loads_R = rank_loads(problem.counts_RE, problem.home_E) + tokens_RK.sum(axis=1)
        held_RK = guests_RK >= 0
        np.subtract.at(loads_R, problem.home_E[guests_RK[held_RK]], tokens_RK[held_RK])
        assert np.array_equal(loads_R, loads_of(problem, guests_RK))
