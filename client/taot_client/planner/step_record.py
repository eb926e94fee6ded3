"""What the leader tells its peers at each step boundary, so that all ranks do the same in the same step.

A record has a fixed length for a given model and group: it travels as one broadcast. It consists of the mode and its
reason, the plan, and what has been measured of the machine: all that ranks decide by, so that one digest tells whether
they will decide alike.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from taot_api import PlanIdentity
from taot_client.measuring.step_gates import StepGates
from taot_planning.arrays import IntArray

MAX_EPOCH_BYTES = 64
"""Room for the planner epoch of a plan, in UTF-8."""

_HEAD = struct.Struct(f"<qqqq{MAX_EPOCH_BYTES}s")


class StepMode(IntEnum):
    """What the ranks do about placement in one step; fixed for the step."""

    HOME_ONLY = 0
    """Every expert stays home."""

    PLAN = 1
    """The guests of the record's plan."""

    INLINE = 2
    """Every rank plans from the counts at hand."""

    BLOCKING = 3
    """The leader asks the planner for every micro-batch."""

    OBSERVE = 4
    """Every expert stays home; what the record's plan would gain is noted."""


class ModeReason(IntEnum):
    """Why a step has its mode: `AS_CONFIGURED`, or what stood in the way. Names appear in logs and metrics."""

    AS_CONFIGURED = 0
    NO_PLAN_YET = 1
    PLANNER_AWAY = 2
    PLAN_TOO_OLD = 3
    PAUSED = 4
    RECORD_MISMATCH = 5
    DISABLED = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """The leader's decision for one step."""

    step: int
    """The step it is for."""

    mode: StepMode
    """What to do."""

    reason: ModeReason
    """Why."""

    guests_LRK: IntArray
    """Expert in each guest slot, -1 where empty; all -1 without a plan. Shape: [layers, ranks, slots]."""

    identity: PlanIdentity | None = None
    """The plan's identity; None without a plan."""

    gates: StepGates = StepGates()
    """Rates of the machine, and the layers that have no guests."""

    def encode(self) -> bytes:
        """Serializes the record; the same length for every record of a group."""
        epoch = self.identity.planner_epoch.encode() if self.identity else b""
        version = self.identity.version if self.identity else 0
        head = _HEAD.pack(self.step, self.mode, self.reason, version, epoch)
        gates = self.gates.encode(num_layers=self.guests_LRK.shape[0])
        return head + gates + np.ascontiguousarray(self.guests_LRK, dtype="<i4").tobytes()

    @classmethod
    def decode(cls, data: bytes, *, shape: tuple[int, int, int]) -> StepRecord:
        """Reads a record of a group with `shape` [layers, ranks, slots]."""
        step, mode, reason, version, epoch = _HEAD.unpack_from(data)
        gates = StepGates.decode(data, offset=_HEAD.size, num_layers=shape[0])
        offset = _HEAD.size + StepGates.num_bytes(shape[0])
        guests = np.frombuffer(data, dtype="<i4", offset=offset).reshape(shape).astype(np.int64)
        identity = PlanIdentity(planner_epoch=epoch.rstrip(b"\0").decode(), version=version) if version else None
        return cls(
            step=step,
            mode=StepMode(mode),
            reason=ModeReason(reason),
            guests_LRK=guests,
            identity=identity,
            gates=gates,
        )

    @staticmethod
    def num_bytes(shape: tuple[int, int, int]) -> int:
        """Length of every record of a group with `shape` [layers, ranks, slots]."""
        layers, ranks, slots = shape
        return _HEAD.size + StepGates.num_bytes(layers) + 4 * layers * ranks * slots


def record_digest(data: bytes) -> int:
    """64 bits of SHA-256 as a signed integer: what ranks compare before they act on a record."""
    (digest,) = struct.unpack_from("<q", hashlib.sha256(data).digest())
    return int(digest)


def check_identity(identity: PlanIdentity) -> None:
    """Checks that a record can carry the identity of a plan, before any record does.

    Raises:
        ValueError: saying what is wrong with it.
    """
    epoch, version = identity.planner_epoch, identity.version
    if not 1 <= len(epoch.encode()) <= MAX_EPOCH_BYTES or "\0" in epoch:
        raise ValueError(f"a planner epoch must be 1 to {MAX_EPOCH_BYTES} bytes of text, got {epoch[:200]!r}")
    if not 1 <= version < 2**63:
        raise ValueError(f"a plan's version must be between 1 and 2^63-1, got {version}")
