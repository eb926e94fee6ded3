"""What people may ask about one planned layer: its loads, where guests come from, what else was looked at.

Kept per session for the newest plan only, without the counts and quotas that it is worked out from: those are large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning import EMPTY_SLOT, LayerPlan, LayerProblem, PlanStats
from taot_planning.arrays import IntArray, read_only
from taot_planning.guest_moves import list_moves


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

    loads_R: IntArray
    """Tokens each rank computes with the plan, on the counts it was made from. Shape: [ranks]."""

    tokens_RK: IntArray
    """Tokens each guest takes over. Shape: [ranks, slots]."""

    source_RK: IntArray
    """Rank that each guest comes from: its home, or a relay; -1 where the slot is empty. Shape: [ranks, slots]."""

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
        home_loads_R=read_only(problem.loads.load_R),
        loads_R=read_only(plan.loads_R(problem)),
        tokens_RK=read_only(plan.tokens_RK),
        source_RK=read_only(_sources(plan.guests_RK, problem)),
        considered=tuple(_considered(plan, problem, stats)),
    )


def _sources(guests_RK: IntArray, problem: LayerProblem) -> IntArray:
    source_RK: IntArray = np.where(guests_RK == EMPTY_SLOT, -1, problem.home_E[guests_RK])
    if problem.topology.has_relay:
        moves = list_moves(problem, guests_RK)
        for expert, source, rank in zip(moves.expert_G, moves.source_G, moves.rank_G, strict=True):
            source_RK[rank, guests_RK[rank] == expert] = source
    return source_RK


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
