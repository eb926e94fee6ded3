"""Nothing grows with the number of steps, nor with forwards whose backward never comes."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent
from taot_client.layer_pass import LayerPass
from taot_client.transfers.shipment import Shipment

RANKS = 2
CONFIG = TinyConfig(num_layers=1, num_experts=4, dim=4, hidden_dim=6, tokens_by_rank=(9, 14), dtype=torch.float32)


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def num_alive() -> dict[str, int]:
    """Objects that a leak would leave behind."""
    gc.collect()
    alive = gc.get_objects()
    return {
        "passes": sum(type(each) is LayerPass for each in alive),
        "shipments": sum(type(each) is Shipment for each in alive),
        "tensors": sum(type(each) is torch.Tensor for each in alive),
    }


def whole_step(agent: Agent, model: TinyMoE, rank: Rank, step: int) -> int:
    agent.begin_step()
    loss_of(model(batch(CONFIG, step=step % 7, rank=rank.group.rank))).backward()
    summary = agent.end_step()
    model.zero_grad()
    return summary.guests_intra + summary.guests_inter


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_thousand_steps_leave_no_memory_behind():
    def body(rank: Rank) -> tuple[int, list[dict[str, int]], list[int]]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, tiny_options(ranks_per_node=1), groups=rank.agent_groups)
        num_moved, alive, resident = 0, [], []
        for step in range(2001):
            num_moved += whole_step(agent, model, rank, step)
            if step in (300, 2000):
                rank.group.counts.barrier().wait()
                if rank.group.rank == 0:
                    alive.append(num_alive())
                    resident.append(resident_bytes())
                rank.group.counts.barrier().wait()
        agent.close()
        return num_moved, alive, resident

    num_moved, (early, late), (early_bytes, late_bytes) = run_ranks(RANKS, body, timeout_seconds=300)[0]
    print(f"{num_moved} guests moved; alive {early} -> {late}; {(late_bytes - early_bytes) / 1e6:+.1f} MB")
    assert num_moved > 1000
    assert all(late[kind] <= count + 10 for kind, count in early.items()), (early, late)
    assert late_bytes - early_bytes < 8e6


@pytest.mark.parametrize("is_training", [True, False])
def test_a_hundred_forwards_without_backward_are_forgotten_with_their_step(is_training):
    def body(rank: Rank) -> list[dict[str, int]]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, tiny_options(ranks_per_node=1), groups=rank.agent_groups)
        alive = []
        for repetition in range(2):
            agent.begin_step()
            model.train(is_training)
            for index in range(100):
                model(batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index))
            if not is_training:
                assert all(not layer.pins.num_in_flight for layer in agent._agent.state.layers)
            model.train()
            whole_step(agent, model, rank, repetition)  # begins a new step: an exception has ended the other
            rank.group.counts.barrier().wait()
            if rank.group.rank == 0:
                alive.append(num_alive())
            rank.group.counts.barrier().wait()
        agent.close()
        return alive

    early, late = run_ranks(RANKS, body)[0]
    assert late["passes"] <= 2 * RANKS, "those of the last step at most"
    assert all(late[kind] <= count + 10 for kind, count in early.items()), (early, late)
