"""Puts the reports to the planner together from the passes of a micro-batch."""

from __future__ import annotations

import numpy as np

from taot_api import PlanIdentity, RankTelemetry, RoutingReport
from taot_client.counts_gather import GatheredCounts, Measured
from taot_client.planner.step_control import LEADER

_MICRO = 1e-6


class ReportBuilder:
    """Collects the layers of each micro-batch until a report is complete."""

    def __init__(self, *, num_layers: int, num_ranks: int) -> None:
        self._num_layers = num_layers
        self._open: dict[int, dict[int, GatheredCounts]] = {}
        self._reported_R = [Measured()] * num_ranks
        self._computed_LR = np.zeros((num_layers, num_ranks), dtype=np.int64)
        self._fallbacks: dict[str, int] = {}
        self._applied_layers = 0

    def begin_step(self) -> None:
        """Drops micro-batches that never became complete."""
        self._open.clear()

    def add_fallback(self, reason: str) -> None:
        """Notes a pass that ran without guests that were wanted."""
        self._fallbacks[reason] = self._fallbacks.get(reason, 0) + 1

    def add_applied(self) -> None:
        """Notes a pass in which guests compute tokens."""
        self._applied_layers += 1

    def add(
        self,
        *,
        step: int,
        micro_batch: int,
        layer: int,
        gathered: GatheredCounts,
        applied: PlanIdentity | None,
    ) -> RoutingReport | None:
        """Adds one layer; returns the report once all layers of the micro-batch are there."""
        outcomes = self._open.setdefault(micro_batch, {})
        outcomes[layer] = gathered
        if len(outcomes) < self._num_layers:
            return None
        del self._open[micro_batch]
        ordered = [outcomes[index] for index in range(self._num_layers)]
        return RoutingReport(
            step=step,
            micro_batch=micro_batch,
            # Layers of a model see the same tokens; the largest number leaves it to the planner to judge others.
            valid_tokens_R=np.max([outcome.valid_tokens_R for outcome in ordered], axis=0),
            counts_L=tuple(outcome.counts_RE for outcome in ordered),
            applied_plan=applied,
            telemetry_R=self._telemetry(ordered),
        )

    def _telemetry(self, ordered: list[GatheredCounts]) -> tuple[RankTelemetry, ...]:
        measured_R = ordered[-1].measured_R
        computed_LR = np.array([outcome.computed_tokens_R for outcome in ordered])
        new_LR, self._computed_LR = computed_LR - self._computed_LR, computed_LR
        telemetry = tuple(
            RankTelemetry(
                computed_tokens_L=new_LR[:, rank],
                exposed_transfer_seconds=(now.exposed_us - before.exposed_us) * _MICRO,
                transfer_seconds=(now.flight_us - before.flight_us) * _MICRO,
                intra_node_sent_bytes=now.intra_node_sent_bytes - before.intra_node_sent_bytes,
                inter_node_sent_bytes=now.inter_node_sent_bytes - before.inter_node_sent_bytes,
                # Ranks act alike: counted once, on the leader.
                fallbacks=dict(self._fallbacks) if rank == LEADER else {},
                applied_layers=self._applied_layers if rank == LEADER else 0,
            )
            for rank, (now, before) in enumerate(zip(measured_R, self._reported_R, strict=True))
        )
        self._reported_R = list(measured_R)
        self._fallbacks.clear()
        self._applied_layers = 0
        return telemetry
