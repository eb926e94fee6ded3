"""Placement planning for expert-parallel groups: counts in, plan out.

This package is pure: no I/O, clock, threads, logging, global state or mutation of inputs. It knows nothing
of services, training loops or wire formats.

Axis letters used throughout: L layers, R ranks, E experts, K guest slots per rank, S source ranks (the same
ranks as R, seen as senders of tokens), V levels of the topology, G guests.
"""

from taot_planning.algorithms import ALGORITHMS, plan_layer, plan_layers
from taot_planning.assignment import assign_tokens
from taot_planning.explanation import Considered, Explanation, Gate
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan, PlanStats, check_plan, plan_from_guests
from taot_planning.layer_problem import LayerProblem, LayerRates, contiguous_homes
from taot_planning.load import imbalance, rank_loads
from taot_planning.options import PlanningOptions
from taot_planning.topology import Level, Topology, node_topology, two_level_topology
from taot_planning.warm_up import warm_up

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Considered",
    "EMPTY_SLOT",
    "Explanation",
    "Gate",
    "LayerPlan",
    "LayerProblem",
    "LayerRates",
    "Level",
    "PlanStats",
    "PlanningOptions",
    "Topology",
    "__version__",
    "assign_tokens",
    "check_plan",
    "contiguous_homes",
    "imbalance",
    "node_topology",
    "plan_from_guests",
    "plan_layer",
    "plan_layers",
    "rank_loads",
    "two_level_topology",
    "warm_up",
]
