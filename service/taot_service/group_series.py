"""The series of groups: which groups have any, and how they are shown. They go with their session.

Series are made from what is held of open sessions when somebody asks, so that an ended one leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taot_api.routing_report import AGENT_ERROR_REASONS, FALLBACK_REASONS, RoutingReport
from taot_api.session_spec import SessionSpec
from taot_service.group_figures import REACHES, GroupFigures
from taot_service.planning_work import SolvedPlan

_GROUP = ("training_job", "group")

_MEAN = "mean over layers, (max - mean) / mean of the ranks' load"

GAUGES = {
    "taot_imbalance_static": (f"Newest plan: imbalance without guests, {_MEAN}.", ()),
    "taot_imbalance_planned": (f"Newest plan: expected imbalance, {_MEAN}.", ()),
    "taot_imbalance_realised": (f"Last report: measured imbalance of the tokens computed, {_MEAN}.", ()),
    "taot_worst_layer": ("Index of the layer with the highest imbalance: realised, else planned.", ()),
    "taot_worst_layer_imbalance": ("Imbalance of that layer.", ()),
    "taot_layer_imbalance": (
        "Imbalance of each layer, by its index: realised, planned where nothing was measured.",
        ("layer",),
    ),
    "taot_step": ("Newest reported step.", ()),
    "taot_plan_age_steps": (
        "Newest report: its step minus the step whose counts the plan in force came from (the newest plan, where"
        " the ranks applied none).",
        (),
    ),
    "taot_last_report_timestamp_seconds": ("When the last training report came, in seconds since 1970.", ()),
    "taot_last_plan_timestamp_seconds": ("When the newest plan was put in force, in seconds since 1970.", ()),
    "taot_paused": ("1 while an operator has paused the session, else 0.", ()),
    "taot_plan_guests": ("Newest plan: guests by reach.", ("reach",)),
    "taot_plan_weighted_cost": ("Newest plan: summed cost of its guests.", ()),
    "taot_predicted_gain_seconds": (
        "Newest plan: predicted time of all layers' experts without guests minus with; absent when unknown.",
        (),
    ),
}
"""Name, help and further labels."""

COUNTERS = {
    "taot_sent_bytes_total": ("Guest weights and gradients sent, by reach.", ("reach",)),
    "taot_exposed_transfer_seconds_total": ("Time that ranks stood still for guests, summed over ranks.", ()),
    "taot_hidden_transfer_seconds_total": (
        "Time that guests were in flight without their rank standing still, summed over ranks.",
        (),
    ),
    "taot_applied_layers_total": ("Passes through layers in which guests computed tokens.", ()),
    "taot_fallbacks_total": ("Passes through layers that ran without a plan though one was wanted.", ("reason",)),
    "taot_agent_errors_total": ("Errors of the agents that training has survived.", ("reason",)),
}
"""Name, help and further labels."""


@dataclass(kw_only=True)
class _OpenGroup:
    """An open session."""

    spec: SessionSpec

    figures: GroupFigures | None = None
    """None while it has no series."""

    has_layer_series: bool = False

    is_paused: bool = False


class GroupSeries(Collector):
    """The series of all open sessions, within two limits. Whoever comes first has them until it ends."""

    def __init__(self, *, max_labelled_groups: int, max_layer_series: int) -> None:
        """Shows nothing yet.

        Args:
            max_labelled_groups: groups that have series.
            max_layer_series: layers of such groups that have a series of their own; a group has all or none.
        """
        self._max_labelled_groups = max_labelled_groups
        self._max_layer_series = max_layer_series
        self._open: dict[tuple[str, str], _OpenGroup] = {}

    @property
    def num_jobs_without_series(self) -> int:
        """Training jobs with a group beyond the limit."""
        return len({each.spec.training_job for each in self._open.values() if each.figures is None})

    def open(self, spec: SessionSpec) -> None:
        """Makes room for a new session, if there is any."""
        self._open[spec.training_job, spec.group] = _OpenGroup(spec=spec)
        self._share_out()

    def forget(self, spec: SessionSpec) -> None:
        """Removes the series of a session that has ended; its room goes to whoever has waited longest."""
        del self._open[spec.training_job, spec.group]
        self._share_out()

    def note_paused(self, spec: SessionSpec, *, is_paused: bool) -> None:
        """Shows whether an operator has paused a session. It must be open."""
        self._open[spec.training_job, spec.group].is_paused = is_paused

    def note_plan(
        self, spec: SessionSpec, solved: SolvedPlan, *, version: int, source_step: int, now_seconds: float
    ) -> None:
        """See `GroupFigures.note_plan`. The session must be open."""
        figures = self._open[spec.training_job, spec.group].figures
        if figures is not None:
            figures.note_plan(solved, version=version, source_step=source_step, now_seconds=now_seconds)

    def note_report(self, spec: SessionSpec, report: RoutingReport, *, planner_epoch: str, now_seconds: float) -> None:
        """See `GroupFigures.note_report`. The session must be open."""
        figures = self._open[spec.training_job, spec.group].figures
        if figures is not None:
            figures.note_report(spec, report, planner_epoch=planner_epoch, now_seconds=now_seconds)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now; without a group they have names only."""
        families: dict[str, Metric] = {}
        for name, (text, labels) in GAUGES.items():
            families[name] = GaugeMetricFamily(name, text, labels=_GROUP + labels)
        for name, (text, labels) in COUNTERS.items():
            families[name] = CounterMetricFamily(name, text, labels=_GROUP + labels)
        for group, each in self._open.items():
            if each.figures is not None:
                families["taot_paused"].add_metric(group, each.is_paused)  # type: ignore[attr-defined]
                for name, labels, value in _values(each.figures, has_layer_series=each.has_layer_series):
                    families[name].add_metric((*group, *labels), value)  # type: ignore[attr-defined]
        return families.values()

    def _share_out(self) -> None:
        """Gives what room there is to those without, in the order of opening."""
        groups = self._open.values()
        num_labelled = sum(each.figures is not None for each in groups)
        num_layers = sum(len(each.spec.layers) for each in groups if each.has_layer_series)
        for each in groups:
            if each.figures is None and num_labelled < self._max_labelled_groups:
                each.figures = GroupFigures()
                num_labelled += 1
            fits = num_layers + len(each.spec.layers) <= self._max_layer_series
            if each.figures is not None and not each.has_layer_series and fits:
                each.has_layer_series = True
                num_layers += len(each.spec.layers)


