"""Prints a digest of small plans of every kernel. The tests run it compiled, and interpreted by Python and NumPy."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
from made_up_routing import random_guests, random_problem, skewed_counts, two_level_problem

from taot_planning import ALGORITHMS, LayerProblem, LayerRates, PlanningOptions, plan_from_guests, plan_layer
from taot_planning.guest_moves import list_moves
from taot_planning.options import SEARCH_EFFORTS


def problems() -> list[LayerProblem]:
    """Small layers: plain, at the largest counts, with speeds and caps, residents and relays, a cost matrix, ahead."""
    plain = [random_problem(seed) for seed in range(3)]
    largest = two_level_problem(np.array([[2**31 - 1, 1, 0, 7], [2**31 - 1, 2, 0, 2**31 - 1]]), ranks_per_node=1)
    counts_RE = skewed_counts(1, num_ranks=6, num_experts=12, tokens=500)
    base = two_level_problem(counts_RE, ranks_per_node=2)
    topology = replace(base.topology, speed_milli_R=[500, 1000, 1000, 900, 1000, 700], token_cap_R=[450] * 6)
    relayed = replace(base.topology, has_relay=True)
    matrix_RR = np.arange(36).reshape(6, 6) * 50 + 700
    np.fill_diagonal(matrix_RR, 0)
    return [
        *plain,
        largest,
        replace(base, topology=topology),
        replace(base, topology=relayed, resident_RK=random_guests(2, base)),
        replace(base, topology=replace(base.topology, cost_matrix_milli=matrix_RR)),
        replace(base, recent_tokens_NE=counts_RE[:3] * 6),
        replace(base, recent_tokens_NE=counts_RE[:3] * 6, begin_guests_RK=random_guests(3, base)),
    ]


def timed(problem: LayerProblem) -> LayerProblem:
    """The same with rates, so that times are predicted."""
    levels = tuple(replace(level, bandwidth_bytes_per_second=10**9 + 7) for level in problem.topology.levels)
    rates = LayerRates(token_picoseconds=333_333, expert_size_bytes=44_040_193)
    return replace(problem, topology=replace(problem.topology, levels=levels), rates=rates)


def main() -> None:
    """Plans and prints."""
    hasher = hashlib.sha256()
    for problem in problems():
        plans = [plan_layer(problem, algorithm=algorithm) for algorithm in sorted(ALGORITHMS)]
        for effort in SEARCH_EFFORTS:
            plans += [
                plan_layer(problem, options=PlanningOptions(effort=effort, tolerance_ppm=tolerance_ppm))
                for tolerance_ppm in (0, 100_000)
            ]
        plans.append(plan_from_guests(problem, random_guests(1, problem)))
        for plan in plans:
            moves = list_moves(problem, plan.guests_RK)
            for array in (plan.guests_RK, plan.quota_SRK, plan.loads_R(problem), moves.source_G):
                hasher.update(np.ascontiguousarray(array).tobytes())
            hasher.update(str(moves.cost_milli).encode())
            hasher.update(struct.pack("d", plan.stats(timed(problem)).predicted_seconds))
    print(hasher.hexdigest())  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
