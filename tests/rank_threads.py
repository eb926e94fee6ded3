"""Several ranks in one process: a thread each, with real gloo process groups between them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from taot_client.groups import AgentGroups, ExpertParallelGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Rank:
    """What one rank's thread gets."""

    group: ExpertParallelGroup
    agent_groups: AgentGroups
    world_rank: int
    """Among all threads; the rank of `group` where that is the only one."""
    replicas: dist.ProcessGroup
    """The ranks with the same experts, one of each expert-parallel group."""


def run_ranks(
    num_ranks: int,
    body: Callable[[Rank], T],
    *,
    groups: Sequence[Sequence[int]] = (),
    timeout_seconds: float = 60,
) -> list[T]:
    """Runs `body` on every rank and returns the results by world rank.

    `groups` lists the world ranks of each expert-parallel group, all of one size; one group of all by default.
    The first error of any rank is raised; others that follow from it are not shown.
    """
    groups = groups or [range(num_ranks)]
    store = HashStore()
    results: list[T | None] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(world_rank: int) -> None:
        made: list[dist.ProcessGroup] = []

        def make(kind: str, rank: int, size: int) -> dist.ProcessGroup:
            made.append(_gloo(store, kind, rank, size, timeout_seconds))
            return made[-1]

        try:
            torch.set_num_threads(1)  # of this thread: what others set does not reach it
            members = next(list(each) for each in groups if world_rank in each)
            rank, name = members.index(world_rank), f"ep{min(members)}"
            copies = [each[rank] for each in groups]
            group = ExpertParallelGroup(
                rank=rank,
                size=len(members),
                tokens=make(f"{name}/tokens", rank, len(members)),
                counts=make(f"{name}/counts", rank, len(members)),
                name=name,
            )
            agent_groups = AgentGroups(
                **{kind: make(f"{name}/{kind}", rank, len(members)) for kind in ("control", "weights", "gradients")}
            )
            replicas = make(f"replicas/{rank}", copies.index(world_rank), len(copies))
            results[world_rank] = body(Rank(group, agent_groups, world_rank, replicas))
        except BaseException as error:  # noqa: BLE001 - the top of a thread
            errors.append(error)
        finally:
            group = agent_groups = replicas = None
            _keep_held(made)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_seconds + 10
    while any(thread.is_alive() for thread in threads):
        if errors:
            raise errors[0]
        assert time.monotonic() < deadline, "a rank hangs"
        for thread in threads:
            thread.join(0.05)
    if errors:
        raise errors[0]
    return results


_kept: list[dist.ProcessGroup] = []
"""Groups that sit in cycles with agents. Some tests end in the middle of an operation: whatever thread the garbage
collector then runs in would wait for its timeout, with the group."""


NUM_OWN = 3
"""References to a group that `_keep_held` sees where there is no other: the list, the loop, the call."""


def _keep_held(made: list[dist.ProcessGroup]) -> None:
    """Keeps those of these groups that somebody else refers to; the others end with `made`, as a rank that leaves."""
    for group in made:
        if sys.getrefcount(group) > NUM_OWN:
            _kept.append(group)


@cache
def _device() -> Any:
    """One for all groups: the thread of a device wakes a hundred times a second, whether there is anything to do."""
    return ProcessGroupGloo.create_device(hostname="127.0.0.1")


def _gloo(store: dist.Store, name: str, rank: int, size: int, timeout_seconds: float) -> dist.ProcessGroup:
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options._devices = [_device()]
    return ProcessGroupGloo(PrefixStore(name, store), rank, size, options)
