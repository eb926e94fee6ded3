"""The batched solver against `taot_planning`, which has the same search in scalar loops."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from made_up_routing import random_problem, skewed_counts, two_level_problem, uneven_topology

from taot_planning import (
    LayerPlan,
    LayerProblem,
    PlanningOptions,
    Topology,
    check_plan,
    contiguous_homes,
    plan_layer,
    two_level_topology,
)
from taot_planning.arrays import MAX_COUNT
from taot_planning.options import PPM
from taot_planning.topology import MAX_COST_MILLI
from taot_torch import plan_layers
from taot_torch.batch_search import Found, settle
from taot_torch.draw_sequence import make_sequence
from taot_torch.guests import hot_ranks, measure, no_guests
from taot_torch.insertion import Queue, insert_guest
from taot_torch.layer_search import EXACT_PRODUCTS, make_search
from taot_torch.moved_ranks import choose_moved
from taot_torch.search_batch import SearchBatch, stack_searches

torch.set_num_threads(1)

CPU = torch.device("cpu")
FAST, BALANCED = PlanningOptions(effort="fast"), PlanningOptions(effort="balanced")


def matrix_problem(seed: int, *, most_cost: int, counts_RE: np.ndarray | None = None) -> LayerProblem:
    """Eight ranks with a random cost between any two, uneven slots and homes."""
    rng = np.random.default_rng(seed)
    matrix_RR = rng.integers(1, most_cost, (8, 8))
    np.fill_diagonal(matrix_RR, 0)
    base = uneven_topology(seed, num_ranks=8, max_slots=4)
    topology = Topology(
        levels=base.levels, domains_RV=base.domains_RV, slots_R=base.slots_R, cost_matrix_milli=matrix_RR
    )
    counts_RE = skewed_counts(seed, num_ranks=8, num_experts=24) if counts_RE is None else counts_RE
    return LayerProblem(counts_RE=counts_RE, home_E=rng.integers(0, 8, counts_RE.shape[1]), topology=topology)


def limit_counts(seed: int, shape: tuple[int, int]) -> np.ndarray:
    """Every other count or so is the largest possible."""
    return np.random.default_rng(seed).integers(0, 2, shape) * MAX_COUNT


def huge_problem() -> LayerProblem:
    """The largest costs and counts that there are."""
    return matrix_problem(2, most_cost=MAX_COST_MILLI, counts_RE=limit_counts(2, (8, 24)))


def odd_problems() -> list[LayerProblem]:
    """What is at the edge of something."""
    one_hot_RE = np.zeros((8, 16), dtype=np.int64)
    one_hot_RE[:, 5] = 1000
    silent_RE = skewed_counts(3, num_ranks=8, num_experts=16)
    silent_RE[2], silent_RE[:, 7:9] = 0, 0
    one_rank = two_level_topology(num_ranks=1, ranks_per_node=1, slots=2, inter_cost=3)
    return [
        *(two_level_problem(counts_RE) for counts_RE in (one_hot_RE, silent_RE, one_hot_RE * 0, one_hot_RE * 0 + 7)),
        two_level_problem(silent_RE, slots=0),
        two_level_problem(silent_RE, slots=5),
        two_level_problem(limit_counts(0, (16, 32)), ranks_per_node=8, slots=4),
        matrix_problem(1, most_cost=5000, counts_RE=limit_counts(1, (8, 24))),
        huge_problem(),
        LayerProblem(counts_RE=[[3, 4]], home_E=[0, 0], topology=one_rank),
    ]


def mixed_problems() -> list[LayerProblem]:
    """Layers of many sizes and kinds."""
    return [
        *(random_problem(seed, max_ranks=12, max_experts=30) for seed in range(20)),
        *(matrix_problem(seed, most_cost=5000) for seed in range(8)),
        *even_problems(4),
        *odd_problems(),
    ]


def even_problems(number: int) -> list[LayerProblem]:
    """Layers that reach the tolerance without effort."""
    counts = [skewed_counts(seed, num_ranks=16, num_experts=64, concentration=2.0) for seed in range(number)]
    return [two_level_problem(counts_RE, ranks_per_node=8) for counts_RE in counts]


def crowded_problems() -> list[LayerProblem]:
    """Three ranks in four are hot and need several guests, on few cold ranks with many slots; costs differ widely."""
    base = two_level_topology(num_ranks=20, ranks_per_node=4, slots=10, inter_cost=3)
    problems = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        matrix_RR = rng.integers(1000, 3000, (20, 20))
        np.fill_diagonal(matrix_RR, 0)
        shares_RX = rng.uniform(0.5, 1.5, (20, 12)) * np.where(np.arange(20) % 4 == seed, 0.4, 1.2)[:, None]
        problems.append(
            LayerProblem(
                counts_RE=rng.multinomial(20_000, shares_RX.ravel() / shares_RX.sum(), size=20),
                home_E=contiguous_homes(num_experts=240, num_ranks=20),
                topology=replace(base, cost_matrix_milli=matrix_RR),
            )
        )
    return problems


def assert_same(ours: list[LayerPlan], theirs: list[LayerPlan]) -> None:
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our.guests_RK, their.guests_RK)
        np.testing.assert_array_equal(our.quota_SRK, their.quota_SRK)


@pytest.mark.parametrize("tolerance_ppm", [0, 15_000, 200_000])
def test_fast_plans_are_those_of_the_scalar_search(tolerance_ppm: int) -> None:
    options = replace(FAST, tolerance_ppm=tolerance_ppm)
    problems = mixed_problems()
    plans = plan_layers(problems, options=options, device=CPU)
    assert_same(plans, [plan_layer(problem, options=options) for problem in problems])


def test_layers_that_reach_the_tolerance_are_planned_without_the_scalar_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More ranks get more rounds.
    large = two_level_problem(skewed_counts(0, num_ranks=48, num_experts=96, concentration=3.0), ranks_per_node=8)
    problems = [*even_problems(4), *crowded_problems(), large]
    expected = [plan_layer(problem, options=FAST) for problem in problems]

    def refuse(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
        raise AssertionError("left to the scalar search")

    monkeypatch.setattr("taot_torch.layer_plans.plan_layer", refuse)
    assert_same(plan_layers(problems, options=FAST, device=CPU), expected)


@pytest.mark.parametrize("options", [FAST, BALANCED], ids=["fast", "balanced"])
def test_a_layer_does_not_depend_on_its_batch(options: PlanningOptions) -> None:
    problem = matrix_problem(4, most_cost=5000)
    alone = plan_layers([problem], options=options, device=CPU)
    batch = [random_problem(3), problem]
    assert_same(plan_layers(batch, options=options, device=CPU)[1:], alone)


def test_more_effort_is_never_worse_and_cheaper_in_sum() -> None:
    problems = [*even_problems(4), *odd_problems()]
    better = 0.0
    for problem, plan in zip(problems, plan_layers(problems, options=BALANCED, device=CPU), strict=True):
        check_plan(plan, problem)
        fast = plan_layer(problem, options=FAST)
        cap = -(-int(problem.counts_RE.sum()) * (PPM + FAST.tolerance_ppm) // (PPM * problem.num_ranks))
        above = max(int(plan.loads_R(problem).max()) - cap, 0)
        fast_above = max(int(fast.loads_R(problem).max()) - cap, 0)
        cost, fast_cost = plan.stats(problem).weighted_cost, fast.stats(problem).weighted_cost
        assert (above, cost) <= (fast_above, fast_cost)
        better += (fast_cost - cost) * (above == fast_above)
    assert better > 0


def test_layers_below_the_smallest_imbalance_are_left_alone() -> None:
    problems = even_problems(2)
    options = replace(FAST, min_imbalance_ppm=50 * PPM)
    assert all((plan.guests_RK == -1).all() for plan in plan_layers(problems, options=options, device=CPU))


def test_products_beyond_the_limit_are_left_to_the_scalar_search() -> None:
    assert make_search(huge_problem(), FAST) is None


def test_a_rank_with_more_slots_than_any_cold_one_does_not_matter() -> None:
    for slots_R in ([3, 2], [2, 1]):
        base = two_level_problem(np.array([[100, 100, 0, 0]] * 2), ranks_per_node=2)
        problem = replace(base, topology=replace(base.topology, slots_R=slots_R))
        options = PlanningOptions(effort="fast")
        assert_same(plan_layers([problem], options=options, device=CPU), [plan_layer(problem, options=options)])


def test_no_layers_give_no_plans() -> None:
    assert plan_layers([], options=BALANCED, device=CPU) == []


def test_draws_ahead_are_the_draws_one_by_one() -> None:
    states, state = [], 2**31 - 7
    for _ in range(41):
        states.append(state)
        state = (state * 1103515245 + 12345) % 2**31
    assert make_sequence(40, device=CPU).ahead(torch.tensor([states[0]])).tolist() == [states]


def test_quotients_tell_close_ratios_apart_up_to_the_limit() -> None:
    """The closest ratios with such terms: neighbours whose cross products differ by one."""
    for cost in (3, 1000, 2**19 + 1, 2**25 + 3):
        tokens = EXACT_PRODUCTS // cost - 2
        while np.gcd(tokens, cost) > 1:
            tokens -= 1
        other_cost = pow(tokens, -1, cost)
        other_tokens = (tokens * other_cost - 1) // cost
        assert tokens * other_cost - other_tokens * cost == 1
        assert Fraction(tokens, cost) > Fraction(other_tokens, other_cost)
        quotients = torch.tensor([tokens, other_tokens]).double() / torch.tensor([cost, other_cost]).double()
        assert quotients[0] > quotients[1]


def test_no_part_of_a_round_waits_for_the_device() -> None:
    """Meta tensors have no values, so that asking for one fails, and so does mixing devices."""
    searches = [search for problem in even_problems(2) if (search := make_search(problem, FAST)) is not None]
    batch = on_meta(stack_searches(searches, num_starts=2, device=CPU))
    guests, chance_B = no_guests(batch), batch.index_B
    moved, chance_B = choose_moved(batch, hot_ranks(batch, guests), chance_B)
    queue = Queue(hot_BM=moved.ordered_BM, count_B=moved.count_B, blinks=128)
    guests, chance_B, _ = insert_guest(batch, guests, queue, chance_B, torch.zeros_like(queue.count_B))
    left_B, cost_B = measure(batch, guests)
    found = Found(guests=guests, left_B=left_B, cost_B=cost_B)
    settled = settle(found, found, hot_ranks(batch, guests))
    assert settled.where(settled.is_better(found), found).guests.expert_BCK.is_meta


def on_meta(batch: SearchBatch) -> SearchBatch:
    """The batch without values."""
    tensors = {
        field.name: getattr(batch, field.name) for field in fields(batch) if field.name.endswith(("B", "C", "H", "X"))
    }
    sequence = make_sequence(40, device=torch.device("meta"))
    return replace(batch, sequence=sequence, **{name: tensor.to("meta") for name, tensor in tensors.items()})
