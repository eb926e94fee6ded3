"""Takes a piece of work as far as it may go, some layers at a time. Runs in solver threads.

One thread has the work in hand; others that nobody else wants may help it, each with layers of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from taot_planning import Topology
from taot_service.effort_choice import choose_batch, choose_effort
from taot_service.improvement import is_better
from taot_service.layer_solution import LayerSolution
from taot_service.planning_work import PlanningWork, SolvedPlan, SolverFailure
from taot_service.solver import join_layers, measured_topology_of, solve_layers
from taot_service.work_queue import Pressure, must_give_way


def advance(work: PlanningWork, *, pressure: Callable[[], Pressure]) -> SolvedPlan | SolverFailure | None:
    """Plans at least one more batch of layers. The top of a solver thread: it returns a failure instead of raising.

    Args:
        work: the report; how far it has come is noted in its `progress`.
        pressure: what else waits for the solver, asked after every batch.

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
    while not pressure().is_any and _plan_some(work, topology, pressure()):
        pass


def _advance(work: PlanningWork, pressure: Callable[[], Pressure]) -> SolvedPlan | SolverFailure | None:
    progress, slice_start = work.progress, time.monotonic()
    if progress.started_seconds is None:
        progress.started_seconds = slice_start
    topology = measured_topology_of(work)
    while not _is_over(work) and _plan_some(work, topology, pressure()):
        sliced_seconds = time.monotonic() - slice_start
        if must_give_way(work.purpose, sliced_seconds=sliced_seconds, pressure=pressure()):
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


def _plan_some(work: PlanningWork, topology: Topology, pressure: Pressure) -> bool:
    """Plans the next layers. Returns whether there were any."""
    start_seconds, progress = time.monotonic(), work.progress
    layers_left, before = progress.layers_left, work.layer_seconds
    effort = choose_effort(
        work.spec.options.effort,
        spare_seconds=None if work.publish_seconds is None else work.publish_seconds - start_seconds,
        layers_left=layers_left,
        is_contended=pressure.is_any,
        layer_seconds=progress.layer_seconds.or_else(before),
    )
    most = 1
    if effort == "fast" and work.improves is None:
        slowest_seconds = max(progress.layer_seconds.fast, before.fast)  # layers to come may be slower than the first
        most = choose_batch(slowest_seconds, layers_left, is_contended=pressure.is_any)
    layers = progress.begin_layers(most)
    if not layers:
        return False
    try:
        solutions = _kept(work, layers) or solve_layers(work, layers, effort=effort, measured_topology=topology)
    except Exception as error:  # noqa: BLE001 - raised again by the thread that has the work in hand
        progress.fail(layers, error)
    else:
        progress.note(layers, solutions, seconds=(time.monotonic() - start_seconds) / len(layers))
    return True


def _kept(work: PlanningWork, layers: range) -> list[LayerSolution]:
    """The layer of the plan that is improved, where it was searched for as hard as asked."""
    if work.improves is None:
        return []
    old = work.improves.solution_L[layers.start]
    return [old] if old.effort == work.spec.options.effort else []


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