def _values(figures: GroupFigures, *, has_layer_series: bool) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Name, values of the further labels, value; what is not known is left out."""
    worst = figures.worst_layer
    single: dict[str, float | None] = {
        "taot_imbalance_static": figures.imbalance_static,
        "taot_imbalance_planned": figures.imbalance_planned,
        "taot_imbalance_realised": figures.imbalance_realised,
        "taot_worst_layer": worst,
        "taot_worst_layer_imbalance": None if worst is None else figures.imbalance_L[worst],
        "taot_step": figures.step,
        "taot_plan_age_steps": figures.plan_age_steps,
        "taot_last_report_timestamp_seconds": figures.report_timestamp_seconds,
        "taot_last_plan_timestamp_seconds": figures.plan_timestamp_seconds,
        "taot_plan_weighted_cost": figures.weighted_cost,
        "taot_predicted_gain_seconds": figures.predicted_gain_seconds,
        "taot_exposed_transfer_seconds_total": figures.exposed_seconds,
        "taot_hidden_transfer_seconds_total": figures.hidden_seconds,
        "taot_applied_layers_total": figures.applied_layers,
    }
    for name, value in single.items():
        if value is not None:
            yield name, (), value
    for reach, guests in zip(REACHES, figures.plan_guests or (), strict=False):
        yield "taot_plan_guests", (reach,), guests
    for reach, sent_bytes in zip(REACHES, figures.sent_bytes, strict=True):
        yield "taot_sent_bytes_total", (reach,), sent_bytes
    # From 0 on: what a series has when it is first seen is no increase.
    for reason in (*sorted(FALLBACK_REASONS), "other"):
        yield "taot_fallbacks_total", (reason,), figures.fallbacks[reason]
    for reason in (*sorted(AGENT_ERROR_REASONS), "other"):
        yield "taot_agent_errors_total", (reason,), figures.errors[reason]
    if has_layer_series:
        for layer, value in enumerate(figures.imbalance_L):
            if value is not None:
                yield "taot_layer_imbalance", (str(layer),), value
