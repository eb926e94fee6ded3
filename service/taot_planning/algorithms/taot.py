"""`taot`: the default. The cheapest guests that reach the tolerance, found by search, and exact token assignment.

Ranks give away what exceeds (1 + tolerance) x mean, and are filled up to it (`guest_search`). Then the tokens are
split by the rule that every rank can repeat (`assign_tokens`): the smallest maximum load that the placement
allows. With another objective, plans for several tolerances are weighed against each other. Last come the gates: no
plan is worse than moving nothing.
"""

from __future__ import annotations

from dataclasses import replace

from taot_planning.algorithms.exact_plan import improve_exactly
from taot_planning.algorithms.gates import pass_gates
from taot_planning.algorithms.objective import plan_by_objective
from taot_planning.algorithms.tolerance import plan_for_tolerance
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Places guests for `options.objective` and splits the tokens exactly.

    Raises:
        ValueError: if the objective is `step_time` and rates or bandwidths are unknown, or the effort is `exact` and
            scipy is not installed.
    """
    is_exact = options.effort == "exact"
    searching = replace(options, effort="balanced") if is_exact else options
    is_tolerance = options.objective == "tolerance"
    found = plan_for_tolerance(problem, searching) if is_tolerance else plan_by_objective(problem, searching)
    return improve_exactly(found, problem, options) if is_exact else pass_gates(found, problem, options)
