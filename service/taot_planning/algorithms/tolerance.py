"""The cheapest guests that reach a tolerance, or the most balanced ones where it is out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from taot_planning.algorithms import static
from taot_planning.algorithms.guest_search import find_guests
from taot_planning.algorithms.guest_trades import trade_guests
from taot_planning.algorithms.robust_guests import place_for_recent
from taot_planning.arrays import IntArray, read_only
from taot_planning.assignment import assign_tokens
from taot_planning.capacity import capacities_at, excess_at, is_within, pace_for, strain
from taot_planning.explanation import Considered, Explanation, Gate
from taot_planning.guest_moves import NOBODY, list_moves
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan, plan_from_guests
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import Effort, PlanningOptions
from taot_planning.topology import Topology

AHEAD = "guests for the micro-batch to come"
"""What a placement for recent micro-batches is called where it is told about."""

MAX_BISECTIONS = 8
"""Paces that are tried where the tolerance cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class _Budget:
    """How long to search."""

    rounds: int
    """Rounds of improvement of a group of up to 32 ranks; more ranks get more, in proportion."""

    most_rounds: int
    """Rounds of improvement, at most."""

    rescue_rounds: int
    """Further rounds while some rank is above its capacity."""

    has_trades: bool
    """Whether guests are traded for cheaper ones afterwards."""


BUDGETS: Mapping[Effort, _Budget] = MappingProxyType(
    {
        "fast": _Budget(rounds=20, most_rounds=56, rescue_rounds=200, has_trades=False),
        "balanced": _Budget(rounds=250, most_rounds=1600, rescue_rounds=500, has_trades=True),
    }
)


