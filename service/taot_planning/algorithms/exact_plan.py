"""The plan of the effort `exact`: the best of what the mixed-integer program and the search found."""

from __future__ import annotations

from dataclasses import replace

from taot_planning.algorithms.exact_guests import solve_exactly
from taot_planning.algorithms.gates import pass_gates
from taot_planning.algorithms.objective import objective_value
from taot_planning.capacity import is_within, pace_for, pace_of
from taot_planning.explanation import Considered
from taot_planning.layer_plan import LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def improve_exactly(searched: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Looks for the best plan there is, and for a proof, from the plan that the search found.

    Both have to pass the gates. The objective `step_time` and placements for recent micro-batches know no program:
    there is no bound for them, and they are those of the search. The bound holds for every way to split the tokens; the
    plan has the split of `assign_tokens`, which with a least number of tokens per guest may do without some guests.

    Raises:
        ValueError: if scipy is not installed.
    """
    gated = pass_gates(searched, problem, options)
    if options.objective == "step_time" or (options.objective == "tolerance" and problem.recent_tokens_NE is not None):
        return gated
    answer = solve_exactly(problem, options, start=searched.guests_RK)
    exact = pass_gates(plan_from_guests(problem, answer.guests_RK), problem, options)
    worth, exact_worth = _worth(gated, problem, options), _worth(exact, problem, options)
    best, best_worth = (exact, exact_worth) if exact_worth < worth else (gated, worth)
    considered = (*gated.explanation.considered, Considered(name="mixed-integer program", plan=exact))
    # Gates may have left a plan that misses the tolerance, for less than any that reaches it would cost.
    has_bound = not best.explanation.gates or best_worth[0] > 0
    explanation = replace(best.explanation, considered=considered)
    if has_bound and answer.lower_bound <= best_worth[1] + 1e-9:
        is_optimal = answer.is_optimal and exact_worth <= worth
        explanation = replace(explanation, lower_bound=answer.lower_bound, is_optimal=is_optimal)
    return best.explained(explanation)


def _worth(plan: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> tuple[int, float]:
    """Less is better: the pace where the tolerance is not reached, then the objective."""
    value = objective_value(plan, problem, options)
    if options.objective == "mu":
        return 0, value
    loads_R = plan.loads_R(problem)
    target = pace_for(int(loads_R.sum()), options.tolerance_ppm, problem.topology)
    return 0 if is_within(loads_R, target, problem.topology) else pace_of(loads_R, problem.topology), value
