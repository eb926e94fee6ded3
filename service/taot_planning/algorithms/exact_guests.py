"""The best guests there are, by a mixed-integer program, with a proof of how far from the best they can be.

Every rank may give and every rank may take, also both: a rank that hands on what it cannot hold saves crossings. First
come programs that allow few pairs, to find a good placement: from hot ranks to cold ones, then the guests at hand and
all pairs within one or two nodes. Then one over all pairs gives the bound. All of these take the experts of a home
together (see `exact_program`); experts are chosen for the guests that they found. Only if a gap is left, the program
over all pairs and experts follows.

HiGHS works in floating point against a time limit. So the answer is not the same on every machine, as those of the
other efforts are: it is not for ranks that plan for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from taot_planning.algorithms.exact_costs import resident_pairs
from taot_planning.algorithms.exact_program import (
    BoolArray,
    Goal,
    GuestProgram,
    Solution,
    build_program,
    perfect_pace,
    relax_program,
    solve_program,
)
from taot_planning.arrays import IntArray
from taot_planning.capacity import capacities_at, pace_for
from taot_planning.guest_moves import list_moves
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PPM, PlanningOptions
from taot_planning.topology import INNERMOST_COST_MILLI

CHOICE_SECONDS = 1.0
"""Time for choosing the experts of guests whose homes and ranks are known: mostly milliseconds."""

HOT_SHARE = 0.15
"""Part of the time for pairs of hot and cold ranks."""

NEAR_SHARE = 0.4
"""Part of the time for changes within one or two nodes."""

RELAXED_SHARE = 0.35
"""Part of the time for all pairs with the experts of a home taken together."""

FULL_SHARE = 0.1
"""Part of the time for all pairs and experts."""

MAX_NEIGHBOURHOODS = 24
"""Programs for the neighbourhoods of nodes, at most."""

PRECISION = 1e-6
"""Bounds are trusted this far, relative to 1 or to themselves: the tolerance of the solver."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactAnswer:
    """A placement, and what is proven about it."""

    guests_RK: IntArray
    """Expert in each guest slot, -1 where empty. Shape: [ranks, slots]."""

    lower_bound: float
    """Proven least value of the objective: weighted cost, with the objective `mu` imbalance + mu x weighted cost. Where
    the tolerance is out of reach, of the weighted cost among the placements as balanced as this one."""

    is_optimal: bool
    """Whether the placement is proven to be the best: its objective is the bound, and where the tolerance is out of
    reach no placement is more balanced, both within 1e-6 and one token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """The best placement for a goal so far, and the bound."""

    guests_RK: IntArray | None = None
    """Shape: [ranks, slots]; None: nothing was found."""

    value: float = np.inf
    """Objective of the placement."""

    bound: float = 0.0
    """No placement has a lower objective; infinite: none is possible."""


def solve_exactly(problem: LayerProblem, options: PlanningOptions, *, start: IntArray | None) -> ExactAnswer:
    """Looks for the best guests for `options.objective`, for about `options.exact_seconds`.

    That is the solver's share. Writing the programs down, and choosing experts for what was found, comes on top.

    With the objective `tolerance` where that is out of reach: the smallest pace (the time of the last rank, rounded up
    to whole tokens), and then the least cost at that pace.

    Args:
        problem: the layer.
        options: objective `tolerance` or `mu`, and its parameters.
        start: a placement to improve, whose guests may also be left out. Shape: [ranks, slots].

    Raises:
        ValueError: if scipy is not installed.
    """
    assert options.objective in ("tolerance", "mu"), options.objective
    none_RK = np.full((problem.num_ranks, problem.topology.max_slots), -1, dtype=np.int64)
    total = int(problem.counts_RE.sum())
    if total == 0:
        return ExactAnswer(guests_RK=none_RK, lower_bound=0.0, is_optimal=True)
    start_RK = none_RK if start is None else start
    if options.objective == "mu":
        goal = _free_goal(problem, options, cost_weight=options.mu_ppm / PPM)
        found = _minimise(problem, goal, start_RK, options.exact_seconds)
        return _answer(problem, found, offset=1.0, slack=1 / perfect_pace(problem))
    goal = Goal(
        capacity_R=capacities_at(pace_for(total, options.tolerance_ppm, problem.topology), problem.topology),
        min_tokens=options.min_tokens_per_guest,
    )
    is_reached = _place(problem, goal, _pairs_of(start_RK, problem), options.exact_seconds).guests_RK is not None
    found = _minimise(problem, goal, start_RK, options.exact_seconds / (1 if is_reached else 2))
    if found.guests_RK is not None:
        return _answer(problem, found)
    return _most_balanced(problem, options, start_RK, is_proven=found.bound == np.inf)


def _most_balanced(
    problem: LayerProblem, options: PlanningOptions, start_RK: IntArray, *, is_proven: bool
) -> ExactAnswer:
    """The least cost at the smallest pace; `is_proven`: the tolerance cannot be reached."""
    seconds = options.exact_seconds / 4
    unit = perfect_pace(problem)
    goal = _free_goal(problem, options, cost_weight=0.0)
    found = _minimise(problem, goal, start_RK, seconds)
    if found.guests_RK is None:  # not even the start was judged in time
        return ExactAnswer(guests_RK=start_RK, lower_bound=0.0, is_optimal=False)
    pace = math.ceil((found.value - PRECISION) * unit)
    is_proven &= math.ceil((found.bound - PRECISION) * unit) == pace
    capacity_R = np.minimum(capacities_at(pace, replace(problem.topology, token_cap_R=None)), goal.capacity_R)
    goal = replace(goal, capacity_R=capacity_R, pace_weight=0.0, cost_weight=1.0)
    cheapest = _minimise(problem, goal, found.guests_RK, seconds)
    if cheapest.guests_RK is None:  # the solver's tolerance was more than a token
        cheapest = replace(found, value=_cost(problem, found.guests_RK), bound=0.0)
    answer = _answer(problem, cheapest)
    return replace(answer, is_optimal=answer.is_optimal and is_proven)


def _free_goal(problem: LayerProblem, options: PlanningOptions, *, cost_weight: float) -> Goal:
    """A goal in which the pace counts; guests push no rank above its token cap, homes may."""
    loads_R = problem.loads.load_R
    cap_R = problem.topology.token_cap_R
    total_R = np.full(problem.num_ranks, int(loads_R.sum()))
    return Goal(
        capacity_R=total_R if cap_R is None else np.minimum(np.maximum(cap_R, loads_R), total_R),
        pace_weight=1.0,
        cost_weight=cost_weight,
        min_tokens=options.min_tokens_per_guest,
    )


def _answer(problem: LayerProblem, found: _Found, *, offset: float = 0.0, slack: float = 0.0) -> ExactAnswer:
    """Reports a placement; `slack`: what whole tokens may add to the objective."""
    assert found.guests_RK is not None
    is_optimal = found.value <= found.bound + PRECISION * max(1.0, found.value) + slack
    return ExactAnswer(guests_RK=found.guests_RK, lower_bound=max(found.bound - offset, 0.0), is_optimal=is_optimal)


def _minimise(problem: LayerProblem, goal: Goal, start_RK: IntArray, seconds: float) -> _Found:
    """Looks for the best placement for a goal."""
    by_home_E = _group_by_home(problem)
    best = _place(problem, goal, _pairs_of(start_RK, problem), seconds)
    if best.value <= best.bound:
        return best
    hot_ER = _hot_to_cold(problem, goal)
    program = build_program(problem, goal, by_home_E, hot_ER, has_cuts=False)
    solution = solve_program(program, seconds=seconds * HOT_SHARE)
    best = _choose_experts(problem, goal, by_home_E, program, solution, best)
    nearby = _neighbourhoods(problem)
    for near_ER in nearby:
        if best.guests_RK is not None:
            program = build_program(problem, goal, by_home_E, near_ER | _pairs_of(best.guests_RK, problem))
            solution = solve_program(program, seconds=seconds * NEAR_SHARE / len(nearby), cutoff=best.value - PRECISION)
            best = _choose_experts(problem, goal, by_home_E, program, solution, best)
    best = _prove(problem, goal, by_home_E, best, seconds * RELAXED_SHARE)
    if best.value > best.bound + PRECISION:
        best = _prove(problem, goal, np.arange(problem.num_experts), best, seconds * FULL_SHARE)
    return best


def _prove(problem: LayerProblem, goal: Goal, group_E: IntArray, best: _Found, seconds: float) -> _Found:
    """Looks for something better than `best` among all pairs, and raises the bound."""
    program = build_program(problem, goal, group_E, np.ones((problem.num_experts, problem.num_ranks), dtype=np.bool_))
    solution = solve_program(program, seconds=seconds)
    bound = solution.bound
    if solution.guests_P is None and bound == 0:
        # scipy tells no bound where HiGHS found no solution in time.
        bound = relax_program(program, seconds=seconds)
    if goal.pace_weight == 0 and np.isfinite(bound):
        step = _cost_step(problem)
        bound = math.ceil(bound / step - PRECISION) * step
    best = _choose_experts(problem, goal, group_E, program, solution, best)
    return replace(best, bound=max(best.bound, min(bound, best.value)))


def _choose_experts(
    problem: LayerProblem, goal: Goal, group_E: IntArray, program: GuestProgram, solution: Solution, best: _Found
) -> _Found:
    """The best choice of experts for the guests of groups, if it is better than `best`."""
    if solution.guests_P is None:
        return best
    taken_GR = np.zeros((int(group_E.max()) + 1, problem.num_ranks), dtype=np.bool_)
    taken_GR[program.group_P, program.rank_P] = solution.guests_P > 0
    found = _place(problem, goal, taken_GR[group_E], CHOICE_SECONDS)
    return replace(found, bound=best.bound) if found.value < best.value else best


def _hot_to_cold(problem: LayerProblem, goal: Goal) -> BoolArray:
    """Pairs that bring something from a rank with too much to one with room. Shape: [experts, ranks]."""
    loads_R = problem.loads.load_R
    speeds_R = problem.topology.speeds_R
    share_R = int(loads_R.sum()) / int(speeds_R.sum()) * speeds_R if goal.pace_weight else goal.capacity_R
    is_hot_R = loads_R > share_R
    pairs_ER: BoolArray = (is_hot_R[:, None] & ~is_hot_R[None, :])[problem.home_E]
    return pairs_ER


def _neighbourhoods(problem: LayerProblem) -> list[BoolArray]:
    """All pairs within one node, for each of them, then within two, as far as time is worth it.

    Shape of each: [experts, ranks].
    """
    nodes_R = problem.topology.nodes_R
    nodes = np.unique(nodes_R).tolist()
    chosen = [*combinations(nodes, 1), *combinations(nodes, 2)] if len(nodes) > 2 else [*combinations(nodes, 1)]
    is_in_R = [np.isin(nodes_R, each) for each in chosen[:MAX_NEIGHBOURHOODS]]
    return [each[problem.home_E][:, None] & each[None, :] for each in is_in_R]


def _place(problem: LayerProblem, goal: Goal, allowed_ER: BoolArray, seconds: float) -> _Found:
    """The best placement with no guests but the allowed ones, the bound left out."""
    every_E = np.arange(problem.num_experts)
    program = build_program(problem, goal, every_E, allowed_ER)
    solution = solve_program(program, seconds=seconds)
    if solution.guests_P is None:
        return _Found()
    guests_RK = np.full((problem.num_ranks, problem.topology.max_slots), -1, dtype=np.int64)
    filled_R = np.zeros(problem.num_ranks, dtype=np.int64)
    for pair in np.flatnonzero(solution.guests_P).tolist():
        rank = int(program.rank_P[pair])
        guests_RK[rank, filled_R[rank]] = program.group_P[pair]
        filled_R[rank] += 1
    value = goal.pace_weight * solution.pace + goal.cost_weight * _cost(problem, guests_RK)
    return _Found(guests_RK=guests_RK, value=value)


def _pairs_of(guests_RK: IntArray, problem: LayerProblem) -> BoolArray:
    """The guests of a placement. Shape: [experts, ranks]."""
    pairs_ER = np.zeros((problem.num_experts, problem.num_ranks), dtype=np.bool_)
    ranks, slots = np.nonzero(guests_RK >= 0)
    pairs_ER[guests_RK[ranks, slots], ranks] = True
    return pairs_ER


def _group_by_home(problem: LayerProblem) -> IntArray:
    """One group per home, but for resident experts, which are alone. Shape: [experts]."""
    is_resident_E = resident_pairs(problem).any(axis=1)
    key_E = np.where(is_resident_E, problem.num_ranks + np.arange(problem.num_experts), problem.home_E)
    group_E: IntArray = np.unique(key_E, return_inverse=True)[1].reshape(-1)
    return group_E


def _cost(problem: LayerProblem, guests_RK: IntArray) -> float:
    return list_moves(problem, guests_RK).cost_milli / INNERMOST_COST_MILLI


def _cost_step(problem: LayerProblem) -> float:
    """All weighted costs are multiples of this."""
    return int(np.gcd.reduce(problem.topology.cost_milli_RR, axis=None)) / INNERMOST_COST_MILLI
