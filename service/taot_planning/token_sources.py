"""Which source ranks' tokens a copy of an expert computes, once it is known how many each copy takes.

Axis letters: C and F as in `copies`; the others as in the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.copies import END, EXPERT, RANK, SLOT, list_copies
from taot_planning.kernel import inner_kernel, kernel
from taot_planning.layer_problem import LayerProblem


class _Served(NamedTuple):
    """How far the copies have been served."""

    supply_S: IntArray
    """Tokens of the expert in hand that no copy has taken. Shape: [source ranks]."""

    left_C: IntArray
    """Tokens that each copy of this expert still takes. Shape: [copies]."""

    quota_SRK: IntArray
    """Tokens of each source rank that go to each guest slot. Shape: [source ranks, ranks, slots]."""


@kernel
def _chain_nodes(nodes_R: IntArray) -> tuple[IntArray, IntArray]:
    """For each rank the first rank of its node, and the next one, -1 after the last. Shapes: [ranks]."""
    first_R = np.empty(nodes_R.size, dtype=np.int64)
    next_R = np.full(nodes_R.size, -1, dtype=np.int64)
    for rank in range(nodes_R.size):
        earlier = rank - 1
        while earlier >= 0 and nodes_R[earlier] != nodes_R[rank]:
            earlier -= 1
        if earlier < 0:
            first_R[rank] = rank
        else:
            first_R[rank] = first_R[earlier]
            next_R[earlier] = rank
    return first_R, next_R


@inner_kernel
def _serve(source: int, copy: int, copies_CF: IntArray, served: _Served) -> None:
    """Gives a copy as many tokens of a source as there are and as it still takes."""
    amount = min(served.supply_S[source], served.left_C[copy])
    served.supply_S[source] -= amount
    served.left_C[copy] -= amount
    if copies_CF[copy, SLOT] >= 0:
        served.quota_SRK[source, copies_CF[copy, RANK], copies_CF[copy, SLOT]] += amount


@inner_kernel
def _serve_copies(first: int, chains: tuple[IntArray, IntArray], copies_CF: IntArray, served: _Served) -> None:
    """Serves the copies of one expert, see `split_sources`: own rank, then own node, then the others."""
    first_R, next_R = chains
    end = copies_CF[first, END]
    for copy in range(first, end):
        _serve(copies_CF[copy, RANK], copy, copies_CF, served)
    for copy in range(first, end):
        source = first_R[copies_CF[copy, RANK]]
        while served.left_C[copy] > 0 and source >= 0:
            _serve(source, copy, copies_CF, served)
            source = next_R[source]
    source = 0
    for copy in range(first, end):
        while served.left_C[copy] > 0:
            _serve(source, copy, copies_CF, served)
            if served.left_C[copy] > 0:
                source += 1


@kernel
def choose_sources(counts_RE: IntArray, nodes_R: IntArray, copies_CF: IntArray, tokens_RK: IntArray) -> IntArray:
    """Does what `split_sources` does for copies that are listed already. Shape: [source ranks, ranks, slots]."""
    num_ranks = nodes_R.size
    chains = _chain_nodes(nodes_R)
    served = _Served(
        np.empty(num_ranks, dtype=np.int64),
        np.empty(copies_CF.shape[0], dtype=np.int64),
        np.zeros((num_ranks, *tokens_RK.shape), dtype=np.int64),
    )
    first = 0
    while first < copies_CF.shape[0]:
        home_tokens = 0
        for source in range(num_ranks):
            served.supply_S[source] = counts_RE[source, copies_CF[first, EXPERT]]
            home_tokens += served.supply_S[source]
        for copy in range(first + 1, copies_CF[first, END]):
            served.left_C[copy] = tokens_RK[copies_CF[copy, RANK], copies_CF[copy, SLOT]]
            home_tokens -= served.left_C[copy]
        served.left_C[first] = home_tokens
        _serve_copies(first, chains, copies_CF, served)
        first = copies_CF[first, END]
    return served.quota_SRK


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
    copies_CF = list_copies(problem.home_E, problem.topology.nodes_R, guests_RK)
    return choose_sources(problem.counts_RE, problem.topology.nodes_R, copies_CF, tokens_RK)
