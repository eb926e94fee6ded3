"""What people may ask about one planned layer: its loads, the tokens of guests, what else was looked at.

Kept per session for the newest plan only, without the counts and quotas that it is worked out from: those are large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning import LayerPlan, LayerProblem, PlanStats
from taot_planning.algorithms.tolerance import AHEAD
from taot_planning.arrays import IntArray
from taot_planning.explanation import Gate
from taot_planning.layer_batch import PlacedLayer


@dataclass(frozen=True, kw_only=True)
class ConsideredPlan:
    """One plan that was looked at on the way to the plan in force."""

    name: str
    """What it is, such as `search, balanced`."""

    imbalance: float
    """(max - mean) / mean of the ranks' load with it."""

    weighted_cost: float
    """Summed cost of its guests, relative to the innermost level."""

    is_chosen: bool
    """Whether it is the plan in force; none is where gates or a last step changed it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerAccount:
    """The account of one layer's plan."""

    home_loads_R: IntArray
    """Tokens each rank would compute without guests. Shape: [ranks]."""

    tokens_RK: IntArray
    """Tokens each guest takes over, on the counts the plan was made from. Shape: [ranks, slots]."""

    considered: tuple[ConsideredPlan, ...] = ()
    """What was looked at, in order."""


def account_for(plan: LayerPlan, problem: LayerProblem, stats: PlanStats) -> LayerAccount:
    """Draws up the account of a plan for the counts it was made from.

    Args:
        plan: the plan.
        problem: what it answers.
        stats: the figures of `plan` on `problem`.
    """
    return LayerAccount(
        home_loads_R=problem.loads.load_R,
        tokens_RK=plan.tokens_RK,
        considered=tuple(_considered(plan, problem, stats)),
    )


def account_for_placed(placed: PlacedLayer) -> LayerAccount:
    """Draws up the account of guests that were placed together with those of other layers."""
    only = ConsideredPlan(
        name=AHEAD,
        imbalance=placed.stats.imbalance_after,
        weighted_cost=placed.stats.weighted_cost,
        is_chosen=True,
    )
    has_way = Gate.WITHIN_TOLERANCE not in placed.gates
    return LayerAccount(
        home_loads_R=placed.home_loads_R, tokens_RK=placed.tokens_RK, considered=(only,) if has_way else ()
    )


def _considered(plan: LayerPlan, problem: LayerProblem, stats: PlanStats) -> list[ConsideredPlan]:
    rows: list[ConsideredPlan] = []
    is_found = False
    for each in plan.explanation.considered:
        guests_RK = each.plan.guests_RK
        is_same = guests_RK is plan.guests_RK or np.array_equal(guests_RK, plan.guests_RK)
        figures = stats if is_same else each.plan.stats(problem)
        rows.append(
            ConsideredPlan(
                name=each.name,
                imbalance=figures.imbalance_after,
                weighted_cost=figures.weighted_cost,
                is_chosen=is_same and not is_found,
            )
        )
        is_found = is_found or is_same
    return rows
