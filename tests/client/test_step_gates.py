from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taot_client.measuring.step_gates import StepGates
from taot_planning import two_level_topology
from taot_planning.layer_problem import MAX_TOKEN_PICOSECONDS
from taot_planning.topology import MAX_BANDWIDTH

L = 3
RATES = st.integers(0, 2**63 - 1)
TOPOLOGY = two_level_topology(num_ranks=4, ranks_per_node=2, slots=1, inter_cost=3)


@given(
    picoseconds_L=st.tuples(*[RATES] * L), bandwidth_V=st.tuples(RATES, RATES), is_off_L=st.tuples(*[st.booleans()] * L)
)
def test_gates_read_as_they_were_written(
    picoseconds_L: tuple[int, ...], bandwidth_V: tuple[int, ...], is_off_L: tuple[bool, ...]
) -> None:
    gates = StepGates(token_picoseconds_L=picoseconds_L, bandwidth_V=bandwidth_V, is_off_L=is_off_L)
    data = gates.encode(num_layers=L)
    assert len(data) == StepGates.num_bytes(L)
    assert StepGates.decode(b"xyz" + data, offset=3, num_layers=L) == gates


def test_empty_gates_say_that_nothing_is_known_and_all_layers_are_on() -> None:
    read = StepGates.decode(StepGates().encode(num_layers=L), offset=0, num_layers=L)
    for gates in (StepGates(), read):
        assert not any(gates.is_off(layer) for layer in range(L))
        assert gates.measured.rates(1, expert_size_bytes=5) is None
        assert gates.measured.topology(TOPOLOGY) is TOPOLOGY


def test_rates_and_bandwidths_reach_planning_and_keep_its_limits() -> None:
    gates = StepGates(token_picoseconds_L=(0, 7, 2**62), bandwidth_V=(2**62, 3), is_off_L=(False, True, False))
    assert gates.measured.rates(0, expert_size_bytes=5) is None
    known = gates.measured.rates(1, expert_size_bytes=5)
    assert known is not None
    assert (known.token_picoseconds, known.expert_size_bytes) == (7, 5)
    slowest = gates.measured.rates(2, expert_size_bytes=5)
    assert slowest is not None
    assert slowest.token_picoseconds == MAX_TOKEN_PICOSECONDS
    levels = gates.measured.topology(TOPOLOGY).levels
    assert [level.bandwidth_bytes_per_second for level in levels] == [MAX_BANDWIDTH, 3]
    assert [gates.is_off(layer) for layer in range(3)] == [False, True, False]


@pytest.mark.parametrize("bandwidth_V", [(9, 0), (0, 9)])
def test_a_level_that_was_not_measured_is_tried_at_the_speed_of_the_other(bandwidth_V: tuple[int, ...]) -> None:
    levels = StepGates(bandwidth_V=bandwidth_V).measured.topology(TOPOLOGY).levels
    assert [level.bandwidth_bytes_per_second for level in levels] == [9, 9]
