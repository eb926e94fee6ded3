"""Takes a piece of work as far as it may go, layer by layer. Runs in a solver thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from taot_planning.options import Effort
from taot_service.effort_choice import choose_effort
from taot_service.improvement import is_better
from taot_service.planning_work import LayerSolution, PlanningWork, SolvedPlan, SolverFailure
from taot_service.solver import join_layers, measured_topology_of, solve_layer
from taot_service.work_queue import Pressure, must_give_way


def advance(work: PlanningWork, *, pressure: Callable[[], Pressure]) -> SolvedPlan | SolverFailure | None:
    """Plans at least one more layer. The top of a solver thread: it returns a failure instead of raising.

    Args:
        work: the report; how far it has come is noted in its `progress`.
        pressure: what else waits for the solver, asked after every layer.

    Returns:
        The whole plan, or why there is none; None when the work has given way and is to be taken up again.
    """
    try:
        return _advance(work, pressure)
    except Exception as error:  # noqa: BLE001 - whatever an algorithm does, the plan in force stays
        return SolverFailure(message=f"{type(error).__name__}: {error}", error=error)


def _advance(work: PlanningWork, pressure: Callable[[], Pressure]) -> SolvedPlan | SolverFailure | None:
    progress, slice_start = work.progress, time.monotonic()
    if progress.started_seconds is None:
        progress.started_seconds = slice_start
    topology, has_planned = measured_topology_of(work), False
    while len(progress.layers) < len(work.layers):
        if _is_over(work):
            return SolverFailure(message="nobody waits for the plan any more", is_abandoned=True)
        index, now_seconds = len(progress.layers), time.monotonic()
        kept = _kept_layer(work, index)
        if kept is not None:
            progress.layers.append(kept)
            continue
        if has_planned and must_give_way(work.purpose, sliced_seconds=now_seconds - slice_start, pressure=pressure()):
            return None
        effort = _effort_of(work, now_seconds, pressure())
        solution = solve_layer(work, index, effort=effort, measured_topology=topology)
        progress.layer_seconds = progress.layer_seconds.with_layer(effort, time.monotonic() - now_seconds)
        progress.layers.append(solution)
        has_planned = True
    return _join(work)


def _is_over(work: PlanningWork) -> bool:
    if work.progress.is_dropped:
        return True
    return work.deadline_seconds is not None and time.monotonic() >= work.deadline_seconds


def _kept_layer(work: PlanningWork, index: int) -> LayerSolution | None:
    """The layer of the plan that is improved, where it was searched for as hard as asked."""
    if work.improves is None:
        return None
    layer = work.improves.solution_L[index]
    return layer if layer.effort == work.spec.options.effort else None


def _effort_of(work: PlanningWork, now_seconds: float, pressure: Pressure) -> Effort:
    return choose_effort(
        work.spec.options.effort,
        spare_seconds=None if work.publish_seconds is None else work.publish_seconds - now_seconds,
        layers_left=len(work.layers) - len(work.progress.layers),
        is_contended=pressure.has_urgent or pressure.has_shared,
        layer_seconds=work.progress.layer_seconds.or_else(work.layer_seconds),
    )


def _join(work: PlanningWork) -> SolvedPlan:
    layers, layer_seconds = work.progress.layers, work.progress.layer_seconds
    if work.improves is None:
        return join_layers(layers, layer_seconds=layer_seconds)
    options, joined, num_improved = work.spec.options, [], 0
    for new, old in zip(layers, work.improves.solution_L, strict=True):
        is_chosen = new is not old and is_better(new.stats, old.stats, options)
        num_improved += is_chosen
        # What was searched for harder in vain is not searched for again.
        joined.append(new if is_chosen else replace(old, effort=options.effort))
    return join_layers(joined, layer_seconds=layer_seconds, num_improved=num_improved)
