"""Streams, events and pinned memory on one GPU."""

from __future__ import annotations

import pytest
import torch
from rank_threads import Rank, run_ranks

from taot_client.device import index_to_device, make_mover, to_host
from taot_client.transfers.nccl_mover import _Arrival
from taot_client.transfers.shipment import Cargo, Shipment, TransferClock
from taot_client.transfers.staged_mover import StagedMover

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LONG_SECONDS = 30.0
"""A bound against hangs."""


def busy(device: torch.device) -> None:
    """Keeps the current stream busy for a while."""
    x = torch.ones(2048, 2048, device=device)
    for _ in range(50):
        x = (x @ x).clamp(max=1.0)


def test_an_index_and_counts_cross_between_host_and_device() -> None:
    device = torch.device("cuda")
    index = torch.randperm(1000)
    assert torch.equal(to_host(index_to_device(index, device)), index)


def test_a_staged_shipment_carries_what_the_stream_computes_before_it_and_lands_before_what_comes_after() -> None:
    device, size = torch.device("cuda"), 9_000_001

    def body(rank: Rank) -> None:
        me = rank.group.rank
        mover = make_mover(rank.agent_groups.weights, device=device, clock=TransferClock(), name="weights")
        assert isinstance(mover, StagedMover)
        cargo = Cargo(kind="weights", expert=0, layer="moe", step=0)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for turn in range(5):
                outgoing = torch.zeros(size, dtype=torch.uint8, device=device)
                incoming = torch.zeros(size, dtype=torch.uint8, device=device)
                busy(device)
                outgoing += 10 * turn + me + 1
                shipments = [
                    Shipment(cargo=cargo, peer=1 - me, tag=0, buffer=incoming, is_receive=True),
                    Shipment(cargo=cargo, peer=1 - me, tag=0, buffer=outgoing, is_receive=False),
                ]
                mover.post(shipments)
                outgoing.zero_()
                shipments[0].wait(LONG_SECONDS)
                doubled = incoming * 2
                assert doubled.unique().tolist() == [2 * (10 * turn + 2 - me)]
        mover.drain(LONG_SECONDS)
        mover.close()

    run_ranks(2, body)


def test_an_arrival_is_known_without_stopping_the_device() -> None:
    """The completion that NCCL shipments have: an event on a side stream, seen by the stream that waits for it."""
    side = torch.cuda.Stream()
    buffer = torch.zeros(1_000_000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy(buffer.device)
        buffer += 1
        event = torch.cuda.Event()
        event.record(side)
    arrival = _Arrival(event)
    assert arrival.wait(LONG_SECONDS)
    assert (buffer + 1).unique().tolist() == [2.0]
    torch.cuda.synchronize()
    assert arrival.is_done()
