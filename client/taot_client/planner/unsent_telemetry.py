"""What the ranks have measured and the planner has not been told: it rides on the next report that gets through."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import numpy as np

from taot_api import RankTelemetry, RoutingReport


class UnsentTelemetry:
    """Keeps errors, and what was measured in reports that were lost, for a report to come.

    Of a lost report everything is kept but its counts and its computed tokens: these say how the newest micro-batch
    went. A report whose answer alone was lost is told twice. May be used by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_R: tuple[RankTelemetry, ...] = ()
        self._errors: Counter[str] = Counter()

    def add_error(self, reason: str) -> None:
        """Counts an error that training has survived."""
        with self._lock:
            self._errors[reason] += 1

    def add_lost(self, report: RoutingReport) -> None:
        """Keeps what was measured in a report that the planner has not received."""
        kept_R = tuple(replace(each, computed_tokens_L=np.zeros_like(each.computed_tokens_L)) for each in _of(report))
        with self._lock:
            self._lost_R = _sum(kept_R, self._lost_R)

    def ride_on(self, report: RoutingReport) -> RoutingReport:
        """The report with everything that was kept, which is not kept any longer."""
        with self._lock:
            lost_R, self._lost_R = self._lost_R, ()
            errors, self._errors = self._errors, Counter()
        if not (lost_R or errors):
            return report
        leader, *others = _sum(_of(report), lost_R)
        leader = replace(leader, errors=dict(Counter(leader.errors) + errors))
        return replace(report, telemetry_R=(leader, *others))


def _of(report: RoutingReport) -> tuple[RankTelemetry, ...]:
    """The telemetry of a report; nothing measured, where it has none."""
    nothing = RankTelemetry(computed_tokens_L=np.zeros(len(report.counts_L), dtype=np.int64))
    return report.telemetry_R or (nothing,) * report.valid_tokens_R.size


def _sum(one_R: tuple[RankTelemetry, ...], other_R: tuple[RankTelemetry, ...]) -> tuple[RankTelemetry, ...]:
    if not (one_R and other_R):
        return one_R or other_R
    return tuple(
        RankTelemetry(
            computed_tokens_L=one.computed_tokens_L + other.computed_tokens_L,
            exposed_transfer_seconds=one.exposed_transfer_seconds + other.exposed_transfer_seconds,
            transfer_seconds=one.transfer_seconds + other.transfer_seconds,
            intra_node_sent_bytes=one.intra_node_sent_bytes + other.intra_node_sent_bytes,
            inter_node_sent_bytes=one.inter_node_sent_bytes + other.inter_node_sent_bytes,
            fallbacks=dict(Counter(one.fallbacks) + Counter(other.fallbacks)),
            applied_layers=one.applied_layers + other.applied_layers,
            errors=dict(Counter(one.errors) + Counter(other.errors)),
        )
        for one, other in zip(one_R, other_R, strict=True)
    )
