"""Plans that weigh balance against cost: plans for several tolerances, then guests taken out while that pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from taot_planning.algorithms import static
from taot_planning.algorithms.tolerance import plan_for_tolerance
from taot_planning.explanation import Considered, Explanation
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.load import imbalance
from taot_planning.options import PPM, PlanningOptions

HALVINGS = 7
"""Tolerances that are tried: the imbalance without guests halved up to so many times, three quarters between, and 0."""


def objective_value(plan: LayerPlan, problem: LayerProblem, options: PlanningOptions) -> float:
    """What the plan is worth, less is better.

    Returns:
        For `mu` imbalance + mu x weighted cost, for `step_time` seconds, for `tolerance` the weighted cost.

    Raises:
        ValueError: if the objective is `step_time` and rates or bandwidths are unknown.
    """
    stats = plan.stats(problem)
    if options.objective == "tolerance":
        return stats.weighted_cost
    if options.objective == "mu":
        return stats.imbalance_after + options.mu_ppm * stats.weighted_cost / PPM
    if stats.predicted_seconds is None:
        raise ValueError(
            "the objective step_time needs the rates of the layer (token_picoseconds, expert_size_bytes) and the"
            " bandwidth of every level"
        )
    return stats.predicted_seconds


def plan_by_objective(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """The best of no guests, and of plans for a range of tolerances from which guests are taken out while that pays.

    It is the best for the counts at hand: recent micro-batches are not heeded.

    Raises:
        ValueError: see `objective_value`.
    """
    problem = replace(problem, recent_tokens_NE=None)
    before = imbalance(problem.loads.load_R, problem.topology.speed_milli_R)
    considered = [Considered(name="no guests", plan=static.plan(problem, options))]
    for tolerance_ppm in _tolerances(round(before * PPM)):
        plan = plan_for_tolerance(problem, replace(options, tolerance_ppm=tolerance_ppm))
        considered.append(Considered(name=f"tolerance {tolerance_ppm / PPM:.2%}", plan=plan))
    best = min(considered, key=lambda each: objective_value(each.plan, problem, options)).plan
    thinned = _take_out(best, problem, lambda plan: objective_value(plan, problem, options))
    considered.append(Considered(name="guests taken out", plan=thinned))
    return thinned.explained(Explanation(considered=tuple(considered)))


def _tolerances(before_ppm: int) -> list[int]:
    """Tolerances below an imbalance, ascending."""
    halved = [before_ppm >> halving for halving in range(HALVINGS + 1)]
    return sorted({min(each, 100 * PPM) for each in (0, *halved[1:], *(3 * each // 4 for each in halved))})


def _take_out(plan: LayerPlan, problem: LayerProblem, value_of: Callable[[LayerPlan], float]) -> LayerPlan:
    """Takes out one guest after another, those with the fewest tokens first, and leaves out whose going pays."""
    value = value_of(plan)
    ranks, slots = np.nonzero(plan.guests_RK != EMPTY_SLOT)
    for index in np.argsort(plan.tokens_RK[ranks, slots], kind="stable").tolist():
        guests_RK = plan.guests_RK.copy()
        guests_RK[ranks[index], slots[index]] = EMPTY_SLOT
        without = plan_from_guests(problem, guests_RK)
        value_without = value_of(without)
        if value_without < value:
            plan, value = without, value_without
    return plan
