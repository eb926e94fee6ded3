"""Several expert-parallel groups with the same experts: each its own agent and session, gradients averaged between."""

from __future__ import annotations

import pytest
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from tiny_moe import (
    History,
    TinyConfig,
    TinyMoE,
    assert_same_gradients,
    batch,
    loss_of,
    named_gradients,
    sum_shared_gradients,
    tiny_options,
    train_dense,
)
from torch import optim

from taot_client import Agent, AgentOptions

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4
REPLICAS = 2
STEPS = 5
CONFIG = TinyConfig(num_layers=2)


def train(rank: Rank, agent_options: AgentOptions) -> History:
    """One rank of a run with the means of the replicas' gradients."""
    model, history = TinyMoE(CONFIG, rank.group), History()
    agent = Agent(model, agent_options, groups=rank.agent_groups)
    # The dense reference has the sum over all ranks, this run the mean over the replicas.
    optimizer = optim.SGD(model.parameters(), lr=CONFIG.learning_rate * REPLICAS)
    for step in range(STEPS):
        await_plan(agent, step)
        agent.begin_step()
        optimizer.zero_grad()
        loss_of(model(batch(CONFIG, step=step, rank=rank.world_rank))).backward()
        history.summaries.append(agent.end_step())
        sum_shared_gradients(model, rank)
        for parameter in model.parameters():
            rank.replicas.allreduce([parameter.grad]).wait()
            parameter.grad /= REPLICAS
        history.losses.append(0.0)
        history.gradients.append({name: value * REPLICAS for name, value in named_gradients(model).items()})
        optimizer.step()
    agent.close()
    return history


@pytest.mark.parametrize("plan_source", ["ahead", "inline"])
@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((0, 2), (3, 1))], ids=str)
def test_replicated_groups_train_as_one_dense_model(planner, groups, plan_source):
    agent_options = tiny_options(
        planner_address=planner.address if plan_source == "ahead" else None,
        training_job=f"replicas-{plan_source}-{groups[0][1]}",
        ranks_per_node=1,
        debug=True,
    )
    histories = run_ranks(RANKS, lambda rank: train(rank, agent_options), groups=groups)
    want = train_dense(CONFIG, num_ranks=RANKS, num_steps=STEPS)
    for members in groups:
        summaries = histories[members[0]].summaries
        assert sum(summary.guests_intra + summary.guests_inter for summary in summaries) > STEPS
        assert {summary.mode.name for summary in summaries[2:]} == {"PLAN" if plan_source == "ahead" else "INLINE"}
        gradients = [
            {name: value for member in members for name, value in histories[member].gradients[step].items()}
            for step in range(STEPS)
        ]
        assert_same_gradients(History(gradients=gradients), want, tolerance=1e-10)
    first, second = (histories[members[0]].summaries for members in groups)
    assert first != second, "the groups see other tokens and have plans of their own"
