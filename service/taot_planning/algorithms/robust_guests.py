"""Guests for a micro-batch that is yet to come: the cheapest that hold for what it may look like.

A placement that is planned ahead meets other counts than it was made for. So it is made for several *scenarios*, and
must allow a split within the tolerance in each of them.

Axis letters: N micro-batches; the others as in the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from taot_planning.algorithms.scenario_search import search_robust_guests
from taot_planning.algorithms.scenarios import SCALE, make_scenarios
from taot_planning.arrays import IntArray, read_only
from taot_planning.capacity import capacities_at, pace_for
from taot_planning.layer_plan import EMPTY_SLOT
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import Effort, PlanningOptions
from taot_planning.topology import Topology

RANK_ROUNDS: Mapping[Effort, int] = MappingProxyType({"fast": 24, "balanced": 192})
"""Rounds of improvement times ranks: a round takes longer with more ranks. Groups of more than 24 ranks get the first
answer with `fast`, not an improved one."""

RESCUE_FACTOR = 4
"""As many times more rounds while some scenario does not hold."""


def place_for_recent(problem: LayerProblem, recent_tokens_NE: IntArray, options: PlanningOptions) -> IntArray:
    """Places guests for the micro-batch after `problem`.

    Costs grow with `options.stretch_percent` and fall with `options.tolerance_ppm`. Where the slots do not suffice,
    as few tokens as possible stay above the tolerance, over all scenarios. Every guest counts at the cost from its
    home, also where it is resident or passed on.

    Args:
        problem: the newest micro-batch, and the guests to begin with.
        recent_tokens_NE: tokens of each expert in older ones, newest first. Without any, only the ranks of the newest
            show how counts stray. Shape: [older micro-batches, experts].
        options: the tolerance, the stretch, and how hard to search.

    Returns:
        The expert in each guest slot, -1 where empty. Shape: [ranks, slots].
    """
    if problem.topology.max_slots == 0:
        return np.empty((problem.num_ranks, 0), dtype=np.int64)
    topology, rounds = problem.topology, rounds_for(problem.num_ranks, options.effort)
    return search_robust_guests(
        make_scenarios(problem.counts_RE, recent_tokens_NE, stretch_percent=options.stretch_percent),
        problem.home_E,
        topology.cost_milli_RR,
        topology.slots_R,
        scaled_capacities(problem.loads.total, options.tolerance_ppm, topology),
        no_guests(topology) if problem.begin_guests_RK is None else problem.begin_guests_RK,
        rounds,
        RESCUE_FACTOR * rounds,
    )


def rounds_for(num_ranks: int, effort: Effort) -> int:
    """Rounds of improvement of a group."""
    return RANK_ROUNDS[effort] // num_ranks


def no_guests(topology: Topology) -> IntArray:
    """No guests to begin with. Shape: [ranks, slots]."""
    return read_only(np.full((topology.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64))


def scaled_capacities(total: int, tolerance_ppm: int, topology: Topology) -> IntArray:
    """What each rank may have of `SCALE` tokens. Shape: [ranks].

    Args:
        total: tokens of the newest micro-batch; token caps are in proportion to it, all else does not depend on it.
        tolerance_ppm: residual imbalance asked for, in parts per million.
        topology: the ranks.
    """
    pace = pace_for(SCALE, tolerance_ppm, topology)
    if topology.token_cap_R is None:
        return read_only(capacities_at(pace, topology))
    capacity_R = capacities_at(pace, replace(topology, token_cap_R=None))
    total = max(total, 1)
    # No rank has more than all tokens; caps without a limit would overflow.
    share_R = np.minimum(topology.token_cap_R, total) * (SCALE / total)
    return read_only(np.minimum(capacity_R, np.floor(share_R).astype(np.int64)))
