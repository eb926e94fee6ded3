"""What every rank tells every other before a layer's tokens travel: its counts, and whether its guests are there.

One gather on the host per layer and micro-batch. Its outcome, equal on all ranks, is all that decisions inside a
step rest on. What a rank has measured rides along, so that the leader can report for everybody.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from taot_client.device import to_host
from taot_client.groups import ExpertParallelGroup, all_gather_host, peers_named
from taot_planning.arrays import MAX_COUNT, IntArray
from taot_planning.kernel import kernel

NO_STEP = -1
"""The step of passes outside training."""


@dataclass(frozen=True, kw_only=True)
class CallSite:
    """Where in the program a rank is; ranks that gather together must agree on it."""

    step: int
    """Optimizer step, -1 outside training."""

    micro_batch: int
    """Micro-batch within the step."""

    layer: int
    """Index of the layer in forward order."""

    def __str__(self) -> str:
        if self.step == NO_STEP:
            return "a forward outside training"
        return f"step {self.step}, micro-batch {self.micro_batch}, layer {self.layer}"


class Measured(NamedTuple):
    """What one rank has measured since its start; whole numbers, since they travel with the counts."""

    exposed_us: int = 0
    """Microseconds the training thread stood still for guest weights or gradients."""

    flight_us: int = 0
    """Microseconds at least one guest transfer was in flight."""

    intra_node_sent_bytes: int = 0
    """Guest weights and gradients sent within the node."""

    inter_node_sent_bytes: int = 0
    """Guest weights and gradients sent across nodes."""

    computed_tokens: int = 0
    """Tokens computed in the layer of the gather, by all passes before this one."""


_COMPUTED_TOKENS = Measured._fields.index("computed_tokens")

_HEADER_WORDS = 6 + len(Measured._fields)
_HEADER = struct.Struct(f"={_HEADER_WORDS}q")
"""What stands before the counts in a message: step, micro-batch, layer, valid tokens, ready bits, weight changes, and
what the rank has measured."""

_NOTHING_MEASURED = Measured()


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalCounts:
    """The routing of one rank's tokens in one layer."""

    counts_E: IntArray
    """Valid choices of each expert. Shape: [experts]."""

    valid_tokens: int
    """Tokens with at least one valid choice."""

    invalid_ids: int
    """Choices outside the experts: padding, or a broken router."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GatheredCounts:
    """What all ranks said."""

    counts_RE: IntArray
    """Tokens of each source rank for each expert, read-only. Shape: [ranks, experts]."""

    valid_tokens_R: IntArray
    """Tokens with at least one valid choice on each rank. Shape: [ranks]."""

    ready_bits_R: IntArray
    """One bit per slot: its guest has arrived. Shape: [ranks]."""

    weight_changes_R: IntArray
    """Changes of the weights that each rank has announced in this step, see `WeightChanges`. Shape: [ranks]."""

    measured_RM: IntArray
    """What each rank has measured, in the order of `Measured`. Shape: [ranks, 5]."""

    @property
    def computed_tokens_R(self) -> IntArray:
        """Tokens that each rank has computed in the layer before. Shape: [ranks]."""
        computed_R: IntArray = self.measured_RM[:, _COMPUTED_TOKENS]
        return computed_R

    @property
    def measured_R(self) -> tuple[Measured, ...]:
        """What each rank has measured."""
        return tuple(map(Measured._make, self.measured_RM.tolist()))


def count_choices(experts_TK: torch.Tensor, *, num_experts: int) -> LocalCounts:
    """Counts the choices of each expert, leaving out ids outside 0 to `num_experts` - 1.

    Args:
        experts_TK: chosen experts, integers. Shape: [tokens, choices].
        num_experts: experts in the layer.
    """
    if experts_TK.device.type == "cpu":
        counted_N = _count_on_host(np.ascontiguousarray(experts_TK.numpy(), dtype=np.int64), num_experts)
    else:
        counted_N = _count_on_device(experts_TK, num_experts)
    return LocalCounts(
        counts_E=counted_N[:num_experts], invalid_ids=int(counted_N[num_experts]), valid_tokens=int(counted_N[-1])
    )


def _count_on_device(experts_TK: torch.Tensor, num_experts: int) -> IntArray:
    """What `_count_on_host` returns, brought to the host in one piece."""
    valid_TK = (experts_TK >= 0) & (experts_TK < num_experts)
    bins = torch.where(valid_TK, experts_TK, num_experts).flatten()
    counts_E1 = torch.bincount(bins, minlength=num_experts + 1)
    counted_N: IntArray = to_host(torch.cat([counts_E1, valid_TK.any(dim=1).sum()[None]])).numpy()
    return counted_N


@kernel
def _count_on_host(experts_TK: IntArray, num_experts: int) -> IntArray:
    """The choices of each expert, those outside the experts, and the tokens with a valid one. Shape: [experts + 2]."""
    counted_N = np.zeros(num_experts + 2, dtype=np.int64)
    for token in range(experts_TK.shape[0]):
        has_valid = False
        for choice in range(experts_TK.shape[1]):
            expert = experts_TK[token, choice]
            if 0 <= expert < num_experts:
                counted_N[expert] += 1
                has_valid = True
            else:
                counted_N[num_experts] += 1
        counted_N[num_experts + 1] += has_valid
    return counted_N


@kernel
def _take_counts(rows_RN: IntArray, counts_RE: IntArray) -> bool:
    """Copies the counts behind the headers; whether all are in range and all ranks at the same place of the program."""
    num_ranks, num_experts = counts_RE.shape
    header = rows_RN.shape[1] - num_experts
    is_right = True
    for rank in range(num_ranks):
        for place in range(3):
            is_right &= rows_RN[rank, place] == rows_RN[0, place]
        for expert in range(num_experts):
            counts_RE[rank, expert] = rows_RN[rank, header + expert]
            is_right &= 0 <= counts_RE[rank, expert] <= MAX_COUNT
    return is_right


def warm_up() -> None:
    """Compiles the kernels, so that no first call in a training step does."""
    count_choices(torch.zeros(1, 1, dtype=torch.int64), num_experts=1)
    _take_counts(np.zeros((1, _HEADER_WORDS + 1), dtype=np.int64), np.empty((1, 1), dtype=np.int64))


def gather_counts(
    group: ExpertParallelGroup,
    local: LocalCounts,
    *,
    site: CallSite,
    ready_bits: int = 0,
    weight_changes: int = 0,
    measured: Measured = _NOTHING_MEASURED,
) -> GatheredCounts:
    """Gathers the counts of all ranks. Collective, on the host.

    Raises:
        RuntimeError: if the ranks are at different places of the program; every rank says so.
        ValueError: if a rank has sent a count that is none.
    """
    message = np.empty(_HEADER_WORDS + local.counts_E.size, dtype=np.int64)
    _HEADER.pack_into(
        message.data,
        0,
        *(site.step, site.micro_batch, site.layer, local.valid_tokens, ready_bits, weight_changes),
        *measured,
    )
    message[_HEADER_WORDS:] = local.counts_E
    with peers_named("the counts gather of", site):
        rows = all_gather_host(group.counts, torch.from_numpy(message), size=group.size).numpy()
    counts_RE = np.empty((group.size, local.counts_E.size), dtype=np.int64)
    if not _take_counts(rows, counts_RE):
        _refuse(rows, counts_RE)
    counts_RE.setflags(write=False)
    return GatheredCounts(
        counts_RE=counts_RE,
        valid_tokens_R=rows[:, 3],
        ready_bits_R=rows[:, 4],
        weight_changes_R=rows[:, 5],
        measured_RM=rows[:, 6:_HEADER_WORDS],
    )


def _refuse(rows_RN: IntArray, counts_RE: IntArray) -> None:
    """Raises the error for what ranks have sent."""
    sites_R3 = rows_RN[:, :3]
    if (sites_R3 != sites_R3[0]).any():
        places = "; ".join(
            f"rank {rank}: step {step}, micro-batch {micro_batch}, layer {layer}"
            for rank, (step, micro_batch, layer) in enumerate(sites_R3.tolist())
        )
        raise RuntimeError(f"the ranks of the group are at different places of the program: {places}")
    rank, expert = np.argwhere((counts_RE < 0) | (counts_RE > MAX_COUNT))[0].tolist()
    raise ValueError(
        f"counts must be between 0 and 2^31-1, rank {rank} has sent {counts_RE[rank, expert]} for expert {expert}"
    )
