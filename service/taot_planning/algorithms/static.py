"""`static`: plain expert parallelism, no guests. The baseline of every comparison."""

from __future__ import annotations

import numpy as np

from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Leaves every slot empty."""
    del options
    num_ranks, num_slots = problem.num_ranks, problem.topology.max_slots
    return LayerPlan(
        guests_RK=np.full((num_ranks, num_slots), EMPTY_SLOT, dtype=np.int64),
        quota_SRK=np.zeros((num_ranks, num_ranks, num_slots), dtype=np.int64),
    )
