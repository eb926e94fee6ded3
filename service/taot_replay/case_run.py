"""One case of a replay: what its slots hold from micro-batch to micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from taot_planning import LayerPlan, LayerProblem, imbalance, plan_from_guests
from taot_planning.arrays import IntArray
from taot_replay.replay_case import AHEAD_INLINE, INLINE, ReplayCase
from taot_replay.replay_figures import FiguresBuilder, ReplayFigures

STALE_POINTS = 0.05
"""How far above its promise an imbalance may be before `ahead+inline` plans the layer again: a few points are less than
guests cost that travel behind the home experts. From step to step of a recorded fine-tuning, two layers of three
drift by less while the data stay of one kind, and none where the kind changes."""

Planner: TypeAlias = Callable[[LayerProblem], LayerPlan]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """The guests of a layer."""

    guests_RK: IntArray
    """Expert in each guest slot, -1 where it is empty. Shape: [ranks, slots]."""

    promised_imbalance: float
    """What they achieve on the counts that they were planned from."""


def placement_of(plan: LayerPlan, problem: LayerProblem) -> Placement:
    """The guests of a plan, made from the counts of `problem`."""
    return Placement(guests_RK=plan.guests_RK, promised_imbalance=_imbalance(plan, problem))


class CaseRun:
    """Carries out one case."""

    def __init__(self, case: ReplayCase, *, num_layers: int, planner: Planner) -> None:
        self._source = case.source
        self._planner = planner
        self._figures = FiguresBuilder(case, num_layers=num_layers)
        self._placed_L: list[Placement] = []

    def figures(self) -> ReplayFigures:
        """The means so far."""
        return self._figures.figures()

    def begin_step(self, ahead_L: Sequence[Placement]) -> None:
        """Begins a step; `ahead_L` are the placements planned from the step before."""
        self._figures.begin_step()
        self._placed_L = list(ahead_L)

    def add(self, layer: int, problem: LayerProblem) -> None:
        """Adds one layer of a micro-batch."""
        plan = self._plan_at_hand(layer, problem) if self._source == INLINE else self._use_placed(layer, problem)
        self._figures.compute(problem, plan)

    def _use_placed(self, layer: int, problem: LayerProblem) -> LayerPlan:
        """Splits the tokens over what is placed, or plans the layer again where that has become stale."""
        placed = self._placed_L[layer]
        self._figures.move(layer, problem, placed.guests_RK)
        plan = plan_from_guests(problem, placed.guests_RK)
        is_stale = _imbalance(plan, problem) > placed.promised_imbalance + STALE_POINTS
        if self._source != AHEAD_INLINE or not is_stale:
            return plan
        plan = self._plan_at_hand(layer, problem)
        self._placed_L[layer] = placement_of(plan, problem)
        return plan

    def _plan_at_hand(self, layer: int, problem: LayerProblem) -> LayerPlan:
        """Plans from the counts at hand; guests of this step that are there already are free."""
        resident_RK = self._figures.resident_RK(layer)
        plan = self._planner(problem if resident_RK is None else replace(problem, resident_RK=resident_RK))
        self._figures.move(layer, problem, plan.guests_RK)
        return plan


def _imbalance(plan: LayerPlan, problem: LayerProblem) -> float:
    return imbalance(plan.loads_R(problem), problem.topology.speed_milli_R)
