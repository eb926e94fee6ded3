from __future__ import annotations

import pytest
import torch

from taot_client.transfers.shipment import Cargo, Shipment, TransferClock, TransferError


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Outcome:
    """A completion that ends as it is told, and notes how long it was given."""

    def __init__(self, *, ends: bool = True, error: RuntimeError | None = None) -> None:
        self._ends = ends
        self._error = error
        self.given_seconds: list[float] = []

    def is_done(self) -> bool:
        return self._ends and self._error is None

    def wait(self, timeout_seconds: float) -> bool:
        self.given_seconds.append(timeout_seconds)
        if self._error is not None:
            raise self._error
        return self._ends


def make_shipment(completion: Outcome | None, *, is_receive: bool = True, kind: str = "weights") -> Shipment:
    return Shipment(
        cargo=Cargo(kind=kind, expert=17, layer="blocks.4.moe", step=1203),
        peer=6,
        tag=9,
        buffer=torch.zeros(4, dtype=torch.uint8),
        is_receive=is_receive,
        completion=completion,
    )


# The clock.


def test_time_in_flight_is_the_union_of_all_flights() -> None:
    now = HandClock()
    clock = TransferClock(now)
    # Departures (+) and arrives (-), by second: in flight from 1 to 6, then from 10 to 11.
    for seconds, event in [(1, "+"), (2, "+"), (3, "-"), (4, "+"), (5, "-"), (6, "-"), (10, "+"), (11, "-")]:
        now.seconds = 100.0 + seconds
        if event == "+":
            clock.depart()
        else:
            clock.arrive()
    now.seconds = 200.0
    assert clock.flight_seconds == 6.0


def test_a_flight_under_way_counts_up_to_now() -> None:
    now = HandClock()
    clock = TransferClock(now)
    assert clock.flight_seconds == 0.0
    clock.depart()
    now.seconds += 2.5
    assert clock.flight_seconds == 2.5
    clock.depart()
    now.seconds += 1.0
    assert clock.flight_seconds == 3.5
    clock.arrive()
    clock.arrive()
    now.seconds += 50.0
    assert clock.flight_seconds == 3.5


def test_time_exposed_is_what_the_training_thread_waited() -> None:
    now = HandClock()
    clock = TransferClock(now)
    with clock.exposed():
        now.seconds += 0.25
    now.seconds += 7.0
    with clock.exposed():
        now.seconds += 0.5
    assert clock.exposed_seconds == 0.75
    assert clock.flight_seconds == 0.0


def test_a_wait_that_ends_in_an_error_was_exposed_too() -> None:
    now = HandClock()
    clock = TransferClock(now)

    def wait_in_vain() -> None:
        with clock.exposed():
            now.seconds += 3.0
            raise TransferError("lost")

    with pytest.raises(TransferError):
        wait_in_vain()
    assert clock.exposed_seconds == 3.0


# The shipment.


def test_a_shipment_is_not_done_before_it_is_posted() -> None:
    shipment = make_shipment(None)
    assert not shipment.is_done()
    with pytest.raises(AssertionError, match="posted before"):
        shipment.wait(1.0)


def test_the_wait_is_handed_on_with_its_bound() -> None:
    outcome = Outcome()
    make_shipment(outcome).wait(12.5)
    assert outcome.given_seconds == [12.5]


@pytest.mark.parametrize(("is_receive", "direction"), [(True, "from"), (False, "to")])
@pytest.mark.parametrize("kind", ["weights", "gradient"])
def test_a_transfer_that_does_not_end_is_named(is_receive: bool, direction: str, kind: str) -> None:
    shipment = make_shipment(Outcome(ends=False), is_receive=is_receive, kind=kind)
    assert not shipment.is_done()
    with pytest.raises(TransferError) as refusal:
        shipment.wait(0.5)
    assert str(refusal.value) == (
        f"{kind} of expert 17, layer 'blocks.4.moe', step 1203 {direction} rank 6 did not end within 0.5 s"
    )


def test_a_transfer_that_failed_is_named_with_its_cause() -> None:
    cause = RuntimeError("connection closed by peer")
    shipment = make_shipment(Outcome(error=cause))
    assert not shipment.is_done()
    with pytest.raises(TransferError, match=r"from rank 6 failed: connection closed by peer") as refusal:
        shipment.wait(0.5)
    assert refusal.value.__cause__ is cause
