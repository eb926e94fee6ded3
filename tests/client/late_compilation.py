"""Trains with planned guests while weights change, and prints what was compiled after the agent's start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from numba.core.registry import CPUDispatcher
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from running_planner import running_planner
from tiny_moe import FixedRouter, TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent

# All tokens go to the experts of rank 0: every plan has guests on the other ranks.
CONFIG = TinyConfig(num_layers=1, tokens_by_rank=(40, 40, 40, 40), router_of=partial(FixedRouter, choices=[[0, 1]]))


def kernels() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if name.startswith(("taot_client", "taot_planning")):
            for key, value in list(vars(module).items()):
                if isinstance(value, CPUDispatcher) and value.py_func.__module__ == name:
                    yield f"{name}.{key}", value


def num_signatures() -> dict[str, int]:
    return {name: len(compiled.signatures) for name, compiled in kernels()}


def body(rank: Rank, *, address: str) -> tuple[dict[str, int], int]:
    model = TinyMoE(CONFIG, rank.group)
    options = tiny_options(planner_address=address, ranks_per_node=2)
    agent = Agent(model, options, groups=rank.agent_groups)
    at_start = num_signatures()
    num_guests = 0
    for step in range(3):
        await_plan(agent, step)
        agent.begin_step()
        for _ in range(2):
            loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank))).backward()
            if step:
                agent.weights_changed()
        summary = agent.end_step()
        num_guests += summary.guests_intra + summary.guests_inter
    agent.close()
    return at_start, num_guests


if __name__ == "__main__":
    with running_planner() as planner:
        found = run_ranks(4, partial(body, address=planner.address))
    at_start = {name: min(each[0].get(name, 0) for each in found) for name in found[0][0]}
    print("guests", found[0][1])
    print("warmed", sum(map(bool, at_start.values())))
    print("late", *(name for name, number in num_signatures().items() if number > at_start.get(name, 0)))
