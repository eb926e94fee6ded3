"""Rules that a plan of `taot` has to pass before it is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taot_planning.algorithms import static
from taot_planning.algorithms.objective import objective_value
from taot_planning.assignment import assign_tokens
from taot_planning.capacity import strain
from taot_planning.explanation import Considered, Gate
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def pass_gates(plan: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Leaves small guests out, and all guests where they gain nothing; the explanation says so."""
    has_questions = plan.explanation.gates or problem.rates is not None or options.objective != "tolerance"
    if not has_questions and options.min_tokens_per_guest <= 1:
        return plan
    if not plan.has_guests:
        return plan
    if options.min_tokens_per_guest > 1:
        plan = _without_small_guests(plan, problem, options.min_tokens_per_guest)
    # A plan that reached its tolerance is better than none.
    if (plan.explanation.gates or options.objective != "tolerance") and _is_dominated(plan, problem, options):
        return _instead(static.plan(problem, options), plan, Gate.DOMINATED)
    if problem.rates is not None:
        nothing = static.plan(problem, options)
        time, time_without = plan.stats(problem).predicted_seconds, nothing.stats(problem).predicted_seconds
        if time is not None and time_without is not None and time >= time_without:
            return _instead(nothing, plan, Gate.NO_GAIN)
    return plan


def _is_dominated(plan: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> bool:
    """Whether moving nothing is as balanced, or as good for another objective."""
    if options.objective != "tolerance":
        nothing = static.plan(problem, options)
        return objective_value(plan, problem, options) >= objective_value(nothing, problem, options)
    static_R = problem.loads.load_R
    return strain(plan.loads_R(problem), problem.topology) >= strain(static_R, problem.topology)


def _instead(chosen: LayerPlan, plan: LayerPlan, gate: Gate) -> LayerPlan:
    """`chosen` in place of `plan`, with the way to it."""
    before = plan.explanation
    considered = (*before.considered, Considered(name=f"before the gate {gate.value}", plan=plan))
    return chosen.explained(replace(before, gates=(*before.gates, gate), considered=considered))


def _without_small_guests(plan: LayerPlan, problem: LayerProblem, min_tokens: int) -> LayerPlan:
    """Takes the smallest guest out until none is below the least; the tokens of each go to the others.

    Guests without any tokens to begin with are there for a micro-batch to come, and stay.
    """
    kept, spare_RK = plan, plan.tokens_RK == 0
    while True:
        stays_RK = (kept.tokens_RK == 0) & (spare_RK | (kept.guests_RK == EMPTY_SLOT))
        tokens_RK = np.where(stays_RK, min_tokens, kept.tokens_RK)
        rank, slot = np.unravel_index(int(tokens_RK.argmin()), tokens_RK.shape)
        if tokens_RK[rank, slot] >= min_tokens:
            break
        guests_RK = kept.guests_RK.copy()
        guests_RK[rank, slot] = EMPTY_SLOT
        kept = LayerPlan(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
    return plan if kept is plan else _instead(kept, plan, Gate.MIN_TOKENS)
