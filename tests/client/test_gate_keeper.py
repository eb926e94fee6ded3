"""The leader's knowledge of the machine, from made-up measurements."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from link_samples import spec

from taot_api import LayerSpec
from taot_client.measuring.gate_keeper import GateKeeper, StepObservation
from taot_client.measuring.pass_outcomes import LayerOutcome
from taot_client.measuring.step_measured import StepMeasured
from taot_planning.arrays import IntArray

RANKS = 4
EXPERT_BYTES = 1000
LAYERS = tuple(
    LayerSpec(name=name, top_k=1, expert_size_bytes=EXPERT_BYTES, home_E=np.arange(8) // 2) for name in ("a", "b")
)
TOKEN_US = 16
"""Forward of one token: with 100 tokens saved, guests gain 4800 us in a step."""


def counts_RE() -> IntArray:
    counts = np.zeros((RANKS, 8), dtype=np.int64)
    counts[:, 0] = 50
    counts[:, 2:] = 10
    return counts


def guests_LRK() -> IntArray:
    """Expert 0 on rank 1, in both layers."""
    guests = np.full((2, RANKS, 2), -1)
    guests[:, 1, 0] = 0
    return guests


class Machine:
    """Adds up what its ranks measure, step by step; the layer `a` has guests that may cost something."""

    def __init__(self) -> None:
        self.keeper = GateKeeper(spec(layers=LAYERS))
        self.total = StepMeasured.zero(num_ranks=RANKS, num_layers=2, num_levels=2)
        self.step = 0

    def run(self, num_steps: int, *, exposed_us: int = 0, link_us: int = 10, used: bool = True) -> None:
        for _ in range(num_steps):
            rows = {name: getattr(self.total, name).copy() for name in StepMeasured.__dataclass_fields__}
            rows["timed_tokens_RL"] += 100
            rows["compute_us_RL"] += 100 * TOKEN_US
            rows["exposed_us_RL"][2, 0] += exposed_us  # one rank waits, so all do
            if used:
                rows["link_us_RV"][1, 0] += link_us
                rows["link_bytes_RV"][1, 0] += EXPERT_BYTES
            self.total = StepMeasured(**rows)
            outcome = LayerOutcome(counts_RE=counts_RE(), num_passes=1, saved_tokens=100 * used, used_guests=used)
            idle = LayerOutcome(counts_RE=counts_RE(), num_passes=1)
            seen = StepObservation(
                step=self.step, outcomes_L=[outcome, idle], reach_seconds_L=[0.0, 0.0], measured=self.total
            )
            self.keeper.observe(seen)
            self.step += 1

    def passed(self) -> list[bool]:
        """Whether the planner's guests of each layer are let through."""
        return [bool((each != -1).any()) for each in self.keeper.let_through(guests_LRK())]


def test_rates_become_known_and_keep_still() -> None:
    machine = Machine()
    machine.run(2)
    assert not any((*machine.keeper.gates().token_picoseconds_L, *machine.keeper.gates().bandwidth_V))
    assert machine.passed() == [True, True], "what is unknown is tried"
    machine.run(1)
    gates = machine.keeper.gates()
    assert gates.token_picoseconds_L == pytest.approx([TOKEN_US * 10**6] * 2, rel=0.1)
    assert gates.bandwidth_V == (pytest.approx(100 * 10**6, rel=0.1), 0)
    machine.run(30)
    assert machine.keeper.gates() == gates


def test_a_layer_whose_guests_cost_more_than_they_gain_goes_off_and_only_that_one(caplog) -> None:
    machine = Machine()
    with caplog.at_level(logging.INFO, logger="taot_client.measuring.gate_keeper"):
        machine.run(2 + 3 * 8 - 1, exposed_us=4000)
        assert machine.keeper.gates().is_off_L == (False, False)
        machine.run(4 * 8, exposed_us=6000)
        assert machine.keeper.gates().is_off_L == (True, False)
        assert machine.passed() == [False, True]
        (message,) = [record.getMessage() for record in caplog.records]
        assert "guests of layer 'a' are off" in message
        machine.run(40, used=False)
        assert machine.keeper.gates().is_off_L == (False, False)
        assert [record.getMessage().split("are ")[1] for record in caplog.records[1:]] == ["probing"]


def test_planned_guests_of_a_slow_link_are_left_out_until_it_is_tried_again() -> None:
    machine = Machine()
    machine.run(3, link_us=10**6)  # a second an expert, against 100 tokens
    assert machine.passed() == [False, False]
    machine.run(300, used=False)
    assert machine.passed() == [True, True]


def test_guests_that_are_waited_for_and_never_come_in_time_are_switched_off_too() -> None:
    machine = Machine()
    machine.run(40, exposed_us=500, used=False)
    assert machine.keeper.gates().is_off_L == (True, False)
