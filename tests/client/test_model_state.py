"""What the agent must not touch: parameters, checkpoints, evaluation."""

from __future__ import annotations

import io

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_client import Agent, AgentOptions, StepSummary
from taot_client import layer_agent as layer_agent_module
from taot_client.transfers.slot_table import SlotState

CONFIG = TinyConfig()


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 1, "debug": True, "plan_source": "inline", **changes})


def step(agent: Agent, model: TinyMoE, rank: Rank, index: int) -> StepSummary:
    agent.begin_step()
    loss_of(model(batch(CONFIG, step=index, rank=rank.group.rank))).backward()
    return agent.end_step()


def test_guests_are_neither_parameters_nor_state_and_checkpoints_load_without_the_agent():
    def body(rank: Rank) -> None:
        plain = TinyMoE(CONFIG, rank.group)
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        step(agent, model, rank, 0)
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
        assert not list(model.buffers())
        assert model.state_dict().keys() == plain.state_dict().keys()
        saved = io.BytesIO()
        torch.save(model.state_dict(), saved)
        saved.seek(0)
        plain.load_state_dict(torch.load(saved, weights_only=True))
        optimizer = torch.optim.AdamW(model.parameters())
        assert len(optimizer.param_groups[0]["params"]) == len(list(plain.parameters()))
        agent.close()

    run_ranks(2, body)


def test_evaluation_counts_nothing_and_changes_no_plan(monkeypatch):
    noted = []
    real = layer_agent_module.LayerAgent._admit_new
    monkeypatch.setattr(
        layer_agent_module.LayerAgent, "_admit_new", lambda self, e: noted.append(self.route.name) or real(self, e)
    )

    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank))).backward()
        before = [layer.supply.resident_RK.copy() for layer in agent._agent.state.layers]
        model.eval()
        with torch.no_grad():
            evaluated = model(batch(CONFIG, step=9, rank=rank.group.rank))
        model.train()
        summary = agent.end_step()
        after = [layer.supply.resident_RK for layer in agent._agent.state.layers]
        assert all((now == was).all() for now, was in zip(after, before, strict=True))
        agent.close()
        model.eval()
        with torch.no_grad():
            again = model(batch(CONFIG, step=9, rank=rank.group.rank))
        assert torch.equal(evaluated, again)
        assert all(len(each) == CONFIG.num_layers for each in (summary.imbalance, summary.imbalance_static))

    run_ranks(2, body)
    assert len(noted) == 2 * CONFIG.num_layers  # two ranks, one training forward


def test_a_forward_before_the_first_step_says_what_to_do():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        with pytest.raises(RuntimeError, match="agent.begin_step"):
            model(batch(CONFIG, step=0, rank=rank.group.rank))
        agent.close()

    run_ranks(2, body)


def test_an_exception_between_forward_and_backward_leaves_the_agent_usable():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        model(batch(CONFIG, step=0, rank=rank.group.rank))  # its backward never runs
        summaries = [step(agent, model, rank, index) for index in range(1, 3)]
        assert [summary.step for summary in summaries] == [1, 2]
        assert all(summary.guests_intra + summary.guests_inter > 0 for summary in summaries)
        assert all(layer.pins.num_in_flight == 0 for layer in agent._agent.state.layers)
        agent.close()

    run_ranks(2, body)


def test_poisoned_free_slots_never_reach_the_loss_and_memory_is_allocated_once():
    def body(rank: Rank) -> list[SlotState]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        slots = [slot for layer in agent._agent.state.layers for slot in layer.supply.slots.slots]
        addresses = [slot.buffer.data_ptr() for slot in slots]
        layout = agent._agent.state.layers[0].route.layout
        for index in range(3):
            assert all(torch.isnan(layout.views(slot.buffer)[0]).all() for slot in slots if slot.expert < 0)
            agent.begin_step()
            loss = loss_of(model(batch(CONFIG, step=index, rank=rank.group.rank)))
            assert torch.isfinite(loss)
            loss.backward()
            agent.end_step()
            epochs = {layout.label(slot.buffer)[2].item() for slot in slots if slot.state is SlotState.READY}
            assert epochs <= {index}, "weights are those of this step"
        assert [slot.buffer.data_ptr() for slot in slots] == addresses
        agent.close()
        return [slot.state for slot in slots]

    assert SlotState.READY in sum(run_ranks(2, body), [])


