"""Fixed replica graphs: whose expert each guest slot of each rank holds, whatever the load is.

A graph is a list of steps, one for each slot. A step names the rank that a rank takes its guest from; no two ranks
take from the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from taot_planning.topology import Topology

Step: TypeAlias = dict[int, int]
"""From the rank that takes a guest to the rank that gives it."""

CUBE_RANKS = 8
"""Corners of a cube."""


def cube_graph(topology: Topology) -> list[Step]:
    """Cubes of eight ranks of one node; no edge leaves its node.

    The first slot goes around a face, the second across the cube's diagonal, the third to the opposite face, the
    fourth around the face backwards. Ranks that do not fill a cube form a ring with chords instead: one back, half
    way around, one on, a quarter back.
    """
    graph: list[Step] = [{}, {}, {}, {}]
    for node in _ranks_by_node(topology):
        for first in range(0, len(node), CUBE_RANKS):
            block = node[first : first + CUBE_RANKS]
            for step, giver_of in zip(graph, _block_steps(len(block)), strict=True):
                step.update({rank: block[giver_of(index)] for index, rank in enumerate(block)})
    return [_without_loops(step) for step in graph]


def _block_steps(size: int) -> list[Callable[[int], int]]:
    if size == CUBE_RANKS:
        return [
            lambda index: index // 4 * 4 + (index - 1) % 4,
            # Corners of a face are numbered around it, so the far corner is two on, in the other face.
            lambda index: (index + 4) % 8 // 4 * 4 + (index + 2) % 4,
            lambda index: (index + 4) % 8,
            lambda index: index // 4 * 4 + (index + 1) % 4,
        ]
    return [
        lambda index: (index - 1) % size,
        lambda index: (index - size // 2) % size,
        lambda index: (index + 1) % size,
        lambda index: (index - size // 4) % size,
    ]


def torus_graph(topology: Topology) -> list[Step]:
    """A torus: the ranks of a node along one axis, the nodes along the other.

    The first slot takes from the rank before in the node, the second from the same place in the node before, the
    third and fourth from those after. Where nodes differ in size, a place is a ring of the nodes that have it. A
    single node is folded into the squarest grid of equal rows.
    """
    rows = _ranks_by_node(topology)
    if len(rows) == 1:
        ranks = rows[0]
        num_rows = max(n for n in range(1, math.isqrt(len(ranks)) + 1) if len(ranks) % n == 0)
        width = len(ranks) // num_rows
        rows = [ranks[row * width : (row + 1) * width] for row in range(num_rows)]
    columns = [[row[place] for row in rows if place < len(row)] for place in range(max(map(len, rows)))]
    graph = [_ring_step(lines, offset) for offset in (-1, 1) for lines in (rows, columns)]
    return [_without_loops(step) for step in graph]


def _ring_step(rings: list[list[int]], offset: int) -> Step:
    return {rank: ring[(index + offset) % len(ring)] for ring in rings for index, rank in enumerate(ring)}


def _ranks_by_node(topology: Topology) -> list[list[int]]:
    return [np.flatnonzero(topology.nodes_R == node).tolist() for node in np.unique(topology.nodes_R)]


def _without_loops(step: Step) -> Step:
    """A rank that would take from itself leaves the slot empty."""
    return {taker: giver for taker, giver in step.items() if taker != giver}
