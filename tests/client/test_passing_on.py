"""What a rank passes on leaves piece by piece while it arrives, and fails as a whole where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from rank_threads import Rank, run_ranks

from taot_client.transfers.gloo_mover import PIECE_BYTES, GlooMover
from taot_client.transfers.shipment import Cargo, Shipment, TransferClock, TransferError

LONG_SECONDS = 30.0
"""A bound against hangs; nothing here should come near it."""

SIZE_BYTES = 2 * PIECE_BYTES + 611
"""Three pieces."""


def content(num_bytes: int = SIZE_BYTES, *, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def shipment(
    peer: int, buffer: torch.Tensor, *, is_receive: bool, stage: int = 0, tag: int = 0, expert: int = 3
) -> Shipment:
    cargo = Cargo(kind="weights", expert=expert, layer="moe", step=11)
    return Shipment(cargo=cargo, peer=peer, tag=tag, buffer=buffer, is_receive=is_receive, stage=stage)


def passing_on(receive: Shipment, peers: list[int]) -> list[Shipment]:
    """Sends to the peers what a receive brings."""
    sends = [shipment(peer, receive.buffer, is_receive=False, stage=1, tag=1) for peer in peers]
    for send in sends:
        send.after = (receive,)
    return sends


def on_mover(rank: Rank, body: Callable[[GlooMover], None]) -> None:
    mover = GlooMover(rank.agent_groups.weights, clock=TransferClock(), name="weights")
    try:
        body(mover)
    finally:
        mover.close()


@pytest.mark.parametrize("num_bytes", [1000, PIECE_BYTES, SIZE_BYTES])
def test_what_is_passed_on_arrives_bit_for_bit_and_is_sent_by_the_rank_between(num_bytes: int) -> None:
    def body(rank: Rank) -> None:
        me = rank.group.rank

        def act(mover: GlooMover) -> None:
            buffer = content(num_bytes) if me == 0 else torch.zeros(num_bytes, dtype=torch.uint8)
            posted = [shipment(0 if me == 1 else 1, buffer, is_receive=True, stage=int(me > 1), tag=int(me > 1))]
            if me == 0:
                posted = [shipment(1, buffer, is_receive=False)]
            elif me == 1:
                posted += passing_on(posted[0], [2, 3])
            mover.post(posted)
            mover.drain(LONG_SECONDS)
            assert torch.equal(buffer, content(num_bytes))
            assert all(each.is_done() for each in posted)

        on_mover(rank, act)

    run_ranks(4, body)


def test_a_piece_is_passed_on_before_the_next_one_has_come() -> None:
    first_is_there = threading.Event()

    def body(rank: Rank) -> None:
        me, group, source = rank.group.rank, rank.agent_groups.weights, content()
        pieces = torch.split(source if me == 0 else torch.zeros_like(source), PIECE_BYTES)
        if me == 0:
            group.send([pieces[0]], 1, 0).wait()
            assert first_is_there.wait(LONG_SECONDS), "the first piece waits for the others"
            for piece in pieces[1:]:
                group.send([piece], 1, 0).wait()
        elif me == 1:

            def act(mover: GlooMover) -> None:
                receive = shipment(0, torch.zeros_like(source), is_receive=True)
                mover.post([receive, *passing_on(receive, [2])])
                mover.drain(LONG_SECONDS)

            on_mover(rank, act)
        else:
            for index, piece in enumerate(pieces):
                group.recv([piece], 1, 1).wait()
                assert torch.equal(piece, torch.split(source, PIECE_BYTES)[index])
                first_is_there.set()

    run_ranks(3, body)


def test_what_arrived_long_ago_is_passed_on_as_well() -> None:
    def body(rank: Rank) -> None:
        me = rank.group.rank

        def act(mover: GlooMover) -> None:
            buffer = content() if me == 0 else torch.zeros(SIZE_BYTES, dtype=torch.uint8)
            first = shipment(1, buffer, is_receive=False) if me == 0 else shipment(0, buffer, is_receive=True)
            if me < 2:
                mover.post([first])
                mover.drain(LONG_SECONDS)
            if me > 0:
                mover.post(passing_on(first, [2]) if me == 1 else [shipment(1, buffer, is_receive=True, tag=1)])
            mover.drain(LONG_SECONDS)
            assert torch.equal(buffer, content())

        on_mover(rank, act)

    run_ranks(3, body)


def test_two_ranks_that_pass_on_to_each_other_do_not_wait_for_each_other() -> None:
    # Ranks 0 and 2 both collect: 0 gets a part from 1 and sends it to 2, which gets one from 3 and sends it to 0.
    # What is passed on is named first, as no schedule would: a mover that watched it first would never see the parts.
    def body(rank: Rank) -> None:
        me = rank.group.rank

        def act(mover: GlooMover) -> None:
            if me in (1, 3):
                mover.post([shipment(me - 1, content(seed=me), is_receive=False)])
                mover.drain(LONG_SECONDS)
                return
            part = shipment(me + 1, torch.zeros(SIZE_BYTES, dtype=torch.uint8), is_receive=True)
            total = shipment(2 - me, torch.zeros(SIZE_BYTES, dtype=torch.uint8), is_receive=True, stage=1, tag=1)
            mover.post([total, *passing_on(part, [2 - me]), part])
            mover.drain(LONG_SECONDS)
            assert torch.equal(total.buffer, content(seed=3 - me))

        on_mover(rank, act)

    run_ranks(4, body)


def test_a_rank_that_dies_while_it_passes_on_is_an_error_at_both_its_ends() -> None:
    may_leave = threading.Event()
    all_posted = threading.Barrier(3)

    def body(rank: Rank) -> list[str]:
        me, messages = rank.group.rank, []
        if me == 1:
            # A third of what it should receive and pass on, then nothing: its connections go with its groups.
            part = torch.zeros(PIECE_BYTES, dtype=torch.uint8)
            rank.agent_groups.weights.recv([part], 0, 0).wait()
            rank.agent_groups.weights.send([part], 2, 1).wait()
            all_posted.wait(LONG_SECONDS)
            assert may_leave.wait(LONG_SECONDS)
            return []

        def act(mover: GlooMover) -> None:
            each = shipment(1, content(), is_receive=me == 2, stage=int(me == 2), tag=int(me == 2))
            mover.post([each])
            all_posted.wait(LONG_SECONDS)
            assert not each.is_done()
            may_leave.set()
            for wait in (each.wait, mover.drain):
                with pytest.raises(TransferError) as refusal:
                    wait(LONG_SECONDS)
                messages.append(str(refusal.value))
            assert not each.is_done()

        on_mover(rank, act)
        return messages

    sender, _, receiver = run_ranks(3, body)
    assert all(each.startswith("weights of expert 3, layer 'moe', step 11 to rank 1 failed: ") for each in sender)
    assert all(each.startswith("weights of expert 3, layer 'moe', step 11 from rank 1 failed: ") for each in receiver)


def test_a_source_that_dies_is_an_error_for_all_that_it_should_reach() -> None:
    may_leave, told = threading.Event(), threading.Barrier(2)

    def body(rank: Rank) -> list[str]:
        me, messages = rank.group.rank, []
        if me == 0:
            rank.agent_groups.weights.send([content(PIECE_BYTES)], 1, 0).wait()
            assert may_leave.wait(LONG_SECONDS)
            return []

        def act(mover: GlooMover) -> None:
            buffer = torch.zeros(SIZE_BYTES, dtype=torch.uint8)
            if me == 1:
                receive = shipment(0, buffer, is_receive=True)
                (send,) = posted = passing_on(receive, [2])
                mover.post([receive, *posted])
            else:
                send = shipment(1, buffer, is_receive=True, stage=1, tag=1)
                mover.post([send])
            may_leave.set()
            with pytest.raises(TransferError) as refusal:
                # The rank between is alive: nothing but its own patience tells rank 2.
                send.wait(LONG_SECONDS if me == 1 else 1.0)
            messages.append(str(refusal.value))
            told.wait(LONG_SECONDS)

        on_mover(rank, act)
        return messages

    _, between, last = run_ranks(3, body)
    assert between[0].startswith(
        "weights of expert 3, layer 'moe', step 11 to rank 2 failed: there is nothing to pass on: "
    )
    assert last == ["weights of expert 3, layer 'moe', step 11 from rank 1 did not end within 1.0 s"]


def test_the_sends_of_what_is_passed_on_are_seen_to_their_end_after_closing() -> None:
    may_send = threading.Event()

    def body(rank: Rank) -> None:
        me, buffer = rank.group.rank, torch.zeros(SIZE_BYTES, dtype=torch.uint8)
        if me == 0:
            assert may_send.wait(LONG_SECONDS)
            for piece in torch.split(content(), PIECE_BYTES):
                rank.agent_groups.weights.send([piece], 1, 0).wait()
            return
        mover = GlooMover(rank.agent_groups.weights, clock=TransferClock(), name="weights")
        receive = shipment(me - 1, buffer, is_receive=True, stage=me - 1, tag=me - 1)
        sends = passing_on(receive, [2]) if me == 1 else []
        mover.post([receive, *sends])
        mover.close()
        may_send.set()
        for each in (receive, *sends):
            each.wait(LONG_SECONDS)
        assert torch.equal(buffer, content())

    run_ranks(3, body)
