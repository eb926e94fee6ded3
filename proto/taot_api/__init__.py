"""The contract between training jobs and the planner: data types, wire format, and the codec between them.

The package `codec` alone knows both messages and arrays. Generated stubs live in `taot_api.v1`.
"""

from taot_api.contract_error import ContractError, Reason
from taot_api.measured_rates import MeasuredRates
from taot_api.published_plan import PlanIdentity, PublishedPlan
from taot_api.routing_report import RankTelemetry, RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec

__all__ = [
    "ContractError",
    "LayerSpec",
    "MeasuredRates",
    "PlanIdentity",
    "PublishedPlan",
    "RankTelemetry",
    "Reason",
    "RoutingReport",
    "SessionSpec",
]
