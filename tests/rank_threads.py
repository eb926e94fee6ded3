"""Several ranks in one process: a thread each, with real gloo process groups between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from taot_client.groups import AgentGroups, ExpertParallelGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Rank:
    """What one rank's thread gets."""

    group: ExpertParallelGroup
    agent_groups: AgentGroups


def run_ranks(num_ranks: int, body: Callable[[Rank], T], *, timeout_seconds: float = 60) -> list[T]:
    """Runs `body` on every rank and returns the results by rank.

    The first error of any rank is raised; others that follow from it are not shown.
    """
    store = HashStore()
    results: list[T | None] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            make = lambda name: _gloo(store, name, rank, num_ranks, timeout_seconds)  # noqa: E731
            group = ExpertParallelGroup(rank=rank, size=num_ranks, tokens=make("tokens"), counts=make("counts"))
            agent_groups = AgentGroups(control=make("control"), weights=make("weights"), gradients=make("gradients"))
            results[rank] = body(Rank(group, agent_groups))
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
