"""What every rank tells every other before a layer's tokens travel: its counts, and whether its guests are there.

One gather on the host per layer and micro-batch. Its outcome, equal on all ranks, is all that decisions inside a
step rest on. What a rank has measured rides along, so that the leader can report for everybody.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import torch

from taot_client.device import to_host
from taot_client.groups import ExpertParallelGroup, peers_named
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import MAX_COUNT, IntArray, read_only
from taot_planning.kernel import kernel

NO_STEP = -1
"""The step of passes outside training."""


class CallSite(NamedTuple):
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


_READY_BITS, _WEIGHT_CHANGES, _FIRST_MEASURED = 4, 5, 6
COMPUTED_TOKENS = _FIRST_MEASURED + Measured._fields.index("computed_tokens")
"""Places in a header."""

_HEADER_WORDS = _FIRST_MEASURED + len(Measured._fields)
_HEADER = struct.Struct(f"={_HEADER_WORDS}q")
"""What stands before the counts in a message: step, micro-batch, layer, valid tokens, ready bits, weight changes, and
what the rank has measured."""

_NOTHING_MEASURED = Measured()

NO_GUESTS = read_only(np.empty((0, 0), dtype=np.int64))
"""A placement of which nobody asks what has arrived."""


class LocalCounts(NamedTuple):
    """The routing of one rank's tokens in one layer."""

    counts_E: IntArray
    """Valid choices of each expert. Shape: [experts]."""

    valid_tokens: int
    """Tokens with at least one valid choice."""

    invalid_ids: int
    """Choices outside the experts: padding, or a broken router."""


class GatheredCounts(NamedTuple):
    """What all ranks said."""

    counts_RE: IntArray
    """Tokens of each source rank for each expert, read-only. Shape: [ranks, experts]."""

    headers_RH: IntArray
    """What stood before the counts, see `_HEADER`. Shape: [ranks, header words]."""

    num_weight_changes: int
    """Changes of the weights that all ranks together have announced in this step, see `WeightChanges`."""

    are_guests_there: bool
    """Whether all guests of the placement asked about have arrived."""

    @property
    def valid_tokens_R(self) -> IntArray:
        """Tokens with at least one valid choice on each rank. Shape: [ranks]."""
        return self.headers_RH[:, 3]

    @property
    def ready_bits_R(self) -> IntArray:
        """One bit per slot: its guest has arrived. Shape: [ranks]."""
        return self.headers_RH[:, _READY_BITS]

    @property
    def computed_tokens_R(self) -> IntArray:
        """Tokens that each rank has computed in the layer before. Shape: [ranks]."""
        return self.headers_RH[:, COMPUTED_TOKENS]

    @property
    def measured_R(self) -> tuple[Measured, ...]:
        """What each rank has measured."""
        return tuple(map(Measured._make, self.headers_RH[:, _FIRST_MEASURED:].tolist()))

    def without_guests(self) -> GatheredCounts:
        """The same where no guest has arrived."""
        headers_RH = self.headers_RH.copy()
        headers_RH[:, _READY_BITS] = 0
        return self._replace(headers_RH=headers_RH, are_guests_there=False)


class GatherRoom:
    """Memory for the gathers of one layer, which come one after the other. Making it anew costs more than they do."""

    def __init__(self, *, num_ranks: int, num_experts: int) -> None:
        """Room for the counts of a group."""
        # On the host also where a model is built under another device.
        self.message = torch.empty(_HEADER_WORDS + num_experts, dtype=torch.int64, device="cpu")
        self.gathered = torch.empty(num_ranks * self.message.numel(), dtype=torch.int64, device="cpu")
        self.rows_RN: IntArray = self.gathered.view(num_ranks, -1).numpy()
        message_N: IntArray = self.message.numpy()
        self.header = message_N.data
        self.counts_E: IntArray = message_N[_HEADER_WORDS:]


def count_choices(experts_TK: torch.Tensor, *, num_experts: int, room: GatherRoom | None = None) -> LocalCounts:
    """Counts the choices of each expert, leaving out ids outside 0 to `num_experts` - 1.

    Args:
        experts_TK: chosen experts, integers. Shape: [tokens, choices].
        num_experts: experts in the layer.
        room: of the gather that follows, in which the counts then lie; None: in memory of their own.
    """
    counts_E = np.empty(num_experts, dtype=np.int64) if room is None else room.counts_E
    if experts_TK.device.type == "cpu":
        valid, invalid = _count_on_host(np.ascontiguousarray(experts_TK.numpy(), dtype=np.int64), counts_E)
    else:
        counted_N = _count_on_device(experts_TK, num_experts)
        counts_E[:] = counted_N[:num_experts]
        invalid, valid = counted_N[num_experts:].tolist()
    return LocalCounts(counts_E, valid, invalid)


