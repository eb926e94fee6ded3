"""Two sets of slots for all layers: guests come back for their backward, whatever has used their slots since."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta

import numpy as np
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
    train,
    train_dense,
)
from torch.utils.checkpoint import checkpoint

from taot_client import Agent, AgentOptions
from taot_client.layer_agent import LayerAgent
from taot_client.transfers.shared_supply import SharedSupply
from taot_client.transfers.shipment import TransferError
from taot_client.transfers.slot_table import SlotState

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4
CONFIG = TinyConfig(num_layers=5, hidden_dim_by_layer=(20, 9, 33, 14, 6))


def options(**changes) -> AgentOptions:
    return tiny_options(
        **{"ranks_per_node": 2, "debug": True, "plan_source": "inline", "slot_residency": "shared", **changes}
    )


def guests_moved(history: History) -> int:
    return sum(summary.guests_intra + summary.guests_inter for summary in history.summaries)


def forward(model: TinyMoE, rank: Rank, index: int, *, step: int = 0) -> torch.Tensor:
    return loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank, micro_batch=index)))


def dense_gradients(micro_batches, *, config: TinyConfig = CONFIG, step: int = 0) -> History:
    model = DenseMoE(config)
    for index in micro_batches:
        for rank in range(RANKS):
            loss_of(model(batch(config, step=step, rank=rank, micro_batch=index))).backward()
    gradients = {}
    for layer in range(config.num_layers):
        gradients[f"{layer}.router.weight"] = model.routers[layer].weight.grad
        for name, parameter in model.experts[layer].named_parameters():
            for expert in range(config.num_experts):
                gradients[f"{layer}.{expert}.{name}"] = parameter.grad[expert]
    return History(losses=[0.0], gradients=[gradients])


def one_step(schedule, **changes) -> History:
    def body(rank: Rank) -> History:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(**changes), groups=rank.agent_groups)
        agent.begin_step()
        schedule(agent, model, rank)
        history = History(losses=[0.0], summaries=[agent.end_step()])
        sum_shared_gradients(model, rank)
        history.gradients.append(named_gradients(model))
        agent.close()
        return history

    return merged(run_ranks(RANKS, body))


@pytest.mark.parametrize("num_layers", [1, 2, 4, 5])
def test_any_number_of_layers_of_any_size_leaves_gradients_as_those_of_a_dense_model(num_layers):
    config = TinyConfig(num_layers=num_layers, hidden_dim_by_layer=CONFIG.hidden_dim_by_layer[:num_layers])
    got = merged(run_ranks(RANKS, lambda rank: train(rank, config, options(), num_steps=2)))
    assert guests_moved(got) >= 2 * num_layers
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=2), tolerance=1e-10)


def test_planned_guests_travel_ahead_of_their_layers_in_every_micro_batch_of_a_step(planner, monkeypatch):
    late_layers, admitted = set(), threading.local()
    real_arrived, real_bring = SharedSupply.arrived, SharedSupply.bring

    def watched_arrived(supply, gathered):
        admitted.supply = supply
        guests_RK = real_arrived(supply, gathered)
        admitted.supply = None
        return guests_RK

    def watched_bring(supply, wanted_RK):
        before_RK = supply.resident_RK
        real_bring(supply, wanted_RK)
        is_late = getattr(admitted, "supply", None) is supply
        if is_late and not np.array_equal(before_RK, supply.resident_RK):
            late_layers.add(supply._route.layer)

    monkeypatch.setattr(SharedSupply, "arrived", watched_arrived)
    monkeypatch.setattr(SharedSupply, "bring", watched_bring)
    group_options = options(planner_address=planner.address, plan_source="ahead", group="shared-accumulation")

    def body(rank: Rank) -> tuple[list, list]:
        model, summaries = TinyMoE(CONFIG, rank.group), []
        agent = Agent(model, group_options, groups=rank.agent_groups)
        for step in range(3):
            wait_for_plan(agent, step)
            agent.begin_step()
            model.zero_grad()
            for order in ([0], [1, 2]):  # one micro-batch after another, then two in flight
                losses = [forward(model, rank, index, step=step) for index in order]
                sum(losses).backward()
            summaries.append(agent.end_step())
        sum_shared_gradients(model, rank)
        agent.close()
        return summaries, named_gradients(model)

    by_rank = run_ranks(RANKS, body)
    assert all(summaries == by_rank[0][0] for summaries, _ in by_rank)
    last = by_rank[0][0][-1]
    assert last.mode.name == "PLAN"
    # The plan is of another step's counts: less than perfect, but at work in all micro-batches.
    assert sum(last.imbalance.values()) < 0.6 * sum(last.imbalance_static.values())
    assert late_layers <= {0}, "all other layers were sent for while those before them computed"
    got = History(losses=[0.0], gradients=[{k: v for _, grads in by_rank for k, v in grads.items()}])
    assert_same_gradients(got, dense_gradients(range(3), step=2), tolerance=1e-10)


def wait_for_plan(agent: Agent, step: int) -> None:
    """Gives the planner time to answer the last report, so that the test does not depend on its speed."""
    if not agent.planner_stats or step == 0:
        return
    waiting = threading.Event()
    for _ in range(600):
        plan = agent.planner_stats["plan"]
        if plan is not None and plan.source_step >= step - 1:
            return
        waiting.wait(0.05)
    raise AssertionError("the planner made no plan")


def test_guests_have_come_back_and_have_arrived_when_their_backward_begins(monkeypatch):
    real, checked = LayerAgent.leave_guests, []

    def watched(layer, layer_pass, outputs):
        def check(grad: torch.Tensor) -> None:
            for slot in layer_pass.slots:
                there, expert = layer.supply.slots.slots[slot], layer_pass.plan.guests_RK[layer.route.rank, slot]
                assert (there.state, there.expert) == (SlotState.READY, expert)
                checked.append(layer.route.layer)

        if torch.is_grad_enabled():
            for output in outputs:
                output.register_hook(check)  # runs behind the exit's backward and ahead of the guests' own
        return real(layer, layer_pass, outputs)

    monkeypatch.setattr(LayerAgent, "leave_guests", watched)

    def one_after_another(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        for index in range(2):
            forward(model, rank, index).backward()

    got = one_step(one_after_another)
    assert set(checked) == set(range(CONFIG.num_layers))
    assert_same_gradients(got, dense_gradients(range(2)), tolerance=1e-10)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_whole_model_recomputed_at_once_finds_its_guests(use_reentrant):
    def accumulate(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        losses = {}
        for index in range(2):
            x = batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index).requires_grad_()
            with agent.micro_batch(index):
                losses[index] = loss_of(checkpoint(model, x, use_reentrant=use_reentrant))
        for index in (0, 1):
            with agent.micro_batch(index):
                losses[index].backward()

    got = one_step(accumulate)
    assert guests_moved(got) > 10
    assert_same_gradients(got, dense_gradients(range(2)), tolerance=1e-10)


def test_forwards_without_backward_in_between_leave_the_gradients_alone():
    def interrupted(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        with agent.micro_batch(0):
            loss = forward(model, rank, 0)
        with agent.micro_batch(1), torch.no_grad():
            forward(model, rank, 1)
        model.eval()
        forward(model, rank, 2)
        model.train()
        with agent.micro_batch(0):
            loss.backward()

    assert_same_gradients(one_step(interrupted), dense_gradients([0]), tolerance=1e-10)


def test_a_step_goes_on_after_an_exception_in_the_midst_of_guests():
    def raises(layer_pass, outputs):
        raise MemoryError("as on a device that is too small")

    def schedule(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        with agent.micro_batch(0):
            loss = forward(model, rank, 0)
        layer = agent._agent.state.layers[2]
        layer.leave_guests = raises
        with agent.micro_batch(1), pytest.raises(MemoryError):
            forward(model, rank, 1)
        del layer.leave_guests
        with agent.micro_batch(2):
            forward(model, rank, 2).backward()
        with agent.micro_batch(0):
            loss.backward()

    assert_same_gradients(one_step(schedule), dense_gradients([0, 2]), tolerance=1e-10)


def test_ranks_plan_with_the_guests_that_a_set_holds_for_the_layer_at_hand_and_no_others(monkeypatch):
    real_wanted, seen = LayerAgent._wanted, {}

    def watched(layer, mode, site, gathered, problem):
        resident_RK = problem.resident_RK
        if resident_RK is None:
            resident_RK = layer.supply.no_guests()
        seen.setdefault((site.micro_batch, site.layer), []).append(resident_RK)
        for slot, expert in zip(layer.supply.slots.slots, resident_RK[layer.route.rank], strict=True):
            if expert >= 0:  # its label says so
                layer.route.check_label(slot.buffer, expert=int(expert), epoch=layer._state.weight_epoch)
        return real_wanted(layer, mode, site, gathered, problem)

    monkeypatch.setattr(LayerAgent, "_wanted", watched)

    def accumulate(agent: Agent, model: TinyMoE, rank: Rank) -> None:
        for index in range(2):
            forward(model, rank, index).backward()

    one_step(accumulate)
    assert len(seen) == 2 * CONFIG.num_layers
    for by_rank in seen.values():
        assert len(by_rank) == RANKS
        assert all(np.array_equal(resident_RK, by_rank[0]) for resident_RK in by_rank)
    # A backward ends in the first two layers: their guests are still there when the next forward begins.
    has_guests = {at: bool((by_rank[0] >= 0).any()) for at, by_rank in seen.items()}
    assert [has_guests[1, layer] for layer in range(CONFIG.num_layers)] == [True, True, False, False, False]


def test_weights_that_changed_under_way_are_noticed_before_their_backward():
    config = TinyConfig(num_layers=1)  # nobody takes the set: what is there in backward is what came for forward
    agent_options = options(plan_deadline=timedelta(seconds=0.1), transfer_timeout=timedelta(seconds=0.5))

    def body(rank: Rank) -> bool:
        model = TinyMoE(config, rank.group)
        agent = Agent(model, agent_options, groups=rank.agent_groups)
        agent.begin_step()
        loss = loss_of(model(batch(config, step=0, rank=rank.group.rank)))
        (layer,) = agent._agent.state.layers
        used = layer.pins.find(0).slots
        for slot in used:
            layer.supply.slots.slots[slot].buffer[3] += 1
        # Home ranks without guests miss the gradients of those whose backward has failed.
        expected = (
            pytest.raises(RuntimeError, match="changed between send and use") if used else suppress(TransferError)
        )
        with expected:
            loss.backward()
        agent.close()
        return bool(used)

    assert any(run_ranks(RANKS, body))


def test_slots_in_which_guests_compute_cannot_be_taken():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        layers = agent._agent.state.layers
        forward(model, rank, 0)
        last, before = layers[4], layers[2]
        last.supply.weights(last.pins.find(0))  # as the exit does, ahead of the guests' backward
        with pytest.raises(AssertionError, match=r"layer 2 takes slots in which guests of .*layer 4"):
            before.supply.recall(before.pins.find(0))
        agent.close()

    run_ranks(RANKS, body)