def test_switched_off_by_the_environment_training_is_plain_and_still_summarised(monkeypatch):
    monkeypatch.setenv("TAOT_DISABLE", "1")

    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank))).backward()
        summary = agent.end_step()
        assert (summary.guests_intra, summary.guests_inter, summary.reason.name) == (0, 0, "DISABLED")
        assert summary.imbalance == summary.imbalance_static
        assert min(summary.imbalance.values()) > 0
        agent.close()

    run_ranks(2, body)


def test_a_training_mode_forward_between_steps_computes_with_the_new_weights():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        step(agent, model, rank, 0)
        with torch.no_grad():
            for layer in model.layers:
                for weight in layer.experts.tensors():
                    weight.mul_(1.1)  # what an optimizer does
            between = model(batch(CONFIG, step=5, rank=rank.group.rank))
        agent.weights_changed()  # as a load_state_dict between steps would say
        step(agent, model, rank, 1)
        agent.close()
        with torch.no_grad():
            assert torch.equal(between, model(batch(CONFIG, step=5, rank=rank.group.rank)))

    run_ranks(2, body)


def test_a_second_backward_through_one_forward_is_refused_and_not_wrong():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        loss = loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank)))
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="exactly one backward"):
            loss.backward()
        rank.group.counts.barrier().wait()
        agent.close()

    run_ranks(2, body)


def test_a_second_agent_on_a_model_is_refused_on_every_rank():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        first = Agent(model, options(), groups=rank.agent_groups)
        with pytest.raises(ValueError, match="has an agent already"):
            Agent(model, options(), groups=rank.agent_groups)
        step(first, model, rank, 0)
        first.close()

    run_ranks(2, body)


def test_what_one_rank_cannot_do_stops_all_ranks():
    def body(rank: Rank) -> str:
        model = TinyMoE(CONFIG, rank.group)
        if rank.group.rank == 1:
            model.layers[0].experts.w_up.requires_grad_(False)
        with pytest.raises(ValueError, match="training only some tensors") as caught:
            Agent(model, options(), groups=rank.agent_groups)
        return str(caught.value)

    assert run_ranks(3, body)[0].startswith("rank 1 refuses to start")


def test_a_model_cast_after_the_agent_was_made_is_refused():
    def body(rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        model.float()
        with pytest.raises(RuntimeError, match="another shape, dtype or device"):
            agent.begin_step()
        agent.close()

    run_ranks(2, body)


def test_no_buffer_outlives_the_transfer_that_it_was_for():
    def body(rank: Rank) -> int:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, options(), groups=rank.agent_groups)
        agent.begin_step()
        for index in range(12):
            loss_of(model(batch(CONFIG, step=0, rank=rank.group.rank, micro_batch=index))).backward()
            rank.group.counts.barrier().wait()
        waiting = len(agent._agent.state.gradient_mover._posted)
        agent.end_step()
        agent.close()
        return waiting

    # Twelve micro-batches of three layers would leave far more behind.
    assert max(run_ranks(2, body)) <= 2 * CONFIG.num_layers * CONFIG.num_experts


def test_a_layer_in_eval_mode_passes_gradients_on_inside_a_step_and_between_steps() -> None:
    """Such as frozen blocks whose inputs are trained: nothing is counted, nothing is balanced, gradients flow."""

    def body(rank: Rank) -> list[torch.Tensor]:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, tiny_options(ranks_per_node=1), groups=rank.agent_groups)
        model.eval()
        gradients = []
        for is_in_step in (True, False):
            x = batch(CONFIG, step=0, rank=rank.group.rank).requires_grad_()
            if is_in_step:
                agent.begin_step()
            loss_of(model(x)).backward()
            if is_in_step:
                assert agent.end_step().imbalance == {}
            assert x.grad is not None
            gradients.append(x.grad)
        agent.close()
        return gradients

    def without_agent(rank: Rank) -> torch.Tensor | None:
        x = batch(CONFIG, step=0, rank=rank.group.rank).requires_grad_()
        loss_of(TinyMoE(CONFIG, rank.group)(x)).backward()
        return x.grad

    for got, want in zip(run_ranks(2, body), run_ranks(2, without_agent), strict=True):
        assert want is not None
        assert all(torch.equal(each, want) for each in got)
