from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_topology

from taot_client.token_layout import TokenLayout, lay_out_tokens
from taot_planning import LayerProblem, assign_tokens
from taot_planning.arrays import IntArray


class Pair(NamedTuple):
    """One (token, choice) pair as the reference follows it."""

    source: int
    """Rank that owns the token."""

    index: int
    """Position in the source's list of pairs, which is sorted by expert."""

    expert: int
    """The expert that was chosen."""


class Copy(NamedTuple):
    """One place where an expert is computed."""

    rank: int
    """Where."""

    expert: int
    """What."""

    slot: int | None
    """Guest slot; None at home."""


def copies_on(rank: int, problem: LayerProblem, guests_RK: IntArray) -> list[Copy | None]:
    """Home experts in ascending order, then guest slots; None for an empty slot."""
    home = [Copy(rank, expert, None) for expert, where in enumerate(problem.home_E.tolist()) if where == rank]
    guests = [Copy(rank, expert, slot) if expert >= 0 else None for slot, expert in enumerate(guests_RK[rank].tolist())]
    return [*home, *guests]


def reference_sending(
    problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray
) -> dict[tuple[int, int], list[tuple[Pair, Copy]]]:
    """What goes from each rank to each rank, in order: an expert's first pairs stay at home, the next go to its
    guests by rank and slot; within a destination by copy."""
    chosen: dict[Copy, list[Pair]] = {}
    for source, row_E in enumerate(problem.counts_RE.tolist()):
        index = 0
        for expert, tokens in enumerate(row_E):
            pairs = [Pair(source, index + nth, expert) for nth in range(tokens)]
            index += tokens
            guests = [
                (Copy(rank, expert, slot), int(quota_SRK[source, rank, slot]))
                for rank, slot in np.argwhere(guests_RK == expert).tolist()
            ]
            at_home = tokens - sum(quota for _, quota in guests)
            home = Copy(int(problem.home_E[expert]), expert, None)
            for copy, quota in [(home, at_home), *guests]:
                chosen.setdefault(copy, []).extend(pairs[:quota])
                pairs = pairs[quota:]
            assert not pairs
    sent = {}
    for source in range(problem.num_ranks):
        for destination in range(problem.num_ranks):
            sent[source, destination] = [
                (pair, copy)
                for copy in copies_on(destination, problem, guests_RK)
                if copy is not None
                for pair in chosen.get(copy, [])
                if pair.source == source
            ]
    return sent


def expert_sorted_pairs(problem: LayerProblem, source: int) -> list[Pair]:
    experts = np.repeat(np.arange(problem.num_experts), problem.counts_RE[source]).tolist()
    return [Pair(source, index, expert) for index, expert in enumerate(experts)]


def all_layouts(problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray) -> list[TokenLayout]:
    return [
        lay_out_tokens(
            rank=rank,
            counts_SE=problem.counts_RE,
            home_E=problem.home_E,
            guests_RK=guests_RK,
            quota_SRK=quota_SRK,
        )
        for rank in range(problem.num_ranks)
    ]


def cut(rows: list[Pair], splits: list[int]) -> list[list[Pair]]:
    assert len(rows) == sum(splits), "the splits cover the rows"
    ends = np.cumsum(splits).tolist()
    return [rows[end - size : end] for end, size in zip(ends, splits, strict=True)]


def exchange(rows_R: list[list[Pair]], send_splits_R: list[list[int]]) -> list[list[list[Pair]]]:
    """An all-to-all of all ranks at once: what each rank receives, by source."""
    pieces = [cut(rows, splits) for rows, splits in zip(rows_R, send_splits_R, strict=True)]
    return [[pieces[source][rank] for source in range(len(rows_R))] for rank in range(len(rows_R))]


