"""What the solver asks of the planning, and what it makes of the answer; no threads, no server."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planner_client import refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner

import taot_service.solver
from taot_api import MeasuredRates
from taot_planning import LayerProblem, PlanningOptions, plan_layer
from taot_planning.explanation import Gate
from taot_planning.layer_problem import LayerRates
from taot_service.config import ServiceConfig
from taot_service.layer_solution import LayerSolution
from taot_service.planning_work import PlanningWork, SolvedPlan
from taot_service.solver import measured_topology_of, solve_layers
from taot_service.solving import advance
from taot_service.work_queue import Pressure


def with_rates(spec, *, layers: int):
    """The session with bandwidths, and rates for its first layers."""
    levels = tuple(dataclasses.replace(level, bandwidth_bytes_per_second=10**9) for level in spec.topology.levels)
    return dataclasses.replace(
        spec,
        topology=dataclasses.replace(spec.topology, levels=levels),
        layers=tuple(
            dataclasses.replace(layer, token_picoseconds=10**9 * (index < layers))
            for index, layer in enumerate(spec.layers)
        ),
    )


def solved(spec, report, **fields) -> SolvedPlan:
    work = PlanningWork(session_id="s", spec=spec, layers=spec.layers, report=report, arrival_seconds=0.0, **fields)
    result = advance(work, pressure=Pressure)
    assert isinstance(result, SolvedPlan)
    return result


@pytest.fixture(scope="module")
def planner():
    """Has one thread, so that what waits for it goes on waiting, and layers are asked for in order."""
    with running_planner(ServiceConfig(solver_threads=1)) as running:
        yield running


@pytest.fixture
def problems(monkeypatch):
    """Every problem that is planned."""
    seen = []

    def plan(problem, **options):
        seen.append(problem)
        return plan_layer(problem, **options)

    monkeypatch.setattr(taot_service.solver, "plan_layer", plan)
    return seen


ALONE = PlanningOptions(min_imbalance_ppm=1)
"""Lets layers be planned one by one."""


def test_recent_tokens_reach_their_layer(problems):
    spec = make_spec(experts_L=(8, 12), options=ALONE)
    recent_L = (np.arange(16).reshape(2, 8), np.arange(24).reshape(2, 12))
    solved(spec, make_report(spec, step=3), recent_L=recent_L)
    for problem, recent_NE in zip(problems, recent_L, strict=True):
        np.testing.assert_array_equal(problem.recent_tokens_NE, recent_NE)
    solved(spec, make_report(spec, step=3))
    assert [problem.recent_tokens_NE for problem in problems[2:]] == [None, None]


def ahead_work(spec, report, *, begin_L=()) -> PlanningWork:
    """A report with one before it."""
    recent_L = [make_report(spec, step=2).counts_L[index].sum(axis=0)[None] for index in range(len(spec.layers))]
    return PlanningWork(
        session_id="s",
        spec=spec,
        layers=spec.layers,
        report=report,
        recent_L=recent_L,
        begin_L=begin_L,
        arrival_seconds=0.0,
    )


def solve_all(work) -> list[LayerSolution]:
    """All layers in one batch."""
    layers = range(len(work.layers))
    topology = measured_topology_of(work)
    return solve_layers(work, layers, effort=work.spec.options.effort, measured_topology=topology)


@pytest.mark.parametrize("measured", [None, MeasuredRates(token_picoseconds_L=(10**9,) * 5, bandwidth_V=(10**9,) * 2)])
@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_layers_planned_together_are_planned_as_each_by_itself(problems, effort, measured):
    together = make_spec(experts_L=(12,) * 5, options=PlanningOptions(effort=effort))
    alone = dataclasses.replace(together, options=dataclasses.replace(together.options, min_imbalance_ppm=1))
    report = dataclasses.replace(make_report(together, step=3), measured_rates=measured)
    begin_L = solved(together, make_report(together, step=2)).guests_L
    problems.clear()
    got = solve_all(ahead_work(together, report, begin_L=begin_L))
    assert not problems
    expected = solve_all(ahead_work(alone, report, begin_L=begin_L))
    assert len(problems) == 5
    assert sum(each.intra_guests + each.inter_guests for each in got) > 0
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.guests_RK, other.guests_RK)
        np.testing.assert_array_equal(one.account.tokens_RK, other.account.tokens_RK)
        np.testing.assert_array_equal(one.account.home_loads_R, other.account.home_loads_R)
        assert one.account.considered == other.account.considered
        one_stats, other_stats = (dataclasses.replace(each.stats, planning_seconds=0.0) for each in (one, other))
        assert one_stats == other_stats
        assert (one_stats.predicted_gain_seconds is None) == (measured is None)
        assert (one.gates, one.effort) == (other.gates, effort)


def test_a_layer_that_is_wrong_goes_alone_and_fails_the_plan(problems):
    spec = make_spec(experts_L=(8,) * 4)
    report = make_report(spec, step=3)
    wrong_L = (*report.counts_L[:2], -report.counts_L[2], report.counts_L[3])
    work = ahead_work(spec, dataclasses.replace(report, counts_L=wrong_L))
    with pytest.raises(ValueError, match="counts must be between 0 and"):
        solve_all(work)
    assert not problems, "a problem with such counts cannot be stated, and no other layer has gone alone"
    failure = advance(work, pressure=Pressure)
    assert "counts must be between 0 and 2^31-1" in failure.message


def test_guests_to_begin_with_reach_their_layer(problems):
    spec = make_spec(experts_L=(8, 12))
    begin_L = (np.full((4, 2), -1), np.full((4, 2), -1))
    begin_L[0][0, 1], begin_L[1][3, 0] = 6, 2
    solved(spec, make_report(spec, step=3), begin_L=begin_L)
    for problem, begin_RK in zip(problems, begin_L, strict=True):
        np.testing.assert_array_equal(problem.begin_guests_RK, begin_RK)
    solved(spec, make_report(spec, step=3))
    assert [problem.begin_guests_RK for problem in problems[2:]] == [None, None]


def test_rates_reach_their_layer_where_it_declares_them(problems):
    spec = with_rates(make_spec(), layers=1)
    result = solved(spec, make_report(spec, step=3))
    rates = LayerRates(token_picoseconds=10**9, expert_size_bytes=1000)
    assert {problem.rates for problem in problems if problem.rates is not None} == {rates}
    assert result.layer_stats_L[0].predicted_gain_seconds is not None
    assert result.layer_stats_L[1].predicted_gain_seconds is None
    assert result.stats.predicted_gain_seconds is None, "a sum with an unknown part is unknown"


def test_measured_rates_predict_what_declared_ones_would_and_change_no_plan():
    declaring = with_rates(make_spec(), layers=2)
    silent = make_spec()
    measured = MeasuredRates(token_picoseconds_L=(10**9, 10**9), bandwidth_V=(10**9, 10**9))
    report = make_report(silent, step=3)
    expected = solved(declaring, report)
    result = solved(silent, dataclasses.replace(report, measured_rates=measured))
    assert expected.stats.predicted_gain_seconds
    assert result.stats.predicted_gain_seconds == expected.stats.predicted_gain_seconds
    assert solved(silent, report).stats.predicted_gain_seconds is None
    for guests_RK, unmeasured_RK in zip(result.guests_L, solved(silent, report).guests_L, strict=True):
        np.testing.assert_array_equal(guests_RK, unmeasured_RK)


@pytest.mark.parametrize(
    "measured",
    [
        MeasuredRates(token_picoseconds_L=(10**9, 0), bandwidth_V=(10**9, 10**9)),
        MeasuredRates(token_picoseconds_L=(10**9, 10**9), bandwidth_V=(0, 0)),
    ],
)
def test_a_gain_is_unknown_while_a_rate_is(measured):
    spec = make_spec()
    result = solved(spec, dataclasses.replace(make_report(spec, step=3), measured_rates=measured))
    assert result.stats.predicted_gain_seconds is None


def test_declared_rates_win_over_measured_ones():
    spec = with_rates(make_spec(), layers=2)
    report = make_report(spec, step=3)
    slow = MeasuredRates(token_picoseconds_L=(10**10, 10**10), bandwidth_V=(10**9, 10**9))
    gain = solved(spec, dataclasses.replace(report, measured_rates=slow)).stats.predicted_gain_seconds
    assert gain == solved(spec, report).stats.predicted_gain_seconds


def test_the_predicted_gain_is_what_the_slowest_rank_saves():
    spec = with_rates(make_spec(), layers=2)
    report = make_report(spec, step=3)
    result = solved(spec, report)
    assert result.inter_guests + result.intra_guests > 0
    for index, layer in enumerate(spec.layers):
        problem = LayerProblem(
            counts_RE=report.counts_L[index], home_E=layer.home_E, topology=spec.topology, rates=layer.rates
        )
        # A token takes 1 ms. Without guests the layer ends with its largest rank.
        largest = max(int(report.counts_L[index][:, layer.home_E == rank].sum()) for rank in range(4))
        with_guests = plan_layer(problem).stats(problem).predicted_seconds
        gain = result.layer_stats_L[index].predicted_gain_seconds
        assert gain == pytest.approx(largest * 1e-3 - with_guests)
        assert gain > 0
    gains = [stats.predicted_gain_seconds for stats in result.layer_stats_L]
    assert result.stats.predicted_gain_seconds == pytest.approx(sum(gains))


def test_gates_are_told_layer_by_layer():
    spec = make_spec()
    report = make_report(spec, step=3)
    nearly_even_RE = np.full((4, 8), 16)
    nearly_even_RE[0, [0, 7]] += [1, -1]
    result = solved(spec, dataclasses.replace(report, counts_L=(nearly_even_RE, report.counts_L[1])))
    assert result.gates_L[0] == (Gate.WITHIN_TOLERANCE,)
    assert Gate.WITHIN_TOLERANCE not in result.gates_L[1]


def test_a_plan_for_the_counts_at_hand_holds_for_those_alone(client, problems):
    spec = make_spec(recent_reports=4, options=ALONE)
    session_id = client.open(spec)
    for step in (1, 2):
        client.report_and_wait(session_id, spec, make_report(spec, step=step))
    assert [len(problem.recent_tokens_NE) for problem in problems] == [0, 0, 1, 1]
    client.plan_now(session_id, make_report(spec, step=3))
    assert [problem.recent_tokens_NE for problem in problems[4:]] == [None, None]
    assert [problem.begin_guests_RK for problem in problems[4:]] == [None, None]


def test_a_histogram_that_no_router_can_have_changes_no_plan(planner, client, problems):
    """A router that has gone NaN sends every choice of every token to expert 0."""

    def refused() -> float:
        registry = planner.planner.metrics.registry
        return registry.get_sample_value("taot_refusals_total", {"reason": "INVALID_COUNTS"}) or 0.0

    def run(*, has_suspect: bool):
        spec = make_spec(top_k=2, recent_reports=4)
        session_id = client.open(spec)
        client.report_and_wait(session_id, spec, make_report(spec, step=1))
        if has_suspect:
            suspect = make_report(spec, step=2)
            counts_RE = np.zeros_like(suspect.counts_L[0])
            counts_RE[:, 0] = suspect.valid_tokens_R * 2
            suspect = dataclasses.replace(suspect, counts_L=(counts_RE, suspect.counts_L[1]))
            seen = refusal(lambda: client.report(session_id, suspect))
            assert seen.info.reason == "INVALID_COUNTS"
            assert "sends 128 tokens to expert 0 but has only 64 valid tokens" in seen.message
        plan = client.report_and_wait(session_id, spec, make_report(spec, step=3))
        asked = problems[2:]
        problems.clear()
        return plan, asked

    before = refused()
    want, want_asked = run(has_suspect=False)
    assert refused() == before
    got, got_asked = run(has_suspect=True)
    assert refused() == before + 1
    for got_RK, want_RK in zip(got.guests_L, want.guests_L, strict=True):
        np.testing.assert_array_equal(got_RK, want_RK)
    assert (got.gates_L, got.stats.imbalance_after) == (want.gates_L, want.stats.imbalance_after)
    for got_problem, want_problem in zip(got_asked, want_asked, strict=True):
        np.testing.assert_array_equal(got_problem.recent_tokens_NE, want_problem.recent_tokens_NE)
