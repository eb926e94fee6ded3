"""Plans in time, with less effort where it must be, and better ones afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_client import planner_client, read_plan
from routing_samples import make_lone_spec, make_report, make_spec
from running_planner import running_planner
from session_book_samples import make_book, open_session, report_step, solved

import taot_service.solver
import taot_service.solving
from taot_api.published_plan import PublishedStats
from taot_planning import PlanningOptions, plan_layer
from taot_service.config import ServiceConfig
from taot_service.effort_choice import EffortSeconds, choose_batch, choose_effort
from taot_service.improvement import is_better
from taot_service.planning_work import Purpose
from taot_service.solver import solve_layers
from taot_service.solving import advance
from taot_service.work_queue import Pressure


@pytest.mark.parametrize(
    ("asked", "spare", "layers_left", "is_contended", "effort"),
    [
        ("balanced", None, 9, True, "balanced"),
        ("balanced", 0.13, 3, False, "balanced"),
        ("balanced", 0.11, 3, False, "fast"),
        ("balanced", 9.0, 3, True, "fast"),
        ("balanced", -1.0, 1, False, "fast"),
        ("fast", 9.0, 1, False, "fast"),
    ],
)
def test_layers_are_searched_for_as_hard_as_there_is_time(asked, spare, layers_left, is_contended, effort):
    chosen = choose_effort(
        asked,
        spare_seconds=spare,
        layers_left=layers_left,
        is_contended=is_contended,
        layer_seconds=EffortSeconds(fast=0.01, balanced=0.1),
    )
    assert chosen == effort


@pytest.mark.parametrize(
    ("layer_seconds", "layers_left", "is_contended", "batch"),
    [
        (0.0, 48, False, 1),
        (0.0005, 48, False, 8),
        (0.0005, 20, False, 5),
        (0.0005, 20, True, 8),
        (0.0005, 3, False, 1),
        (0.0005, 3, True, 3),
        (0.0015, 48, False, 2),
        (0.2, 48, True, 1),
        (0.0005, 0, True, 1),
    ],
)
def test_as_many_layers_at_a_time_as_others_may_wait_for(layer_seconds, layers_left, is_contended, batch):
    assert choose_batch(layer_seconds, layers_left, is_contended=is_contended) == batch


@pytest.mark.parametrize(("known", "sizes"), [(0.0005, [8, 3, 1]), (0.1, [1] * 12), (0.0, None)])
def test_batches_follow_the_slowest_layer_that_is_known(monkeypatch, known, sizes):
    batches = []

    def solve(work, layers, **options):
        batches.append(len(layers))
        return solve_layers(work, layers, **options)

    monkeypatch.setattr(taot_service.solving, "solve_layers", solve)
    book = make_book()
    spec = make_spec(experts_L=(8,) * 11 + (9,), options=PlanningOptions(effort="fast"))
    report_step(book, open_session(book, spec).session, 1)
    work = book.take_work(now_seconds=0.0)
    work.layer_seconds = EffortSeconds(fast=known)
    others_wait = Pressure(has_shared=True)
    while advance(work, pressure=lambda: others_wait) is None:
        pass
    assert sum(batches) == 12
    assert batches == (sizes or batches)
    assert batches[0] == (sizes or [1])[0], "what is not known is tried with one"


@pytest.mark.parametrize(
    ("options", "new", "old", "better"),
    [
        ({}, (0.010, 5.0), (0.001, 6.0), True),
        ({}, (0.010, 6.0), (0.012, 6.0), False),
        ({}, (0.020, 9.0), (0.030, 1.0), True),
        ({"objective": "mu", "mu_ppm": 10_000}, (0.02, 5.0), (0.02, 6.0), True),
        ({"objective": "mu", "mu_ppm": 10_000}, (0.02, 5.0), (0.01, 5.5), False),
    ],
)
def test_an_improved_layer_is_better_by_the_objective(options, new, old, better):
    new_stats, old_stats = (PublishedStats(imbalance_after=imb, weighted_cost=cost) for imb, cost in (new, old))
    assert is_better(new_stats, old_stats, PlanningOptions(**options)) == better


def test_one_slow_layer_does_not_keep_a_session_from_searching_harder_for_good():
    book = make_book(publish_within_seconds=0.1)
    session = open_session(book).session
    slow = EffortSeconds(fast=0.001, balanced=0.5)
    efforts = []
    for step in range(1, 60):
        report_step(book, session, step)
        work = book.take_work(now_seconds=0.0)
        spare = {"spare_seconds": 0.1, "layers_left": 2, "is_contended": False, "layer_seconds": work.layer_seconds}
        efforts.append(choose_effort("balanced", **spare))
        took = replace(slow, balanced=0.0) if efforts[-1] == "fast" else slow
        book.install(work, replace(solved(work), layer_seconds=took), create_time_seconds=0.0)
    assert efforts[:20] == ["balanced"] + ["fast"] * 19, "it is not tried at every report either"
    assert efforts.count("balanced") == 2


def hurried_book():
    book = make_book(publish_within_seconds=0.0)
    session = open_session(book).session
    report_step(book, session, 1)
    work = book.take_work(now_seconds=0.0)
    book.install(work, advance(work, pressure=Pressure), create_time_seconds=0.0)
    return book, session


def test_a_hurried_plan_is_improved_at_low_priority_and_dropped_for_a_newer_report():
    book, session = hurried_book()
    improvement = book.take_work(now_seconds=0.0)
    assert improvement.purpose is Purpose.IMPROVEMENT
    assert improvement.begin_L is session.last_solved.guests_L
    assert not report_step(book, session, 1).outdated, "a repeat changes nothing"
    assert report_step(book, session, 2).outdated is improvement
    result = advance(improvement, pressure=Pressure)
    assert result.is_abandoned
    assert book.end_improvement(improvement, None, create_time_seconds=0.0) is None
    assert book.take_work(now_seconds=0.0).report.step == 2


def test_a_better_plan_gets_the_next_version_and_one_that_is_not_changes_nothing():
    for is_improved in (True, False):
        book, session = hurried_book()
        first = session.newest_plan
        improvement = book.take_work(now_seconds=0.0)
        result = advance(improvement, pressure=Pressure)
        object.__setattr__(result, "num_improved", int(is_improved))
        plan = book.end_improvement(improvement, result, create_time_seconds=0.0)
        assert (plan is not None) == is_improved
        assert session.newest_plan is (plan if is_improved else first)
        if plan is not None:
            assert plan.identity.version == first.identity.version + 1
            assert plan.source_step == first.source_step
        assert book.take_work(now_seconds=0.0) is None, (
            "what was searched for as hard as asked is not searched for again"
        )


def test_a_session_whose_reports_always_supersede_gets_plans():
    book = make_book()
    session = open_session(book).session
    for step in range(1, 10, 3):
        report_step(book, session, step)
        work = book.take_work(now_seconds=0.0)
        for later in (1, 2):
            report_step(book, session, step + later)
        assert not work.progress.is_dropped
        plan = book.install(work, advance(work, pressure=Pressure), create_time_seconds=0.0)
        assert plan.source_step == work.report.step


def test_work_gives_way_between_layers_and_goes_on_where_it_was(monkeypatch):
    planned = []

    def plan(problem, **options):
        planned.append(problem.num_experts)
        return plan_layer(problem, **options)

    monkeypatch.setattr(taot_service.solver, "plan_layer", plan)
    book = make_book()
    session = open_session(book, make_lone_spec(experts_L=(4, 5, 6))).session
    report_step(book, session, 1)
    work = book.take_work(now_seconds=0.0)
    for layers in (1, 2):
        assert advance(work, pressure=lambda: Pressure(has_urgent=True)) is None
        assert len(planned) == layers, "a caller waits for one layer at most"
    assert advance(work, pressure=Pressure) is not None
    assert planned == [4, 5, 6]
    unwanted = replace(work)
    unwanted.progress.is_dropped = True
    assert advance(unwanted, pressure=Pressure).is_abandoned
    assert planned == [4, 5, 6], "what nobody wants is not computed"


def test_watchers_get_a_hurried_plan_first_and_never_an_older_version_after():
    with running_planner(ServiceConfig(publish_within=0.0)) as planner, planner_client(planner.address) as client:
        spec = make_spec(num_ranks=8, experts_L=(16,) * 4)
        session_id = client.open(spec)
        watch = client.watch(session_id)
        versions = []
        for step in range(1, 6):
            client.report(session_id, make_report(spec, step=step, num_tokens=256))
            plan = read_plan(next(watch).plan, spec)
            versions.append(plan.identity.version)
        assert versions == sorted(set(versions))
        registry = planner.planner.metrics.registry
        outcomes = ("improved", "not_better", "improvement_dropped")
        assert all(registry.get_sample_value("taot_plans_total", {"outcome": each}) is not None for each in outcomes)
        watch.cancel()
