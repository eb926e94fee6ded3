from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_routing import random_problem, skewed_counts, two_level_problem

from taot_planning import LayerProblem, check_plan, plan_layer
from taot_planning.algorithms.auction import MAX_ROUNDS, auction_tokens
from taot_planning.algorithms.placement import place_guests
from taot_planning.algorithms.taot_paper import source_bonuses, whole_tokens
from taot_planning.arrays import IntArray


def auction_of(problem: LayerProblem) -> tuple[IntArray, IntArray, IntArray]:
    """guests_RK, the tokens they want, and what the auction gives."""
    guests_RK, amount_RK = place_guests(problem, tolerance_ppm=0)
    tokens_RK = whole_tokens(guests_RK, amount_RK, problem.num_experts)
    quota_SRK = auction_tokens(problem.counts_RE, guests_RK, tokens_RK, source_bonuses(problem.topology))
    return guests_RK, tokens_RK, quota_SRK


def reference_auction(problem: LayerProblem, guests_RK: IntArray, tokens_RK: IntArray) -> IntArray:
    """Phase 3 word for word for lambda 3; of equal bidders and sources the first."""
    num_ranks, num_slots = guests_RK.shape
    nodes = problem.topology.nodes_R.tolist()

    def bonus(rank: int, source: int) -> float:
        if rank == source:
            return 0.0
        return 1.0 if nodes[rank] == nodes[source] else 1 / 3.0

    supply, demand = problem.counts_RE.copy(), tokens_RK.copy()
    price = [0.0] * num_ranks
    quota_SRK = np.zeros((num_ranks, num_ranks, num_slots), dtype=np.int64)
    for _ in range(300):
        bids: dict[int, list[tuple[float, int, int]]] = {}
        for (rank, slot), expert in np.ndenumerate(guests_RK):
            sources = [source for source in range(num_ranks) if supply[source, expert] > 0]
            if expert >= 0 and demand[rank, slot] > 0 and sources:
                source = max(sources, key=lambda source: (bonus(rank, source) - price[source], -source))
                bids.setdefault(source, []).append((bonus(rank, source), -rank, -slot))
        for source, bidders in bids.items():
            _, rank, slot = (abs(value) for value in max(bidders))
            amount = min(supply[source, guests_RK[rank, slot]], demand[rank, slot])
            supply[source, guests_RK[rank, slot]] -= amount
            demand[rank, slot] -= amount
            quota_SRK[source, rank, slot] += amount
            price[source] += 1.0
    return quota_SRK


@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_no_token_is_lost_or_taken_twice(seed: int) -> None:
    problem = random_problem(seed)
    guests_RK, tokens_RK, quota_SRK = auction_of(problem)
    assert quota_SRK.min(initial=0) >= 0
    assert not quota_SRK[:, guests_RK < 0].any()
    # Small groups need few rounds, so every guest gets exactly what it was to take.
    assert np.array_equal(quota_SRK.sum(axis=0), tokens_RK)
    sent_SE = np.zeros_like(problem.counts_RE)
    for (rank, slot), expert in np.ndenumerate(guests_RK):
        if expert >= 0:
            sent_SE[:, expert] += quota_SRK[:, rank, slot]
    assert (sent_SE <= problem.counts_RE).all()
    check_plan(plan_layer(problem, algorithm="taot-paper"), problem)


def test_the_auction_equals_a_word_for_word_reference() -> None:
    moved = 0
    for seed in range(60):
        problem = random_problem(seed)
        guests_RK, tokens_RK, quota_SRK = auction_of(problem)
        assert np.array_equal(quota_SRK, reference_auction(problem, guests_RK, tokens_RK)), f"seed {seed}"
        moved += int(quota_SRK.sum())
    problem = two_level_problem(skewed_counts(1, num_ranks=16, num_experts=32), ranks_per_node=8)
    guests_RK, tokens_RK, quota_SRK = auction_of(problem)
    assert np.array_equal(quota_SRK, reference_auction(problem, guests_RK, tokens_RK))
    assert moved > 1000


def test_same_node_is_bought_before_other_nodes_and_the_own_rank_last() -> None:
    """One guest on rank 1 of nodes {0, 1}, {2, 3}: by bonus it takes 0, then 2 and 3, then its own tokens."""
    problem = two_level_problem(np.array([[10, 0], [10, 0], [10, 0], [10, 0]]), ranks_per_node=2, slots=1)
    guests_RK, bonus_RS = np.array([[-1], [0], [-1], [-1]]), source_bonuses(problem.topology)
    given_by_demand = {
        tokens: auction_tokens(problem.counts_RE, guests_RK, np.array([[0], [tokens], [0], [0]]), bonus_RS)[:, 1, 0]
        for tokens in (5, 15, 25, 35)
    }
    assert given_by_demand[5].tolist() == [5, 0, 0, 0]
    assert given_by_demand[15].tolist() == [10, 0, 5, 0]
    assert given_by_demand[25].tolist() == [10, 0, 10, 5]
    assert given_by_demand[35].tolist() == [10, 5, 10, 10]


def test_demand_left_after_the_last_round_stays_home() -> None:
    """One guest buys from one source a round; here every source has one token, and there are 400 of them."""
    counts_RE = np.zeros((400, 2), dtype=np.int64)
    counts_RE[:, 0] = 1
    guests_RK = np.full((400, 1), -1)
    guests_RK[399, 0] = 0
    tokens_RK = np.where(guests_RK == 0, 400, 0)
    quota_SRK = auction_tokens(counts_RE, guests_RK, tokens_RK, np.ones((400, 400)))
    assert quota_SRK.sum() == MAX_ROUNDS == 300
    assert quota_SRK.max() == 1
