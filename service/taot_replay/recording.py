"""What can be replayed: a header and the records that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from taot_api.trace import TraceHeader, TraceRecord
from taot_planning import Topology, node_topology, two_level_topology

DEFAULT_INTER_COST = 3.0


class Recording(Protocol):
    """A trace folder or an array file; read from the start as often as asked."""

    @property
    def header(self) -> TraceHeader:
        """Layers and topology."""

    @property
    def num_records(self) -> int:
        """Micro-batches."""

    def __iter__(self) -> Iterator[TraceRecord]:
        """The micro-batches in order."""


def with_nodes(header: TraceHeader, *, ranks_per_node: int | None, inter_cost: float | None) -> TraceHeader:
    """The same job on other nodes, or at another cost between them; what is None stays as it was recorded.

    Either one replaces all levels of the recorded topology by nodes in one cluster.

    Raises:
        ValueError: if a number is out of range.
    """
    if ranks_per_node is None and inter_cost is None:
        return header
    cost = DEFAULT_INTER_COST if inter_cost is None else inter_cost
    recorded = header.topology
    topology: Topology
    if ranks_per_node is None:
        topology = node_topology(recorded.nodes_R, slots=0, inter_cost=cost)
    else:
        topology = two_level_topology(
            num_ranks=recorded.num_ranks, ranks_per_node=ranks_per_node, slots=0, inter_cost=cost
        )
    return replace(header, topology=topology)
