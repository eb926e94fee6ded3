"""Several ranks in one process: a thread each, with real gloo process groups between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

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
        try:
            torch.set_num_threads(1)  # of this thread: what others set does not reach it
            members = next(list(each) for each in groups if world_rank in each)
            rank, name = members.index(world_rank), f"ep{min(members)}"
            copies = [each[rank] for each in groups]
            make = lambda kind: _gloo(store, f"{name}/{kind}", rank, len(members), timeout_seconds)  # noqa: E731
            group = ExpertParallelGroup(
                rank=rank, size=len(members), tokens=make("tokens"), counts=make("counts"), name=name
            )
            agent_groups = AgentGroups(control=make("control"), weights=make("weights"), gradients=make("gradients"))
            replicas = _gloo(store, f"replicas/{rank}", copies.index(world_rank), len(copies), timeout_seconds)
            results[world_rank] = body(Rank(group, agent_groups, world_rank, replicas))
        except BaseException as error:  # noqa: BLE001 - the top of a thread
            errors.append(error)

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


def _gloo(store: dist.Store, name: str, rank: int, size: int, timeout_seconds: float) -> dist.ProcessGroup:
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(PrefixStore(name, store), rank, size, options)
