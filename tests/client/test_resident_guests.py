"""Guests whose weights of this step are there already: later micro-batches plan with them, later steps do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import FixedRouter, TinyConfig, TinyMoE, loss_of, tiny_options

from taot_client import Agent

RANKS = 4
EXPERTS = 8
FIRST_E = (1, 17, 18, 1, 0, 3, 0, 0)
"""Tokens of each rank for each expert; expert 2 goes to rank 2 as a guest, expert 1 to rank 3."""
SIMILAR_E = (1, 16, 15, 0, 1, 4, 1, 2)
"""Planned from nothing the guests are the same, each on the other's rank; where they are they do as well."""
OTHER_E = (18, 1, 0, 1, 3, 17, 0, 0)


def steps(
    rank: Rank, micro_batches: Sequence[Sequence[int]], *, num_steps: int = 1, weights_change: bool = False
) -> list[tuple[int, list[float]]]:
    """Guests moved and imbalances of each step, and checks that no step begins with guests."""
    config = TinyConfig(
        num_layers=1,
        top_k=1,
        tokens_by_rank=(sum(FIRST_E),) * RANKS,
        router_of=lambda config, layer: FixedRouter(config, layer, choices=[[0]]),
    )
    model = TinyMoE(config, rank.group)
    options = tiny_options(ranks_per_node=2, tolerance=0.1, plan_source="inline", debug=True)
    agent = Agent(model, options, groups=rank.agent_groups)
    done = []
    for _ in range(num_steps):
        agent.begin_step()
        assert (agent._agent.state.layers[0].supply.resident_RK == -1).all()
        for tokens_E in micro_batches:
            model.layers[0].router.choices = torch.tensor(np.repeat(np.arange(EXPERTS), tokens_E)[:, None])
            loss_of(model(torch.ones(sum(tokens_E), config.dim, dtype=config.dtype))).backward()
            if weights_change:
                agent.weights_changed()
        summary = agent.end_step()
        done.append((summary.guests_intra + summary.guests_inter, list(summary.imbalance.values())))
    agent.close()
    return done


def moved(micro_batches: Sequence[Sequence[int]], **options) -> list[int]:
    """Guests moved in each step, which all ranks must see alike."""
    by_rank = run_ranks(RANKS, lambda rank: steps(rank, micro_batches, **options))
    assert all(each == by_rank[0] for each in by_rank)
    assert all(max(imbalances) <= 0.1 + 1e-9 for _, imbalances in by_rank[0])
    return [count for count, _ in by_rank[0]]


def test_a_second_micro_batch_with_the_same_counts_moves_nothing():
    assert moved([FIRST_E]) == moved([FIRST_E, FIRST_E, FIRST_E]) == [2]


def test_a_second_micro_batch_keeps_guests_that_do_for_it_as_well():
    assert moved([SIMILAR_E]) == [2]
    assert moved([FIRST_E, SIMILAR_E]) == [2]


def test_a_second_micro_batch_of_another_kind_gets_guests_of_its_own():
    assert moved([FIRST_E, OTHER_E])[0] > 2


def test_every_step_and_every_change_of_weights_moves_its_guests_anew():
    assert moved([FIRST_E, SIMILAR_E], num_steps=3) == [2, 2, 2]
    assert moved([FIRST_E, SIMILAR_E], weights_change=True) == [4]


def test_the_options_reach_the_session():
    def spec_of(rank: Rank):
        model = TinyMoE(TinyConfig(num_layers=1), rank.group)
        options = tiny_options(min_tokens_per_guest=5, recent_reports=7)
        agent = Agent(model, options, groups=rank.agent_groups)
        agent.close()
        return agent._agent.state.spec

    for spec in run_ranks(2, spec_of):
        assert (spec.options.min_tokens_per_guest, spec.recent_reports) == (5, 7)
