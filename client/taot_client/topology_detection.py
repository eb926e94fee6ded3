"""Where the ranks of a group sit."""

from __future__ import annotations

import socket

import numpy as np

from taot_client.groups import ExpertParallelGroup, all_gather_text
from taot_client.options import AgentOptions
from taot_planning import Topology, node_topology


def detect_topology(group: ExpertParallelGroup, options: AgentOptions) -> Topology:
    """Nodes by host name, or of `options.ranks_per_node` consecutive ranks. Collective."""
    # Always gathered: options have not been compared among the ranks yet.
    hosts = all_gather_text(group.counts, socket.gethostname(), size=group.size)
    if options.ranks_per_node is None:
        node_R = np.array([hosts.index(host) for host in hosts], dtype=np.int64)
    else:
        node_R = np.arange(group.size, dtype=np.int64) // options.ranks_per_node
    return node_topology(node_R, slots=options.num_slots, inter_cost=options.inter_node_cost)
