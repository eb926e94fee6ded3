"""Where the ranks of a group sit."""

from __future__ import annotations

import socket
from dataclasses import replace

import numpy as np

from taot_client.groups import ExpertParallelGroup, all_gather_text
from taot_client.options import AgentOptions
from taot_planning import Topology, node_topology
from taot_planning.arrays import IntArray


def detect_topology(group: ExpertParallelGroup, options: AgentOptions) -> Topology:
    """Nodes by host name, or of `options.ranks_per_node` consecutive ranks. Collective."""
    # Always gathered: options have not been compared among the ranks yet.
    hosts = all_gather_text(group.counts, socket.gethostname(), size=group.size)
    if options.ranks_per_node is None:
        node_R = np.array([hosts.index(host) for host in hosts], dtype=np.int64)
    else:
        node_R = np.arange(group.size, dtype=np.int64) // options.ranks_per_node
    topology = node_topology(node_R, slots=options.num_slots, inter_cost=options.inter_node_cost)
    return replace(topology, has_relay=_passes_on(node_R, options))


def _passes_on(node_R: IntArray, options: AgentOptions) -> bool:
    """Whether guests are passed on inside nodes, of which there must be several, one of them with several ranks."""
    nodes, ranks_N = np.unique(node_R, return_counts=True)
    is_wanted = options.relay == "on" or (options.relay == "auto" and options.inter_node_cost > 1)
    return is_wanted and nodes.size > 1 and bool(ranks_N.max() > 1)
