"""What passes came to is worked out for a whole step at once, and is what one would find pass by pass."""

from __future__ import annotations

import numpy as np
import pytest

from taot_client.measuring.pass_outcomes import NotedPass, PassOutcomes, imbalances
from taot_planning import imbalance
from taot_planning.arrays import IntArray

RANKS = 3


def noted(static: list[int], planned: list[int], before: list[int], *, has_guests: bool) -> NotedPass:
    """A pass before which the ranks had computed so many tokens in its layer."""
    return NotedPass(np.array([static, planned]), np.array(before), has_guests)


def routed(count: int) -> IntArray:
    """Counts that can be told apart."""
    return np.full((RANKS, 1), count)


def test_passes_of_overlapping_micro_batches_end_with_the_next_of_their_layer_or_with_the_step() -> None:
    outcomes = PassOutcomes(3)
    outcomes.note(0, routed(1), noted([9, 0, 0], [3, 3, 3], [10, 10, 10], has_guests=True))
    outcomes.note(2, routed(2), noted([4, 4, 4], [4, 4, 4], [50, 50, 50], has_guests=False))
    outcomes.note(0, routed(3), noted([6, 3, 0], [3, 3, 3], [13, 14, 12], has_guests=True))
    settled = outcomes.settle(np.array([[16, 0, 54], [16, 0, 54], [16, 0, 54]]))
    assert settled is not None
    assert settled.layer_P == [0, 0, 2]
    assert settled.static_PR.tolist() == [[9, 0, 0], [6, 3, 0], [4, 4, 4]]
    assert settled.planned_PR.tolist() == [[3, 3, 3], [3, 3, 3], [4, 4, 4]]
    assert settled.computed_PR.tolist() == [[3, 4, 2], [3, 2, 4], [4, 4, 4]]
    first, unused, last = outcomes.layers
    assert (first.num_passes, first.saved_tokens, first.used_guests) == (2, (9 - 4) + (6 - 4), True)
    assert (unused.num_passes, unused.counts_RE) == (0, None)
    assert (last.num_passes, last.saved_tokens, last.used_guests) == (1, 0, False)
    assert first.counts_RE is not None
    assert first.counts_RE.tolist() == routed(3).tolist(), "of the last pass"
    assert outcomes.settle(np.zeros((RANKS, 3), dtype=np.int64)) is None, "each pass ends once"


@pytest.mark.parametrize("speed_milli_R", [None, np.array([1000, 500, 1500])], ids=["even", "uneven"])
def test_imbalances_of_many_passes_are_those_of_each(speed_milli_R: IntArray | None) -> None:
    loads_PR = np.random.default_rng(0).integers(0, 2**31, (40, RANKS))
    loads_PR[7] = 0
    assert imbalances(loads_PR, speed_milli_R) == [imbalance(loads_R, speed_milli_R) for loads_R in loads_PR]
