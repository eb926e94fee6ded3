"""One plan as `taot plan --json` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taot_cli.counts_file import RecordedLayer
from taot_planning import EMPTY_SLOT, LayerPlan, LayerProblem, PlanningOptions, plan_layer
from taot_planning.algorithms.objective import objective_value
from taot_planning.capacity import capacities_at, pace_for
from taot_planning.explanation import Considered

Row: TypeAlias = dict[str, Any]
"""JSON values by key."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedLayer:
    """A layer, its plan, and what was asked for."""

    layer: RecordedLayer
    problem: LayerProblem
    algorithm: str
    options: PlanningOptions
    plan: LayerPlan

    planning_seconds: float
    """What making the plan took."""


def plan_row(planned: PlannedLayer) -> Row:
    """A plan with its figures and the way to it."""
    problem, options = planned.problem, planned.options
    stats = planned.plan.stats(problem)
    without = plan_layer(problem, algorithm="static").stats(problem)
    return {
        "name": planned.layer.name,
        "layer": planned.layer.layer,
        "algorithm": planned.algorithm,
        "imbalance_before": stats.imbalance_before,
        "imbalance_after": stats.imbalance_after,
        "tolerance_reached": _reaches_tolerance(planned),
        "objective": {"name": options.objective, "value": objective_value(planned.plan, problem, options)},
        **_proof(planned),
        "intra_guests": stats.intra_guests,
        "inter_guests": stats.inter_guests,
        "weighted_cost": stats.weighted_cost,
        "predicted_seconds_before": without.predicted_seconds,
        "predicted_seconds": stats.predicted_seconds,
        "planning_seconds": planned.planning_seconds,
        "explanation": {
            "gates": [gate.value for gate in planned.plan.explanation.gates],
            "considered": _considered_rows(planned),
        },
        "guests": _guests(planned.plan),
    }


def _proof(planned: PlannedLayer) -> Row:
    """Whether the plan is proven to be the best, and by how much of its objective it could be better at most."""
    bound = planned.plan.explanation.lower_bound
    if bound is None:
        return {"optimal": None, "gap": None}
    value = objective_value(planned.plan, planned.problem, planned.options)
    return {"optimal": planned.plan.explanation.is_optimal, "gap": (value - bound) / value if value else 0.0}


def _reaches_tolerance(planned: PlannedLayer) -> bool:
    """Whether every rank ends within (1 + tolerance) x the time of a perfect split, rounded up to whole tokens."""
    topology = planned.problem.topology
    loads_R = planned.plan.loads_R(planned.problem)
    pace = pace_for(int(loads_R.sum()), planned.options.tolerance_ppm, topology)
    return bool((loads_R <= capacities_at(pace, topology)).all())


def _considered_rows(planned: PlannedLayer) -> list[Row]:
    """What was looked at, one of it chosen: the first that is the plan, which is added where nothing is."""
    considered = planned.plan.explanation.considered
    chosen = next((index for index, each in enumerate(considered) if _are_equal(each.plan, planned.plan)), None)
    if chosen is None:
        name = "the plan" if (planned.plan.guests_RK != EMPTY_SLOT).any() else "no guests"
        considered, chosen = (*considered, Considered(name=name, plan=planned.plan)), len(considered)
    rows = []
    for index, each in enumerate(considered):
        stats = each.plan.stats(planned.problem)
        rows.append(
            {
                "name": each.name,
                "imbalance": stats.imbalance_after,
                "weighted_cost": stats.weighted_cost,
                "objective": objective_value(each.plan, planned.problem, planned.options),
                "chosen": index == chosen,
            }
        )
    return rows


def _are_equal(first: LayerPlan, second: LayerPlan) -> bool:
    return np.array_equal(first.guests_RK, second.guests_RK) and np.array_equal(first.quota_SRK, second.quota_SRK)


def _guests(layer_plan: LayerPlan) -> list[list[int]]:
    """Lists [expert, rank, tokens] by rank and slot."""
    tokens_RK = layer_plan.tokens_RK
    return [
        [int(layer_plan.guests_RK[rank, slot]), rank, int(tokens_RK[rank, slot])]
        for rank, slot in zip(*(axis.tolist() for axis in (layer_plan.guests_RK != EMPTY_SLOT).nonzero()), strict=True)
    ]
