"""Takes a piece of work as far as it may go, layer by layer. Runs in solver threads.

One thread has the work in hand; others that nobody else wants may help it, each with layers of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from taot_planning import Topology
from taot_planning.options import Effort
from taot_service.effort_choice import choose_effort
from taot_service.improvement import is_better
from taot_service.layer_solution import LayerSolution
from taot_service.planning_work import PlanningWork, SolvedPlan, SolverFailure
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


def assist(work: PlanningWork, *, pressure: Callable[[], Pressure]) -> None:
    """Plans layers of work that another thread has in hand, as long as nothing else waits for this one."""
    topology = measured_topology_of(work)
    while not pressure().is_any and (layer := work.progress.begin_layer()) is not None:
        _plan_layer(work, layer, topology, pressure())


def _advance(work: PlanningWork, pressure: Callable[[], Pressure]) -> SolvedPlan | SolverFailure | None:
    progress, slice_start = work.progress, time.monotonic()
    if progress.started_seconds is None:
        progress.started_seconds = slice_start
    topology = measured_topology_of(work)
    while not _is_over(work) and (layer := progress.begin_layer()) is not None:
        has_planned = _plan_layer(work, layer, topology, pressure())
        sliced_seconds = time.monotonic() - slice_start
        if has_planned and must_give_way(work.purpose, sliced_seconds=sliced_seconds, pressure=pressure()):
            break
    progress.wait_for_begun()
    solution_L = progress.solution_L
    if solution_L is not None:
        return _join(work, solution_L)
    return SolverFailure(message="nobody waits for the plan any more", is_abandoned=True) if _is_over(work) else None


def _is_over(work: PlanningWork) -> bool:
    if work.deadline_seconds is not None and time.monotonic() >= work.deadline_seconds:
        work.progress.is_dropped = True
    return work.progress.is_dropped


def _plan_layer(work: PlanningWork, layer: int, topology: Topology, pressure: Pressure) -> bool:
    """Plans a layer that was begun. Returns whether there was anything to plan."""
    kept, start_seconds = _kept_layer(work, layer), time.monotonic()
    if kept is not None:
        work.progress.note(layer, kept, seconds=0.0)
        return False
    try:
        effort = _effort_of(work, start_seconds, pressure)
        solution = solve_layer(work, layer, effort=effort, measured_topology=topology)
    except Exception as error:  # noqa: BLE001 - raised again by the thread that has the work in hand
        work.progress.fail(error)
    else:
        work.progress.note(layer, solution, seconds=time.monotonic() - start_seconds)
    return True


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
        layers_left=work.progress.layers_left + 1,  # this one has begun
        is_contended=pressure.is_any,
        layer_seconds=work.progress.layer_seconds.or_else(work.layer_seconds),
    )


def _join(work: PlanningWork, layers: list[LayerSolution]) -> SolvedPlan:
    layer_seconds = work.progress.layer_seconds
    if work.improves is None:
        return join_layers(layers, layer_seconds=layer_seconds)
    options, joined, num_improved = work.spec.options, [], 0
    for new, old in zip(layers, work.improves.solution_L, strict=True):
        is_chosen = new is not old and is_better(new.stats, old.stats, options)
        num_improved += is_chosen
        # What was searched for harder in vain is not searched for again.
        joined.append(new if is_chosen else replace(old, effort=options.effort))
    return join_layers(joined, layer_seconds=layer_seconds, num_improved=num_improved)
