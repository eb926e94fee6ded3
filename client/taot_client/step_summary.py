"""What a step did, for the training loop's own log and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taot_client.planner.step_record import ModeReason, StepMode
from taot_client.transfers.transfer_schedule import Move
from taot_planning import Topology


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """One training step as seen by all ranks alike; imbalances are means over its micro-batches."""

    step: int
    """The step."""

    mode: StepMode
    """How placements were made."""

    reason: ModeReason
    """Why so."""

    imbalance_static: Mapping[str, float]
    """(max - mean) / mean of the ranks' load as plain expert parallelism would have had it, by layer."""

    imbalance_planned: Mapping[str, float]
    """The same as the split of the tokens at hand wanted it."""

    imbalance: Mapping[str, float]
    """The same of the tokens that ranks really computed; in observe mode, as the plan would have made it."""

    guests_intra: int
    """Guests that came from a rank of the same node, over all layers and micro-batches: from home, or passed on."""

    guests_inter: int
    """Guests that came from another node."""

    weighted_cost: float
    """Sum over moved guests of the cost of source -> guest rank, relative to the innermost level."""

    fallbacks: Mapping[str, int]
    """Passes through a layer that ran without guests that were wanted, by reason."""

    layers_off: tuple[str, ...] = ()
    """Layers without guests in this step, since guests were measured to cost more than they gain."""


class MoveTotals(NamedTuple):
    """What a list of moves comes to."""

    intra: int
    """Guests that come from a rank of the same node."""

    inter: int
    """Guests that come from another node."""

    cost_milli: int
    """Sum of the costs of source -> guest rank, in thousandths."""

    @classmethod
    def of(cls, moves: Sequence[Move], topology: Topology) -> MoveTotals:
        """The totals of moves between ranks of a topology."""
        nodes_R, cost_milli_RR = topology.nodes_R, topology.cost_milli_RR
        inter = sum(nodes_R.item(move.source) != nodes_R.item(move.rank) for move in moves)
        cost_milli = sum(cost_milli_RR.item(move.source, move.rank) for move in moves)
        return cls(len(moves) - inter, inter, cost_milli)


class StepTally:
    """Adds up the passes of a step."""

    def __init__(self) -> None:
        self._static: dict[str, list[float]] = {}
        self._planned: dict[str, list[float]] = {}
        self._achieved: dict[str, list[float]] = {}
        self._guests = [0, 0]
        self._cost_milli = 0
        self.fallbacks: dict[str, int] = {}

    def add_pass(self, layer: str, *, static: float, planned: float, achieved: float) -> None:
        """Adds the imbalances of one pass through one layer."""
        self._static.setdefault(layer, []).append(static)
        self._planned.setdefault(layer, []).append(planned)
        self._achieved.setdefault(layer, []).append(achieved)

    def add_moves(self, totals: MoveTotals) -> None:
        """Adds guests that were sent to their slots."""
        self._guests[0] += totals.intra
        self._guests[1] += totals.inter
        self._cost_milli += totals.cost_milli

    def add_fallback(self, reason: str) -> None:
        """Notes a pass that ran without guests that were wanted."""
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1

    def summary(
        self, *, step: int, mode: StepMode, reason: ModeReason, layers_off: tuple[str, ...] = ()
    ) -> StepSummary:
        """What has been added so far."""
        return StepSummary(
            step=step,
            mode=mode,
            reason=reason,
            imbalance_static=_means(self._static),
            imbalance_planned=_means(self._planned),
            imbalance=_means(self._achieved),
            guests_intra=self._guests[0],
            guests_inter=self._guests[1],
            weighted_cost=self._cost_milli / 1000,
            fallbacks=dict(self.fallbacks),
            layers_off=layers_off,
        )


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {layer: sum(each) / len(each) for layer, each in values.items()}
