"""Compiles the kernels ahead of their first use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from taot_planning.algorithms import ALGORITHMS, NEEDS_SCIPY, plan_layer
from taot_planning.layer_batch import LayerBatch, place_together
from taot_planning.layer_plan import check_guests, check_plan, plan_from_guests
from taot_planning.layer_problem import LayerProblem, LayerRates, contiguous_homes
from taot_planning.options import PlanningOptions
from taot_planning.step_time import predict_static_seconds
from taot_planning.topology import two_level_topology


def warm_up(algorithms: Iterable[str] = tuple(ALGORITHMS), *, has_recent: bool = True) -> None:
    """Runs algorithms once on a tiny problem, so that no call in a training step compiles.

    Those that need scipy are left out: it may be missing, and they have no kernels of their own.

    Takes up to a minute on the first run on a machine, most of it for recent micro-batches, and milliseconds once
    numba's disk cache is filled.

    Args:
        algorithms: names of `ALGORITHMS`.
        has_recent: whether `taot` is going to place guests for recent micro-batches.
    """
    problem = LayerProblem(
        counts_RE=np.array([[8, 0, 0, 0], [8, 0, 0, 0]]),
        home_E=contiguous_homes(num_experts=4, num_ranks=2),
        topology=two_level_topology(num_ranks=2, ranks_per_node=1, slots=1, inter_cost=3),
    )
    for algorithm in sorted(set(algorithms) - NEEDS_SCIPY):
        plan = plan_from_guests(problem, plan_layer(problem, algorithm=algorithm).guests_RK)
        check_plan(plan, problem)
        check_guests(plan.guests_RK, home_E=problem.home_E, slots_R=problem.topology.slots_R)  # as agents do
        plan.stats(problem)
    levels = tuple(replace(level, bandwidth_bytes_per_second=1) for level in problem.topology.levels)
    rates = LayerRates(token_picoseconds=1, expert_size_bytes=2**30)
    predict_static_seconds(replace(problem, topology=replace(problem.topology, levels=levels), rates=rates))
    if has_recent and "taot" in algorithms:
        recent_NE = np.array([[2, 2, 2, 2]])
        plan_layer(replace(problem, recent_tokens_NE=recent_NE), algorithm="taot")
        batch = LayerBatch.of([problem.counts_RE], [problem.home_E], [recent_NE], [], problem.topology)
        place_together(batch, PlanningOptions())
