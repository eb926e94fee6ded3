"""What dashboards and alerts see. Base units, no series per step, version, session or expert.

The label is `training_job` because Prometheus keeps `job` for its own targets.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from taot_api.routing_report import FALLBACK_REASONS, RoutingReport
from taot_api.session_spec import SessionSpec
from taot_planning import imbalance
from taot_planning.arrays import IntArray
from taot_service.planning_work import SolvedPlan

_GROUP = ("training_job", "group")

_SECONDS_BUCKETS = (
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    1e-2,
    2.5e-2,
    5e-2,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class ServiceMetrics:
    """The metrics of one planner, in a registry of their own."""

    def __init__(self, *, release: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.sessions = self._gauge("taot_sessions", "Open sessions.")
        self.reports = self._counter("taot_reports", "Routing reports by what became of them.", "outcome")
        self.plans = self._counter("taot_plans", "Plans by what became of them.", "outcome")
        self.planning_seconds = self._histogram("taot_planning_seconds", "Time spent planning one report.")
        self.report_to_plan_seconds = self._histogram(
            "taot_report_to_plan_seconds", "Time from the arrival of a report to its plan being in force."
        )
        self.refusals = self._counter("taot_refusals", "Calls that were refused, by reason.", "reason")
        self._gates = self._counter("taot_plan_gates", "Layers whose plan a gate has changed.", "gate")
        self._create_group_metrics()
        info = self._gauge("taot_build_info", "Always 1; the label says which release runs.", "release")
        info.labels(release).set(1)

    def _create_group_metrics(self) -> None:
        mean = "mean over layers, (max - mean) / mean of the ranks' load"
        self._before = self._gauge("taot_imbalance_before", f"Newest plan: imbalance without guests, {mean}.", *_GROUP)
        self._after = self._gauge("taot_imbalance_after", f"Newest plan: expected imbalance, {mean}.", *_GROUP)
        self._realised = self._gauge("taot_imbalance_realised", f"Last report: measured imbalance, {mean}.", *_GROUP)
        self._cost = self._gauge("taot_plan_weighted_cost", "Newest plan: summed cost of its guests.", *_GROUP)
        self._gain = self._gauge(
            "taot_predicted_gain_seconds",
            "Newest plan: predicted time of all layers' experts without guests minus with; absent when unknown.",
            *_GROUP,
        )
        self._guests = self._gauge("taot_plan_guests", "Newest plan: guests by reach.", *_GROUP, "reach")
        self._exposed = self._counter(
            "taot_exposed_transfer_seconds",
            "Time that ranks stood still for guests, summed over ranks.",
            *_GROUP,
        )
        self._transfer = self._counter(
            "taot_transfer_seconds",
            "Time that guests were in flight, hidden or not, summed over ranks.",
            *_GROUP,
        )
        self._sent = self._counter("taot_sent_bytes", "Guest weights and gradients sent, by reach.", *_GROUP, "reach")
        self._fallbacks = self._counter(
            "taot_fallbacks", "Layers that ran without a plan though one was wanted.", *_GROUP, "reason"
        )
        self._by_group = (
            self._before,
            self._after,
            self._realised,
            self._cost,
            self._gain,
            self._exposed,
            self._transfer,
        )
        self._by_reach = (self._guests, self._sent)

    def observe_plan(self, spec: SessionSpec, solved: SolvedPlan) -> None:
        """Shows the newest plan of a session."""
        group = (spec.training_job, spec.group)
        self._before.labels(*group).set(solved.stats.imbalance_before)
        self._after.labels(*group).set(solved.stats.imbalance_after)
        self._cost.labels(*group).set(solved.stats.weighted_cost)
        if solved.stats.predicted_gain_seconds is not None:
            self._gain.labels(*group).set(solved.stats.predicted_gain_seconds)
        self._guests.labels(*group, "intra_node").set(solved.intra_guests)
        self._guests.labels(*group, "inter_node").set(solved.inter_guests)
        for gate in chain.from_iterable(solved.gates_L):
            self._gates.labels(gate.value).inc()

    def observe_telemetry(self, spec: SessionSpec, report: RoutingReport) -> None:
        """Adds what the ranks measured, if the report says."""
        if not report.telemetry_R:
            return
        group = (spec.training_job, spec.group)
        ranks = report.telemetry_R
        self._exposed.labels(*group).inc(sum(rank.exposed_transfer_seconds for rank in ranks))
        self._transfer.labels(*group).inc(sum(rank.transfer_seconds for rank in ranks))
        self._sent.labels(*group, "intra_node").inc(sum(rank.intra_node_sent_bytes for rank in ranks))
        self._sent.labels(*group, "inter_node").inc(sum(rank.inter_node_sent_bytes for rank in ranks))
        for rank in ranks:
            for reason, count in rank.fallbacks.items():
                shown = reason if reason in FALLBACK_REASONS else "other"
                self._fallbacks.labels(*group, shown).inc(count)
        if spec.layers:
            self._realised.labels(*group).set(_realised_imbalance(report, spec.topology.speed_milli_R))

    def forget(self, spec: SessionSpec) -> None:
        """Removes the series of a session that has ended."""
        group = (spec.training_job, spec.group)
        for metric in self._by_group:
            metric.remove(*group)
        for metric in self._by_reach:
            for reach in ("intra_node", "inter_node"):
                metric.remove(*group, reach)
        for reason in (*FALLBACK_REASONS, "other"):
            self._fallbacks.remove(*group, reason)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS_BUCKETS, registry=self.registry)


def _realised_imbalance(report: RoutingReport, speed_milli_R: IntArray | None) -> float:
    """Mean over layers of the imbalance of the tokens that the ranks computed."""
    loads_RL = np.stack([rank.computed_tokens_L for rank in report.telemetry_R])
    return float(np.mean([imbalance(loads_R, speed_milli_R) for loads_R in loads_RL.T]))
