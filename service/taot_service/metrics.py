"""What dashboards and alerts see. Base units, no series per step, version, session or expert.

The label is `training_job` because Prometheus keeps `job` for its own targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric

from taot_api.contract_error import Reason
from taot_api.published_plan import PublishedPlan
from taot_planning import EMPTY_SLOT
from taot_planning.explanation import Gate
from taot_service.config import ServiceConfig
from taot_service.group_series import GroupSeries
from taot_service.planning_work import FinishedWork, PlanningWork, SolvedPlan
from taot_service.session import ReportOutcome

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

PLAN_OUTCOMES = (
    "installed",
    "answered",
    "superseded",
    "abandoned",
    "failed",
    "session_ended",
    "improved",
    "not_better",
    "improvement_dropped",
)
"""In force; handed to a caller that waited; dropped for a newer report; wanted by nobody any more; not found; too late
for its session. Of improvements of hurried plans: in force; no better; dropped for a newer report."""

HTTP_REFUSAL_REASONS = ("UNAUTHENTICATED", "PERMISSION_DENIED", "WRONG_HOST", "TOO_MANY_FAILURES")
"""Without a known token; with one for something else; to a name that is not the planner's; refused too often before."""

_BALANCED = frozenset({Gate.BALANCED, Gate.WITHIN_TOLERANCE})


class MetricsSnapshot(CollectorRegistry):
    """Series that do not change any more: another thread may write them out while the planner goes on."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The series."""
        return self._families


class ServiceMetrics:
    """The metrics of one planner, in a registry of their own."""

    def __init__(self, config: ServiceConfig, *, release: str) -> None:
        # A second time per counter says nothing that resets do not, at the cost of a line each.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.groups = GroupSeries(
            max_labelled_groups=config.max_labelled_groups, max_layer_series=config.max_layer_series
        )
        self.registry.register(self.groups)
        self.reports = self._counter(
            "taot_reports", "Routing reports by what became of them.", outcome=[each.value for each in ReportOutcome]
        )
        self._report_outcomes = {each: self.reports.labels(each.value) for each in ReportOutcome}
        self.plans = self._counter("taot_plans", "Plans by what became of them.", outcome=PLAN_OUTCOMES)
        self.superseded = self.plans.labels("superseded")
        """Looked up once: a flood has thousands a second."""
        self.refusals = self._counter(
            "taot_refusals", "Calls that were refused, by reason.", reason=[each.name for each in Reason]
        )
        self.http_refusals = self._counter(
            "taot_http_refusals", "HTTP requests that were refused, by reason.", reason=HTTP_REFUSAL_REASONS
        )
        self.report_to_plan_seconds = self._histogram(
            "taot_report_to_plan_seconds", "Time from the arrival of a report to its plan being in force."
        )
        self._planning_seconds = self._histogram(
            "taot_planning_seconds",
            "Time from the arrival of a report to its plan being handed out, by phase: waiting for a solver thread,"
            " planning, handing out.",
            phase=("queue", "solve", "publish"),
        )
        self._layers = self._counter(
            "taot_layers_planned",
            "Layers of plans in force by what came of them: guests, or why none.",
            outcome=("guests", "balanced", "gated", "no_guests"),
        )
        self._gates = self._counter(
            "taot_plan_gates", "Layers whose plan a gate has changed.", gate=[each.value for each in Gate]
        )
        self._gauge("taot_sessions_limit", "Sessions that may be open at a time.").set(config.max_sessions)
        self.show(
            "taot_jobs_without_series",
            "Training jobs with a group beyond the limit of groups that have series.",
            lambda: self.groups.num_jobs_without_series,
        )
        info = self._gauge("taot_build_info", "Always 1; the label says which release runs.", "release")
        info.labels(release).set(1)

    def snapshot(self) -> MetricsSnapshot:
        """All series as they are now, to be written out where it does not hold up the event loop."""
        return MetricsSnapshot(list(self.registry.collect()))

    def show(self, name: str, text: str, count: Callable[[], float]) -> None:
        """Adds a gauge that is asked for its value whenever somebody looks."""
        self._gauge(name, text).set_function(count)

    def count_report(self, outcome: ReportOutcome) -> None:
        """Counts a report that was taken."""
        self._report_outcomes[outcome].inc()

    def count_refusal(self, reason: Reason) -> None:
        """Counts a call that was refused."""
        self.refusals.labels(reason.name).inc()

    def observe_times(self, finished: FinishedWork, *, now_seconds: float) -> None:
        """Adds how long it took to a plan that has just been handed out."""
        arrival_seconds = finished.work.arrival_seconds
        self._planning_seconds.labels("queue").observe(finished.started_seconds - arrival_seconds)
        self._planning_seconds.labels("solve").observe(finished.solved_seconds - finished.started_seconds)
        self._planning_seconds.labels("publish").observe(now_seconds - finished.solved_seconds)

    def observe_layers(self, solved: SolvedPlan) -> None:
        """Adds what became of the layers of an installed plan."""
        for guests_RK, gates in zip(solved.guests_L, solved.gates_L, strict=True):
            has_guests = bool((guests_RK != EMPTY_SLOT).any())
            self._layers.labels(_layer_outcome(gates, has_guests=has_guests)).inc()
            for gate in gates:
                self._gates.labels(gate.value).inc()

    def observe_plan(
        self, finished: FinishedWork, solved: SolvedPlan, plan: PublishedPlan, *, now_seconds: float
    ) -> None:
        """Adds a plan that has just been put in force for a report."""
        self.plans.labels("installed").inc()
        self.observe_times(finished, now_seconds=now_seconds)
        self.report_to_plan_seconds.observe(now_seconds - finished.work.arrival_seconds)
        self.observe_layers(solved)
        self.note_plan_of_group(finished.work, solved, plan)

    def note_plan_of_group(self, work: PlanningWork, solved: SolvedPlan, plan: PublishedPlan) -> None:
        """Shows the plan in force of a group."""
        self.groups.note_plan(
            work.spec,
            solved,
            version=plan.identity.version,
            source_step=plan.source_step,
            now_seconds=plan.create_time_seconds,
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, **values: Sequence[str]) -> Counter:
        counter = Counter(name, text, tuple(values), registry=self.registry)
        _begin_at_zero(counter, values)
        return counter

    def _histogram(self, name: str, text: str, **values: Sequence[str]) -> Histogram:
        histogram = Histogram(name, text, tuple(values), buckets=_SECONDS_BUCKETS, registry=self.registry)
        _begin_at_zero(histogram, values)
        return histogram


def _begin_at_zero(metric: Counter | Histogram, values: Mapping[str, Sequence[str]]) -> None:
    """Makes the series of all values of a label, so that their first increase is seen as one."""
    for label, each in values.items():
        for value in each:
            metric.labels(**{label: value})


def _layer_outcome(gates: tuple[Gate, ...], *, has_guests: bool) -> str:
    if has_guests:
        return "guests"
    if _BALANCED & set(gates):
        return "balanced"
    return "gated" if gates else "no_guests"
