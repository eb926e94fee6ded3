"""`echo`: spills laid against spares, both from the largest on (Megatron-LM's ECHO, pull request 2368).

The target is the floor of the mean load. Spills of experts and spares of ranks are sorted in descending order
and laid side by side; where the stretch of an expert overlaps that of a rank, the rank gets a chunk of the
expert. A rank keeps as many of its largest chunks as it has slots; the others stay home.

It ignores the topology altogether, how many guests an expert is cut into, and any tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from taot_planning.algorithms.guest_slots import GuestSlots
from taot_planning.arrays import IntArray
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Places the chunks and splits each expert's tokens proportionally over its copies."""
    del options
    tokens_E = problem.counts_RE.sum(axis=0)
    target = int(tokens_E.sum()) // problem.num_ranks
    spares = np.maximum(target - problem.loads.load_R, 0).tolist()
    slots = GuestSlots(problem)
    spills = _spills(tokens_E.tolist(), problem.home_E.tolist(), target)
    for rank, chunks in enumerate(_chunks_by_rank(spills, spares)):
        # Sorting is stable: of equal chunks the one that was overlapped first stays.
        largest = sorted(chunks, key=lambda chunk: -chunk[1])[: int(problem.topology.slots_R[rank])]
        for expert, tokens in largest:
            slots.put(expert, rank, tokens)
    return LayerPlan(guests_RK=slots.guests_RK, quota_SRK=_proportional(problem, slots))


def overlaps(left: list[int], right: list[int]) -> Iterator[tuple[int, int, int]]:
    """Lays two rows of lengths side by side, both from 0 on, and lists where they overlap.

    Args:
        left: lengths >= 0.
        right: lengths >= 0.

    Yields:
        Index in `left`, index in `right` and the length they share, in order; up to the end of the shorter row.
    """
    left_index, right_index = 0, 0
    left_end, right_end, at = sum(left[:1]), sum(right[:1]), 0
    while left_index < len(left) and right_index < len(right):
        end = min(left_end, right_end)
        if end > at:
            yield left_index, right_index, end - at
            at = end
        if left_end == end:
            left_index += 1
            left_end += sum(left[left_index : left_index + 1])
        else:
            right_index += 1
            right_end += sum(right[right_index : right_index + 1])


def _spills(tokens_of: list[int], home_of: list[int], target: int) -> list[int]:
    """Tokens each expert gives away: on a hot rank the small ones stay whole, the largest carry the surplus."""
    loads: dict[int, int] = {}
    spills = [0] * len(tokens_of)
    for expert in sorted(range(len(tokens_of)), key=lambda expert: tokens_of[expert]):
        before = loads.get(home_of[expert], 0)
        loads[home_of[expert]] = after = before + tokens_of[expert]
        spills[expert] = max(after - target, 0) - max(before - target, 0)
    return spills


def _chunks_by_rank(spills: list[int], spares: list[int]) -> list[list[tuple[int, int]]]:
    """(expert, tokens) of every chunk, listed for each rank."""
    experts = sorted(range(len(spills)), key=lambda expert: -spills[expert])
    ranks = sorted(range(len(spares)), key=lambda rank: -spares[rank])
    chunks: list[list[tuple[int, int]]] = [[] for _ in spares]
    for left, right, tokens in overlaps([spills[e] for e in experts], [spares[r] for r in ranks]):
        chunks[ranks[right]].append((experts[left], tokens))
    return chunks


def _proportional(problem: LayerProblem, slots: GuestSlots) -> IntArray:
    """Gives every source's tokens to the copies in proportion to what the copies take.

    Proportions are rounded down. What sources and copies then have left is laid side by side, sources by index,
    the home before the guests and guests by rank.

    Returns:
        Tokens of each source that go to each guest slot. Shape: [source ranks, ranks, slots].
    """
    quota_SRK = np.zeros((problem.num_ranks, *slots.guests_RK.shape), dtype=np.int64)
    for expert in np.unique(slots.guests_RK[slots.guests_RK >= 0]).tolist():
        where = np.argwhere(slots.guests_RK == expert).tolist()
        supply = problem.counts_RE[:, expert].tolist()
        demand = [slots.tokens_RK[rank, slot].item() for rank, slot in where]
        demand.insert(0, sum(supply) - sum(demand))
        # Python's integers: products of two counts need more than 64 bits.
        shares = [[tokens * part // sum(supply) for part in demand] for tokens in supply]
        left_by_source = [tokens - sum(row) for tokens, row in zip(supply, shares, strict=True)]
        left_by_copy = [part - sum(row[copy] for row in shares) for copy, part in enumerate(demand)]
        for source, copy, tokens in overlaps(left_by_source, left_by_copy):
            shares[source][copy] += tokens
        for copy, (rank, slot) in enumerate(where, start=1):
            quota_SRK[:, rank, slot] = [row[copy] for row in shares]
    return quota_SRK
