"""Deterministic training: equal bit for bit in every run, whatever the timing, and when resumed from a checkpoint."""

from __future__ import annotations

import io
import random
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from link_samples import eventually
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, sum_shared_gradients

from taot_client import Agent, AgentOptions, StepSummary, layer_agent
from taot_client.transfers import gloo_mover

RANKS = 4
STEPS = 6
SAVED_AT = 3
CONFIG = TinyConfig(num_layers=2, dtype=torch.float32)


@dataclass(kw_only=True)
class Run:
    """What one rank of a run leaves behind."""

    parameters: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    checkpoint: bytes
    summaries: list[StepSummary]


def options(**changes) -> AgentOptions:
    return AgentOptions(**{"ranks_per_node": 2, "deterministic": True, **changes})


def train(rank: Rank, agent_options: AgentOptions, *, resume_from: bytes | None = None) -> Run:
    model = TinyMoE(CONFIG, rank.group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = 0
    if resume_from is not None:
        saved = torch.load(io.BytesIO(resume_from), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = SAVED_AT
    agent = Agent(model, agent_options, groups=rank.agent_groups)
    file, summaries = io.BytesIO(), []
    for step in range(first, STEPS):
        if step == SAVED_AT:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        agent.begin_step()
        optimizer.zero_grad()
        for index in range(2):
            loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank, micro_batch=index))).backward()
        summaries.append(agent.end_step())
        sum_shared_gradients(model, rank)
        optimizer.step()
        if step == STEPS - 2 and agent.planner_stats:  # the plans that are ignored have come
            assert eventually(lambda: agent.planner_stats["plan"] is not None)
    agent.close()
    return Run(
        parameters={name: value.detach().clone() for name, value in model.named_parameters()},
        optimizer=optimizer.state_dict(),
        checkpoint=file.getvalue(),
        summaries=summaries,
    )


@pytest.fixture(scope="module")
def first_runs() -> list[Run]:
    return run_ranks(RANKS, lambda rank: train(rank, options()))


def assert_equal_bits(got: list[Run], want: list[Run]) -> None:
    for mine, others in zip(got, want, strict=True):
        for name, value in others.parameters.items():
            assert torch.equal(mine.parameters[name], value), name
        for index, state in others.optimizer["state"].items():
            assert all(torch.equal(mine.optimizer["state"][index][key], value) for key, value in state.items())


def late(function: Any, seed: int) -> Any:
    """The function, at random times late."""
    source = random.Random(seed)

    def call(*args: Any, **kwargs: Any) -> Any:
        if source.random() < 0.3:
            time.sleep(source.random() * 0.02)
        return function(*args, **kwargs)

    return call


def test_a_run_whose_messages_come_at_other_times_is_equal_bit_for_bit(first_runs, monkeypatch):
    for owner, name in ((gloo_mover._Flight, "complete"), (layer_agent, "gather_counts")):
        monkeypatch.setattr(owner, name, late(getattr(owner, name), seed=len(name)))
    again = run_ranks(RANKS, lambda rank: train(rank, options()))
    assert sum(each.guests_intra + each.guests_inter for each in again[0].summaries) > 2 * STEPS
    assert [run.summaries for run in again] == [run.summaries for run in first_runs]
    assert_equal_bits(again, first_runs)


def test_a_run_resumed_from_a_checkpoint_is_equal_bit_for_bit(first_runs):
    def resume(rank: Rank) -> Run:
        return train(rank, options(), resume_from=first_runs[rank.world_rank].checkpoint)

    resumed = run_ranks(RANKS, resume)
    assert len(resumed[0].summaries) == STEPS - SAVED_AT
    assert_equal_bits(resumed, first_runs)


def test_with_a_planner_its_plans_are_made_and_ignored(planner, first_runs):
    served = run_ranks(RANKS, lambda rank: train(rank, options(planner_address=planner.address, group="deterministic")))
    assert {summary.mode.name for summary in served[0].summaries} == {"INLINE"}
    assert_equal_bits(served, first_runs)


def test_another_order_of_addition_would_have_been_seen(first_runs, monkeypatch):
    real = layer_agent.LayerAgent._collect
    monkeypatch.setattr(layer_agent.LayerAgent, "_collect", lambda self, exchange: list(reversed(real(self, exchange))))
    other = run_ranks(RANKS, lambda rank: train(rank, options()))
    with pytest.raises(AssertionError):
        assert_equal_bits(other, first_runs)
