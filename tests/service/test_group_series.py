"""The figures of groups, and which groups have series: without any server."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from routing_samples import make_report, make_spec

from taot_api import PlanIdentity, RankTelemetry
from taot_api.published_plan import PublishedStats
from taot_service.group_figures import KEPT_SOURCES, GroupFigures
from taot_service.group_series import GroupSeries
from taot_service.planning_work import SolvedPlan

EPOCH = "this life"


def solved(*planned_L: float, **stats) -> SolvedPlan:
    return SolvedPlan(
        guests_L=(),
        quota_L=(),
        stats=PublishedStats(**stats),
        layer_stats_L=tuple(PublishedStats(imbalance_after=each) for each in planned_L),
        gates_L=(),
        intra_guests=3,
        inter_guests=2,
    )


def telemetry_of(loads_RL: list[list[int]]) -> tuple[RankTelemetry, ...]:
    return tuple(RankTelemetry(computed_tokens_L=np.array(loads_L)) for loads_L in loads_RL)


def note_plan(figures: GroupFigures, *, version: int, source_step: int, planned_L: tuple[float, ...] = (0.5, 0.25)):
    figures.note_plan(solved(*planned_L), version=version, source_step=source_step, now_seconds=100.0)


def note_report(figures: GroupFigures, *, step: int, **fields):
    spec = make_spec()
    report = make_report(spec, step=step, num_tokens=4, **fields)
    figures.note_report(spec, report, planner_epoch=EPOCH, now_seconds=200.0)


def applied(version: int, epoch: str = EPOCH) -> PlanIdentity:
    return PlanIdentity(planner_epoch=epoch, version=version)


def test_a_plans_age_is_that_of_the_plan_which_the_ranks_applied():
    figures = GroupFigures()
    note_report(figures, step=4)
    assert figures.plan_age_steps is None
    note_plan(figures, version=7, source_step=4)
    note_plan(figures, version=9, source_step=6)
    note_report(figures, step=8, applied_plan=applied(7))
    assert figures.plan_age_steps == 4
    note_report(figures, step=9, applied_plan=applied(9))
    assert figures.plan_age_steps == 3
    note_report(figures, step=11)
    assert figures.plan_age_steps == 5  # none applied: the newest plan's
    note_report(figures, step=20, applied_plan=applied(7, "an earlier life"))
    assert figures.plan_age_steps == 5  # nobody knows


def test_a_plan_that_is_no_longer_remembered_counts_as_the_oldest_that_is():
    figures = GroupFigures()
    for version in range(KEPT_SOURCES + 10):
        note_plan(figures, version=version, source_step=version)
    note_report(figures, step=KEPT_SOURCES + 10, applied_plan=applied(3))
    assert figures.plan_age_steps == KEPT_SOURCES


def test_a_report_that_comes_late_adds_up_but_does_not_turn_gauges_back():
    figures = GroupFigures()
    note_report(figures, step=5, telemetry_R=telemetry_of([[4, 1], [0, 1], [0, 1], [0, 1]]))
    late = RankTelemetry(computed_tokens_L=np.array([1, 1]), applied_layers=2, exposed_transfer_seconds=1.0)
    note_report(figures, step=4, telemetry_R=(late,) * 4)
    assert (figures.step, figures.realised_L) == (5, (3.0, 0.0))
    assert (figures.applied_layers, figures.exposed_seconds) == (8, 4.0)


def test_hidden_time_is_what_was_in_flight_while_nobody_stood_still_and_never_negative():
    figures = GroupFigures()
    base = {"computed_tokens_L": np.array([1, 1])}
    ranks = (
        RankTelemetry(**base, exposed_transfer_seconds=1.0, transfer_seconds=3.0),
        RankTelemetry(**base, exposed_transfer_seconds=5.0, transfer_seconds=2.0),
        RankTelemetry(**base),
        RankTelemetry(**base),
    )
    note_report(figures, step=1, telemetry_R=ranks)
    assert (figures.exposed_seconds, figures.hidden_seconds) == (6.0, 2.0)


def test_layers_are_shown_as_realised_where_tokens_were_computed_and_as_planned_elsewhere():
    figures = GroupFigures()
    assert (figures.imbalance_L, figures.worst_layer, figures.imbalance_realised) == ((), None, None)
    note_report(figures, step=1, telemetry_R=telemetry_of([[0, 0]] * 4))
    assert (figures.imbalance_L, figures.worst_layer, figures.imbalance_realised) == ((None, None), None, None)
    note_plan(figures, version=1, source_step=1)
    assert (figures.imbalance_L, figures.worst_layer, figures.imbalance_realised) == ((0.5, 0.25), 0, None)
    note_report(figures, step=2, telemetry_R=telemetry_of([[0, 2], [0, 1], [0, 1], [0, 0]]))
    assert (figures.imbalance_L, figures.worst_layer, figures.imbalance_realised) == ((0.5, 1.0), 1, 1.0)
    note_report(figures, step=3, telemetry_R=telemetry_of([[2, 2], [1, 1], [1, 1], [0, 0]]))
    assert (figures.imbalance_L, figures.worst_layer, figures.imbalance_realised) == ((1.0, 1.0), 0, 1.0)


class Shown:
    """What a registry shows of groups."""

    def __init__(self, **limits) -> None:
        self.groups = GroupSeries(**({"max_labelled_groups": 2, "max_layer_series": 5} | limits))
        self._registry = CollectorRegistry()
        self._registry.register(self.groups)

    def open(self, *names: str, num_layers: int = 2):
        specs = [make_spec(training_job=name, experts_L=(8,) * num_layers) for name in names]
        for spec in specs:
            self.groups.open(spec)
        return specs

    def plan(self, *specs) -> None:
        for spec in specs:
            plan = solved(*(0.5,) * len(spec.layers))
            self.groups.note_plan(spec, plan, version=1, source_step=1, now_seconds=1.0)

    def jobs(self, name: str = "taot_applied_layers_total") -> set[str]:
        return {
            sample.labels["training_job"]
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name == name
        }


def test_groups_beyond_the_limit_have_no_series_until_there_is_room():
    shown = Shown()
    specs = shown.open("a", "b", "c", "d", "e")
    assert (shown.jobs(), shown.groups.num_jobs_without_series) == ({"a", "b"}, 3)
    shown.plan(*specs)
    assert shown.jobs("taot_last_plan_timestamp_seconds") == {"a", "b"}
    shown.groups.forget(specs[3])
    assert (shown.jobs(), shown.groups.num_jobs_without_series) == ({"a", "b"}, 2)
    shown.groups.forget(specs[0])
    assert (shown.jobs(), shown.groups.num_jobs_without_series) == ({"b", "c"}, 1)
    for spec in (specs[1], specs[2], specs[4]):
        shown.groups.forget(spec)
    assert (shown.jobs(), shown.groups.num_jobs_without_series) == (set(), 0)


def test_a_job_counts_once_however_many_of_its_groups_have_no_series():
    shown = Shown(max_labelled_groups=1)
    for group in ("ep0", "ep1", "ep2"):
        shown.groups.open(make_spec(training_job="a", group=group))
    assert shown.groups.num_jobs_without_series == 1


def test_a_group_shows_all_of_its_layers_or_none():
    shown = Shown(max_labelled_groups=4)
    specs = [*shown.open("a", "b"), *shown.open("c"), *shown.open("d", num_layers=1)]
    shown.plan(*specs)
    assert shown.jobs() == {"a", "b", "c", "d"}
    assert shown.jobs("taot_layer_imbalance") == {"a", "b", "d"}  # 2 + 2 + 1 of 5
    shown.groups.forget(specs[0])
    assert shown.jobs("taot_layer_imbalance") == {"b", "c", "d"}


@pytest.mark.parametrize(("limit", "empty"), [("max_labelled_groups", True), ("max_layer_series", False)])
def test_a_limit_of_none_switches_series_off(limit, empty):
    shown = Shown(**{limit: 0})
    shown.plan(*shown.open("a"))
    assert (shown.jobs() == set()) is empty
    assert shown.jobs("taot_layer_imbalance") == set()


def test_a_session_that_has_ended_is_not_shown_again():
    shown = Shown()
    (spec,) = shown.open("a")
    shown.groups.forget(spec)
    with pytest.raises(KeyError):
        shown.plan(spec)
    assert shown.jobs() == set()