def check_exchange(problem: LayerProblem, guests_RK: IntArray, quota_SRK: IntArray) -> None:
    """Plays dispatch, compute and return of every rank, and compares with the reference at each stage."""
    num_ranks = problem.num_ranks
    layouts = all_layouts(problem, guests_RK, quota_SRK)
    pairs_R = [expert_sorted_pairs(problem, rank) for rank in range(num_ranks)]
    sent_R = [[pairs_R[rank][row] for row in layouts[rank].send_order] for rank in range(num_ranks)]
    received_R = exchange(sent_R, [layout.send_splits for layout in layouts])
    reference = reference_sending(problem, guests_RK, quota_SRK)
    computed: Counter[Pair] = Counter()
    returned_R: list[list[Pair]] = []
    for rank, layout in enumerate(layouts):
        for source in range(num_ranks):
            assert received_R[rank][source] == [pair for pair, _ in reference[source, rank]]
            assert layout.receive_splits[source] == len(received_R[rank][source])
        received = [pair for piece in received_R[rank] for pair in piece]
        assert sorted(layout.group_order.tolist()) == list(range(len(received)))
        grouped = [received[row] for row in layout.group_order]
        copies = copies_on(rank, problem, guests_RK)
        assert layout.num_home == sum(copy is not None and copy.slot is None for copy in copies)
        for copy, rows in zip(copies, cut(grouped, layout.tokens_C), strict=True):
            assert copy is not None or not rows, "an empty slot computes nothing"
            wanted = [pair for source in range(num_ranks) for pair, to in reference[source, rank] if to == copy]
            assert rows == wanted
            assert all(copy is not None and pair.expert == copy.expert for pair in rows)
            computed.update(rows)
        assert layout.num_home_tokens == sum(layout.tokens_C[: layout.num_home])
        # The layer puts rows back with index_copy: row i of the grouped list returns to place group_order[i].
        ungrouped: list[Pair | None] = [None] * len(grouped)
        for row, place in enumerate(layout.group_order):
            ungrouped[place] = grouped[row]
        returned_R.append([pair for pair in ungrouped if pair is not None])
    assert computed == Counter(pair for pairs in pairs_R for pair in pairs), "every pair is computed exactly once"
    back_R = exchange(returned_R, [layout.receive_splits for layout in layouts])
    for rank in range(num_ranks):
        assert [pair for piece in back_R[rank] for pair in piece] == sent_R[rank], "results come back in sending order"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_pair_is_computed_once_and_comes_back(seed: int) -> None:
    # Uneven homes, nodes and slots, fewer experts than ranks, idle sources and unused experts are all among these.
    problem = random_problem(seed)
    counts_RE = problem.counts_RE * 200 // max(int(problem.counts_RE.sum()), 200)
    problem = LayerProblem(counts_RE=counts_RE, home_E=problem.home_E, topology=problem.topology)
    guests_RK = random_guests(seed, problem)
    check_exchange(problem, guests_RK, assign_tokens(problem, guests_RK))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_split_that_adds_up_is_laid_out(seed: int) -> None:
    # Quotas drawn at random reach corners that balanced ones do not: homes without tokens, guests without tokens.
    rng = np.random.default_rng(seed)
    problem = random_problem(seed)
    counts_RE = np.minimum(problem.counts_RE, rng.integers(0, 6, problem.counts_RE.shape))
    problem = LayerProblem(counts_RE=counts_RE, home_E=problem.home_E, topology=problem.topology)
    guests_RK = random_guests(seed, problem)
    quota_SRK = np.zeros((problem.num_ranks, *guests_RK.shape), dtype=np.int64)
    for source in range(problem.num_ranks):
        for expert in range(problem.num_experts):
            where = np.argwhere(guests_RK == expert)
            share = rng.multinomial(counts_RE[source, expert], rng.dirichlet(np.full(len(where) + 1, 0.5)))
            quota_SRK[source, where[:, 0], where[:, 1]] = share[:-1]
    check_exchange(problem, guests_RK, quota_SRK)


@pytest.mark.parametrize(("num_ranks", "num_experts"), [(8, 60), (2, 7), (8, 4), (3, 16), (1, 5)], ids=str)
def test_uneven_and_missing_homes(num_ranks: int, num_experts: int) -> None:
    topology = two_level_topology(num_ranks=num_ranks, ranks_per_node=2, slots=2, inter_cost=3)
    home_E = np.arange(num_experts) * num_ranks // num_experts
    counts_RE = skewed_counts(num_experts, num_ranks=num_ranks, num_experts=num_experts, tokens=40)
    problem = LayerProblem(counts_RE=counts_RE, home_E=home_E, topology=topology)
    guests_RK = random_guests(1, problem)
    check_exchange(problem, guests_RK, assign_tokens(problem, guests_RK))


def test_no_tokens_at_all() -> None:
    topology = two_level_topology(num_ranks=3, ranks_per_node=1, slots=1, inter_cost=3)
    problem = LayerProblem(counts_RE=np.zeros((3, 4)), home_E=[0, 0, 2, 2], topology=topology)
    guests_RK = np.array([[2], [3], [-1]])
    check_exchange(problem, guests_RK, assign_tokens(problem, guests_RK))
    layout = all_layouts(problem, guests_RK, np.zeros((3, 3, 1), dtype=np.int64))[1]
    assert (layout.num_home, layout.tokens_C, layout.send_order.size) == (0, [0], 0)


def test_an_exchange_by_hand() -> None:
    # Expert 0 lives on rank 0 and visits rank 1; expert 1 lives on rank 1.
    counts_SE = np.array([[3, 1], [2, 0]])
    quota_SRK = np.array([[[0], [2]], [[0], [1]]])
    first, second = (
        lay_out_tokens(
            rank=rank,
            counts_SE=counts_SE,
            home_E=np.array([0, 1]),
            guests_RK=np.array([[-1], [0]]),
            quota_SRK=quota_SRK,
        )
        for rank in range(2)
    )
    # Rank 0 has pairs 0, 1, 2 of expert 0 and 3 of expert 1: the first stays, 3 goes to expert 1, then the guest's.
    assert first.send_order.tolist() == [0, 3, 1, 2]
    assert (first.send_splits, first.receive_splits) == ([1, 3], [1, 1])
    assert first.tokens_C == [2, 0]
    assert second.send_order.tolist() == [0, 1]
    assert (second.send_splits, second.receive_splits) == ([1, 1], [3, 1])
    # Received: expert 1's pair and two for the guest from rank 0, one for the guest from rank 1.
    assert second.group_order.tolist() == [0, 1, 2, 3]
    assert (second.tokens_C, second.num_home) == ([1, 3], 1)