def plan_for_tolerance(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Places guests for `options.tolerance_ppm` and splits the tokens exactly.

    With recent micro-batches, the guests are for the one to come, and those without tokens now are kept. Resident
    guests are free; where they are enough, nothing moves. If the slots do not suffice for the tolerance, the plan is
    the most balanced that was found.
    """
    target = pace_for(problem.loads.total, options.tolerance_ppm, problem.topology)
    if problem.recent_tokens_NE is not None:
        return _plan_for_recent(problem, problem.recent_tokens_NE, options, target)
    if is_within(problem.loads.load_R, target, problem.topology):
        return _explain(static.plan(problem, options), Gate.WITHIN_TOLERANCE)
    budget = BUDGETS[options.effort]
    considered: list[Considered] = []
    if problem.resident_RK is not None:
        kept = plan_from_guests(problem, _resident_guests(problem, problem.resident_RK))
        considered.append(Considered(name="resident guests alone", plan=kept))
        if is_within(kept.loads_R(problem), target, problem.topology):
            return _explain(kept, considered=considered)
    guests_RK, missing = _search(problem, target, budget)
    best = plan_from_guests(problem, guests_RK)
    if missing == 0 and not considered and not budget.has_trades:
        return best  # in the middle of a training step, and there is nothing to tell
    considered.append(Considered(name=f"search, {options.effort}", plan=best))
    if missing == 0:
        # Trades are worth what lies between ranks. Where guests are resident or passed on, they may be worth less.
        has_prices = problem.resident_RK is not None or problem.topology.has_relay
        if budget.has_trades and not has_prices:
            best = plan_from_guests(problem, _trade(best, problem, target))
            considered.append(Considered(name="search, then trades", plan=best))
        return _explain(best, considered=considered)
    best = _most_balanced(problem, target, budget, considered)
    return _explain(best, Gate.OUT_OF_REACH, considered=considered)


def _plan_for_recent(
    problem: LayerProblem, recent_tokens_NE: IntArray, options: PlanningOptions, target: int
) -> LayerPlan:
    """Places guests for the micro-batch to come; gates speak of the counts at hand."""
    guests_RK = place_for_recent(problem, recent_tokens_NE, options)
    plan = LayerPlan.take_over(guests_RK=guests_RK, quota_SRK=assign_tokens(problem, guests_RK))
    gates = gates_ahead(plan.loads_R(problem), target, problem.topology, has_guests=plan.has_guests)
    has_way = Gate.WITHIN_TOLERANCE not in gates
    return _explain(plan, *gates, considered=[Considered(name=AHEAD, plan=plan)] if has_way else [])


def gates_ahead(loads_R: IntArray, target: int, topology: Topology, *, has_guests: bool) -> tuple[Gate, ...]:
    """What is to be told of guests for the micro-batch to come: whether they are enough for the counts at hand.

    Args:
        loads_R: tokens of each rank with them. Shape: [ranks].
        target: the pace asked for.
        topology: the ranks.
        has_guests: whether there are any.
    """
    if not is_within(loads_R, target, topology):
        return (Gate.OUT_OF_REACH,)
    return () if has_guests else (Gate.WITHIN_TOLERANCE,)


def _explain(plan: LayerPlan, *gates: Gate, considered: list[Considered] | None = None) -> LayerPlan:
    return plan.explained(Explanation(gates=gates, considered=tuple(considered or ())))


def _resident_guests(problem: LayerProblem, resident_RK: IntArray) -> IntArray:
    """The resident guests as a placement; a rank keeps as many as it has slots. Shape: [ranks, slots]."""
    topology = problem.topology
    guests_RK = np.full((problem.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64)
    for rank, slots in enumerate(topology.slots_R.tolist()):
        away = [guest for guest in resident_RK[rank].tolist() if guest >= 0 and problem.home_E[guest] != rank]
        kept = list(dict.fromkeys(away))[:slots]
        guests_RK[rank, : len(kept)] = kept
    return guests_RK


def _search(problem: LayerProblem, pace: int, budget: _Budget) -> tuple[IntArray, int]:
    """The best guests that the search finds, and the tokens that stay above capacity. Shape: [ranks, slots]."""
    topology = problem.topology
    return find_guests(
        problem.loads.tokens_E,
        problem.home_E,
        excess_at(pace, problem.loads.load_R, topology),
        topology.cost_milli_RR,
        topology.slots_R,
        NOBODY if problem.resident_RK is None else problem.resident_RK,
        topology.has_relay,
        min(budget.rounds * max(problem.num_ranks, 32) // 32, budget.most_rounds),
        budget.rescue_rounds,
    )


def _trade(plan: LayerPlan, problem: LayerProblem, pace: int) -> IntArray:
    """Cheaper guests that reach the pace too, see `guest_trades`. Shape: [ranks, slots]."""
    topology = problem.topology
    return trade_guests(
        problem.home_E,
        problem.loads.tokens_E,
        plan.guests_RK,
        read_only(plan.tokens_RK),
        read_only(capacities_at(pace, topology)),
        topology.cost_milli_RR,
        topology.slots_R,
    )


def _cost(plan: LayerPlan, problem: LayerProblem) -> int:
    return list_moves(problem, plan.guests_RK).cost_milli


def _most_balanced(problem: LayerProblem, target: int, budget: _Budget, considered: list[Considered]) -> LayerPlan:
    """Bisects the paces between the target and what was reached; adds what is better to `considered`."""
    best = considered[-1].plan
    reached = strain(best.loads_R(problem), problem.topology)
    for _ in range(MAX_BISECTIONS):
        if reached[1] - target <= 1:
            break
        middle = (target + reached[1]) // 2
        guests_RK, _ = _search(problem, middle, budget)
        found = plan_from_guests(problem, guests_RK)
        found_reached = strain(found.loads_R(problem), problem.topology)
        if found_reached < reached or (found_reached == reached and _cost(found, problem) < _cost(best, problem)):
            best, reached = found, found_reached
            considered.append(Considered(name="search for a larger load", plan=best))
        if found_reached[1] > middle:
            target = middle
    return best
