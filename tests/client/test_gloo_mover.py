from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_threads import Rank, run_ranks

from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.shipment import Cargo, Shipment, TransferClock, TransferError

SIZES_BYTES = (100_001, 4 * 1024 * 1024, 9_000_000)
"""One piece of odd size, exactly one full piece, two full pieces and a rest."""

LONG_SECONDS = 30.0
"""A bound against hangs; nothing here should come near it."""


def content(sender: int, receiver: int, tag: int, *, num_bytes: int) -> torch.Tensor:
    """Random bytes that only this transfer carries."""
    generator = torch.Generator().manual_seed(sender * 10_007 + receiver * 101 + tag)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def shipment(
    peer: int, tag: int, buffer: torch.Tensor, *, is_receive: bool, kind: str = "weights", expert: int = 0
) -> Shipment:
    cargo = Cargo(kind=kind, expert=expert, layer="blocks.2.moe", step=11)
    return Shipment(cargo=cargo, peer=peer, tag=tag, buffer=buffer, is_receive=is_receive)


def empty(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


@contextmanager
def mover_on(group: dist.ProcessGroup, clock: TransferClock | None = None) -> Iterator[GlooMover]:
    mover = GlooMover(group, clock=clock or TransferClock(), name="weights")
    try:
        yield mover
    finally:
        mover.close()


class RecordingGroup:
    """Notes what is posted on a real group, in order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.posted: list[tuple[str, int, int, int]] = []

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        self.posted.append(("send", peer, tag, tensors[0].numel()))
        return self._group.send(tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        self.posted.append(("receive", peer, tag, tensors[0].numel()))
        return self._group.recv(tensors, peer, tag)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_buffers_of_any_size_arrive_bit_for_bit_in_both_directions(num_ranks: int) -> None:
    sizes = SIZES_BYTES if num_ranks < 4 else SIZES_BYTES[::2]

    def body(rank: Rank) -> None:
        me = rank.group.rank
        posted: list[Shipment] = []
        for tag, num_bytes in enumerate(sizes):
            for peer in range(num_ranks):
                if peer != me:
                    outgoing = content(me, peer, tag, num_bytes=num_bytes)
                    posted.append(shipment(peer, tag, outgoing, is_receive=False))
                    posted.append(shipment(peer, tag, empty(num_bytes), is_receive=True))
        with mover_on(rank.agent_groups.weights) as mover:
            mover.post(posted)
            mover.drain(LONG_SECONDS)
        for each in posted:
            assert each.is_done()
            each.wait(0.0)
            sender, receiver = (each.peer, me) if each.is_receive else (me, each.peer)
            wanted = content(sender, receiver, each.tag, num_bytes=each.buffer.numel())
            assert torch.equal(each.buffer, wanted), f"{sender} to {receiver}, tag {each.tag}"

    run_ranks(num_ranks, body)


def test_receives_are_posted_before_sends_and_in_pieces_of_4_mb() -> None:
    piece, rest = 4 * 1024 * 1024, 9_000_000 - 2 * 4 * 1024 * 1024

    def body(rank: Rank) -> list[tuple[str, int, int, int]]:
        peer = 1 - rank.group.rank
        recording: Any = RecordingGroup(rank.agent_groups.weights)
        posted = [
            shipment(peer, 5, empty(9_000_000), is_receive=False),
            shipment(peer, 5, empty(9_000_000), is_receive=True),
            shipment(peer, 6, empty(64), is_receive=False),
            shipment(peer, 6, empty(64), is_receive=True),
        ]
        with mover_on(recording) as mover:
            mover.post(posted)
            mover.drain(LONG_SECONDS)
        recorded: list[tuple[str, int, int, int]] = recording.posted
        return recorded

    for rank, posted in enumerate(run_ranks(2, body)):
        pieces = [(5, piece), (5, piece), (5, rest), (6, 64)]
        assert posted == [(kind, 1 - rank, tag, size) for kind in ("receive", "send") for tag, size in pieces]


def test_tags_keep_transfers_between_the_same_ranks_apart() -> None:
    tags = [3, 1, 2]

    def body(rank: Rank) -> None:
        with mover_on(rank.agent_groups.weights) as mover:
            if rank.group.rank == 0:
                mover.post([shipment(1, tag, content(0, 1, tag, num_bytes=5000), is_receive=False) for tag in tags])
                mover.drain(LONG_SECONDS)
                return
            # The other way round: without tags, each would get what was meant for another.
            receives = [shipment(0, tag, empty(5000), is_receive=True) for tag in reversed(tags)]
            mover.post(receives)
            mover.drain(LONG_SECONDS)
            for each in receives:
                assert torch.equal(each.buffer, content(0, 1, each.tag, num_bytes=5000)), f"tag {each.tag}"

    run_ranks(2, body)


def test_posting_returns_at_once_and_the_wait_is_bounded_and_says_what_is_missing() -> None:
    given_up = threading.Event()

    def body(rank: Rank) -> str:
        with mover_on(rank.agent_groups.weights) as mover:
            if rank.group.rank == 0:
                assert given_up.wait(LONG_SECONDS)
                mover.post([shipment(1, 7, content(0, 1, 7, num_bytes=1000), is_receive=False)])
                mover.drain(LONG_SECONDS)
                return ""
            late = shipment(0, 7, empty(1000), is_receive=True, kind="gradient", expert=23)
            mover.post([late])
            assert not late.is_done()
            with pytest.raises(TransferError) as refusal:
                late.wait(0.1)
            with pytest.raises(TransferError):
                mover.drain(0.1)
            given_up.set()
            # It was late, not lost: the buffer is still its own, and what arrives at last is complete.
            mover.drain(LONG_SECONDS)
            assert torch.equal(late.buffer, content(0, 1, 7, num_bytes=1000))
            return str(refusal.value)

    message = run_ranks(2, body)[1]
    assert message == "gradient of expert 23, layer 'blocks.2.moe', step 11 from rank 0 did not end within 0.1 s"


@pytest.mark.parametrize("is_receive", [True, False], ids=["receive", "send"])
@pytest.mark.parametrize("posted_before", [True, False], ids=["under way", "not yet posted"])
def test_a_peer_that_goes_away_is_an_error_and_no_hang(is_receive: bool, posted_before: bool) -> None:
    may_leave = threading.Event()

    def body(rank: Rank) -> list[str]:
        if rank.group.rank == 1:
            # Returning drops this rank's groups, and with them its connections.
            assert may_leave.wait(LONG_SECONDS)
            return []
        clock = TransferClock()
        with mover_on(rank.agent_groups.weights, clock) as mover:
            first = shipment(1, 0, empty(9_000_000), is_receive=is_receive, expert=1)
            if posted_before:
                mover.post([first])
            may_leave.set()
            if not posted_before:
                # The end of this wait shows that the connection has gone.
                gone = shipment(1, 9, empty(8), is_receive=True)
                mover.post([gone])
                with pytest.raises(TransferError):
                    gone.wait(LONG_SECONDS)
                mover.post([first])
            messages = []
            for wait in (first.wait, mover.drain):
                with pytest.raises(TransferError) as refusal:
                    wait(LONG_SECONDS)
                messages.append(str(refusal.value))
            assert not first.is_done(), "failed is not done: nobody may use the buffer"
        ended = clock.flight_seconds
        assert clock.flight_seconds == ended, "nothing is in flight any more"
        return messages

    direction = "from" if is_receive else "to"
    waited, drained = run_ranks(2, body)[0]
    assert f"weights of expert 1, layer 'blocks.2.moe', step 11 {direction} rank 1 failed: " in waited
    assert "rank 1 failed: " in drained


def test_the_clock_runs_while_anything_is_in_flight_and_stops_after() -> None:
    both_posted = threading.Barrier(2)

    def body(rank: Rank) -> None:
        peer = 1 - rank.group.rank
        clock = TransferClock()
        with mover_on(rank.agent_groups.weights, clock) as mover:
            receive = shipment(peer, 0, empty(1000), is_receive=True)
            mover.post([receive])
            assert clock.flight_seconds > 0.0
            both_posted.wait(LONG_SECONDS)
            mover.post([shipment(peer, 0, empty(1000), is_receive=False)])
            mover.drain(LONG_SECONDS)
            ended = clock.flight_seconds
            assert clock.flight_seconds == ended > 0.0

    run_ranks(2, body)


def test_draining_forgets_what_has_ended_and_needs_nothing_posted() -> None:
    def body(rank: Rank) -> None:
        peer = 1 - rank.group.rank
        with mover_on(rank.agent_groups.weights) as mover:
            mover.drain(0.0)
            received = [shipment(peer, tag, empty(100), is_receive=True) for tag in range(50)]
            for tag, each in enumerate(received):
                sent = content(rank.group.rank, peer, tag, num_bytes=100)
                mover.post([shipment(peer, tag, sent, is_receive=False), each])
            mover.drain(LONG_SECONDS)
            assert all(each.is_done() for each in received)
            mover.drain(0.0)

    run_ranks(2, body)


def test_closing_ends_the_watchers_once_they_have_seen_everything() -> None:
    def body(rank: Rank) -> list[threading.Thread]:
        before = set(threading.enumerate())
        peer, name = 1 - rank.group.rank, f"rank{rank.group.rank}"
        mover = GlooMover(rank.agent_groups.weights, clock=TransferClock(), name=name)
        watchers = [each for each in threading.enumerate() if each not in before and name in each.name]
        receive = shipment(peer, 0, empty(1000), is_receive=True)
        mover.post([receive, shipment(peer, 0, empty(1000), is_receive=False)])
        mover.close()
        receive.wait(LONG_SECONDS)
        return watchers

    watchers = [thread for threads in run_ranks(2, body) for thread in threads]
    names = sorted(f"taot-rank{rank}-{direction}" for rank in range(2) for direction in ("receives", "relays", "sends"))
    assert sorted(thread.name for thread in watchers) == names
    for thread in watchers:
        thread.join(LONG_SECONDS)
        assert not thread.is_alive()
