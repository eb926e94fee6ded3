"""What the next micro-batch may look like, compared with whole-array NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from taot_planning.algorithms.scenarios import MIN_OVERLAP_PPM, SCALE, make_scenarios
from taot_planning.arrays import MAX_COUNT, IntArray


def scale_slowly(tokens_NE: IntArray) -> IntArray:
    """Histograms of `SCALE` tokens, rounded down. Shape: [micro-batches, experts]."""
    return np.floor(tokens_NE * (SCALE / np.maximum(tokens_NE.sum(axis=1), 1))[:, None]).astype(np.int64)


def make_slowly(counts_RE: IntArray, recent_NE: IntArray, stretch_percent: int) -> IntArray:
    """The same scenarios from whole arrays. Shape: [scenarios, experts]."""
    group_GE = np.array([counts_RE[group::4].sum(axis=0) for group in range(4)])
    newest_E = group_GE.sum(axis=0)
    scaled_NE = scale_slowly(np.array([newest_E, *recent_NE]))
    overlap_N = np.minimum(scaled_NE, scaled_NE[0]).sum(axis=1)
    alike_NE = scaled_NE[overlap_N * 10**6 >= overlap_N[0] * MIN_OVERLAP_PPM]
    mean_E = alike_NE.sum(axis=0) // len(alike_NE)
    half_HE = np.array([group_GE[0] + group_GE[group] for group in (1, 2, 3)])
    stray_HE = (scale_slowly(half_HE) - scale_slowly(newest_E - half_HE)) // 2
    stray_HE[half_HE.sum(axis=1) == 0] = 0
    strays_JE = np.concatenate([alike_NE - mean_E, stray_HE, -stray_HE])
    return scale_slowly(np.maximum(mean_E + strays_JE * stretch_percent // 100, 0))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("stretch_percent", [0, 150, 400])
@pytest.mark.parametrize("num_older", [0, 1, 4])
def test_scenarios_are_those_of_whole_arrays(num_ranks: int, stretch_percent: int, num_older: int) -> None:
    rng = np.random.default_rng(num_ranks + num_older)
    # Spread so that some older micro-batches resemble the newest, and some do not.
    shares_NE = rng.dirichlet(np.full(12, 1.0)) * np.exp(rng.normal(0.0, 0.3, (num_older + 1, 12)))
    shares_NE /= shares_NE.sum(axis=1, keepdims=True)
    counts_NRE = np.array([rng.multinomial(5000, share_E, size=num_ranks) for share_E in shares_NE])
    largest = MAX_COUNT // int(counts_NRE.max())
    of_last_RE = counts_NRE[0].copy()
    of_last_RE[:-1] = 0
    for counts_RE in (counts_NRE[0], counts_NRE[0] * 0, counts_NRE[0] * largest, of_last_RE):
        recent_NE = counts_NRE[1:].sum(axis=1)
        made_JE = make_scenarios(counts_RE, recent_NE, stretch_percent=stretch_percent)
        np.testing.assert_array_equal(made_JE, make_slowly(counts_RE, recent_NE, stretch_percent))
