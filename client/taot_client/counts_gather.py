"""What every rank tells every other before a layer's tokens travel: its counts, and whether its guests are there.

One gather on the host per layer and micro-batch. Its outcome, equal on all ranks, is all that decisions inside a
step rest on. What a rank has measured rides along, so that the leader can report for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from taot_client.device import to_host
from taot_client.groups import ExpertParallelGroup, all_gather_host, peers_named
from taot_planning.arrays import IntArray, read_only
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
    """Tokens of each source rank for each expert. Shape: [ranks, experts]."""

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
        counted_N = _count_on_host(read_only(experts_TK.numpy()), num_experts)
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


def warm_up() -> None:
    """Compiles the kernel, so that no first call in a training step does."""
    count_choices(torch.zeros(1, 1, dtype=torch.int64), num_experts=1)


def gather_counts(
    group: ExpertParallelGroup,
    local: LocalCounts,
    *,
    site: CallSite,
    ready_bits: int = 0,
    weight_changes: int = 0,
    measured: Measured | None = None,
) -> GatheredCounts:
    """Gathers the counts of all ranks. Collective, on the host.

    Raises:
        RuntimeError: if the ranks are at different places of the program; every rank says so.
    """
    header = [site.step, site.micro_batch, site.layer, local.valid_tokens, ready_bits, weight_changes]
    header += measured or Measured()
    message = np.empty(len(header) + local.counts_E.size, dtype=np.int64)
    message[: len(header)] = header
    message[len(header) :] = local.counts_E
    with peers_named("the counts gather of", site):
        rows = all_gather_host(group.counts, torch.from_numpy(message), size=group.size).numpy()
    _check_sites(rows[:, :3])
    return GatheredCounts(
        counts_RE=rows[:, len(header) :],
        valid_tokens_R=rows[:, 3],
        ready_bits_R=rows[:, 4],
        weight_changes_R=rows[:, 5],
        measured_RM=rows[:, 6 : len(header)],
    )


def _check_sites(sites_R3: IntArray) -> None:
    if (sites_R3 != sites_R3[0]).any():
        places = "; ".join(
            f"rank {rank}: step {step}, micro-batch {micro_batch}, layer {layer}"
            for rank, (step, micro_batch, layer) in enumerate(sites_R3.tolist())
        )
        raise RuntimeError(f"the ranks of the group are at different places of the program: {places}")
