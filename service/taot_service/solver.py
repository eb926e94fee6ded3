"""Plans layers of a report and joins them to a plan: checked before anyone sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from taot_api.published_plan import PublishedStats
from taot_api.session_spec import LayerSpec
from taot_planning import LayerProblem, Topology, check_plan, plan_layer
from taot_planning.guest_moves import list_moves
from taot_planning.layer_batch import LayerBatch, PlacedLayer, can_place_together, place_together
from taot_planning.options import Effort, PlanningOptions
from taot_planning.step_time import predict_seconds, predict_static_seconds
from taot_service.effort_choice import EffortSeconds
from taot_service.layer_account import LayerAccount, account_for, account_for_placed
from taot_service.layer_solution import LayerSolution
from taot_service.planning_work import PlanningWork, Purpose, SolvedPlan


def solve_layers(
    work: PlanningWork, layers: range, *, effort: Effort, measured_topology: Topology
) -> list[LayerSolution]:
    """Plans layers of a report, together where that gives the same.

    Args:
        work: the report.
        layers: which of its layers, all with as many experts.
        effort: how hard to search.
        measured_topology: that of `measured_topology_of`.
    """
    asked = work.spec.options
    options = asked if effort == asked.effort else replace(asked, effort=effort)
    start = time.perf_counter()
    placed_L = _place_together(work, layers, options)
    seconds = (time.perf_counter() - start) / len(layers)
    solutions = []
    for index, placed in zip(layers, placed_L, strict=True):
        timed = _timed(work, index, measured_topology)
        if placed is None:
            solutions.append(_solve_alone(work, index, options, timed))
        else:
            layer, account = work.layers[index], account_for_placed(placed)
            solutions.append(_solution_of(placed, layer, timed, effort=effort, seconds=seconds, account=account))
    return solutions


def _place_together(
    work: PlanningWork, layers: Sequence[int], options: PlanningOptions
) -> Sequence[PlacedLayer | None]:
    """One entry per layer, None for those that are to be planned each by itself."""
    is_ahead = bool(work.recent_L) and work.purpose is not Purpose.CALLER
    declares_rates = any(work.layers[index].token_picoseconds for index in layers)
    if not is_ahead or declares_rates or not can_place_together(work.spec.algorithm, options, work.spec.topology):
        return [None] * len(layers)
    batch = LayerBatch.of(
        [work.report.counts_L[index] for index in layers],
        [work.layers[index].home_E for index in layers],
        [work.recent_L[index] for index in layers],
        [work.begin_L[index] for index in layers] if work.begin_L else [],
        work.spec.topology,
    )
    return place_together(batch, options)


def _solve_alone(work: PlanningWork, index: int, options: PlanningOptions, timed: LayerProblem | None) -> LayerSolution:
    start = time.perf_counter()
    problem = _problem_of(work, index)
    plan = plan_layer(problem, algorithm=work.spec.algorithm, options=options)
    check_plan(plan, problem)
    placed = PlacedLayer(
        guests_RK=plan.guests_RK,
        tokens_RK=plan.tokens_RK,
        home_loads_R=problem.loads.load_R,
        loads_R=plan.loads_R(problem),
        stats=plan.stats(problem),
        gates=plan.explanation.gates,
    )
    is_for_caller = work.purpose is Purpose.CALLER
    solution = _solution_of(
        placed,
        work.layers[index],
        timed if problem.rates is None else problem,
        effort=options.effort,
        seconds=time.perf_counter() - start,
        account=None if is_for_caller else account_for(plan, problem, placed.stats),
    )
    return replace(solution, quota_SRK=plan.quota_SRK) if is_for_caller else solution


def _solution_of(
    placed: PlacedLayer,
    layer: LayerSpec,
    timed: LayerProblem | None,
    *,
    effort: Effort,
    seconds: float,
    account: LayerAccount | None,
) -> LayerSolution:
    stats = placed.stats
    return LayerSolution(
        guests_RK=placed.guests_RK,
        quota_SRK=None,
        stats=PublishedStats(
            imbalance_before=stats.imbalance_before,
            imbalance_after=stats.imbalance_after,
            weighted_cost=stats.weighted_cost,
            transfer_size_bytes=(stats.intra_guests + stats.inter_guests) * layer.expert_size_bytes,
            planning_seconds=seconds,
            predicted_gain_seconds=None if timed is None else _predict_gain(timed, placed),
        ),
        gates=placed.gates,
        intra_guests=stats.intra_guests,
        inter_guests=stats.inter_guests,
        effort=effort,
        account=account,
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


def _timed(work: PlanningWork, index: int, measured_topology: Topology) -> LayerProblem | None:
    """The problem with measured rates, for predictions alone; None where they are not known."""
    measured, layer = work.report.measured_rates, work.layers[index]
    if measured is None or work.layers is not work.spec.layers:
        return None
    rates = measured.rates(index, expert_size_bytes=layer.expert_size_bytes)
    if rates is None:
        return None
    counts_RE = work.report.counts_L[index]
    return LayerProblem(counts_RE=counts_RE, home_E=layer.home_E, topology=measured_topology, rates=rates)


def _predict_gain(timed: LayerProblem, placed: PlacedLayer) -> float | None:
    """Predicted time without guests minus with them, None when unknown."""
    static_seconds = predict_static_seconds(timed)
    moves = list_moves(timed, placed.guests_RK)
    seconds = predict_seconds(timed, moves, placed.loads_R, placed.tokens_RK.sum(axis=1))
    return None if static_seconds is None or seconds is None else static_seconds - seconds


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
