"""Routing as it looks in training, made up: few hot experts, and sources that differ in what they like."""

from __future__ import annotations

import numpy as np

from taot_planning import LayerProblem, Topology, contiguous_homes, two_level_topology
from taot_planning.arrays import IntArray


def skewed_counts(
    seed: int, *, num_ranks: int, num_experts: int, tokens: int = 4096, concentration: float = 0.3
) -> IntArray:
    """Multinomial tokens per source rank over experts of a Dirichlet popularity, mixed with its own taste."""
    rng = np.random.default_rng(seed)
    popularity_E = rng.dirichlet(np.full(num_experts, concentration))
    rows = []
    for _ in range(num_ranks):
        taste_E = rng.dirichlet(np.full(num_experts, concentration))
        rows.append(rng.multinomial(tokens, 0.8 * popularity_E + 0.2 * taste_E))
    return np.array(rows, dtype=np.int64)


def two_level_problem(
    counts_RE: IntArray, *, ranks_per_node: int = 4, slots: int = 2, homes_E: IntArray | None = None
) -> LayerProblem:
    """A layer on nodes of `ranks_per_node`, inter cost 3, contiguous homes unless given."""
    num_ranks, num_experts = np.shape(counts_RE)
    if homes_E is None:
        homes_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    topology = two_level_topology(num_ranks=num_ranks, ranks_per_node=ranks_per_node, slots=slots, inter_cost=3)
    return LayerProblem(counts_RE=counts_RE, home_E=homes_E, topology=topology)


def uneven_topology(seed: int, *, num_ranks: int, max_slots: int) -> Topology:
    """Nodes of random size and a different number of slots on every rank."""
    rng = np.random.default_rng(seed)
    base = two_level_topology(num_ranks=num_ranks, ranks_per_node=1, slots=1, inter_cost=3)
    nodes_R = np.sort(rng.integers(0, max(num_ranks // 2, 1), num_ranks))
    slots_R = rng.integers(0, max_slots + 1, num_ranks)
    return Topology(levels=base.levels, domains_RV=np.stack([nodes_R, np.zeros_like(nodes_R)], axis=1), slots_R=slots_R)


def random_problem(seed: int, *, max_ranks: int = 8, max_experts: int = 14) -> LayerProblem:
    """A small layer with everything uneven: homes, nodes, slots, idle sources, unused experts."""
    rng = np.random.default_rng(seed)
    num_ranks, num_experts = int(rng.integers(1, max_ranks + 1)), int(rng.integers(1, max_experts + 1))
    counts_RE = skewed_counts(seed, num_ranks=num_ranks, num_experts=num_experts, tokens=int(rng.choice([5, 60, 3000])))
    counts_RE[rng.random(num_ranks) < 0.15] = 0
    counts_RE[:, rng.random(num_experts) < 0.15] = 0
    return LayerProblem(
        counts_RE=counts_RE,
        home_E=rng.integers(0, num_ranks, num_experts),
        topology=uneven_topology(seed, num_ranks=num_ranks, max_slots=3),
    )


def random_guests(seed: int, problem: LayerProblem) -> IntArray:
    """Guests without regard to load: any experts not at home there, some slots empty."""
    rng = np.random.default_rng([seed, 1])
    guests_RK = np.full((problem.num_ranks, problem.topology.max_slots), -1, dtype=np.int64)
    for rank, slots in enumerate(problem.topology.slots_R.tolist()):
        away = rng.permutation(np.flatnonzero(problem.home_E != rank))[:slots]
        guests_RK[rank, : away.size] = np.where(rng.random(away.size) < 0.8, away, -1)
    return guests_RK
