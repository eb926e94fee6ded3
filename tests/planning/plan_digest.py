"""Prints a digest of many plans, made by some threads, and how many kernels were compiled after the warm-up.

Run by the tests in processes of its own: `python plan_digest.py NUM_THREADS`.
"""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem
from numba.core.dispatcher import Dispatcher

from taot_planning import (
    ALGORITHMS,
    LayerPlan,
    LayerProblem,
    Level,
    Topology,
    contiguous_homes,
    plan_from_guests,
    plan_layer,
    warm_up,
)
from taot_planning.algorithms.placement import transport_costs
from taot_planning.algorithms.sinkhorn import sinkhorn_flow
from taot_planning.algorithms.surplus import measure_surplus


def odd_problems() -> list[LayerProblem]:
    """Layers whose arrays have unusual layouts: one level, one rank, one expert, a cost matrix, three levels."""
    node, rack, cluster = (Level(name=name, transfer_cost_milli=cost) for name, cost in
                           (("node", 1000), ("rack", 1500), ("cluster", 4000)))  # fmt: skip
    counts_RE = skewed_counts(9, num_ranks=8, num_experts=16).astype(np.int32)
    home_E = contiguous_homes(num_experts=16, num_ranks=8)
    domains_RV = [[rank // 2, rank // 4, 0] for rank in range(8)]
    matrix_RR = np.arange(64).reshape(8, 8) * 100 + 500
    np.fill_diagonal(matrix_RR, 0)
    topologies = [
        Topology(levels=(node,), domains_RV=np.zeros((8, 1)), slots_R=[2] * 8),
        Topology(levels=(node, rack, cluster), domains_RV=domains_RV, slots_R=[2, 0] * 4),
        Topology(levels=(node, rack, cluster), domains_RV=domains_RV, slots_R=[1] * 8, cost_matrix_milli=matrix_RR),
    ]
    problems = [LayerProblem(counts_RE=counts_RE, home_E=home_E, topology=topology) for topology in topologies]
    return [
        *problems,
        two_level_problem(np.array([[5, 7, 9]])),
        two_level_problem(np.array([[5], [7]]), slots=0),
        two_level_problem(np.array([[5], [7]]), slots=1),
    ]


def plans_of(problem: LayerProblem) -> list[LayerPlan]:
    """Every algorithm's plan, and the split of a placement that is not theirs, from every kind of array."""
    plans = [plan_layer(problem, algorithm=algorithm) for algorithm in sorted(ALGORITHMS)]
    guests_RK = random_guests(1, problem)
    frozen_RK = LayerPlan(guests_RK=guests_RK, quota_SRK=plans[0].quota_SRK).guests_RK
    strided_RK = np.repeat(guests_RK, 2, axis=1)[:, ::2]
    return [*plans, *(plan_from_guests(problem, guests) for guests in (guests_RK, frozen_RK, strided_RK))]


def flow_of(problem: LayerProblem) -> bytes:
    """The only floats of the planners, bit for bit: plans alone would hide a difference in the last place."""
    surplus = measure_surplus(problem, tolerance_ppm=0)
    surplus_R, spare_R = surplus.surplus_R / problem.num_ranks, surplus.spare_R / problem.num_ranks
    return sinkhorn_flow(surplus_R, spare_R, transport_costs(problem.topology)).tobytes()


def compiled_kernels() -> int:
    """Kernels compiled so far, one for each kind of arguments."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("taot_planning")]
    kernels = {
        id(value): value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)
    }
    return sum(len(kernel.signatures) for kernel in kernels.values())


def main(num_threads: int) -> None:
    """Plans and prints."""
    warm_up()
    before = compiled_kernels()
    problems = [random_problem(seed) for seed in range(40)] + odd_problems()
    for seed in range(10):
        counts_RE = skewed_counts(seed, num_ranks=32, num_experts=128)
        problems.append(two_level_problem(counts_RE, ranks_per_node=8))
    hasher = hashlib.sha256()
    with ThreadPoolExecutor(num_threads) as pool:
        for plans in pool.map(plans_of, problems):
            for plan in plans:
                hasher.update(plan.guests_RK.tobytes() + plan.quota_SRK.tobytes())
        for flow in pool.map(flow_of, problems):
            hasher.update(flow)
    print(hasher.hexdigest(), before, compiled_kernels() - before)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(int(sys.argv[1]))
