"""One process of a job with two expert-parallel groups; run by test_two_groups.py under torchrun."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from plans_awaited import await_plan
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, expert_parallel_group


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    # Ranks that belong to different numbers of groups, as pipeline and embedding groups make them.
    for ranks in ([0], [3]):
        dist.new_group(ranks, use_local_synchronization=True) if dist.get_rank() in ranks else None
    group = expert_parallel_group(pairs[dist.get_rank() % 2])
    config = TinyConfig(num_layers=2)
    model = TinyMoE(config, group)
    agent = Agent(model, tiny_options(planner_address=sys.argv[1], training_job="two-groups", ranks_per_node=1))
    moved = 0
    for step in range(6):
        await_plan(agent, step)
        agent.begin_step()
        loss = loss_of(model(batch(config, step=step, rank=group.rank)))
        loss.backward()
        summary = agent.end_step()
        moved += summary.guests_intra + summary.guests_inter
    dist.barrier()  # both groups still have their sessions
    print(f"group {group.name} rank {group.rank}: moved {moved}", flush=True)
    dist.barrier()
    agent.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
