"""A trace: the routing of a training job, recorded, and the job's layers and topology.

`trace_folder` keeps it on disk; recorders write it and `taot replay` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taot_api.session_spec import LayerSpec
from taot_planning import Topology
from taot_planning.arrays import MAX_COUNT
from taot_planning.layer_problem import check_homes

COUNT_BYTES = 4
"""Counts are kept as int32, the type that holds `MAX_COUNT`."""

MAX_NAME_LENGTH = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceHeader:
    """What stays the same over a trace: one expert-parallel group of one job."""

    training_job: str
    """The job, for people. At most 128 characters."""

    topology: Topology
    """The ranks of the group, and the guest slots they had while it was recorded."""

    layers: tuple[LayerSpec, ...]
    """In forward order, at least one."""

    def __post_init__(self) -> None:
        if len(self.training_job) > MAX_NAME_LENGTH:
            raise ValueError(f"the job's name may have {MAX_NAME_LENGTH} characters, got {len(self.training_job)}")
        if not self.layers:
            raise ValueError("a trace needs at least one layer")
        for layer in self.layers:
            try:
                check_homes(layer.home_E, num_ranks=self.topology.num_ranks)
            except ValueError as error:
                raise ValueError(f"layer {layer.name!r}: {error}") from error

    @property
    def shapes_L(self) -> list[tuple[int, int]]:
        """Ranks and experts of each layer."""
        return [(self.topology.num_ranks, layer.num_experts) for layer in self.layers]

    @property
    def record_bytes(self) -> int:
        """Size of the counts of one micro-batch, uncompressed."""
        return COUNT_BYTES * sum(ranks * experts for ranks, experts in self.shapes_L)


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceRecord:
    """The routing of one micro-batch through all layers."""

    step: int
    """Optimizer step, from 0."""

    micro_batch: int
    """Micro-batch within the step, from 0."""

    counts_L: tuple[NDArray[np.int32], ...]
    """Tokens of each source rank for each expert, by layer. Shape of each: [ranks, experts]."""


def check_record(record: TraceRecord, header: TraceHeader) -> None:
    """Checks that a record belongs to a trace with this header.

    Raises:
        ValueError: naming the layer and what is wrong with its counts.
    """
    if record.step < 0 or record.micro_batch < 0:
        raise ValueError(f"steps and micro-batches count from 0, got step {record.step}, {record.micro_batch}")
    if len(record.counts_L) != len(header.layers):
        raise ValueError(f"the trace has {len(header.layers)} layers, got counts of {len(record.counts_L)}")
    for layer, counts_RE, shape in zip(header.layers, record.counts_L, header.shapes_L, strict=True):
        if counts_RE.shape != shape:
            raise ValueError(f"layer {layer.name!r}: counts must be {list(shape)}, got {list(counts_RE.shape)}")
        if counts_RE.dtype.kind not in "iu":
            raise ValueError(f"layer {layer.name!r}: counts must be whole numbers, got {counts_RE.dtype}")
        if counts_RE.min() < 0 or counts_RE.max() > MAX_COUNT:
            bad = counts_RE.min() if counts_RE.min() < 0 else counts_RE.max()
            raise ValueError(f"layer {layer.name!r}: counts must be between 0 and 2^31-1, got {bad}")


def check_order(places: Sequence[tuple[int, int]]) -> None:
    """Checks that (step, micro-batch) pairs rise strictly.

    Raises:
        ValueError: naming the first pair that does not.
    """
    for before, after in zip(places, places[1:], strict=False):
        if after <= before:
            raise ValueError(
                f"step {after[0]}, micro-batch {after[1]} comes after step {before[0]}, micro-batch {before[1]}"
            )
