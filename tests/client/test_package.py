from __future__ import annotations

import importlib

import pytest

PUBLIC_NAMES = {
    "taot_client": {
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
    },
    "taot_api": {
        "ContractError",
        "LayerSpec",
        "MeasuredRates",
        "PlanIdentity",
        "PublishedPlan",
        "RankTelemetry",
        "Reason",
        "RoutingReport",
        "SessionSpec",
    },
    "taot_planning": {
        "Considered",
        "ALGORITHMS",
        "Explanation",
        "Gate",
        "EMPTY_SLOT",
        "LayerPlan",
        "LayerRates",
        "LayerProblem",
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
    },
    "taot_torch": {"plan_layers"},
}
"""What users may rely on. A change here is a change of the product: it belongs in CHANGELOG.md."""


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_the_public_names_are_these(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC_NAMES[package])
    for name in module.__all__:
        assert hasattr(module, name), f"{package} promises {name} and does not have it"
