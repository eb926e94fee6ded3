"""Several micro-batches in a step, one after another or in flight together, each with guests of its own."""

from __future__ import annotations

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import (
    DenseMoE,
    History,
    TinyConfig,
    TinyMoE,
    assert_same_gradients,
    batch,
    loss_of,
    merged,
    named_gradients,
    sum_shared_gradients,
    tiny_options,
)

from taot_client import Agent, AgentOptions

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4
CONFIG = TinyConfig()
MICRO_BATCHES = 3


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "debug": True, "plan_source": "inline", **changes})


@pytest.fixture(params=["resident", "shared"])
def residency(request: pytest.FixtureRequest) -> str:
    return request.param


def dense_gradients() -> History:
    model = DenseMoE(CONFIG)
    for index in range(MICRO_BATCHES):
        for rank in range(RANKS):
            loss_of(model(batch(CONFIG, step=0, rank=rank, micro_batch=index))).backward()
    gradients = {}
    for layer in range(CONFIG.num_layers):
        gradients[f"{layer}.router.weight"] = model.routers[layer].weight.grad
        for name, parameter in model.experts[layer].named_parameters():
            for expert in range(CONFIG.num_experts):
                gradients[f"{layer}.{expert}.{name}"] = parameter.grad[expert]
    return History(losses=[0.0], gradients=[gradients])


def one_step(rank: Rank, schedule, residency: str) -> History:
    model = TinyMoE(CONFIG, rank.group)
    agent = Agent(model, options(slot_residency=residency), groups=rank.agent_groups)
    agent.begin_step()
    schedule(agent, model, rank)
    history = History(losses=[0.0], summaries=[agent.end_step()])
    sum_shared_gradients(model, rank)
    history.gradients.append(named_gradients(model))
    agent.close()
    return history


def run(schedule, residency: str) -> History:
    return merged(run_ranks(RANKS, lambda rank: one_step(rank, schedule, residency)))


def forward(model: TinyMoE, rank: Rank, index: int) -> torch.Tensor:
    return loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index)))


def test_gradient_accumulation_plans_anew_for_every_micro_batch(residency):
    def accumulate(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        for index in range(MICRO_BATCHES):
            forward(model, rank, index).backward()

    got = run(accumulate, residency)
    assert_same_gradients(got, dense_gradients(), tolerance=1e-10)
    assert got.summaries[0].guests_intra + got.summaries[0].guests_inter > 4


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2), (2, 1, 0)])
def test_backward_in_any_order_of_micro_batches_in_flight(order, residency):
    def interleave(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        losses = {}
        for index in range(MICRO_BATCHES):
            with agent.micro_batch(index):
                losses[index] = forward(model, rank, index)
        for index in order:
            with agent.micro_batch(index):
                losses[index].backward()

    assert_same_gradients(run(interleave, residency), dense_gradients(), tolerance=1e-10)


def test_one_forward_one_backward_keeps_the_guests_of_the_micro_batch_in_flight(residency):
    def one_f_one_b(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        previous = None
        for index in range(MICRO_BATCHES):
            with agent.micro_batch(index):
                current = forward(model, rank, index)
            if previous is not None:
                with agent.micro_batch(index - 1):
                    previous.backward()
            previous = current
        previous.backward()

    assert_same_gradients(run(one_f_one_b, residency), dense_gradients(), tolerance=1e-10)


def test_running_a_layer_twice_in_one_named_micro_batch_is_an_error():
    def twice(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        with agent.micro_batch(0):
            forward(model, rank, 0)
            with pytest.raises(RuntimeError, match="ran twice in micro-batch 0"):
                forward(model, rank, 1)
        rank.group.counts.barrier().wait()
        agent.close()

    run_ranks(2, twice)


@pytest.mark.parametrize(("begins_next", "message"), [(False, "after its end"), (True, "in step 1")])
def test_a_backward_that_comes_too_late_is_an_error_on_every_rank(begins_next, message, residency):
    def late(rank: Rank) -> str:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(slot_residency=residency), groups=rank.agent_groups)
        agent.begin_step()
        loss = forward(model, rank, 0)
        agent.end_step()
        if begins_next:
            agent.begin_step()
        with pytest.raises(RuntimeError, match=f"a backward of step 0 ran {message}") as caught:
            loss.backward()
        agent.close()
        return str(caught.value)

    assert len(run_ranks(2, late)) == 2


def test_weights_changed_inside_a_step_are_fetched_anew(residency):
    def change(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        forward(model, rank, 0).backward()
        with torch.no_grad():
            for layer in model.layers:
                for weight in layer.experts.tensors():
                    weight.mul_(1.5)
        agent.weights_changed()
        model.zero_grad()
        forward(model, rank, 1).backward()

    model = DenseMoE(CONFIG)
    with torch.no_grad():
        for experts in model.experts:
            for weight in experts.tensors():
                weight.mul_(1.5)
    for rank in range(RANKS):
        loss_of(model(batch(CONFIG, step=0, rank=rank, micro_batch=1))).backward()
    want = {
        f"{layer}.{expert}.{name}": parameter.grad[expert]
        for layer in range(CONFIG.num_layers)
        for name, parameter in model.experts[layer].named_parameters()
        for expert in range(CONFIG.num_experts)
    }
    got = run(change, residency).gradients[0]
    for name, expected in want.items():
        assert (got[name] - expected).norm() <= 1e-10 * expected.norm()
