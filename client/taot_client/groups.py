"""The process groups of one expert-parallel group.

The layer needs two: one for tokens and a gloo group for counts, which are wanted on the host. The agent adds
three of its own, so that its traffic never mixes with that of the model. Methods of the group objects are
called with ranks inside the group, which is all that the rest of the package knows.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from taot_client.device import is_gloo
from taot_client.environment import INTERFACE_VARIABLE, gloo_interfaces


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

    name: str = "ep0"
    """Tells the groups of a job apart; the same on all ranks of the group."""


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

    Collective over the ranks of `group`. The name is `ep` with the first global rank.
    """
    tokens = group if group is not None else dist.group.WORLD
    if tokens is None:
        raise RuntimeError("torch.distributed is not initialised: call init_process_group first")
    return ExpertParallelGroup(
        rank=dist.get_rank(tokens),
        size=dist.get_world_size(tokens),
        tokens=tokens,
        counts=_gloo_group(tokens, timeout=timeout),
        name=f"ep{min(dist.get_process_group_ranks(tokens))}",
    )


def agent_groups(group: ExpertParallelGroup, *, device: torch.device, timeout: timedelta) -> AgentGroups:
    """Creates the agent's groups over the ranks of `group`, for guests on `device`. Collective.

    Guests on GPUs travel with NCCL, but where the tokens travel with gloo.

    Raises:
        ValueError: if NCCL groups cannot be created, see `_nccl_group`.
    """
    make = _nccl_group if device.type == "cuda" and not is_gloo(group.tokens) else _gloo_group
    return AgentGroups(
        control=_gloo_group(group.tokens, timeout=timeout),
        weights=make(group.tokens, timeout=timeout),
        gradients=make(group.tokens, timeout=timeout),
    )


_num_created: Counter[tuple[int, ...]] = Counter()


def _gloo_group(over: dist.ProcessGroup, *, timeout: timedelta) -> dist.ProcessGroup:
    """A gloo group that only its members know of.

    Not made by `new_group`: that must be called by every process of the job, or named alike by all members, which it
    is not when they belong to different numbers of groups. The order of calls among the members is enough here.
    """
    ranks = tuple(dist.get_process_group_ranks(over))
    _num_created[ranks] += 1
    name = f"taot/{'-'.join(map(str, ranks))}/{_num_created[ranks]}"
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    try:
        backend = dist.ProcessGroupGloo(store, dist.get_rank(over), len(ranks), timeout)
    except (RuntimeError, ValueError) as error:
        raise GroupError(
            f"no gloo group over the global ranks {list(ranks)} could be made: {error}. {INTERFACE_VARIABLE} is"
            f" {gloo_interfaces()!r} and must name network interfaces that all ranks can reach, separated by commas,"
            f" without NCCL's '^' or '='; without it this machine says it is at {_advertised_address()}"
        ) from error
    # A backend has the methods of a group that this package calls.
    return cast(dist.ProcessGroup, backend)


def _advertised_address() -> str:
    """Where gloo is reached by default: the address of the host's own name."""
    name = socket.gethostname()
    try:
        return f"{name} = {socket.gethostbyname(name)}"
    except OSError as error:
        return f"{name}, which has no address ({error})"


def _nccl_group(over: dist.ProcessGroup, *, timeout: timedelta) -> dist.ProcessGroup:
    """An NCCL group made by its members alone.

    torch names such a group after its ranks and the number of groups its process knows.

    Raises:
        ValueError: if the members know different numbers of groups and would wait for each other for ever.
    """
    known = len(dist.distributed_c10d._world.pg_names)
    counts = torch.tensor([known, -known], device="cuda")
    dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=over)
    if counts[0] != -counts[1]:
        raise ValueError(
            f"the ranks of the group know between {-counts[1]} and {counts[0]} process groups, so that torch would name"
            " a new one differently: let every process of the job call new_group alike before the agent is made"
        )
    group: dist.ProcessGroup = dist.new_group(
        dist.get_process_group_ranks(over), backend="nccl", timeout=timeout, use_local_synchronization=True
    )
    return group


class GroupError(RuntimeError):
    """A rank of the group has gone or does not answer; the message says during what."""


class peers_named:  # noqa: N801 - used like a function; a generator would cost more than what it surrounds
    """Says in the error of a collective what the ranks were about; the framework's own names a socket.

    Raises:
        GroupError: if the collective fails.
    """

    def __init__(self, *what: object) -> None:
        """Surrounds `what`, in words that are made into text only when they are needed."""
        self._what = what

    def __enter__(self) -> None:
        """The collective begins."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The collective has ended."""
        if isinstance(error, RuntimeError):
            raise GroupError(
                f"during {' '.join(map(str, self._what))} a rank of the group has left or does not answer: {error}"
            ) from error


def all_gather_host(group: dist.ProcessGroup, values_N: torch.Tensor, *, size: int) -> torch.Tensor:
    """Gathers a host vector of each rank, of equal length. Shape: [size, length]."""
    gathered = torch.empty(size * values_N.numel(), dtype=values_N.dtype)
    group._allgather_base(gathered, values_N).wait()  # which cuts it into rows by itself
    return gathered.view(size, -1)


def all_gather_text(group: dist.ProcessGroup, text: str, *, size: int) -> list[str]:
    """Gathers one string of any length per rank."""
    raw = text.encode()
    lengths = all_gather_host(group, torch.tensor([len(raw)]), size=size).flatten().tolist()
    padded = torch.zeros(max(*lengths, 1), dtype=torch.uint8)
    padded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else padded[:0]
    rows = all_gather_host(group, padded, size=size)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]
