"""Carries the leader's decisions to its peers and makes sure that all ranks hold the same one."""

from __future__ import annotations

import torch
import torch.distributed as dist

from taot_client.groups import ExpertParallelGroup, all_gather_host, peers_named
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord, record_digest
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray

LEADER = 0
"""The rank that speaks to the planner."""


class StepControl:
    """The control group of one expert-parallel group. Every method is collective."""

    def __init__(self, control: dist.ProcessGroup, group: ExpertParallelGroup, *, shape: tuple[int, int, int]) -> None:
        """Prepares records of `shape` [layers, ranks, slots]."""
        self._control = control
        self._group = group
        self._shape = shape
        self._pending: tuple[torch.Tensor, dist.Work] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a record has been offered and not taken."""
        return self._pending is not None

    def offer(self, record: StepRecord | None) -> None:
        """Starts the broadcast of a record and returns at once. The leader gives the record, others None."""
        if record is None:
            buffer = torch.zeros(StepRecord.num_bytes(self._shape), dtype=torch.uint8)
        else:
            buffer = torch.frombuffer(bytearray(record.encode()), dtype=torch.uint8)
        with peers_named("the end of a step"):
            self._pending = (buffer, self._broadcast(buffer))

    def take(self, *, step: int, weight_epoch: int) -> StepRecord:
        """Waits for the record that was offered and compares it among the ranks before anybody acts on it.

        Ranks that hold different records, or are at different steps, all get a home-only record instead.
        """
        assert self._pending is not None, "a record is offered before it is taken"
        buffer, work = self._pending
        self._pending = None
        with peers_named(f"the begin of step {step}"):
            work.wait()
            data = bytes(buffer.numpy())
            held = torch.tensor([step, weight_epoch, record_digest(data)])
            held_R = all_gather_host(self._control, held, size=self._group.size).tolist()
        record = StepRecord.decode(data, shape=self._shape) if held_R.count(held_R[0]) == len(held_R) else None
        if record is None or record.step != step:
            return self._home_only(step)
        return record

    def _home_only(self, step: int) -> StepRecord:
        return StepRecord(
            step=step,
            mode=StepMode.HOME_ONLY,
            reason=ModeReason.RECORD_MISMATCH,
            guests_LRK=torch.full(self._shape, EMPTY_SLOT).numpy(),
        )

    def gather(self, values_N: IntArray) -> IntArray:
        """Gathers what every rank has measured. Shape: [ranks, numbers]."""
        with peers_named("the end of a step"):
            rows = all_gather_host(self._control, torch.from_numpy(values_N), size=self._group.size)
        rows_RN: IntArray = rows.numpy()
        return rows_RN

    def share_answer(self, guests_RK: IntArray | None) -> IntArray | None:
        """Hands the leader's answer for one layer to all ranks: guests [ranks, slots], or None.

        What others than the leader pass in is ignored.
        """
        _, ranks, slots = self._shape
        answer = torch.zeros(1 + ranks * slots, dtype=torch.int64)
        if guests_RK is not None:
            answer[0] = 1
            answer[1:] = torch.from_numpy(guests_RK.copy()).flatten()
        with peers_named("the wait for the leader's answer"):
            self._broadcast(answer).wait()
        return answer[1:].view(ranks, slots).numpy() if answer[0] else None

    def _broadcast(self, buffer: torch.Tensor) -> dist.Work:
        options = dist.BroadcastOptions()
        options.rootRank = LEADER
        options.rootTensor = 0
        return self._control.broadcast([buffer], options)
