"""Plans one report: every layer, checked before anyone sees it. Runs in a solver thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from taot_api.published_plan import PublishedStats
from taot_api.session_spec import LayerSpec
from taot_planning import LayerPlan, LayerProblem, PlanStats, check_plan, plan_layer
from taot_planning.arrays import IntArray
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
    guests_L: list[IntArray] = []
    quota_L: list[IntArray] = []
    stats_L: list[PlanStats] = []
    layer_stats_L: list[PublishedStats] = []
    for layer, counts_RE in zip(work.layers, work.report.counts_L, strict=True):
        if not is_wanted():
            return SolverFailure(message="nobody waits for the plan any more", is_abandoned=True)
        start = time.perf_counter()
        problem = LayerProblem(counts_RE=counts_RE, home_E=layer.home_E, topology=work.spec.topology)
        plan = _plan_checked(problem, work)
        stats = plan.stats(problem)
        guests_L.append(plan.guests_RK)
        if has_quotas:
            quota_L.append(plan.quota_SRK)
        stats_L.append(stats)
        layer_stats_L.append(_publish_stats(stats, layer, planning_seconds=time.perf_counter() - start))
    return SolvedPlan(
        guests_L=tuple(guests_L),
        quota_L=tuple(quota_L),
        stats=_sum_stats(layer_stats_L),
        layer_stats_L=tuple(layer_stats_L),
        intra_guests=sum(stats.intra_guests for stats in stats_L),
        inter_guests=sum(stats.inter_guests for stats in stats_L),
    )


def _plan_checked(problem: LayerProblem, work: PlanningWork) -> LayerPlan:
    plan = plan_layer(problem, algorithm=work.spec.algorithm, options=work.spec.options)
    check_plan(plan, problem)
    return plan


def _publish_stats(stats: PlanStats, layer: LayerSpec, *, planning_seconds: float) -> PublishedStats:
    return PublishedStats(
        imbalance_before=stats.imbalance_before,
        imbalance_after=stats.imbalance_after,
        weighted_cost=stats.weighted_cost,
        transfer_size_bytes=(stats.intra_guests + stats.inter_guests) * layer.expert_size_bytes,
        planning_seconds=planning_seconds,
    )


def _sum_stats(layer_stats_L: list[PublishedStats]) -> PublishedStats:
    """The mean of the imbalances and the sum of everything else."""
    num_layers = max(len(layer_stats_L), 1)
    return PublishedStats(
        imbalance_before=sum(stats.imbalance_before for stats in layer_stats_L) / num_layers,
        imbalance_after=sum(stats.imbalance_after for stats in layer_stats_L) / num_layers,
        weighted_cost=sum(stats.weighted_cost for stats in layer_stats_L),
        transfer_size_bytes=sum(stats.transfer_size_bytes for stats in layer_stats_L),
        planning_seconds=sum(stats.planning_seconds for stats in layer_stats_L),
    )
