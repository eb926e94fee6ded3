"""The mover for GPUs without NCCL, here on buffers of the host: the same threads and stops, without streams."""

from __future__ import annotations

import threading

import pytest
import torch
from rank_threads import Rank, run_ranks

from taot_client.transfers.shipment import Cargo, Shipment, TransferClock, TransferError
from taot_client.transfers.staged_mover import StagedMover

LONG_SECONDS = 30.0
"""A bound against hangs."""


def shipment(peer: int, tag: int, buffer: torch.Tensor, *, is_receive: bool) -> Shipment:
    cargo = Cargo(kind="weights", expert=tag, layer="blocks.1.moe", step=4)
    return Shipment(cargo=cargo, peer=peer, tag=tag, buffer=buffer, is_receive=is_receive)


def content(sender: int, tag: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sender * 100 + tag)
    return torch.randint(0, 256, (5_000_001 if tag == 0 else 1_000,), dtype=torch.uint8, generator=generator)


def test_buffers_arrive_bit_for_bit_in_both_directions_and_a_buffer_sent_may_change_at_once() -> None:
    def body(rank: Rank) -> None:
        me = rank.group.rank
        clock = TransferClock()
        mover = StagedMover(rank.agent_groups.weights, clock=clock, name="weights")
        received = [torch.zeros_like(content(1 - me, tag)) for tag in range(3)]
        for tag in range(3):  # several batches under way at once
            outgoing = content(me, tag)
            mover.post(
                [
                    shipment(1 - me, tag, received[tag], is_receive=True),
                    shipment(1 - me, tag, outgoing, is_receive=False),
                ]
            )
            outgoing.zero_()
        mover.drain(LONG_SECONDS)
        for tag in range(3):
            assert torch.equal(received[tag], content(1 - me, tag))
        assert clock.flight_seconds > 0
        mover.close()

    run_ranks(2, body)


def test_a_shipment_is_done_only_when_its_content_can_be_used() -> None:
    may_send = threading.Event()

    def body(rank: Rank) -> None:
        me = rank.group.rank
        mover = StagedMover(rank.agent_groups.weights, clock=TransferClock(), name="weights")
        if me == 0:
            assert may_send.wait(LONG_SECONDS)
            mover.post([shipment(1, 1, content(0, 1), is_receive=False)])
        else:
            buffer = torch.zeros_like(content(0, 1))
            incoming = shipment(0, 1, buffer, is_receive=True)
            mover.post([incoming])
            assert not incoming.is_done()
            with pytest.raises(TransferError, match=r"weights of expert 1, layer 'blocks.1.moe', step 4 from rank 0"):
                incoming.wait(0.05)
            assert not buffer.any()
            may_send.set()
            incoming.wait(LONG_SECONDS)
            assert incoming.is_done()
            assert torch.equal(buffer, content(0, 1))
        mover.drain(LONG_SECONDS)
        mover.close()

    run_ranks(2, body)


def test_what_cannot_be_posted_fails_when_it_is_waited_for() -> None:
    class Broken:
        def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> None:
            raise RuntimeError("no such peer")

    mover = StagedMover(Broken(), clock=TransferClock(), name="weights")  # type: ignore[arg-type]
    outgoing = shipment(5, 1, content(0, 1), is_receive=False)
    mover.post([outgoing])
    with pytest.raises(TransferError, match="to rank 5 failed: no such peer"):
        outgoing.wait(LONG_SECONDS)
    assert not outgoing.is_done()
    mover.close()


def test_what_is_passed_on_follows_what_it_consists_of_and_sums_are_made_on_the_way() -> None:
    """Rank 0 sends to rank 1, which passes it on to rank 2; rank 2 answers, and rank 1 sends home twice that."""

    def add(total: Shipment) -> None:
        total.buffer.add_(total.after[0].buffer)

    def body(rank: Rank) -> None:
        me = rank.group.rank
        mover = StagedMover(rank.agent_groups.weights, clock=TransferClock(), name="weights")
        wanted = content(0, 1) // 2
        if me == 0:
            summed = torch.zeros_like(wanted)
            mover.post([shipment(1, 1, wanted.clone(), is_receive=False)])
            mover.post([shipment(1, 2, summed, is_receive=True)])
            mover.drain(LONG_SECONDS)
            assert torch.equal(summed, 2 * wanted)
        elif me == 1:
            first = shipment(0, 1, torch.zeros_like(wanted), is_receive=True)
            onward = shipment(2, 1, first.buffer, is_receive=False)
            onward.stage, onward.after = 1, (first,)
            mover.post([onward, first])
            first.wait(LONG_SECONDS)
            part = shipment(2, 2, torch.zeros_like(wanted), is_receive=True)
            total = shipment(0, 2, first.buffer.clone(), is_receive=False)
            total.stage, total.after, total.prepare = 1, (part,), add
            mover.post([part, total])
            mover.drain(LONG_SECONDS)
        else:
            passed_on = shipment(1, 1, torch.zeros_like(wanted), is_receive=True)
            passed_on.stage = 1
            mover.post([passed_on])
            passed_on.wait(LONG_SECONDS)
            assert torch.equal(passed_on.buffer, wanted)
            mover.post([shipment(1, 2, passed_on.buffer, is_receive=False)])
            mover.drain(LONG_SECONDS)
        mover.close()

    run_ranks(3, body)
