"""Which source ranks' tokens a copy of an expert computes, once it is known how many each copy takes."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel
from taot_planning.layer_problem import LayerProblem

_DISTANCES = 3
"""Own rank, own node, anywhere."""


@kernel
def _serve_copy(rank: int, demand: int, distance: int, nodes_R: IntArray, supply_S: IntArray, taken_S: IntArray) -> int:
    """Fills one copy's demand from the sources within a distance: 0 own rank, 1 own node, 2 anywhere.

    Returns:
        The demand that is left. What was taken is moved from `supply_S` to `taken_S`.
    """
    for source in range(supply_S.size):
        if demand == 0:
            break
        if distance == 0 and source != rank:
            continue
        if distance == 1 and nodes_R[source] != nodes_R[rank]:
            continue
        amount = min(supply_S[source], demand)
        supply_S[source] -= amount
        taken_S[source] += amount
        demand -= amount
    return demand


@kernel
def _home_demand(supply_ES: IntArray, guests_RK: IntArray, tokens_RK: IntArray) -> IntArray:
    """Tokens that stay with the home of each expert that has guests, 0 for the others. Shape: [experts]."""
    at_home_E = np.zeros(supply_ES.shape[0], dtype=np.int64)
    has_guests_E = np.zeros(supply_ES.shape[0], dtype=np.bool_)
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            expert = guests_RK[rank, slot]
            if expert >= 0:
                has_guests_E[expert] = True
                at_home_E[expert] -= tokens_RK[rank, slot]
    for expert in range(at_home_E.size):
        if has_guests_E[expert]:
            for source in range(supply_ES.shape[1]):
                at_home_E[expert] += supply_ES[expert, source]
    return at_home_E


@kernel
def _serve_all(
    supply_ES: IntArray, home_E: IntArray, nodes_R: IntArray, guests_RK: IntArray, tokens_RK: IntArray
) -> IntArray:
    """Serves homes and guests, nearest sources first; uses up `supply_ES`. Shape: [ranks, slots, sources]."""
    num_ranks, num_slots = guests_RK.shape
    left_RK = tokens_RK.copy()
    at_home_E = _home_demand(supply_ES, guests_RK, tokens_RK)
    quota_RKS = np.zeros((num_ranks, num_slots, num_ranks), dtype=np.int64)
    kept_S = np.zeros(num_ranks, dtype=np.int64)
    for distance in range(_DISTANCES):
        for expert in range(home_E.size):
            at_home_E[expert] = _serve_copy(
                home_E[expert], at_home_E[expert], distance, nodes_R, supply_ES[expert], kept_S
            )
        for rank in range(num_ranks):
            for slot in range(num_slots):
                if left_RK[rank, slot] > 0:
                    expert = guests_RK[rank, slot]
                    left_RK[rank, slot] = _serve_copy(
                        rank, left_RK[rank, slot], distance, nodes_R, supply_ES[expert], quota_RKS[rank, slot]
                    )
    return quota_RKS


def split_sources(problem: LayerProblem, guests_RK: IntArray, tokens_RK: IntArray) -> IntArray:
    """Chooses the sources of each guest's tokens: own rank, then own node, then the others, by index.

    Homes choose alike, and before the guests at each distance. Within a node every source can serve every
    copy, so any such filling crosses nodes as rarely as possible.

    Args:
        problem: the counts at hand.
        guests_RK: expert in each guest slot, -1 where empty; a read-only array. Shape: [ranks, slots].
        tokens_RK: tokens each guest takes over, together at most the expert's tokens. Shape: [ranks, slots].

    Returns:
        Tokens of each source rank that go to each guest slot. Shape: [source ranks, ranks, slots].
    """
    supply_ES = np.array(problem.counts_RE.T, order="C")
    quota_RKS = _serve_all(supply_ES, problem.home_E, problem.topology.nodes_R, guests_RK, tokens_RK)
    return np.ascontiguousarray(quota_RKS.transpose(2, 0, 1))
