"""The process groups of one expert-parallel group.

The layer needs two: one for tokens and a gloo group for counts, which are wanted on the host. The agent adds
three of its own, so that its traffic never mixes with that of the model. Methods of the group objects are
called with ranks inside the group, which is all that the rest of the package knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class ExpertParallelGroup:
    """What an expert-parallel layer needs to talk to its peers."""

    rank: int
    """This process within the group."""

    size: int
    """Ranks in the group."""

    tokens: dist.ProcessGroup
    """Carries tokens between ranks; gloo or NCCL."""

    counts: dist.ProcessGroup
    """Gathers counts on the host; gloo."""


@dataclass(frozen=True, kw_only=True)
class AgentGroups:
    """What the agent adds."""

    control: dist.ProcessGroup
    """Step records and agreement; gloo."""

    weights: dist.ProcessGroup
    """Guest weights on their way out."""

    gradients: dist.ProcessGroup
    """Guest gradients on their way home."""


def expert_parallel_group(
    group: dist.ProcessGroup | None = None, *, timeout: timedelta = timedelta(minutes=10)
) -> ExpertParallelGroup:
    """Builds the groups of a layer over the ranks of `group`, the default group when None.

    Collective over the ranks of `group`.
    """
    tokens = group if group is not None else dist.group.WORLD
    if tokens is None:
        raise RuntimeError("torch.distributed is not initialised: call init_process_group first")
    return ExpertParallelGroup(
        rank=dist.get_rank(tokens),
        size=dist.get_world_size(tokens),
        tokens=tokens,
        counts=_new_group(dist.get_process_group_ranks(tokens), backend="gloo", timeout=timeout),
    )


def agent_groups(group: ExpertParallelGroup, *, timeout: timedelta) -> AgentGroups:
    """Creates the agent's groups over the ranks of `group`, in the same order on every rank. Collective."""
    ranks = dist.get_process_group_ranks(group.tokens)
    backend = dist.get_backend(group.tokens)
    groups = AgentGroups(
        control=_new_group(ranks, backend="gloo", timeout=timeout),
        weights=_new_group(ranks, backend=backend, timeout=timeout),
        gradients=_new_group(ranks, backend=backend, timeout=timeout),
    )
    if backend == "nccl":
        # NCCL builds a communicator at its first use, which every rank must join.
        for transfer_group in (groups.weights, groups.gradients):
            dist.all_reduce(torch.zeros(1, device="cuda"), group=transfer_group)
    return groups


def _new_group(ranks: Sequence[int], *, backend: str, timeout: timedelta) -> dist.ProcessGroup:
    # Only the members take part, so that groups of one job can start their agents independently.
    group: dist.ProcessGroup = dist.new_group(
        list(ranks), backend=backend, timeout=timeout, use_local_synchronization=True
    )
    return group


def all_gather_host(group: dist.ProcessGroup, values: torch.Tensor, *, size: int) -> torch.Tensor:
    """Gathers equal-shaped host tensors of all ranks. Returns [size, *values.shape]."""
    gathered = torch.empty((size, *values.shape), dtype=values.dtype)
    group.allgather([list(gathered.unbind(0))], [values]).wait()
    return gathered


def all_gather_text(group: dist.ProcessGroup, text: str, *, size: int) -> list[str]:
    """Gathers one string of any length per rank."""
    raw = text.encode()
    lengths = all_gather_host(group, torch.tensor([len(raw)]), size=size).flatten().tolist()
    padded = torch.zeros(max(*lengths, 1), dtype=torch.uint8)
    padded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else padded[:0]
    rows = all_gather_host(group, padded, size=size)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]
