from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from made_up_routing import random_problem, skewed_counts, two_level_problem

from taot_planning import LayerProblem, PlanningOptions
from taot_planning.algorithms import eplb
from taot_planning.algorithms.guest_slots import GuestSlots
from taot_planning.arrays import IntArray

OPTIONS = PlanningOptions()


def copies_by_bisection(tokens: list[int], num_slots: int, max_copies: int) -> tuple[Fraction, int]:
    """The smallest possible largest share with that many further copies, by trying every share there can be.

    Returns:
        The share, and the copies that are needed for it.
    """
    for share in sorted({Fraction(n, c) for n in tokens if n for c in range(1, max_copies + 1)}):
        needed = [-(-n // share) for n in tokens if n]
        if all(copies <= max_copies for copies in needed) and sum(needed) - len(needed) <= num_slots:
            return share, int(sum(needed)) - len(needed)
    raise AssertionError("one copy each is always possible")


def copies_of(guests_RK: IntArray, num_experts: int) -> IntArray:
    return 1 + np.bincount(guests_RK[guests_RK >= 0], minlength=num_experts)


def test_copies_make_the_largest_share_as_small_as_possible() -> None:
    """Giving to the largest load per copy is optimal; an exhaustive search over shares agrees."""
    for seed in range(30):
        counts_RE = skewed_counts(seed, num_ranks=8, num_experts=32, tokens=4096)
        tokens = counts_RE.sum(axis=0).tolist()
        copies = eplb._count_copies(dict(enumerate(tokens)), num_slots=16, max_copies=8)
        share, _ = copies_by_bisection(tokens, 16, 8)
        assert sum(copies.values()) == 32 + 16
        assert max(Fraction(n, copies[expert]) for expert, n in enumerate(tokens)) == share


def test_tokens_are_shared_equally_among_the_copies() -> None:
    shared = 0
    for seed in range(60):
        problem = random_problem(seed)
        plan = eplb.plan_globally(problem, OPTIONS)
        tokens_E = problem.counts_RE.sum(axis=0)
        copies_E = copies_of(plan.guests_RK, problem.num_experts)
        for (rank, slot), expert in np.ndenumerate(plan.guests_RK):
            if expert >= 0:
                assert plan.tokens_RK[rank, slot] == tokens_E[expert] // copies_E[expert]
                shared += 1
    assert shared > 100


def test_with_several_nodes_no_guest_leaves_its_own() -> None:
    for seed in range(10):
        problem = two_level_problem(skewed_counts(seed, num_ranks=16, num_experts=64), ranks_per_node=4)
        assert eplb.plan(problem, OPTIONS).stats(problem).inter_guests == 0
        assert eplb.plan_globally(problem, OPTIONS).stats(problem).inter_guests > 0


def test_nodes_are_planned_each_by_itself() -> None:
    """A node's plan is what it would be if the other node did not exist."""
    counts_RE = skewed_counts(3, num_ranks=8, num_experts=32)
    both = eplb.plan(two_level_problem(counts_RE), OPTIONS)
    left_RE = counts_RE[:4, :16] + counts_RE[4:, :16]
    left = eplb.plan(two_level_problem(left_RE), OPTIONS)
    assert np.array_equal(both.guests_RK[:4], left.guests_RK)
    assert np.array_equal(both.tokens_RK[:4], left.tokens_RK)


@pytest.mark.parametrize("plan", [eplb.plan, eplb.plan_globally])
def test_one_node_is_planned_globally_and_every_slot_is_used(plan) -> None:
    problem = two_level_problem(skewed_counts(5, num_ranks=8, num_experts=64, concentration=3.0), ranks_per_node=8)
    assert (plan(problem, OPTIONS).guests_RK >= 0).all()
    assert np.array_equal(plan(problem, OPTIONS).guests_RK, eplb.plan_globally(problem, OPTIONS).guests_RK)


def test_copies_go_to_the_largest_load_per_copy_and_to_ranks_with_a_slot() -> None:
    """Experts of 120, 60, 24 and 6 tokens at home on ranks 0 to 3, four slots in all.

    The copies go to 120, then 120/2 (60 is equal and comes later), 60, and 120/3: so four copies of the first with
    30 tokens each, and two of the second. Guests of the first find a slot everywhere but at home; rank 0 has the
    only slot that is left for the second.
    """
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[0] = [120, 60, 24, 6]
    plan = eplb.plan(two_level_problem(counts_RE, slots=1), OPTIONS)
    assert plan.guests_RK.ravel().tolist() == [1, 0, 0, 0]
    assert plan.tokens_RK.ravel().tolist() == [30, 30, 30, 30]


def test_a_copy_counts_as_load_when_the_next_one_is_packed() -> None:
    """Experts of 400 and 300 on rank 0, slots for one copy of each: the empty ranks 1 and 2 get one each.

    Rank 1 comes first by index and has room for both.
    """
    counts_RE = np.zeros((3, 2), dtype=np.int64)
    counts_RE[0] = [400, 300]
    base = two_level_problem(counts_RE, ranks_per_node=3, homes_E=np.array([0, 0]))
    slots = GuestSlots(base)
    eplb._pack(base, slots, {0: 400, 1: 300}, {0: 2, 1: 2}, [0, 1, 2])
    assert slots.guests_RK.tolist() == [[-1, -1], [0, -1], [1, -1]]


def test_an_expert_has_no_more_copies_than_ranks_or_tokens() -> None:
    counts_RE = np.zeros((4, 8), dtype=np.int64)
    counts_RE[0, 0], counts_RE[1, 2] = 1000, 2
    problem = LayerProblem(
        counts_RE=counts_RE,
        home_E=np.arange(8) // 2,
        topology=two_level_problem(counts_RE, slots=4).topology,
    )
    copies_E = copies_of(eplb.plan_globally(problem, OPTIONS).guests_RK, 8)
    assert copies_E.tolist() == [4, 1, 2, 1, 1, 1, 1, 1]
