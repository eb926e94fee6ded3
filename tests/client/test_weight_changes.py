"""Weights changed from outside inside a step: no rank computes with guests made of what they were."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from plans_awaited import await_plan
from rank_threads import Rank, run_ranks
from tiny_moe import DenseMoE, TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, AgentOptions, StepSummary
from taot_client.agent_state import AgentState
from taot_client.step_summary import MoveTotals
from taot_client.weight_changes import WeightChanges

RANKS = 4
CONFIG = TinyConfig(num_layers=2)
CHANGED_RANK = 0
"""Home of the experts that the router likes: every other rank has guests of it."""
LAST_STEP = 2
FACTOR = 1.5


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "plan_source": "inline", **changes})


def forward(model: TinyMoE, rank: Rank, index: int) -> torch.Tensor:
    return loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index)))


def scaled(model: TinyMoE) -> dict[str, torch.Tensor]:
    """What a checkpoint holds whose expert weights are larger."""
    return {name: value * (FACTOR if ".experts." in name else 1) for name, value in model.state_dict().items()}


def change_and_tell(agent: Agent, model: TinyMoE) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(FACTOR if ".experts." in name else 1)
    agent.weights_changed()


def load_whole(agent: Agent, model: TinyMoE) -> None:
    del agent
    model.load_state_dict(scaled(model))


def load_experts(agent: Agent, model: TinyMoE) -> None:
    del agent
    for layer in model.layers:
        layer.experts.load_state_dict({name: value * FACTOR for name, value in layer.experts.state_dict().items()})


def load_new_parameters(agent: Agent, model: TinyMoE) -> None:
    del agent
    model.load_state_dict(scaled(model), assign=True)


def gradients_after(
    rank: Rank, change: Callable[[Agent, TinyMoE], None], *, place: str, agent_options: AgentOptions
) -> tuple[dict[str, torch.Tensor], StepSummary]:
    """Gradients of the second micro-batch of the last step, before which one rank alone changes its weights."""
    model = TinyMoE(CONFIG, rank.group)
    agent = Agent(model, agent_options, groups=rank.agent_groups)
    for step in range(LAST_STEP + 1):  # a planner's plan is there before the second, and in the record of the third
        await_plan(agent, step)
        agent.begin_step()
        if step < LAST_STEP:
            forward(model, rank, 0).backward()
            agent.end_step()
            model.zero_grad()
    changes = [change] if rank.group.rank == CHANGED_RANK else []
    if place == "before the first forward":
        for each in changes:
            each(agent, model)
    forward(model, rank, 0).backward()
    model.zero_grad()
    if place == "after a backward":
        for each in changes:
            each(agent, model)
    forward(model, rank, 1).backward()
    summary = agent.end_step()
    agent.close()
    named = {}
    for index, layer in enumerate(model.layers):
        for local, expert in enumerate(layer.parallel_experts.home_experts.tolist()):
            for name, parameter in layer.experts.named_parameters():
                named[f"{index}.{expert}.{name}"] = parameter.grad[local].clone()
    return named, summary


def dense_gradients() -> dict[str, torch.Tensor]:
    model = DenseMoE(CONFIG)
    at_home = np.arange(CONFIG.num_experts) * RANKS // CONFIG.num_experts == CHANGED_RANK
    with torch.no_grad():
        for experts in model.experts:
            for weight in experts.parameters():
                weight[torch.from_numpy(at_home)] *= FACTOR
    for rank in range(RANKS):
        loss_of(model(batch(CONFIG, step=0, rank=rank, micro_batch=1))).backward()
    return {
        f"{index}.{expert}.{name}": parameter.grad[expert]
        for index, experts in enumerate(model.experts)
        for name, parameter in experts.named_parameters()
        for expert in range(CONFIG.num_experts)
    }


def check_gradients(
    change: Callable[[Agent, TinyMoE], None], place: str, agent_options: AgentOptions
) -> list[StepSummary]:
    got = run_ranks(RANKS, lambda rank: gradients_after(rank, change, place=place, agent_options=agent_options))
    gradients = {name: value for named, _ in got for name, value in named.items()}
    want = dense_gradients()
    assert gradients.keys() == want.keys()
    for name, expected in want.items():
        assert (gradients[name] - expected).norm() <= 1e-10 * expected.norm(), name
    return [summary for _, summary in got]


@pytest.mark.parametrize("place", ["before the first forward", "after a backward"])
@pytest.mark.parametrize(
    "change", [change_and_tell, load_whole, load_experts, load_new_parameters], ids=lambda each: each.__name__
)
def test_a_change_on_one_rank_alone_is_seen_by_the_guests_on_all_ranks(change, place):
    summaries = check_gradients(change, place, options())
    assert summaries[0].guests_intra + summaries[0].guests_inter > 0
    assert all(summary == summaries[0] for summary in summaries)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before the first forward", "after a backward"])
def test_guests_of_a_plan_are_sent_anew(planner, place, monkeypatch):
    journeys: list[MoveTotals] = []  # of each layer in the last step, as rank 0 notes them
    real_note = AgentState.note_moves

    def note_moves(state: AgentState, totals: MoveTotals) -> None:
        if state.group.rank == 0 and state.step == LAST_STEP:
            journeys.append(totals)
        real_note(state, totals)

    monkeypatch.setattr(AgentState, "note_moves", note_moves)
    group = f"changed-{place.replace(' ', '-')}"
    summaries = check_gradients(
        load_whole, place, options(planner_address=planner.address, plan_source=None, group=group)
    )
    assert summaries[0].mode.name == "PLAN"
    moved = summaries[0].guests_intra + summaries[0].guests_inter
    assert moved > 0
    num_left = 1 if place == "before the first forward" else len(journeys) // 2
    assert journeys[num_left : 2 * num_left] == journeys[:num_left], "what had left is sent once more"
    assert sum(each.intra + each.inter for each in journeys) == moved
    assert summaries[0].fallbacks["not_arrived"] >= 1  # the pass that heard of it stays home in its first layer
    assert all(summary == summaries[0] for summary in summaries)


def test_a_change_that_no_forward_has_heard_of_ends_with_its_step():
    def body(rank: Rank) -> list[int]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        moved = []
        for tells in (False, True, False):
            agent.begin_step()
            for _ in range(2):
                forward(model, rank, 0).backward()
            if tells:
                agent.weights_changed()
            summary = agent.end_step()
            moved.append(summary.guests_intra + summary.guests_inter)
        assert agent._agent.state.weight_epoch == len(moved) - 1, "the change belongs to a step that is over"
        agent.close()
        return moved

    for moved in run_ranks(2, body):
        assert moved == [moved[0]] * 3
        assert moved[0] > 0


def test_telling_of_a_change_while_a_forward_waits_for_its_backward_is_an_error():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        loss = forward(model, rank, 0)
        with pytest.raises(RuntimeError, match=r"weights changed while layer 'layers\.0' waits for a backward"):
            agent.weights_changed()
        loss.backward()
        agent.end_step()
        agent.close()

    run_ranks(2, body)


def test_loading_while_a_forward_waits_for_its_backward_ends_at_the_next_forward_of_every_rank():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        forward(model, rank, 0)  # an exception has taken its backward
        if rank.group.rank == 0:
            model.load_state_dict(model.state_dict())
        with pytest.raises(RuntimeError, match="weights changed while layer"):
            forward(model, rank, 1)
        agent.begin_step()  # starting over from the checkpoint is fine
        forward(model, rank, 1).backward()
        agent.end_step()
        agent.close()

    run_ranks(2, body)


def test_a_closed_agent_has_left_nothing_on_the_modules():
    def hooks(model: TinyMoE) -> list[int]:
        return [len(module._load_state_dict_post_hooks) for module in model.modules()]

    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        before = hooks(model)
        agent = Agent(model, options(), groups=rank.agent_groups)
        assert sum(hooks(model)) > sum(before)
        agent.close()
        rank.group.counts.barrier().wait()  # both ranks have offered what the other waits for
        assert hooks(model) == before

    run_ranks(2, body)


def test_what_is_new_is_heard_once_whoever_has_announced_it():
    changes = WeightChanges()
    assert not changes.hear(0)
    changes.announce()
    assert changes.num_announced == 1
    assert changes.hear(3)
    assert not changes.hear(3)
    assert changes.hear(4)
    changes.begin_step()
    assert changes.num_announced == 0
    assert not changes.hear(0)
