"""The plan of the effort `exact`: the best of what the mixed-integer program and the search found."""

from __future__ import annotations

from dataclasses import replace

from taot_planning.algorithms.exact_guests import solve_exactly
from taot_planning.algorithms.objective import objective_value, plan_by_objective
from taot_planning.algorithms.tolerance import plan_for_tolerance
from taot_planning.capacity import capacities_at, pace_for, pace_of
from taot_planning.explanation import Considered
from taot_planning.layer_plan import LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan_exactly(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans as the effort `balanced` does, then looks for the best plan there is, and for a proof.

    The objective `step_time` and placements for recent micro-batches know no program: there is no bound for them.

    Raises:
        ValueError: if scipy is not installed.
    """
    balanced_options = replace(options, effort="balanced")
    if options.objective == "tolerance":
        balanced = plan_for_tolerance(problem, balanced_options)
    else:
        balanced = plan_by_objective(problem, balanced_options)
    if options.objective == "step_time" or (options.objective == "tolerance" and problem.recent_tokens_NE is not None):
        return balanced
    answer = solve_exactly(problem, options, start=balanced.guests_RK)
    exact = plan_from_guests(problem, answer.guests_RK)
    is_better = _worth(exact, problem, options) < _worth(balanced, problem, options)
    is_as_good = _worth(exact, problem, options) == _worth(balanced, problem, options)
    before = balanced.explanation
    return replace(
        exact if is_better else balanced,
        explanation=replace(
            before,
            gates=() if is_better and _worth(exact, problem, options)[0] == 0 else before.gates,
            considered=(*before.considered, Considered(name="mixed-integer program", plan=exact)),
            lower_bound=answer.lower_bound,
            is_optimal=answer.is_optimal and (is_better or is_as_good),
        ),
    )


def _worth(plan: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> tuple[int, float]:
    """Less is better: the pace where the tolerance is not reached, then the objective."""
    value = objective_value(plan, problem, options)
    if options.objective == "mu":
        return 0, value
    loads_R = plan.loads_R(problem)
    target = pace_for(int(loads_R.sum()), options.tolerance_ppm, problem.topology)
    is_reached = bool((loads_R <= capacities_at(target, problem.topology)).all())
    return 0 if is_reached else pace_of(loads_R, problem.topology), value
