"""Plans one layer of a report and joins the layers to a plan: checked before anyone sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from taot_api.published_plan import PublishedStats
from taot_planning import LayerPlan, LayerProblem, PlanStats, Topology, check_plan, plan_layer
from taot_planning.options import Effort
from taot_planning.step_time import predict_static_seconds
from taot_service.effort_choice import EffortSeconds
from taot_service.layer_account import account_for
from taot_service.layer_solution import LayerSolution
from taot_service.planning_work import PlanningWork, Purpose, SolvedPlan


def solve_layer(work: PlanningWork, index: int, *, effort: Effort, measured_topology: Topology) -> LayerSolution:
    """Plans one layer of a report; `measured_topology` is that of `measured_topology_of`."""
    layer, has_quotas = work.layers[index], work.purpose is Purpose.CALLER
    start = time.perf_counter()
    problem = _problem_of(work, index)
    plan = _plan_checked(problem, work, effort)
    timed = _timed(problem, work, index, measured_topology)
    stats = plan.stats(timed)
    gain_seconds = _predict_gain(timed, stats)
    planning_seconds = time.perf_counter() - start
    return LayerSolution(
        guests_RK=plan.guests_RK,
        quota_SRK=plan.quota_SRK if has_quotas else None,
        stats=PublishedStats(
            imbalance_before=stats.imbalance_before,
            imbalance_after=stats.imbalance_after,
            weighted_cost=stats.weighted_cost,
            transfer_size_bytes=(stats.intra_guests + stats.inter_guests) * layer.expert_size_bytes,
            planning_seconds=planning_seconds,
            predicted_gain_seconds=gain_seconds,
        ),
        gates=plan.explanation.gates,
        intra_guests=stats.intra_guests,
        inter_guests=stats.inter_guests,
        effort=effort,
        account=None if has_quotas else account_for(plan, problem, stats),  # nobody asks about the plan of a caller
    )


def measured_topology_of(work: PlanningWork) -> Topology:
    """The session's topology with the bandwidths that the ranks have measured, if any."""
    measured = work.report.measured_rates
    return work.spec.topology if measured is None else measured.topology(work.spec.topology)


def join_layers(layers: Sequence[LayerSolution], *, layer_seconds: EffortSeconds, num_improved: int = 0) -> SolvedPlan:
    """The plan of all layers."""
    return SolvedPlan(
        guests_L=tuple(layer.guests_RK for layer in layers),
        quota_L=tuple(layer.quota_SRK for layer in layers if layer.quota_SRK is not None),
        stats=_sum_stats([layer.stats for layer in layers]),
        layer_stats_L=tuple(layer.stats for layer in layers),
        gates_L=tuple(layer.gates for layer in layers),
        intra_guests=sum(layer.intra_guests for layer in layers),
        inter_guests=sum(layer.inter_guests for layer in layers),
        account_L=tuple(layer.account for layer in layers if layer.account is not None),
        solution_L=tuple(layers),
        layer_seconds=layer_seconds,
        num_improved=num_improved,
    )


def _problem_of(work: PlanningWork, index: int) -> LayerProblem:
    layer = work.layers[index]
    return LayerProblem(
        counts_RE=work.report.counts_L[index],
        home_E=layer.home_E,
        topology=work.spec.topology,
        recent_tokens_NE=work.recent_L[index] if work.recent_L else None,
        begin_guests_RK=work.begin_L[index] if work.begin_L else None,
        rates=layer.rates,
    )


def _plan_checked(problem: LayerProblem, work: PlanningWork, effort: Effort) -> LayerPlan:
    options = work.spec.options if effort == work.spec.options.effort else replace(work.spec.options, effort=effort)
    plan = plan_layer(problem, algorithm=work.spec.algorithm, options=options)
    check_plan(plan, problem)
    return plan


def _timed(problem: LayerProblem, work: PlanningWork, index: int, measured_topology: Topology) -> LayerProblem:
    """The problem with measured rates, for predictions alone; as it is where the session declares its own."""
    measured, layer = work.report.measured_rates, work.layers[index]
    if problem.rates is not None or measured is None or work.layers is not work.spec.layers:
        return problem
    rates = measured.rates(index, expert_size_bytes=layer.expert_size_bytes)
    return problem if rates is None else replace(problem, topology=measured_topology, rates=rates)


def _predict_gain(problem: LayerProblem, stats: PlanStats) -> float | None:
    """Predicted time without guests minus with the plan, None when unknown."""
    if stats.predicted_seconds is None:
        return None
    static_seconds = predict_static_seconds(problem)
    assert static_seconds is not None, "what is known of a plan is known of none"
    return static_seconds - stats.predicted_seconds


def _sum_stats(layer_stats_L: list[PublishedStats]) -> PublishedStats:
    """The mean of the imbalances and the sum of everything else; a sum with an unknown part is unknown."""
    num_layers = max(len(layer_stats_L), 1)
    gains = [stats.predicted_gain_seconds for stats in layer_stats_L if stats.predicted_gain_seconds is not None]
    return PublishedStats(
        imbalance_before=sum(stats.imbalance_before for stats in layer_stats_L) / num_layers,
        imbalance_after=sum(stats.imbalance_after for stats in layer_stats_L) / num_layers,
        weighted_cost=sum(stats.weighted_cost for stats in layer_stats_L),
        transfer_size_bytes=sum(stats.transfer_size_bytes for stats in layer_stats_L),
        planning_seconds=sum(stats.planning_seconds for stats in layer_stats_L),
        predicted_gain_seconds=sum(gains) if gains and len(gains) == len(layer_stats_L) else None,
    )
