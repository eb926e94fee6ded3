"""The memory of guests: announced at start, allocated once, and never more."""

from __future__ import annotations

import gc
import logging
import re
from dataclasses import replace

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, AgentOptions

RANKS = 2
CONFIG = TinyConfig(num_layers=5, hidden_dim_by_layer=(20, 9, 33, 14, 6), tokens_by_rank=(17, 9))


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 1, "plan_source": "inline", **changes})


def storages() -> dict[int, int]:
    """Bytes of every storage that a tensor of this process keeps alive, by address."""
    gc.collect()
    # Tensors without memory are left by tests that compile.
    kinds = (torch.Tensor, torch.nn.Parameter)
    alive = [each for each in gc.get_objects() if type(each) in kinds and each.device.type == "cpu"]
    return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in alive}


def expert_bytes(hidden_dim: int) -> int:
    return 3 * CONFIG.dim * hidden_dim * 8 + 32  # fp64, and a label of four words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("residency", "hidden_dims"),
    [("resident", (20, 9, 33, 14, 6)), ("shared", (33, 14))],  # the largest of the even and of the odd layers
)
def test_what_is_announced_is_what_is_allocated(residency, hidden_dims, caplog):
    caplog.set_level(logging.INFO, "taot_client.active_agent")

    def body(rank: Rank) -> int:
        model = TinyMoE(CONFIG, rank.group)
        loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank))).backward()  # with whatever torch keeps for itself
        before = storages()
        agent = Agent(model, options(num_slots=3, slot_residency=residency), groups=rank.agent_groups)
        added = {address: size for address, size in storages().items() if address not in before}
        slots = [slot for layer in agent._agent.state.layers for slot in layer.supply.slots.slots]
        assert len(slots) == 3 * CONFIG.num_layers
        in_slots = {slot.buffer.untyped_storage().data_ptr(): slot.buffer.untyped_storage().nbytes() for slot in slots}
        assert in_slots.items() <= added.items()
        others = sum(added.values()) - sum(in_slots.values())
        assert others < 4096, "the step record and little else"
        agent.close()
        return sum(in_slots.values())

    (allocated,) = run_ranks(1, body)  # alone, so that every new tensor is this rank's
    assert allocated == 3 * sum(expert_bytes(hidden_dim) for hidden_dim in hidden_dims)
    (text,) = [record.getMessage() for record in caplog.records if "guest memory" in record.getMessage()]
    assert int(re.search(r"\((\d+) bytes\) of guest memory", text)[1]) == allocated
    assert f"{residency} guest slots" in text
    assert re.search(r"ranks, \d+ layers of \d+ experts", text)
    assert "taot plans inline, planner none" in text


@pytest.mark.slow
@pytest.mark.parametrize(("residency", "num_steps"), [("resident", 60), ("shared", 200)])
def test_memory_does_not_grow_from_step_to_step(residency, num_steps):
    config = replace(CONFIG, num_layers=3)

    def body(rank: Rank) -> tuple[list[dict[int, int]], int]:
        model, seen, moved = TinyMoE(config, rank.group), [], 0
        agent = Agent(model, options(slot_residency=residency), groups=rank.agent_groups)
        for step in range(num_steps + 1):
            agent.begin_step()
            loss_of(model(batch(config, step=step % 5, rank=rank.group.rank))).backward()
            summary = agent.end_step()
            moved += summary.guests_intra + summary.guests_inter
            model.zero_grad()
            if step in (10, num_steps):
                seen.append(seen_together(rank))
        agent.close()
        return seen, moved

    (early, late), moved = run_ranks(RANKS, body, timeout_seconds=120)[0]
    assert moved > 2 * num_steps
    assert sorted(late.values()) == sorted(early.values())


@pytest.mark.slow
@pytest.mark.parametrize("residency", ["resident", "shared"])
def test_a_hundred_forwards_without_backward_leave_nothing_behind(residency):
    config = replace(CONFIG, num_layers=3)

    def body(rank: Rank) -> list[dict[int, int]]:
        model, seen = TinyMoE(config, rank.group), []
        agent = Agent(model, options(slot_residency=residency), groups=rank.agent_groups)
        for num_forwards in (1, 100, 0):
            agent.begin_step()
            seen.append(seen_together(rank))
            for index in range(num_forwards):
                model(batch(config, step=0, rank=rank.group.rank, micro_batch=index))
            agent.end_step()
        agent.close()
        return seen

    _, after_one, after_hundred = run_ranks(RANKS, body, timeout_seconds=120)[0]
    assert sorted(after_hundred.values()) == sorted(after_one.values())


def seen_together(rank: Rank) -> dict[int, int]:
    """Storages alive in the process of all ranks while none of them runs; empty on other ranks than 0."""
    rank.group.counts.barrier().wait()
    alive = storages() if rank.group.rank == 0 else {}
    rank.group.counts.barrier().wait()
    return alive
