"""The agent in each training rank: applies the planner's placements without changing the mathematics of training."""

from taot_client.agent import Agent
from taot_client.groups import AgentGroups, ExpertParallelGroup, expert_parallel_group
from taot_client.moe_layer import ExpertParallelMoE, Router, TopKRouter
from taot_client.options import AgentOptions
from taot_client.planner_access import PlannerAccess
from taot_client.step_summary import StepSummary
from taot_client.trace_recorder import TraceRecorder
from taot_client.transfers.shipment import TransferError

__all__ = [
    "Agent",
    "AgentGroups",
    "AgentOptions",
    "ExpertParallelGroup",
    "ExpertParallelMoE",
    "PlannerAccess",
    "Router",
    "StepSummary",
    "TopKRouter",
    "TraceRecorder",
    "TransferError",
    "expert_parallel_group",
]
