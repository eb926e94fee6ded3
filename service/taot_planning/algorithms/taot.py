"""`taot`: the default. The cheapest guests that reach the tolerance, found by search, and exact token assignment.

Ranks give away what exceeds (1 + tolerance) x mean, and are filled up to it (`guest_search`). Then the tokens are
split by the rule that every rank can repeat (`assign_tokens`): the smallest maximum load that the placement
allows, so no plan is worse than moving nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from taot_planning.algorithms import static
from taot_planning.algorithms.guest_search import search_guests
from taot_planning.algorithms.guest_state import measure_loads, start_state
from taot_planning.arrays import IntArray
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PPM, Effort, PlanningOptions

MAX_BISECTIONS = 8
"""Caps that are tried where the tolerance cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class _Budget:
    """How long to search."""

    rounds: int
    """Rounds of improvement of a group of up to 32 ranks; more ranks get more, in proportion."""

    most_rounds: int
    """Rounds of improvement, at most."""

    rescue_rounds: int
    """Further rounds while some rank is above the cap."""


BUDGETS: Mapping[Effort, _Budget] = MappingProxyType(
    {
        "fast": _Budget(rounds=28, most_rounds=56, rescue_rounds=200),
        "balanced": _Budget(rounds=400, most_rounds=1600, rescue_rounds=500),
    }
)


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Places guests for `options.tolerance_ppm` and splits the tokens exactly.

    If the slots do not suffice for the tolerance, the plan is the most balanced that was found.
    """
    tokens_E, load_R, total, highest = measure_loads(problem.counts_RE, problem.home_E)
    cap = -(-total * (PPM + options.tolerance_ppm) // (PPM * problem.num_ranks))
    if highest <= cap:
        return static.plan(problem, options)
    budget = BUDGETS[options.effort]
    guests_RK, missing = _search(problem, tokens_E, load_R, cap, budget)
    best = plan_from_guests(problem, guests_RK)
    if missing == 0:
        return best
    reached = int(best.loads_R(problem).max())
    for _ in range(MAX_BISECTIONS):
        if reached - cap <= 1:
            break
        middle = (cap + reached) // 2
        guests_RK, _ = _search(problem, tokens_E, load_R, middle, budget)
        found = plan_from_guests(problem, guests_RK)
        found_reached = int(found.loads_R(problem).max())
        cheaper = found.stats(problem).weighted_cost < best.stats(problem).weighted_cost
        if found_reached < reached or (found_reached == reached and cheaper):
            best, reached = found, found_reached
        if found_reached > middle:
            cap = middle
    return best if reached < highest else static.plan(problem, options)


def _search(
    problem: LayerProblem, tokens_E: IntArray, load_R: IntArray, cap: int, budget: _Budget
) -> tuple[IntArray, int]:
    """The best guests that the search finds, and the tokens that stay above the cap. Shape: [ranks, slots]."""
    topology = problem.topology
    state, ranks_C = start_state(tokens_E, problem.home_E, load_R - cap, topology.cost_milli_RR, topology.slots_R)
    guests_RK = np.full((problem.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64)
    if ranks_C.size == 0:
        return guests_RK, int(state.total[0])
    rounds = min(budget.rounds * max(problem.num_ranks, 32) // 32, budget.most_rounds)
    guests_RK[ranks_C], missing = search_guests(state, rounds, budget.rescue_rounds)
    return guests_RK, missing
