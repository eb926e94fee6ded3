"""What the next micro-batch may look like, made up from the newest one and older ones.

Two things show how counts stray: recent micro-batches (experts grow hot or cold over time), and the ranks of the newest
one (each has tokens of its own; two halves of the ranks differ as two micro-batches of half the size do). The next
micro-batch is in neither sample, so what they stray from the mean is stretched.

Counting one half of the ranks instead of all of them is the half-sample method of variance estimation (McCarthy,
Pseudo-replication: half samples, 1969): its error equals that of the whole sample.

Axis letters: N micro-batches, G groups of ranks, J scenarios; the others as in the package.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.kernel import inner_kernel, kernel
from taot_planning.options import PPM

SCALE = 2**30
"""Tokens of every scenario: histograms of micro-batches of any size are brought to the same one."""

MIN_OVERLAP_PPM = 800_000
"""An older micro-batch counts if it shares at least this part of its tokens with the newest, expert by expert.
Micro-batches of one kind of data share 90 % and more, of different kinds 55 to 75 % (measured on real routing)."""

NUM_GROUPS = 4
"""Ranks fall into so many groups by the remainder of their index, which can be halved in three ways."""


def make_scenarios(counts_RE: IntArray, recent_tokens_NE: IntArray, *, stretch_percent: int) -> IntArray:
    """Makes up what the next micro-batch may look like.

    Args:
        counts_RE: tokens from each rank to each expert in the newest micro-batch. Shape: [ranks, experts].
        recent_tokens_NE: tokens of each expert in older ones, newest first. Shape: [older micro-batches, experts].
        stretch_percent: how far scenarios stray from the mean, relative to what was seen, in percent.

    Returns:
        Tokens of each expert, `SCALE` in all but for rounding: the newest micro-batch and older ones that resemble it,
        then the halves. Shape: [scenarios, experts].
    """
    return make_up(read_only(counts_RE), read_only(recent_tokens_NE), stretch_percent)


@inner_kernel
def _scale(tokens_E: IntArray) -> None:
    """Brings a histogram to `SCALE` tokens, rounding down; one without tokens stays as it is."""
    total = 0
    for expert in range(tokens_E.size):
        total += tokens_E[expert]
    # Products of two floats are rounded alike on all machines, and float64 holds all counts exactly.
    factor = SCALE / max(total, 1)
    for expert in range(tokens_E.size):
        tokens_E[expert] = int(tokens_E[expert] * factor)


@kernel
def _add_groups(counts_RE: IntArray) -> IntArray:
    """Tokens of each group of ranks. Shape: [groups, experts]."""
    group_GE = np.zeros((NUM_GROUPS, counts_RE.shape[1]), dtype=np.int64)
    for rank in range(counts_RE.shape[0]):
        for expert in range(counts_RE.shape[1]):
            group_GE[rank % NUM_GROUPS, expert] += counts_RE[rank, expert]
    return group_GE


@kernel
def _keep_alike(scaled_NE: IntArray) -> int:
    """Moves micro-batches that resemble the first to the front, in their order. Returns how many there are."""
    num_alike, own = 0, 0
    for batch in range(scaled_NE.shape[0]):
        overlap = 0
        for expert in range(scaled_NE.shape[1]):
            overlap += min(scaled_NE[batch, expert], scaled_NE[0, expert])
        own = overlap if batch == 0 else own
        if overlap * PPM >= own * MIN_OVERLAP_PPM:
            scaled_NE[num_alike] = scaled_NE[batch]
            num_alike += 1
    return num_alike


@kernel
def _fill_halves(group_GE: IntArray, strays_JE: IntArray) -> None:
    """Fills in how halves of the ranks stray, one way and the other. Shape: [twice the ways to halve, experts]."""
    ways = NUM_GROUPS - 1
    one_E, other_E = np.empty(group_GE.shape[1], dtype=np.int64), np.empty(group_GE.shape[1], dtype=np.int64)
    for way in range(ways):
        total = 0
        for expert in range(one_E.size):
            one = group_GE[0, expert] + group_GE[way + 1, expert]
            one_E[expert], other_E[expert] = one, -one
            for group in range(NUM_GROUPS):
                other_E[expert] += group_GE[group, expert]
            total += one
        _scale(one_E)
        _scale(other_E)
        for expert in range(one_E.size):
            stray = (one_E[expert] - other_E[expert]) // 2 if total > 0 else 0
            strays_JE[way, expert] = stray
            strays_JE[ways + way, expert] = -stray


@kernel
def make_up(counts_RE: IntArray, recent_NE: IntArray, stretch_percent: int) -> IntArray:
    """Does what `make_scenarios` does, in one kernel: it is asked for every layer of every plan."""
    num_experts, group_GE = counts_RE.shape[1], _add_groups(counts_RE)
    scaled_NE = np.zeros((1 + recent_NE.shape[0], num_experts), dtype=np.int64)
    for group in range(NUM_GROUPS):
        scaled_NE[0] += group_GE[group]
    scaled_NE[1:] = recent_NE
    for batch in range(scaled_NE.shape[0]):
        _scale(scaled_NE[batch])
    num_alike = _keep_alike(scaled_NE)
    scenarios_JE = np.empty((num_alike + 2 * (NUM_GROUPS - 1), num_experts), dtype=np.int64)
    _fill_halves(group_GE, scenarios_JE[num_alike:])
    for expert in range(num_experts):
        total = 0
        for batch in range(num_alike):
            total += scaled_NE[batch, expert]
        mean = total // num_alike
        for scenario in range(scenarios_JE.shape[0]):
            stray = scaled_NE[scenario, expert] - mean if scenario < num_alike else scenarios_JE[scenario, expert]
            scenarios_JE[scenario, expert] = max(mean + stray * stretch_percent // 100, 0)
    for scenario in range(scenarios_JE.shape[0]):
        _scale(scenarios_JE[scenario])
    return scenarios_JE
