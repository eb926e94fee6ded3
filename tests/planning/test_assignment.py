from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem
from scipy.optimize import linprog

from taot_planning import LayerPlan, LayerProblem, assign_tokens, check_plan, plan_layer
from taot_planning.arrays import IntArray


def copies_of(problem: LayerProblem, guests_RK: IntArray) -> list[tuple[int, int, int | None]]:
    """(expert, rank, slot) of every copy; slot None for homes."""
    copies: list[tuple[int, int, int | None]] = [
        (expert, int(home), None) for expert, home in enumerate(problem.home_E)
    ]
    for (rank, slot), expert in np.ndenumerate(guests_RK):
        if expert >= 0:
            copies.append((int(expert), rank, slot))
    return copies


def lowest_maximum_by_linprog(problem: LayerProblem, guests_RK: IntArray) -> float:
    """The LP: tokens of each copy and the maximum load, which is minimised."""
    copies = copies_of(problem, guests_RK)
    num_copies = len(copies)
    of_expert = np.zeros((problem.num_experts, num_copies + 1))
    on_rank = np.zeros((problem.num_ranks, num_copies + 1))
    on_rank[:, -1] = -1
    for index, (expert, rank, _) in enumerate(copies):
        of_expert[expert, index] = on_rank[rank, index] = 1
    result = linprog(
        np.eye(num_copies + 1)[-1],
        A_eq=of_expert,
        b_eq=problem.counts_RE.sum(axis=0),
        A_ub=on_rank,
        b_ub=np.zeros(problem.num_ranks),
        method="highs",
    )
    assert result.status == 0
    return float(result.fun)


def lowest_maximum_by_subsets(problem: LayerProblem, guests_RK: IntArray) -> int:
    """Exact, by duality: for every set of ranks, what cannot leave it, divided by its size, rounded up."""
    tokens_E = problem.counts_RE.sum(axis=0).tolist()
    ranks_of: dict[int, set[int]] = {}
    for expert, rank, _ in copies_of(problem, guests_RK):
        ranks_of.setdefault(expert, set()).add(rank)
    best = 0
    for size in range(1, problem.num_ranks + 1):
        for ranks in combinations(range(problem.num_ranks), size):
            trapped = sum(tokens_E[expert] for expert, where in ranks_of.items() if where <= set(ranks))
            best = max(best, -(-trapped // size))
    return best


def fewest_crossings(problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray, weights: list[float]) -> float:
    """Transport LP per expert at the copy loads of the plan; `weights` price own rank, own node, other node."""
    total = 0.0
    for supply_S, demand_C, ranks_C in expert_flows(problem, guests_RK, quota_SRK):
        num_sources, num_copies = supply_S.size, demand_C.size
        cost_SC = distance_weights(problem, ranks_C, weights)
        rows = np.kron(np.eye(num_sources), np.ones(num_copies))
        columns = np.kron(np.ones(num_sources), np.eye(num_copies))
        result = linprog(
            cost_SC.ravel(),
            A_eq=np.vstack([rows, columns]),
            b_eq=np.concatenate([supply_S, demand_C]),
            method="highs",
        )
        assert result.status == 0
        total += result.fun
    return total


def expert_flows(
    problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray
) -> list[tuple[IntArray, IntArray, list[int]]]:
    """Per expert: supply of the sources, tokens of the copies (home first) and the copies' ranks."""
    flows = []
    for expert in range(problem.num_experts):
        supply_S = problem.counts_RE[:, expert]
        where = np.argwhere(guests_RK == expert).tolist()
        guest_tokens = [int(quota_SRK[:, rank, slot].sum()) for rank, slot in where]
        demand_C = np.array([supply_S.sum() - sum(guest_tokens), *guest_tokens])
        flows.append((supply_S, demand_C, [int(problem.home_E[expert]), *(rank for rank, _ in where)]))
    return flows


def distance_weights(problem: LayerProblem, ranks_C: list[int], weights: list[float]) -> np.ndarray:
    nodes_R = problem.topology.nodes_R
    weight_SC = np.full((problem.num_ranks, len(ranks_C)), weights[2], dtype=float)
    weight_SC[nodes_R[:, None] == nodes_R[ranks_C][None, :]] = weights[1]
    weight_SC[ranks_C, np.arange(len(ranks_C))] = weights[0]
    return weight_SC


def weight_of(problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray, weights: list[float]) -> float:
    """What the plan's own flow costs under the same weights."""
    total = 0.0
    for expert in range(problem.num_experts):
        home_S = problem.counts_RE[:, expert].astype(float)
        for rank, slot in np.argwhere(guests_RK == expert).tolist():
            home_S = home_S - quota_SRK[:, rank, slot]
            total += (quota_SRK[:, rank, slot] * distance_weights(problem, [rank], weights)[:, 0]).sum()
        total += (home_S * distance_weights(problem, [int(problem.home_E[expert])], weights)[:, 0]).sum()
    return total


@pytest.mark.parametrize("block", range(8))
def test_the_maximum_load_is_the_optimum_of_the_linear_program_rounded_up(block: int) -> None:
    improved = 0
    for seed in range(block * 50, block * 50 + 50):
        problem = random_problem(seed)
        guests_RK = random_guests(seed, problem)
        plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
        check_plan(plan, problem)
        optimum = lowest_maximum_by_linprog(problem, guests_RK)
        assert plan.loads_R(problem).max() == math.ceil(optimum - 1e-6), f"seed {seed}"
        improved += plan.stats(problem).imbalance_after < plan.stats(problem).imbalance_before
    assert improved > 10


def test_the_maximum_load_is_exact_at_the_largest_counts() -> None:
    for seed in range(60):
        small = random_problem(seed, max_ranks=6)
        rng = np.random.default_rng(seed)
        counts_RE = rng.integers(2**31 - 1000, 2**31, small.counts_RE.shape)
        counts_RE[:, rng.random(small.num_experts) < 0.5] //= 1000
        problem = LayerProblem(counts_RE=counts_RE, home_E=small.home_E, topology=small.topology)
        guests_RK = random_guests(seed, problem)
        plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
        check_plan(plan, problem)
        assert plan.loads_R(problem).max() == lowest_maximum_by_subsets(problem, guests_RK), f"seed {seed}"


def test_one_hot_expert_is_shared_evenly_by_its_copies() -> None:
    counts_RE = np.zeros((4, 8), dtype=np.int64)
    counts_RE[:, 3] = [100, 100, 100, 101]
    problem = two_level_problem(counts_RE, ranks_per_node=2, slots=1)
    guests_RK = np.array([[3], [-1], [3], [3]])
    loads_R = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK)).loads_R(problem)
    assert loads_R.max() == 101
    assert loads_R.sum() == 401


