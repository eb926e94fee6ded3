"""`eplb`: copies for the experts with the largest load per copy (DeepSeek's EPLB, github.com/deepseek-ai/EPLB).

The method re-places all experts, copies and originals alike, once per interval. Here experts keep their homes and
only the further copies are placed, as guests: as many as there are slots. An expert's tokens are shared equally
among its copies, and copies are packed in descending load onto the rank with the least load that can hold them.

`eplb` is hierarchical where there are several nodes: each node replicates its own experts onto its own ranks, and
no guest leaves its node. The method first packs groups of experts onto nodes; with fixed homes nothing is left of
that, so an imbalance between nodes stays. `eplb-global` treats all ranks as one node. As equal shares take no notice
of what else a rank has, a layer near balance can end up worse than without guests.

It ignores what a move costs, and what the ranks' loads are when it chooses whom to copy: all slots are always
used. The method is meant for average loads of the past; here it gets the counts at hand.
"""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np

from taot_planning.algorithms.guest_slots import GuestSlots
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Replicates within nodes; over all ranks if there is one node only."""
    del options
    nodes_R = problem.topology.nodes_R
    return _plan_within(problem, [np.flatnonzero(nodes_R == node).tolist() for node in np.unique(nodes_R)])


def plan_globally(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Replicates over all ranks whatever node they are in (`eplb-global`)."""
    del options
    return _plan_within(problem, [list(range(problem.num_ranks))])


def _plan_within(problem: LayerProblem, domains: list[list[int]]) -> LayerPlan:
    """Plans each domain, a list of ranks, by itself."""
    slots = GuestSlots(problem)
    tokens_of = problem.counts_RE.sum(axis=0).tolist()
    for ranks in domains:
        tokens_by_expert = {
            expert: tokens_of[expert] for expert in np.flatnonzero(np.isin(problem.home_E, ranks)).tolist()
        }
        num_slots = int(problem.topology.slots_R[ranks].sum())
        copies = _count_copies(tokens_by_expert, num_slots=num_slots, max_copies=len(ranks))
        _pack(problem, slots, tokens_by_expert, copies, ranks)
    for expert in np.unique(slots.guests_RK[slots.guests_RK >= 0]).tolist():
        where_RK = slots.guests_RK == expert
        # What the equal split leaves over stays home.
        slots.tokens_RK[where_RK] = tokens_of[expert] // (int(where_RK.sum()) + 1)
    return slots.to_plan()


def _count_copies(tokens_by_expert: dict[int, int], *, num_slots: int, max_copies: int) -> dict[int, int]:
    """Gives copies, one at a time, to the expert with the most tokens per copy; ties go to the lowest index.

    An expert gets no more copies than there are ranks to hold them, nor more than it has tokens.

    Returns:
        Copies of each expert, its home included.
    """
    copies = dict.fromkeys(tokens_by_expert, 1)
    heap = [(Fraction(-tokens), expert) for expert, tokens in tokens_by_expert.items()]
    heapq.heapify(heap)
    while num_slots > 0 and heap:
        _, expert = heapq.heappop(heap)
        if copies[expert] < min(max_copies, tokens_by_expert[expert]):
            copies[expert] += 1
            num_slots -= 1
            heapq.heappush(heap, (Fraction(-tokens_by_expert[expert], copies[expert]), expert))
    return copies


def _pack(
    problem: LayerProblem,
    slots: GuestSlots,
    tokens_by_expert: dict[int, int],
    copies: dict[int, int],
    ranks: list[int],
) -> None:
    """Puts the copies into the slots of the ranks; a copy that no rank with a free slot can hold is left out."""
    share = {expert: tokens // copies[expert] for expert, tokens in tokens_by_expert.items()}
    loads = dict.fromkeys(ranks, 0)
    for expert, tokens in tokens_by_expert.items():
        loads[int(problem.home_E[expert])] += tokens - share[expert] * (copies[expert] - 1)
    for expert in sorted(share, key=lambda expert: (-share[expert], expert)):
        for _ in range(copies[expert] - 1):
            free = [rank for rank in ranks if slots.has_room(expert, rank)]
            rank = min(free, key=lambda rank: loads[rank], default=int(problem.home_E[expert]))
            if free:
                slots.put(expert, rank, share[expert])
            loads[rank] += share[expert]
