"""`taot`: the default. The published placement with a tolerance, and exact token assignment.

Two things differ from `taot-paper`. Ranks spill only what exceeds the tolerance, and are filled up to it,
which saves guests. And the tokens are not auctioned but split by the rule that every rank can repeat
(`assign_tokens`): the smallest maximum load that the placement allows, so no plan is worse than moving
nothing.
"""

from __future__ import annotations

from taot_planning.algorithms.placement import place_guests
from taot_planning.layer_plan import LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Places guests for `options.tolerance_ppm`, see `place_guests`, and splits the tokens exactly."""
    guests_RK, _ = place_guests(problem, tolerance_ppm=options.tolerance_ppm)
    return plan_from_guests(problem, guests_RK)
