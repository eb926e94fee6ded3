"""Plans one report: every layer, checked before anyone sees it. Runs in a solver thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from taot_api.published_plan import PublishedStats
from taot_planning import LayerPlan, LayerProblem, PlanStats, Topology, check_plan, plan_layer
from taot_planning.step_time import predict_static_seconds
from taot_service.layer_account import LayerAccount, account_for
from taot_service.planning_work import PlanningWork, SolvedPlan, SolverFailure

logger = logging.getLogger(__name__)


def solve(work: PlanningWork, *, has_quotas: bool, is_wanted: Callable[[], bool]) -> SolvedPlan | SolverFailure:
    """Plans all layers of a report. The top of a solver thread: it returns a failure instead of raising.

    Args:
        work: the report.
        has_quotas: whether the plan is to carry its token quotas.
        is_wanted: asked before every layer; False gives the work up.
    """
    try:
        return _solve(work, has_quotas=has_quotas, is_wanted=is_wanted)
    except Exception as error:  # noqa: BLE001 - whatever an algorithm does, the plan in force stays
        logger.exception(
            "step %s micro-batch %s of session %s: planning failed",
            work.report.step,
            work.report.micro_batch,
            work.session_id,
        )
        return SolverFailure(message=f"{type(error).__name__}: {error}")


def _solve(work: PlanningWork, *, has_quotas: bool, is_wanted: Callable[[], bool]) -> SolvedPlan | SolverFailure:
    plan_L: list[LayerPlan] = []
    stats_L: list[PlanStats] = []
    layer_stats_L: list[PublishedStats] = []
    account_L: list[LayerAccount] = []
    measured_topology = _measured_topology(work)
    for index, layer in enumerate(work.layers):
        if not is_wanted():
            return SolverFailure(message="nobody waits for the plan any more", is_abandoned=True)
        start = time.perf_counter()
        problem = _problem_of(work, index)
        plan = _plan_checked(problem, work)
        timed = _timed(problem, work, index, measured_topology)
        stats = plan.stats(timed)
        gain_seconds = _predict_gain(timed, stats)
        planning_seconds = time.perf_counter() - start
        plan_L.append(plan)
        stats_L.append(stats)
        if not has_quotas:  # nobody asks about the plan of a caller that waits
            account_L.append(account_for(plan, problem, stats))
        layer_stats_L.append(
            PublishedStats(
                imbalance_before=stats.imbalance_before,
                imbalance_after=stats.imbalance_after,
                weighted_cost=stats.weighted_cost,
                transfer_size_bytes=(stats.intra_guests + stats.inter_guests) * layer.expert_size_bytes,
                planning_seconds=planning_seconds,
                predicted_gain_seconds=gain_seconds,
            )
        )
    return SolvedPlan(
        guests_L=tuple(plan.guests_RK for plan in plan_L),
        quota_L=tuple(plan.quota_SRK for plan in plan_L) if has_quotas else (),
        stats=_sum_stats(layer_stats_L),
        layer_stats_L=tuple(layer_stats_L),
        gates_L=tuple(plan.explanation.gates for plan in plan_L),
        intra_guests=sum(stats.intra_guests for stats in stats_L),
        inter_guests=sum(stats.inter_guests for stats in stats_L),
        account_L=tuple(account_L),
    )


def _problem_of(work: PlanningWork, index: int) -> LayerProblem:
    layer = work.layers[index]
    return LayerProblem(
        counts_RE=work.report.counts_L[index],
        home_E=layer.home_E,
        topology=work.spec.topology,
        recent_tokens_NE=work.recent_L[index] if work.recent_L else None,
        rates=layer.rates,
    )


def _plan_checked(problem: LayerProblem, work: PlanningWork) -> LayerPlan:
    plan = plan_layer(problem, algorithm=work.spec.algorithm, options=work.spec.options)
    check_plan(plan, problem)
    return plan


def _measured_topology(work: PlanningWork) -> Topology:
    """The session's topology with the bandwidths that the ranks have measured, if any."""
    measured = work.report.measured_rates
    return work.spec.topology if measured is None else measured.topology(work.spec.topology)


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
