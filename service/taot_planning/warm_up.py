"""Compiles the kernels ahead of their first use."""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms import ALGORITHMS, NEEDS_SCIPY, plan_layer
from taot_planning.layer_plan import plan_from_guests
from taot_planning.layer_problem import LayerProblem, contiguous_homes
from taot_planning.topology import two_level_topology


def warm_up() -> None:
    """Runs every algorithm once on a tiny problem, so that no call in a training step compiles.

    Those that need scipy are left out: it may be missing, and they have no kernels of their own.

    Takes seconds on the first run on a machine and milliseconds once numba's disk cache is filled.
    """
    problem = LayerProblem(
        counts_RE=np.array([[8, 0, 0, 0], [8, 0, 0, 0]]),
        home_E=contiguous_homes(num_experts=4, num_ranks=2),
        topology=two_level_topology(num_ranks=2, ranks_per_node=1, slots=1, inter_cost=3),
    )
    for algorithm in sorted(set(ALGORITHMS) - NEEDS_SCIPY):
        plan_from_guests(problem, plan_layer(problem, algorithm=algorithm).guests_RK).stats(problem)
