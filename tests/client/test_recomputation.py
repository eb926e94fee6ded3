"""Activation checkpointing: a recomputed layer repeats its pass, and nothing is counted or planned twice."""

from __future__ import annotations

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import (
    History,
    SkewedRouter,
    TinyConfig,
    TinyMoE,
    assert_same_gradients,
    batch,
    loss_of,
    merged,
    named_gradients,
    sum_shared_gradients,
    tiny_options,
    train_dense,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from taot_client import Agent, AgentOptions
from taot_client import layer_agent as layer_agent_module

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4
CONFIG = TinyConfig()


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "debug": True, "plan_source": "inline", **changes})


def train_checkpointed(
    rank: Rank,
    *,
    num_steps: int,
    between=lambda agent: None,
    use_reentrant=False,
    **agent_options,
) -> History:
    model, history = TinyMoE(CONFIG, rank.group), History()
    agent = Agent(model, options(**agent_options), groups=rank.agent_groups)
    optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.learning_rate)
    for step in range(num_steps):
        agent.begin_step()
        x = batch(CONFIG, step=step, rank=rank.group.rank).requires_grad_()
        for layer in model.layers:
            x = x + checkpoint(layer, x, use_reentrant=use_reentrant)
        loss = loss_of(x)
        between(agent)
        optimizer.zero_grad()
        loss.backward()
        history.summaries.append(agent.end_step())
        sum_shared_gradients(model, rank)
        history.losses.append(loss.item())
        history.gradients.append(named_gradients(model))
        optimizer.step()
    agent.close()
    return history


@pytest.mark.parametrize("residency", ["resident", "shared"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_give_the_gradients_of_a_dense_model(use_reentrant, residency):
    settings = {"use_reentrant": use_reentrant, "num_steps": 3, "slot_residency": residency}
    got = merged(run_ranks(RANKS, lambda rank: train_checkpointed(rank, **settings)))
    assert sum(summary.guests_intra + summary.guests_inter for summary in got.summaries) > 5
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=3), tolerance=1e-10)


class Watcher(TorchDispatchMode):
    """Lets every operation pass."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return operation(*args, **(kwargs or {}))


def test_dispatch_modes_do_not_see_what_the_agent_does(monkeypatch):
    real, num_modes = layer_agent_module.LayerAgent.admit, []

    def watched(layer, experts_TK):
        num_modes.append(torch._C._len_torch_dispatch_stack())
        return real(layer, experts_TK)

    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        with Watcher():
            loss = loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank)))
            assert torch._C._len_torch_dispatch_stack() == 1
        loss.backward()
        agent.end_step()
        agent.close()

    monkeypatch.setattr(layer_agent_module.LayerAgent, "admit", watched)
    run_ranks(2, body)
    assert num_modes == [0] * 2 * CONFIG.num_layers


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_neither_gathers_nor_plans_again(use_reentrant, monkeypatch):
    calls = {"gather": 0, "plan": 0}
    real_gather, real_plan = layer_agent_module.gather_counts, layer_agent_module.plan_layer

    def counted_gather(*args, **kwargs):
        calls["gather"] += 1
        return real_gather(*args, **kwargs)

    def counted_plan(*args, **kwargs):
        calls["plan"] += 1
        return real_plan(*args, **kwargs)

    monkeypatch.setattr(layer_agent_module, "gather_counts", counted_gather)
    monkeypatch.setattr(layer_agent_module, "plan_layer", counted_plan)
    run_ranks(2, lambda rank: train_checkpointed(rank, use_reentrant=use_reentrant, num_steps=2))
    assert calls == {"gather": 2 * 2 * CONFIG.num_layers, "plan": 2 * 2 * CONFIG.num_layers}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_router_that_would_choose_otherwise_in_recomputation_keeps_the_first_choice(use_reentrant):
    choices = []

    def flip_routers(agent: Agent) -> None:
        # As close calls between experts do: the second forward would order them differently.
        for _, layer in agent._agent._layers:
            layer.module.router.weight.data = layer.module.router.weight.data.flip(0)
            layer.module.router.register_forward_hook(lambda router, x, out: choices.append((x[0].detach(), out[1])))

    def body(rank: Rank) -> History:
        return train_checkpointed(rank, use_reentrant=use_reentrant, num_steps=1, between=flip_routers)

    flipped = merged(run_ranks(1, body))
    assert all(torch.isfinite(grad).all() for grad in flipped.gradients[0].values())
    assert len(choices) == CONFIG.num_layers
    for layer, (x_TD, chosen_TK) in zip(reversed(range(CONFIG.num_layers)), choices, strict=True):
        router = SkewedRouter(CONFIG, layer).to(CONFIG.dtype)
        assert torch.equal(router(x_TD)[1], chosen_TK)
        router.weight.data = router.weight.data.flip(0)
        assert not torch.equal(router(x_TD)[1], chosen_TK)


def test_recomputation_of_an_unknown_micro_batch_is_an_error_and_not_a_new_plan():
    def body(rank: Rank) -> str:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        outputs = []
        for index in range(2):
            x = batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index).requires_grad_()
            outputs.append(loss_of(checkpoint(model.layers[0], x, use_reentrant=True)))
        with pytest.raises(RuntimeError, match="micro-batches in flight.*agent.micro_batch") as caught:
            outputs[0].backward()
        agent.close()
        return str(caught.value)

    assert all("2 micro-batches in flight" in message for message in run_ranks(2, body))
