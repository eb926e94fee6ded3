"""A plan as it travels: the guests of every layer under an identity that never means anything else."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

import numpy as np

from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True)
class PlanIdentity:
    """Names one plan for ever: versions of different epochs never mean the same."""

    planner_epoch: str
    """The life of the planner process that made the plan."""

    version: int
    """Grows by one per plan within the epoch, from 1."""


@dataclass(frozen=True, kw_only=True)
class PublishedStats:
    """What the planner expects of a plan: of one layer, or mean imbalances and summed costs of several."""

    imbalance_before: float = 0.0
    """(max - mean) / mean of the ranks' load without guests."""

    imbalance_after: float = 0.0
    """The same with the plan applied."""

    weighted_cost: float = 0.0
    """Sum over guests of the cost of home -> guest rank, relative to the innermost level."""

    transfer_size_bytes: int = 0
    """Bytes of weights to move."""

    planning_seconds: float = 0.0
    """Time spent planning."""

    predicted_gain_seconds: float | None = None
    """Predicted time of the experts without guests minus with the plan; negative when the plan takes longer. None:
    unknown, of several layers also when it is of one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedPlan:
    """One immutable placement of guest experts for all layers of a session."""

    identity: PlanIdentity
    """Which plan this is."""

    source_step: int
    """The step whose counts it was computed from."""

    source_micro_batch: int
    """The micro-batch whose counts it was computed from."""

    guests_L: tuple[IntArray, ...]
    """Expert in each guest slot, -1 where empty, one [ranks, slots] array per layer."""

    stats: PublishedStats = field(default_factory=PublishedStats)
    """Over all layers."""

    layer_stats_L: tuple[PublishedStats, ...] = ()
    """One entry per layer, or none."""

    gates_L: tuple[tuple[str, ...], ...] = ()
    """Names of the rules that changed the plan of each layer, in the order in which they did, or none."""

    quota_L: tuple[IntArray, ...] = ()
    """Tokens of each source rank for each guest slot: [source ranks, ranks, slots] per layer, or none."""

    create_time_seconds: float = 0.0
    """When planning finished, in seconds since 1970."""

    def digest(self) -> bytes:
        """SHA-256 over identity, source and guests, laid out as proto/README.md says; 32 bytes."""
        epoch = self.identity.planner_epoch.encode()
        head = struct.pack("<i", len(epoch)) + epoch
        head += struct.pack(
            "<qqii", self.identity.version, self.source_step, self.source_micro_batch, len(self.guests_L)
        )
        hasher = hashlib.sha256(head)
        for guests_RK in self.guests_L:
            hasher.update(struct.pack("<ii", *guests_RK.shape))
            hasher.update(np.ascontiguousarray(guests_RK, dtype="<i4").tobytes())
        return hasher.digest()
