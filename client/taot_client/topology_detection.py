"""Where the ranks of a group sit."""

from __future__ import annotations

import socket

import numpy as np

from taot_client.groups import ExpertParallelGroup, all_gather_text
from taot_client.options import AgentOptions
from taot_planning import Level, Topology
from taot_planning.topology import INNERMOST_COST_MILLI


def detect_topology(group: ExpertParallelGroup, options: AgentOptions) -> Topology:
    """Nodes by host name, or of `options.ranks_per_node` consecutive ranks. Collective."""
    hosts = all_gather_text(group.counts, socket.gethostname(), size=group.size)
    if options.ranks_per_node is None:
        node_R = np.array([hosts.index(host) for host in hosts], dtype=np.int64)
    else:
        node_R = np.arange(group.size, dtype=np.int64) // options.ranks_per_node
    return Topology(
        levels=(
            Level(name="node", transfer_cost_milli=INNERMOST_COST_MILLI),
            Level(name="cluster", transfer_cost_milli=round(options.inter_node_cost * 1000)),
        ),
        domains_RV=np.stack([node_R, np.zeros_like(node_R)], axis=1),
        slots_R=np.full(group.size, options.num_slots, dtype=np.int64),
    )
