from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rank_threads import Rank, run_ranks

from taot_api import PlanIdentity
from taot_client.planner.step_control import LEADER, StepControl
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord
from taot_planning.arrays import IntArray

SHAPE = (2, 3, 2)
"""Layers, ranks, slots."""


def make_record(step: int) -> StepRecord:
    """A record whose guests name their place and step."""
    return StepRecord(
        step=step,
        mode=StepMode.PLAN,
        reason=ModeReason.AS_CONFIGURED,
        guests_LRK=np.arange(12).reshape(SHAPE) + 100 * step,
        identity=PlanIdentity(planner_epoch="epoch", version=step + 1),
    )


def offer(control: StepControl, rank: Rank, *, step: int) -> None:
    control.offer(make_record(step) if rank.group.rank == LEADER else None)


def held_buffer(control: StepControl) -> IntArray:
    """The bytes that this rank has received and not yet looked at."""
    assert control._pending is not None
    buffer, work = control._pending
    work.wait()
    received: IntArray = buffer.numpy()
    return received


def take_all(change: Callable[[StepControl, Rank], None]) -> list[StepRecord]:
    """Offers a record, lets `change` spoil what one rank holds, and takes it on every rank; then the next one."""

    def body(rank: Rank) -> StepRecord:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        offer(control, rank, step=0)
        change(control, rank)
        record = control.take(step=0, weight_epoch=0)
        # The ranks are still in step with each other: the next record goes through.
        offer(control, rank, step=1)
        assert control.take(step=1, weight_epoch=1).identity == make_record(1).identity
        return record

    return run_ranks(3, body)


def assert_home_only(record: StepRecord, *, step: int = 0) -> None:
    assert (record.step, record.mode) == (step, StepMode.HOME_ONLY)
    assert record.reason is ModeReason.RECORD_MISMATCH
    assert record.identity is None
    assert record.guests_LRK.shape == SHAPE
    assert (record.guests_LRK == -1).all()


def test_all_ranks_take_the_leaders_record_step_after_step() -> None:
    def body(rank: Rank) -> list[bytes]:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        taken = []
        for step in range(5):
            assert not control.is_pending
            offer(control, rank, step=step)
            assert control.is_pending
            taken.append(control.take(step=step, weight_epoch=step).encode())
        assert not control.is_pending
        return taken

    assert run_ranks(3, body) == [[make_record(step).encode() for step in range(5)]] * 3


@pytest.mark.parametrize("spoilt_rank", [0, 2])
@pytest.mark.parametrize("position", [0, 8, 100, -1], ids=["step", "mode", "epoch", "guest"])
def test_a_rank_with_another_record_sends_everybody_home(spoilt_rank: int, position: int) -> None:
    def spoil(control: StepControl, rank: Rank) -> None:
        if rank.group.rank == spoilt_rank:
            # 0xff makes the mode and the epoch unreadable as well: nobody may try.
            held_buffer(control)[position] ^= 0xFF

    for record in take_all(spoil):
        assert_home_only(record)


def test_a_rank_that_waits_for_an_older_step_sends_everybody_home() -> None:
    def body(rank: Rank) -> StepRecord:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        offer(control, rank, step=4)
        return control.take(step=3 if rank.group.rank == 1 else 4, weight_epoch=0)

    for rank, record in enumerate(run_ranks(3, body)):
        assert_home_only(record, step=3 if rank == 1 else 4)


def test_a_rank_with_weights_of_another_epoch_sends_everybody_home() -> None:
    def body(rank: Rank) -> StepRecord:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        offer(control, rank, step=0)
        return control.take(step=0, weight_epoch=int(rank.group.rank == 2))

    for record in run_ranks(3, body):
        assert_home_only(record)


def test_a_record_of_another_step_than_all_ranks_are_at_sends_everybody_home() -> None:
    def body(rank: Rank) -> StepRecord:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        offer(control, rank, step=8)
        return control.take(step=9, weight_epoch=0)

    for record in run_ranks(3, body):
        assert_home_only(record, step=9)


def test_a_record_is_offered_before_it_is_taken() -> None:
    def body(rank: Rank) -> None:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        with pytest.raises(AssertionError, match="offered before"):
            control.take(step=0, weight_epoch=0)

    run_ranks(1, body)


def test_the_leaders_answer_reaches_all_ranks_and_only_the_leaders() -> None:
    leaders, others = np.array([[3, -1], [0, 5], [-1, -1]]), np.full((3, 2), 77)

    def body(rank: Rank) -> list[list[int] | None]:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        is_leader = rank.group.rank == LEADER
        answers = [
            control.share_answer(leaders if is_leader else None),
            control.share_answer(leaders if is_leader else others),
            control.share_answer(None if is_leader else others),
            control.share_answer(np.asfortranarray(leaders) if is_leader else None),
        ]
        return [None if answer is None else answer.tolist() for answer in answers]

    wanted = leaders.tolist()
    assert run_ranks(3, body) == [[wanted, wanted, None, wanted]] * 3


def test_an_answer_can_be_given_while_the_next_record_is_on_its_way() -> None:
    guests_RK = np.arange(6).reshape(3, 2)

    def body(rank: Rank) -> tuple[list[int], int]:
        control = StepControl(rank.agent_groups.control, rank.group, shape=SHAPE)
        offer(control, rank, step=0)
        answer = control.share_answer(guests_RK if rank.group.rank == LEADER else None)
        assert answer is not None
        return answer.flatten().tolist(), control.take(step=0, weight_epoch=0).step

    assert run_ranks(3, body) == [(list(range(6)), 0)] * 3
