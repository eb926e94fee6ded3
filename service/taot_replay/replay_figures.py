"""What a case achieves over a recording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from taot_planning import EMPTY_SLOT, LayerPlan, LayerProblem, imbalance
from taot_planning.arrays import IntArray
from taot_planning.guest_moves import list_moves
from taot_replay.replay_case import ReplayCase


@dataclass(frozen=True, kw_only=True)
class ReplayFigures:
    """Means over the steps counted: all but the first, whose placement would need a step before."""

    case: ReplayCase

    imbalance: float
    """(max - mean) / mean of the ranks' loads, mean over layers and micro-batches."""

    intra_guests: float
    """Guests moved within a node, per layer and step."""

    inter_guests: float
    """Guests moved across nodes, per layer and step."""

    weighted_cost: float
    """Cost of the guests moved, per layer and step; 1 within a node."""

    node_crossings: float
    """Tokens computed in another node than their own, per step and over all layers; each choice of a token counts."""

    imbalance_by_step: tuple[float, ...]
    """The imbalance of each step counted."""

    weighted_cost_by_step: tuple[float, ...]
    """The cost per layer of each step counted."""

    node_crossings_by_step: tuple[int, ...]
    """The crossings of each step counted."""


@dataclass(kw_only=True)
class _StepFigures:
    imbalances: list[float] = field(default_factory=list)
    intra_guests: int = 0
    inter_guests: int = 0
    cost_milli: int = 0
    crossings: int = 0


class FiguresBuilder:
    """Adds up one case, step by step."""

    def __init__(self, case: ReplayCase, *, num_layers: int) -> None:
        self._case = case
        self._num_layers = num_layers
        self._steps: list[_StepFigures] = []
        self._resident_L: list[IntArray | None] = []

    def begin_step(self) -> None:
        """Begins a step: weights have changed, so that no guest is resident."""
        self._steps.append(_StepFigures())
        self._resident_L = [None] * self._num_layers

    def resident_RK(self, layer: int) -> IntArray | None:
        """The guests that hold this step's weights, None where nothing has moved yet. Shape: [ranks, slots]."""
        return self._resident_L[layer]

    def move(self, layer: int, problem: LayerProblem, guests_RK: IntArray) -> None:
        """Brings a placement about: what is not resident moves, also where the split leaves it without tokens.

        Args:
            layer: index of the layer.
            problem: the layer.
            guests_RK: the placement; what else was resident makes room.
        """
        step, nodes_R = self._steps[-1], problem.topology.nodes_R
        moves = list_moves(replace(problem, resident_RK=self._resident_L[layer]), guests_RK)
        self._resident_L[layer] = guests_RK
        inter = int((nodes_R[moves.source_G] != nodes_R[moves.rank_G]).sum())
        step.inter_guests += inter
        step.intra_guests += moves.rank_G.size - inter
        step.cost_milli += moves.cost_milli

    def compute(self, problem: LayerProblem, plan: LayerPlan) -> None:
        """Adds one layer of a micro-batch: the counts at hand and how they are split."""
        step = self._steps[-1]
        step.imbalances.append(imbalance(plan.loads_R(problem), problem.topology.speed_milli_R))
        step.crossings += node_crossings(problem, plan)

    def figures(self) -> ReplayFigures:
        """The means.

        Raises:
            ValueError: if no step has been added.
        """
        steps = self._steps
        if not steps:
            raise ValueError("a replay needs at least two steps: the first has no step before to place from")
        layer_steps = len(steps) * self._num_layers
        return ReplayFigures(
            case=self._case,
            imbalance=_mean([each for step in steps for each in step.imbalances]),
            intra_guests=sum(step.intra_guests for step in steps) / layer_steps,
            inter_guests=sum(step.inter_guests for step in steps) / layer_steps,
            weighted_cost=sum(step.cost_milli for step in steps) / (1000 * layer_steps),
            node_crossings=sum(step.crossings for step in steps) / len(steps),
            imbalance_by_step=tuple(_mean(step.imbalances) for step in steps),
            weighted_cost_by_step=tuple(step.cost_milli / (1000 * self._num_layers) for step in steps),
            node_crossings_by_step=tuple(step.crossings for step in steps),
        )


def node_crossings(problem: LayerProblem, plan: LayerPlan) -> int:
    """Tokens computed in another node than their source rank's; ignores that two choices may share a crossing."""
    nodes_R = problem.topology.nodes_R
    crosses_SR = (nodes_R[:, None] != nodes_R[None, :]).astype(np.int64)
    all_at_home = int((problem.counts_RE * crosses_SR[:, problem.home_E]).sum())
    ranks, slots = np.nonzero(plan.guests_RK != EMPTY_SLOT)
    homes_G = problem.home_E[plan.guests_RK[ranks, slots]]
    quota_SG = plan.quota_SRK[:, ranks, slots]
    return all_at_home + int((quota_SG * (crosses_SR[:, ranks] - crosses_SR[:, homes_G])).sum())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
