from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taot_client.measuring.gain import measured_gain_us, without_vain_guests, worthwhile_layers
from taot_client.measuring.step_gates import StepGates
from taot_planning import LayerProblem, LayerRates, two_level_topology
from taot_planning.arrays import IntArray

PICOSECONDS = 10**6
"""A microsecond a token."""
SECOND = 10**6
"""Bytes that a link of this bandwidth carries in a second."""
GUESTS_RK = np.array([[-1], [0], [-1], [-1]])
"""Expert 0, at home on rank 0, on rank 1."""


def problem(*, expert_size_bytes: int = SECOND // 2, bandwidth: int = SECOND, rates: bool = True) -> LayerProblem:
    topology = two_level_topology(num_ranks=4, ranks_per_node=2, slots=1, inter_cost=3)
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[:, 0] = 500_000
    counts_RE[:, 2:] = 250_000
    return LayerProblem(
        counts_RE=counts_RE,
        home_E=np.arange(4),
        topology=StepGates(bandwidth_V=(bandwidth, 0)).measured.topology(topology),
        rates=LayerRates(token_picoseconds=PICOSECONDS, expert_size_bytes=expert_size_bytes) if rates else None,
    )


def test_the_measured_gain_counts_a_backward_as_two_forwards() -> None:
    assert measured_gain_us(saved_tokens=100, token_picoseconds=2 * 10**6, exposed_us=0) == 600
    assert measured_gain_us(saved_tokens=100, token_picoseconds=2 * 10**6, exposed_us=601) == -1
    assert measured_gain_us(saved_tokens=-1, token_picoseconds=10**6, exposed_us=0) == -3


def test_guests_stay_where_training_gets_shorter_and_where_nothing_is_known() -> None:
    # Without guests 2 s of forward, with them 1 s: 3 s saved in training. The guest arrives after half a second, or
    # after 2.9 s, of which 2.9 s are waited for: its rank has nothing else to compute.
    slow = problem(expert_size_bytes=SECOND * 29 // 10)
    for kept in (problem(), slow, problem(rates=False), problem(expert_size_bytes=0)):
        assert without_vain_guests(kept, GUESTS_RK, num_journeys=1).tolist() == GUESTS_RK.tolist()
    unknown = replace(problem(), topology=two_level_topology(num_ranks=4, ranks_per_node=2, slots=1, inter_cost=3))
    assert without_vain_guests(unknown, GUESTS_RK, num_journeys=1).tolist() == GUESTS_RK.tolist()


@pytest.mark.parametrize("vain", [problem(expert_size_bytes=4 * SECOND), problem(bandwidth=SECOND // 8)])
def test_guests_that_arrive_too_late_are_not_made(vain: LayerProblem) -> None:
    assert (without_vain_guests(vain, GUESTS_RK, num_journeys=1) == -1).all()


def test_guests_that_travel_twice_must_gain_twice_their_wait() -> None:
    twice = problem(expert_size_bytes=SECOND * 2)  # waited for 2 s on each journey, 3 s saved
    assert without_vain_guests(twice, GUESTS_RK, num_journeys=1).tolist() == GUESTS_RK.tolist()
    assert (without_vain_guests(twice, GUESTS_RK, num_journeys=2) == -1).all()


def worth(sizes: list[int], reach: list[float], *, guests_RK: IntArray = GUESTS_RK, passes: int = 1) -> list[bool]:
    return worthwhile_layers(
        [problem(expert_size_bytes=size) for size in sizes],
        np.stack([guests_RK] * len(sizes)),
        reach_seconds_L=reach,
        passes_L=[passes] * len(sizes),
    )


def test_planned_guests_stay_where_they_save_more_than_is_exposed() -> None:
    # Each saves 1 s of 2 in forward, 3 s in training.
    assert worth([2 * SECOND], [0.0]) == [True]
    assert worth([3 * SECOND], [0.0]) == [False]
    assert worth([3 * SECOND], [0.5]) == [True], "half a second travels before the layer is reached"
    assert worth([5 * SECOND], [0.0], passes=2) == [True], "two micro-batches use the guest"
    assert worth([0], [9.0], guests_RK=np.full_like(GUESTS_RK, -1)) == [False], "no guests gain nothing"


def test_later_layers_wait_for_the_weights_of_earlier_ones_that_stay() -> None:
    assert worth([2 * SECOND, 2 * SECOND], [0.0, 0.0]) == [True, False]
    assert worth([2 * SECOND, 2 * SECOND], [0.0, 2.0]) == [True, True]
    assert worth([9 * SECOND, 2 * SECOND], [0.0, 0.0]) == [False, True], "what is not sent delays nobody"


def test_guests_of_a_layer_leave_when_one_has_been_reached_before_which_there_is_room() -> None:
    # Those of the second leave when the first has been reached, and take 5 s; 3 s are saved.
    assert worth([0, 5 * SECOND], [1.0, 3.5]) == [True, True], "2.5 s behind the first layer"
    assert worth([0, 5 * SECOND], [2.0, 3.5]) == [True, False], "1.5 s"


def test_layers_of_which_nothing_is_known_stay() -> None:
    guests_LRK = np.stack([GUESTS_RK] * 3)
    unknown = replace(problem(), topology=two_level_topology(num_ranks=4, ranks_per_node=2, slots=1, inter_cost=3))
    got = worthwhile_layers(
        [None, problem(rates=False), unknown], guests_LRK, reach_seconds_L=[0.0] * 3, passes_L=[1] * 3
    )
    assert got == [True] * 3
