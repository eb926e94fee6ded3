"""Guests for a micro-batch that is yet to come: the cheapest that hold for what it may look like.

A placement that is planned ahead meets other counts than it was made for. So it is made for several *scenarios*, and
must allow a split within the tolerance in each of them. Two things show how counts stray: recent micro-batches
(experts grow hot or cold over time), and the ranks of the newest one (each has tokens of its own; two halves of
the ranks differ as two micro-batches of half the size do). The next micro-batch is in neither sample, so what they
stray from the mean is stretched.

Counting one half of the ranks instead of all of them is the half-sample method of variance estimation (McCarthy,
Pseudo-replication: half samples, 1969): its error equals that of the whole sample.

Axis letters: N micro-batches, G groups of ranks, H halves, J scenarios; the others as in the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from taot_planning.algorithms.scenario_search import search_robust_guests
from taot_planning.algorithms.scenario_state import start_scenarios
from taot_planning.arrays import IntArray, read_only
from taot_planning.capacity import capacities_at, pace_for
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PPM, Effort, PlanningOptions

SCALE = 2**30
"""Tokens of every scenario: histograms of micro-batches of any size are brought to the same one."""

MIN_OVERLAP_PPM = 800_000
"""An older micro-batch counts if it shares at least this part of its tokens with the newest, expert by expert.
Micro-batches of one kind of data share 90 % and more, of different kinds 55 to 75 % (measured on real routing)."""

RANK_ROUNDS: Mapping[Effort, int] = MappingProxyType({"fast": 48, "balanced": 192})
"""Rounds of improvement times ranks: a round takes longer with more ranks."""

RESCUE_FACTOR = 4
"""As many times more rounds while some scenario does not hold."""


def place_for_recent(problem: LayerProblem, recent_tokens_NE: IntArray, options: PlanningOptions) -> IntArray:
    """Places guests for the micro-batch after `problem`.

    Costs grow with `options.stretch_percent` and fall with `options.tolerance_ppm`. Where the slots do not suffice,
    as few tokens as possible stay above the tolerance, over all scenarios. Every guest counts at the cost from its
    home, also where it is resident or passed on.

    Args:
        problem: the newest micro-batch.
        recent_tokens_NE: tokens of each expert in older ones, newest first. Without any, only the ranks of the newest
            show how counts stray. Shape: [older micro-batches, experts].
        options: the tolerance, the stretch, and how hard to search.

    Returns:
        The expert in each guest slot, -1 where empty. Shape: [ranks, slots].
    """
    if problem.topology.max_slots == 0:
        return np.empty((problem.num_ranks, 0), dtype=np.int64)
    scenarios_JE = make_scenarios(problem.counts_RE, recent_tokens_NE, stretch_percent=options.stretch_percent)
    topology, cap_R = problem.topology, _scaled_capacities(problem, options.tolerance_ppm)
    state, best = (
        start_scenarios(read_only(scenarios_JE), problem.home_E, topology.cost_milli_RR, topology.slots_R, cap_R)
        for _ in range(2)
    )
    rounds = RANK_ROUNDS[options.effort] // problem.num_ranks
    return search_robust_guests(rounds, RESCUE_FACTOR * rounds, state, best)


def _scaled_capacities(problem: LayerProblem, tolerance_ppm: int) -> IntArray:
    """What each rank may have of `SCALE` tokens. Shape: [ranks]."""
    topology, pace = problem.topology, pace_for(SCALE, tolerance_ppm, problem.topology)
    if topology.token_cap_R is None:
        return read_only(capacities_at(pace, topology))
    capacity_R = capacities_at(pace, replace(topology, token_cap_R=None))
    total = max(int(problem.counts_RE.sum()), 1)
    # No rank has more than all tokens; caps without a limit would overflow.
    share_R = np.minimum(topology.token_cap_R, total) * (SCALE / total)
    return read_only(np.minimum(capacity_R, np.floor(share_R).astype(np.int64)))


def make_scenarios(counts_RE: IntArray, recent_tokens_NE: IntArray, *, stretch_percent: int) -> IntArray:
    """Makes up what the next micro-batch may look like.

    Args:
        counts_RE: tokens from each rank to each expert in the newest micro-batch. Shape: [ranks, experts].
        recent_tokens_NE: tokens of each expert in older ones, newest first. Shape: [older micro-batches, experts].
        stretch_percent: how far scenarios stray from the mean, relative to what was seen, in percent.

    Returns:
        Tokens of each expert, `SCALE` in all but for rounding. Shape: [scenarios, experts].
    """
    group_GE = np.array([counts_RE[group::4].sum(axis=0) for group in range(4)])
    newest_E = group_GE.sum(axis=0)
    scaled_NE = _scale(np.array([newest_E, *recent_tokens_NE]))
    overlap_N = np.minimum(scaled_NE, scaled_NE[0]).sum(axis=1)
    alike_NE = scaled_NE[overlap_N * PPM >= overlap_N[0] * MIN_OVERLAP_PPM]
    mean_E = alike_NE.sum(axis=0) // alike_NE.shape[0]
    # Ranks fall into four groups by the remainder of their index; these three ways to halve them are the most unlike.
    half_HE = np.array([group_GE[0] + group_GE[group] for group in range(1, 4)])
    one_HE, other_HE = _scale(half_HE), _scale(newest_E - half_HE)
    stray_HE = np.where(half_HE.any(axis=1, keepdims=True), one_HE - other_HE, 0) // 2
    strays_JE = np.concatenate([alike_NE - mean_E, stray_HE, -stray_HE])
    return _scale(np.maximum(mean_E + strays_JE * stretch_percent // 100, 0))


def _scale(tokens_NE: IntArray) -> IntArray:
    """Brings histograms to `SCALE` tokens, rounding down; one without tokens stays as it is."""
    # Products of two floats are rounded alike on all machines, and float64 holds all counts exactly.
    factor_N = SCALE / np.maximum(tokens_NE.sum(axis=1), 1)
    scaled_NE: IntArray = np.floor(tokens_NE * factor_N[:, None]).astype(np.int64)
    return scaled_NE