def test_load_reaches_a_rank_over_a_chain_of_copies() -> None:
    # Expert 0 may move from rank 0 to 1, expert 1 from rank 1 to 2: relief for rank 0 takes both.
    problem = two_level_problem(np.array([[90, 0, 0], [0, 90, 0], [0, 0, 0]]), slots=1)
    guests_RK = np.array([[-1], [0], [1]])
    loads_R = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK)).loads_R(problem)
    assert loads_R.tolist() == [60, 60, 60]


def test_tokens_cross_nodes_no_more_than_the_transport_optimum_at_these_loads() -> None:
    crossings = 0.0
    for seed in range(25):
        problem = random_problem(seed, max_ranks=6, max_experts=8)
        guests_RK = random_guests(seed, problem)
        quota_SRK = assign_tokens(problem, guests_RK)
        for weights in ([0, 0, 1], [0, 1, 1]):
            ours = weight_of(problem, guests_RK, quota_SRK, weights)
            assert ours == pytest.approx(fewest_crossings(problem, guests_RK, quota_SRK, weights), abs=1e-6)
            crossings += ours
    assert crossings > 1000


def test_a_placement_older_than_the_counts_is_still_assigned_exactly() -> None:
    for seed in range(20):
        old = two_level_problem(skewed_counts(seed, num_ranks=8, num_experts=32))
        new = two_level_problem(skewed_counts(seed + 1000, num_ranks=8, num_experts=32))
        guests_RK = plan_layer(old).guests_RK
        plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(new, guests_RK))
        check_plan(plan, new)
        assert plan.loads_R(new).max() == math.ceil(lowest_maximum_by_linprog(new, guests_RK) - 1e-6)


def test_the_order_of_a_ranks_slots_does_not_change_the_maximum_load() -> None:
    for seed in range(30):
        problem = random_problem(seed)
        guests_RK = random_guests(seed, problem)
        turned_RK = guests_RK[:, ::-1]
        plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
        turned = LayerPlan(guests_RK=turned_RK, quota_SRK=assign_tokens(problem, turned_RK))
        assert plan.loads_R(problem).max() == turned.loads_R(problem).max()


def test_equal_copies_are_served_in_the_order_of_ranks_not_of_slots() -> None:
    """Which slot of a rank holds a guest is an accident, so it must not decide where tokens go."""
    for seed in range(30):
        problem = random_problem(seed)
        guests_RK = random_guests(seed, problem)
        quota_SRK = assign_tokens(problem, guests_RK)
        turned_SRK = assign_tokens(problem, guests_RK[:, ::-1])
        assert np.array_equal(quota_SRK, turned_SRK[:, :, ::-1])


def test_inputs_are_not_changed() -> None:
    problem = random_problem(3)
    guests_RK = random_guests(3, problem)
    before = guests_RK.copy(), problem.counts_RE.copy()
    assign_tokens(problem, guests_RK)
    assert np.array_equal(guests_RK, before[0])
    assert np.array_equal(problem.counts_RE, before[1])
    assert guests_RK.flags.writeable
