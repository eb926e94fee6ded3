from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from made_up_routing import random_problem, skewed_counts, two_level_problem

from taot_planning import LayerProblem
from taot_planning.algorithms.placement import place_guests
from taot_planning.algorithms.sinkhorn import sinkhorn_flow
from taot_planning.algorithms.surplus import measure_surplus
from taot_planning.algorithms.taot_paper import whole_tokens
from taot_planning.options import PPM

Pairs = dict[tuple[int, int], tuple[int, Fraction]]
"""(rank, outer round) -> (expert, tokens)."""


def reference_spills(problem: LayerProblem, target: Fraction) -> list[Fraction]:
    """Phase 2's spill_e, rank by rank, in exact fractions."""
    tokens_E = problem.counts_RE.sum(axis=0).tolist()
    spills = [Fraction(0)] * problem.num_experts
    for rank in range(problem.num_ranks):
        mine = sorted((tokens_E[e], e) for e in range(problem.num_experts) if problem.home_E[e] == rank)
        running, over = Fraction(0), Fraction(0)
        for tokens, expert in mine:
            running += tokens
            spills[expert] = max(running - target, Fraction(0)) - over
            over += spills[expert]
    return spills


def reference_matching(problem: LayerProblem, tolerance_ppm: int = 0) -> Pairs:
    """Phase 2 word for word, with the flow of phase 1, for two-level topologies with lambda 3."""
    num_ranks, num_experts, home = problem.num_ranks, problem.num_experts, problem.home_E.tolist()
    nodes, slots = problem.topology.nodes_R.tolist(), problem.topology.slots_R.tolist()
    total = int(problem.counts_RE.sum())
    target = Fraction(total * (PPM + tolerance_ppm) // PPM, num_ranks)
    loads = [Fraction(0)] * num_ranks
    for expert, tokens in enumerate(problem.counts_RE.sum(axis=0).tolist()):
        loads[home[expert]] += tokens
    surplus = [max(load - target, Fraction(0)) for load in loads]
    spare = [max(target - load, Fraction(0)) for load in loads]
    spill = reference_spills(problem, target)
    cost = [[1.0 if a == b else 3.0 for b in nodes] for a in nodes]
    flow = sinkhorn_flow(np.array(surplus, float), np.array(spare, float), np.array(cost))
    alpha = total / num_experts

    def score(expert: int, rank: int) -> float:
        here = home[expert]
        bonus = 0.0 if here == rank else 1 / cost[here][rank]
        hint = round(flow[here, rank] / max(float(surplus[here]), 1.0), 9)
        return float(min(spill[expert], spare[rank])) + alpha * bonus + 0.1 * alpha * hint

    pairs: Pairs = {}
    used: set[tuple[int, int]] = set()
    for outer in range(max(slots)):
        matched: set[int] = set()
        for _ in range(num_ranks):
            proposals: dict[int, list[tuple[float, int]]] = {}
            for rank in range(num_ranks):
                choices = [
                    (score(expert, rank), -expert)
                    for expert in range(num_experts)
                    if spill[expert] > 0 and home[expert] != rank and (expert, rank) not in used
                ]
                if spare[rank] > 0 and rank not in matched and outer < slots[rank] and choices:
                    best, negative = max(choices)
                    proposals.setdefault(-negative, []).append((best, -rank))
            for expert, bidders in proposals.items():
                rank = -max(bidders)[1]
                tokens = min(spill[expert], spare[rank])
                pairs[rank, outer] = expert, tokens
                spill[expert] -= tokens
                spare[rank] -= tokens
                used.add((expert, rank))
                matched.add(rank)
    return pairs


def our_pairs(problem: LayerProblem, tolerance_ppm: int = 0) -> Pairs:
    guests_RK, amount_RK = place_guests(problem, tolerance_ppm=tolerance_ppm)
    return {
        (rank, slot): (int(expert), Fraction(int(amount_RK[rank, slot]), problem.num_ranks))
        for (rank, slot), expert in np.ndenumerate(guests_RK)
        if expert >= 0
    }


@pytest.mark.parametrize("tolerance_ppm", [0, 15_000, 200_000])
def test_the_matching_equals_a_word_for_word_reference_on_uneven_layers(tolerance_ppm: int) -> None:
    matches = 0
    for seed in range(150):
        problem = random_problem(seed)
        expected = reference_matching(problem, tolerance_ppm)
        assert our_pairs(problem, tolerance_ppm) == expected, f"seed {seed}"
        matches += len(expected)
    assert matches > 150


@pytest.mark.parametrize(("num_ranks", "num_experts", "slots"), [(16, 64, 2), (32, 128, 2), (8, 60, 4), (4, 4, 3)])
def test_the_matching_equals_the_reference_at_training_sizes(num_ranks: int, num_experts: int, slots: int) -> None:
    for seed in range(3):
        counts_RE = skewed_counts(seed, num_ranks=num_ranks, num_experts=num_experts)
        problem = two_level_problem(counts_RE, ranks_per_node=num_ranks // 2, slots=slots)
        expected = reference_matching(problem)
        assert our_pairs(problem) == expected
        assert expected


def test_ties_go_to_the_lowest_expert_and_the_lowest_rank() -> None:
    """Counts of 0 to 2 tokens: nearly every comparison is a tie."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        problem = two_level_problem(rng.integers(0, 3, (6, 12)), ranks_per_node=3, slots=2)
        assert our_pairs(problem) == reference_matching(problem), f"seed {seed}"


def test_equal_shares_of_the_flow_are_ties_though_computed_differently() -> None:
    """Both experts of the hot ranks 0 and 1 would fill any cold rank, and all ranks share a node: to every cold
    rank they are worth the same, so each proposes expert 0, which takes the one with the most room."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        load_R = [*rng.integers(1500, 1700, 2), *rng.integers(600, 700, 3)]
        problem = two_level_problem(np.diag(load_R), ranks_per_node=5, slots=1)
        roomiest = 2 + int(np.argmin(load_R[2:]))
        assert our_pairs(problem)[roomiest, 0][0] == 0, f"seed {seed}"


def test_spills_of_a_rank_add_up_to_its_surplus_and_small_experts_stay_home() -> None:
    counts_RE = np.array([[5, 1, 40, 0], [5, 1, 40, 4]])
    surplus = measure_surplus(two_level_problem(counts_RE), tolerance_ppm=0)
    # Loads 12 and 84, mean 48: in halves of a token, rank 1 has 72 too many and only its large expert spills.
    assert surplus.surplus_R.tolist() == [0, 72]
    assert surplus.spare_R.tolist() == [72, 0]
    assert surplus.spill_E.tolist() == [0, 0, 72, 0]
    for seed in range(50):
        problem = random_problem(seed)
        surplus = measure_surplus(problem, tolerance_ppm=0)
        spilled_R = np.zeros(problem.num_ranks, dtype=np.int64)
        np.add.at(spilled_R, problem.home_E, surplus.spill_E)
        assert np.array_equal(spilled_R, surplus.surplus_R)
        assert surplus.surplus_R.sum() == surplus.spare_R.sum()


def test_the_largest_counts_do_not_overflow() -> None:
    counts_RE = np.full((64, 256), 2**31 - 1)
    counts_RE[:, 4:] //= 1000
    problem = two_level_problem(counts_RE, ranks_per_node=8)
    assert our_pairs(problem) == reference_matching(problem)
    assert all(tokens > 0 for _, tokens in our_pairs(problem).values())


def test_tokens_beyond_64_bits_are_refused() -> None:
    problem = two_level_problem(np.full((2048, 1024), 2**31 - 1, dtype=np.int64), slots=0)
    with pytest.raises(ValueError, match="2048 ranks x .* plan fewer tokens"):
        measure_surplus(problem, tolerance_ppm=0)


def test_amounts_are_rounded_so_that_an_expert_gives_what_it_spilled() -> None:
    # Thirds of a token: 1/3 + 1/3 + 4/3 make 2 tokens, though each rounded alone would make 1.
    guests_RK, amount_RK = np.array([[0, 1], [0, -1], [0, 2]]), np.array([[1, 2], [1, 0], [4, 3]])
    assert whole_tokens(guests_RK, amount_RK, 3).tolist() == [[0, 1], [1, 0], [1, 1]]


def test_rounded_amounts_stay_within_a_token_of_the_exact_ones() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        guests_RK, amount_RK = place_guests(problem, tolerance_ppm=0)
        tokens_RK = whole_tokens(guests_RK, amount_RK, problem.num_experts)
        assert (np.abs(tokens_RK * problem.num_ranks - amount_RK) < problem.num_ranks).all()
        for expert in range(problem.num_experts):
            mine = guests_RK == expert
            difference = int(tokens_RK[mine].sum()) * problem.num_ranks - int(amount_RK[mine].sum())
            assert 2 * abs(difference) <= problem.num_ranks
            assert tokens_RK[mine].sum() <= problem.counts_RE[:, expert].sum()