def _count_on_device(experts_TK: torch.Tensor, num_experts: int) -> IntArray:
    """The choices of each expert, those outside, and the tokens with a valid one, brought to the host in one piece.

    Shape: [experts + 2].
    """
    valid_TK = (experts_TK >= 0) & (experts_TK < num_experts)
    bins = torch.where(valid_TK, experts_TK, num_experts).flatten()
    counts_E1 = torch.bincount(bins, minlength=num_experts + 1)
    counted_N: IntArray = to_host(torch.cat([counts_E1, valid_TK.any(dim=1).sum()[None]])).numpy()
    return counted_N


@kernel
def _count_on_host(experts_TK: IntArray, counts_E: IntArray) -> tuple[int, int]:
    """Fills in the choices of each expert; returns the tokens with a valid one, and the choices outside the experts."""
    counts_E[:] = 0
    valid_tokens, invalid_ids = 0, 0
    for token in range(experts_TK.shape[0]):
        has_valid = False
        for choice in range(experts_TK.shape[1]):
            expert = experts_TK[token, choice]
            if 0 <= expert < counts_E.size:
                counts_E[expert] += 1
                has_valid = True
            else:
                invalid_ids += 1
        valid_tokens += has_valid
    return valid_tokens, invalid_ids


@kernel
def _part_rows(rows_RN: IntArray, num_experts: int, guests_RK: IntArray) -> tuple[IntArray, IntArray, int, bool, bool]:
    """Copies of the counts and of the headers before them, and what the headers say.

    That is how many changes of the weights there are, whether all guests have arrived, and whether all counts are in
    range and all ranks at the same place of the program.
    """
    num_ranks, num_words = rows_RN.shape[0], rows_RN.shape[1] - num_experts
    counts_RE = np.empty((num_ranks, num_experts), dtype=np.int64)
    headers_RH = np.empty((num_ranks, num_words), dtype=np.int64)
    num_changes, are_there, is_right = 0, True, True
    for rank in range(num_ranks):
        for word in range(num_words):
            headers_RH[rank, word] = rows_RN[rank, word]
        for place in range(3):
            is_right &= rows_RN[rank, place] == rows_RN[0, place]
        num_changes += rows_RN[rank, _WEIGHT_CHANGES]
        for expert in range(num_experts):
            counts_RE[rank, expert] = rows_RN[rank, num_words + expert]
            is_right &= 0 <= counts_RE[rank, expert] <= MAX_COUNT
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            are_there &= guests_RK[rank, slot] == EMPTY_SLOT or rows_RN[rank, _READY_BITS] >> slot & 1 == 1
    return counts_RE, headers_RH, num_changes, are_there, is_right


def warm_up() -> None:
    """Compiles the kernels, so that no first call in a training step does."""
    room = GatherRoom(num_ranks=2, num_experts=1)
    count_choices(torch.zeros(1, 1, dtype=torch.int64), num_experts=1, room=room)
    room.gathered.zero_()
    _part_rows(room.rows_RN, 1, NO_GUESTS)


def gather_counts(  # noqa: PLR0913 - what a rank has to say
    group: ExpertParallelGroup,
    local: LocalCounts,
    *,
    site: CallSite,
    ready_bits: int = 0,
    weight_changes: int = 0,
    measured: Measured = _NOTHING_MEASURED,
    guests_RK: IntArray = NO_GUESTS,
    room: GatherRoom | None = None,
) -> GatheredCounts:
    """Gathers the counts of all ranks. Collective, on the host.

    Args:
        group: the ranks.
        local: the routing of this rank's tokens.
        site: where this rank is.
        ready_bits: one bit per slot of this rank: its guest has arrived.
        weight_changes: changes of the weights that this rank has announced in this step.
        measured: what this rank has measured.
        guests_RK: the placement whose guests are to have arrived, read-only. Shape: [ranks, slots].
        room: memory to use; None: memory of its own.

    Raises:
        RuntimeError: if the ranks are at different places of the program; every rank says so.
        ValueError: if a rank has sent a count that is none.
    """
    counts_E, valid_tokens, _ = local
    if room is None:
        room = GatherRoom(num_ranks=group.size, num_experts=counts_E.size)
    if counts_E is not room.counts_E:
        room.counts_E[:] = counts_E
    _HEADER.pack_into(room.header, 0, *site, valid_tokens, ready_bits, weight_changes, *measured)
    with peers_named("the counts gather of", site):
        group.counts._allgather_base(room.gathered, room.message).wait()
    counts_RE, headers_RH, num_changes, are_there, is_right = _part_rows(room.rows_RN, counts_E.size, guests_RK)
    if not is_right:
        _refuse(headers_RH, counts_RE)
    counts_RE.setflags(write=False)
    return GatheredCounts(counts_RE, headers_RH, num_changes, are_there)


def _refuse(headers_RH: IntArray, counts_RE: IntArray) -> None:
    """Raises the error for what ranks have sent."""
    sites_R3 = headers_RH[:, :3]
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
