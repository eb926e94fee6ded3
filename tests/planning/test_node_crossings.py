from __future__ import annotations

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem
from scipy.optimize import linprog

from taot_planning import LayerPlan, LayerProblem, assign_tokens, check_plan, plan_layer
from taot_planning.arrays import IntArray


def crossings_and_fewest(problem: LayerProblem, guests_RK: IntArray) -> tuple[int, float]:
    """Node crossings of the split, and the fewest that the loads of the ranks allow.

    The LP has the tokens from each node to each copy, of experts that have guests. Sums per node and expert, and the
    loads of ranks, are fixed; how many tokens a copy takes is free.
    """
    nodes_R, counts_RE = problem.topology.nodes_R, problem.counts_RE
    plan = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
    check_plan(plan, problem)
    experts = np.unique(guests_RK[guests_RK >= 0])
    ranks, slots = np.nonzero(guests_RK >= 0)
    expert_C = np.concatenate([experts, guests_RK[ranks, slots]])
    rank_C = np.concatenate([problem.home_E[experts], ranks])
    flow_CS = np.concatenate([counts_RE.T[experts], plan.quota_SRK[:, ranks, slots].T])
    for copy in range(experts.size, expert_C.size):
        flow_CS[np.searchsorted(experts, expert_C[copy])] -= flow_CS[copy]
    crossing_CS = nodes_R[rank_C][:, None] != nodes_R
    nodes = np.unique(nodes_R)
    cost_CN = (nodes_R[rank_C][:, None] != nodes).astype(float)
    supply_EN = np.stack([counts_RE[nodes_R == node][:, experts].sum(axis=0) for node in nodes], axis=1)
    of_expert = (experts[:, None] == expert_C).astype(float)
    on_rank = (np.arange(problem.num_ranks)[:, None] == rank_C).astype(float)
    if expert_C.size == 0:
        return 0, 0.0
    result = linprog(
        cost_CN.ravel(),
        A_eq=np.vstack([np.kron(of_expert, np.eye(nodes.size)), np.kron(on_rank, np.ones(nodes.size))]),
        b_eq=np.concatenate([supply_EN.ravel(), on_rank @ flow_CS.sum(axis=1)]),
        method="highs",
    )
    assert result.status == 0
    return int(flow_CS[crossing_CS].sum()), float(result.fun)


@pytest.mark.parametrize("block", range(4))
def test_no_split_with_these_loads_crosses_nodes_less(block: int) -> None:
    total = 0
    for seed in range(block * 50, block * 50 + 50):
        problem = random_problem(seed)
        ours, fewest = crossings_and_fewest(problem, random_guests(seed, problem))
        assert ours == pytest.approx(fewest, abs=1e-5), f"seed {seed}"
        total += ours
    assert total > 1000


def test_no_split_crosses_less_where_every_slot_is_filled_and_experts_have_many_copies() -> None:
    for seed in range(8):
        problem = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=32), ranks_per_node=4)
        guests_RK = np.sort(random_guests(seed, problem) % 8, axis=1)
        guests_RK[:, 1][guests_RK[:, 1] == guests_RK[:, 0]] = -1
        guests_RK[problem.home_E[guests_RK] == np.arange(16)[:, None]] = -1
        ours, fewest = crossings_and_fewest(problem, guests_RK)
        assert ours == pytest.approx(fewest, abs=1e-5), f"seed {seed}"


def test_no_split_of_counts_that_differ_from_the_planned_ones_crosses_less() -> None:
    for seed in range(10):
        old = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=64))
        new = two_level_problem(skewed_counts(seed + 1000, num_ranks=16, num_experts=64))
        for algorithm in ("taot", "taot-paper"):
            ours, fewest = crossings_and_fewest(new, plan_layer(old, algorithm=algorithm).guests_RK)
            assert ours == pytest.approx(fewest, abs=1e-5), f"seed {seed}"


def test_nothing_overflows_at_the_largest_counts() -> None:
    for seed in range(20):
        small = random_problem(seed, max_ranks=6)
        counts_RE = small.counts_RE * (2**31 - 1) // max(int(small.counts_RE.max()), 1)
        problem = LayerProblem(counts_RE=counts_RE, home_E=small.home_E, topology=small.topology)
        ours, fewest = crossings_and_fewest(problem, random_guests(seed, problem))
        assert ours == pytest.approx(fewest, rel=1e-9, abs=1)


def test_two_ranks_swap_experts_when_that_saves_crossings() -> None:
    problem = two_level_problem(np.array([[0, 90], [90, 0]]), ranks_per_node=1, slots=1)
    quota_SRK = assign_tokens(problem, np.array([[1], [0]]))
    assert quota_SRK[:, :, 0].tolist() == [[90, 0], [0, 90]]


def test_every_single_token_counts_where_experts_share_ranks() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        problem = two_level_problem(rng.integers(0, 4, (6, 6)), ranks_per_node=2, slots=3)
        ours, fewest = crossings_and_fewest(problem, random_guests(seed, problem))
        assert ours == pytest.approx(fewest, abs=1e-5), f"seed {seed}"


def test_no_split_crosses_less_where_ranks_hold_many_guests() -> None:
    for seed in range(6):
        problem = two_level_problem(skewed_counts(seed, num_ranks=12, num_experts=12), ranks_per_node=3, slots=3)
        ours, fewest = crossings_and_fewest(problem, random_guests(seed, problem))
        assert ours == pytest.approx(fewest, abs=1e-5), f"seed {seed}"
