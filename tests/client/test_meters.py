"""What a rank measures of its layers and links."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest
import torch
from rank_threads import Rank, run_ranks

from taot_client.measuring.layer_meter import LayerMeter
from taot_client.measuring.link_meter import LinkMeter, LinkTotals
from taot_client.measuring.step_measured import StepMeasured, measured_row
from taot_client.measuring.stopwatch import HostStopwatch, Timed
from taot_client.planner.step_control import StepControl
from taot_client.transfers.shipment import Cargo, Shipment, TransferClock


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def receive(peer: int, num_bytes: int) -> Shipment:
    cargo = Cargo(kind="weights", expert=0, layer="a", step=0)
    buffer = torch.zeros(num_bytes, dtype=torch.uint8)
    return Shipment(cargo=cargo, peer=peer, tag=0, buffer=buffer, is_receive=True)


def test_a_stopwatch_adds_up_what_runs_inside_it_and_nothing_else() -> None:
    now = HandClock()
    watch = HostStopwatch(now)
    for seconds, tokens in ((0.25, 3), (0.5, 0)):
        with watch.running(tokens=tokens):
            now.seconds += seconds
        now.seconds += 7
    assert watch.total() == Timed(microseconds=750_000, tokens=3)


def test_receives_that_are_posted_together_count_one_after_the_other_and_each_level_apart() -> None:
    now = HandClock()
    meter = LinkMeter([0, 0, 1], num_levels=2, now=now)
    first, second, across = meter.expect(receive(1, 10)), meter.expect(receive(1, 20)), meter.expect(receive(2, 40))
    now.seconds += 1
    first()
    now.seconds += 2
    second()
    across()
    now.seconds += 50
    third = meter.expect(receive(1, 30))
    now.seconds += 4
    third()
    assert meter.totals() == LinkTotals(microseconds_V=(7_000_000, 3_000_000), bytes_V=(60, 40))


class HandEvent:
    """A point on a stream that the test lets the device pass."""

    def __init__(self, milliseconds: float, *, passed: bool = True) -> None:
        self.milliseconds = milliseconds
        self.passed = passed

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, later: HandEvent) -> float:
        return later.milliseconds - self.milliseconds


def test_batches_on_a_stream_count_once_the_device_has_passed_them() -> None:
    meter = LinkMeter([0, 0, 1], num_levels=2)
    ended = HandEvent(8.0, passed=False)
    meter.add_batch([receive(1, 10), receive(2, 5), receive(1, 1)], began=HandEvent(3.0), ended=ended)  # type: ignore[arg-type]
    assert meter.totals() == LinkTotals(microseconds_V=(0, 0), bytes_V=(0, 0))
    ended.passed = True
    assert meter.totals() == LinkTotals(microseconds_V=(5000, 5000), bytes_V=(11, 5))


def test_a_recomputation_is_timed_and_its_tokens_are_not_counted_again() -> None:
    meter = LayerMeter(device=torch.device("cpu"), clock=TransferClock())
    with meter.computing(5, is_repeat=False):
        pass
    with meter.computing(5, is_repeat=True):
        pass
    assert meter.computed_tokens == 5
    assert meter.compute_time().tokens == 10


def test_waits_count_for_the_layer_and_for_the_rank() -> None:
    now = HandClock()
    clock = TransferClock(now)
    meter = LayerMeter(device=torch.device("cpu"), clock=clock)
    began = time.perf_counter()
    with meter.exposed():
        now.seconds += 3
        while time.perf_counter() < began + 0.002:
            pass
    assert clock.exposed_seconds == 3
    assert meter.exposed_us() >= 1900


def test_the_first_pass_of_a_step_says_when_the_layer_is_reached() -> None:
    meter = LayerMeter(device=torch.device("cpu"), clock=TransferClock())
    meter.begin_step()
    meter.reach()
    first = meter.reach_seconds
    meter.reach()
    assert meter.reach_seconds == first > 0


class _Meter:
    """Numbers that name their layer and rank."""

    def __init__(self, rank: int, layer: int) -> None:
        self.base = 1000 * rank + 10 * layer
        self.computed_tokens = self.base

    def compute_time(self) -> Timed:
        return Timed(microseconds=self.base + 1, tokens=self.base + 2)

    def exposed_us(self) -> int:
        return self.base + 3


@pytest.mark.parametrize("num_layers", [1, 3])
def test_all_ranks_see_what_each_has_measured(num_layers: int) -> None:
    def body(rank: Rank) -> StepMeasured:
        control = StepControl(rank.agent_groups.control, rank.group, shape=(num_layers, 2, 1))
        me = rank.group.rank
        links = LinkTotals(microseconds_V=(me, me + 1), bytes_V=(me + 2, me + 3))
        row_N = measured_row([_Meter(me, layer) for layer in range(num_layers)], links)  # type: ignore[misc]
        return StepMeasured.of_rows(control.gather(row_N), num_layers=num_layers)

    base_RL = 1000 * np.arange(2)[:, None] + 10 * np.arange(num_layers)[None, :]
    zero = StepMeasured.zero(num_ranks=2, num_layers=num_layers, num_levels=2)
    for seen in run_ranks(2, body):
        for measured in (seen, seen.since(zero)):
            assert measured.computed_tokens_RL.tolist() == base_RL.tolist()
            assert measured.compute_us_RL.tolist() == (base_RL + 1).tolist()
            assert measured.timed_tokens_RL.tolist() == (base_RL + 2).tolist()
            assert measured.exposed_us_RL.tolist() == (base_RL + 3).tolist()
            assert measured.link_us_RV.tolist() == [[0, 1], [1, 2]]
            assert measured.link_bytes_RV.tolist() == [[2, 3], [3, 4]]
        assert not seen.since(seen).compute_us_RL.any()


def test_the_time_of_a_token_is_that_of_the_fastest_recent_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("taot_client.device.HostStopwatch", partial(HostStopwatch, now=lambda: now[0]))
    meter = LayerMeter(device=torch.device("cpu"), clock=TransferClock())
    meter.begin_step()
    assert meter.token_microseconds() == 0.0
    for seconds in (2.0, 0.004, 0.006):  # the first compiles
        with meter.computing(1000, is_repeat=False):
            now[0] += seconds
        meter.begin_step()
    assert meter.token_microseconds() == pytest.approx(4.0)
    meter.begin_step()  # a step without tokens says nothing
    assert meter.token_microseconds() == pytest.approx(4.0)
