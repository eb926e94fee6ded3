"""With guests or without: the same losses and the same gradients."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from forced_splits import forced_split
from rank_threads import run_ranks
from tiny_moe import (
    DenseMoE,
    FixedRouter,
    TinyConfig,
    TinyMoE,
    assert_same_gradients,
    batch,
    loss_of,
    merged,
    tiny_options,
    train,
    train_dense,
)
from torch.utils.checkpoint import checkpoint

from taot_client import Agent, AgentOptions, layer_agent

# They train: too long for `make check`.
pytestmark = pytest.mark.slow

RANKS = 4


def options(**changes) -> AgentOptions:
    return tiny_options(**{"ranks_per_node": 2, "debug": True, "plan_source": "inline", **changes})


def guests_moved(history) -> int:
    return sum(summary.guests_intra + summary.guests_inter for summary in history.summaries)


def run(config: TinyConfig, agent_options: AgentOptions | None, *, num_steps: int, num_ranks: int = RANKS, **hooks):
    return merged(run_ranks(num_ranks, lambda rank: train(rank, config, agent_options, num_steps=num_steps, **hooks)))


@pytest.mark.parametrize("residency", ["resident", "shared"])
def test_inline_guests_leave_fp64_gradients_as_those_of_a_dense_model_over_ten_sgd_steps(residency):
    config = TinyConfig()
    got = run(config, options(slot_residency=residency), num_steps=10)
    assert guests_moved(got) > 20
    want = train_dense(config, num_ranks=RANKS, num_steps=10)
    assert_same_gradients(got, want, tolerance=1e-10)
    assert got.losses == pytest.approx(want.losses, rel=1e-12)


def test_fp32_gradients_equal_those_of_the_static_run():
    config = TinyConfig(dtype=torch.float32)
    static, got = run(config, None, num_steps=10), run(config, options(), num_steps=10)
    assert guests_moved(got) > 20
    assert_same_gradients(got, static, tolerance=1e-5, steps=[0])  # from equal weights
    assert got.losses == pytest.approx(static.losses, rel=1e-5)


def test_bf16_gradients_are_as_far_from_fp64_as_those_of_the_static_run():
    config = TinyConfig(dtype=torch.bfloat16, num_layers=1)
    dense = train_dense(TinyConfig(num_layers=1), num_ranks=RANKS, num_steps=1).gradients[0]
    errors = []
    for each in (None, options()):
        gradients = run(config, each, num_steps=1).gradients[0]
        errors.append({name: (gradients[name].double() - dense[name]).norm() for name in dense})
    assert all(errors[1][name] <= 2 * errors[0][name] + 1e-3 * dense[name].norm() for name in dense)


@pytest.mark.parametrize("residency", ["resident", "shared"])
@pytest.mark.parametrize("plan_source", ["ahead", "blocking"])
def test_guests_of_the_planner_leave_gradients_as_those_of_a_dense_model(planner, plan_source, residency):
    config = TinyConfig()
    before_step = partial(wait_for_plan) if plan_source == "ahead" else lambda agent, step: None
    got = run(
        config,
        options(
            planner_address=planner.address,
            plan_source=plan_source,
            group=f"{plan_source}-{residency}",
            slot_residency=residency,
        ),
        num_steps=6,
        before_step=before_step,
    )
    assert guests_moved(got) > 10
    assert {summary.mode.name for summary in got.summaries[2:]} == {"PLAN" if plan_source == "ahead" else "BLOCKING"}
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=6), tolerance=1e-10)


def wait_for_plan(agent: Agent, step: int) -> None:
    """Gives the planner time to answer the last report, so that the test does not depend on its speed."""
    stats = agent.planner_stats
    if not stats or step == 0:
        return
    waiting = threading.Event()
    for _ in range(600):
        plan = agent.planner_stats["plan"]
        if plan is not None and plan.source_step >= step - 1:
            return
        waiting.wait(0.05)
    raise AssertionError("the planner made no plan")


def test_observing_moves_nothing_and_shows_what_a_plan_would_gain(planner):
    config = TinyConfig()
    got = run(
        config,
        options(planner_address=planner.address, plan_source="observe", group="observe"),
        num_steps=5,
        before_step=wait_for_plan,
    )
    static = run(config, None, num_steps=5)
    assert guests_moved(got) == 0
    assert got.losses == static.losses
    last = got.summaries[-1]
    assert sum(last.imbalance.values()) < 0.7 * sum(last.imbalance_static.values())


def test_every_expert_replicated_on_both_ranks_equals_the_dense_output():
    # Two ranks, two experts each, both of the other rank's experts as guests: a token must be computed once.
    config = TinyConfig(num_experts=4, tokens_by_rank=(30, 50), num_layers=2, dtype=torch.float64)
    got = run(config, options(num_slots=2, tolerance=0.0), num_steps=3, num_ranks=2)
    assert guests_moved(got) > 0
    want = train_dense(config, num_ranks=2, num_steps=3)
    assert_same_gradients(got, want, tolerance=1e-10)


def test_one_expert_on_its_home_and_two_guests_gets_the_sum_of_its_gradients():
    # All tokens choose expert 0 (and 1 with the second choice): the mean of the copies would be a third of it.
    config = TinyConfig(
        num_experts=3,
        num_layers=1,
        tokens_by_rank=(60, 60, 60),
        router_of=partial(FixedRouter, choices=[[0, 1]]),
    )
    got = run(config, options(ranks_per_node=1), num_steps=2, num_ranks=3)
    assert guests_moved(got) >= 3
    assert_same_gradients(got, train_dense(config, num_ranks=3, num_steps=2), tolerance=1e-10)


@pytest.mark.parametrize(
    ("tokens_by_rank", "choices"),
    [
        ((40, 40, 40, 40), [[0, 1]]),  # experts 2 to 7 get nothing: zero columns
        ((0, 0, 0, 90), [[0, 1], [1, 2]]),  # three ranks send nothing: zero rows
        ((0, 0, 0, 0), [[0, 1]]),  # nobody sends anything
        ((1, 0, 0, 0), [[7, 0]]),
    ],
)
def test_experts_and_ranks_without_tokens_take_part_in_backward(tokens_by_rank, choices):
    config = TinyConfig(tokens_by_rank=tokens_by_rank, router_of=partial(FixedRouter, choices=choices), num_layers=2)
    got = run(config, options(), num_steps=2)
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=2), tolerance=1e-10)


@pytest.mark.parametrize(
    ("num_experts", "home_E", "num_ranks"),
    [
        (7, None, 2),
        (6, [0, 0, 0, 0, 1, 2], 3),  # uneven homes
        (2, None, 4),  # ranks without home experts
        (6, [3, 2, 1, 0, 3, 2], 4),  # homes out of order
    ],
)
def test_any_number_of_experts_and_any_homes(num_experts, home_E, num_ranks):
    config = TinyConfig(num_experts=num_experts, home_E=home_E)
    got = run(config, options(), num_steps=3, num_ranks=num_ranks)
    assert guests_moved(got) > 0
    assert_same_gradients(got, train_dense(config, num_ranks=num_ranks, num_steps=3), tolerance=1e-10)


def test_padding_ids_are_left_out_of_counts_and_of_the_output():
    # Row 1 of three is padding, row 2 has one choice that is no expert.
    choices = [[0, 1], [-1, -1], [2, 8]]
    config = TinyConfig(router_of=partial(FixedRouter, choices=choices))
    got = run(config, options(), num_steps=2)
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=2), tolerance=1e-10)


def test_gradient_norm_is_the_same_with_guests():
    config = TinyConfig(dtype=torch.float32)
    norms = []
    for each in (None, options()):
        gradients = run(config, each, num_steps=1).gradients[0]
        norms.append(torch.stack([value.double().norm() for value in gradients.values()]).norm().item())
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


@pytest.mark.parametrize("plan_source", ["ahead", "inline"])
def test_layers_with_different_numbers_of_experts(planner, plan_source):
    config = TinyConfig(num_layers=2, num_experts_by_layer=(8, 12))
    address = planner.address if plan_source == "ahead" else None
    got = run(
        config,
        options(planner_address=address, plan_source=plan_source, group="uneven-layers"),
        num_steps=4,
        before_step=wait_for_plan,
    )
    assert guests_moved(got) > 0
    assert_same_gradients(got, train_dense(config, num_ranks=RANKS, num_steps=4), tolerance=1e-10)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("options.num_slots", ({"num_slots": 1}, {"num_slots": 2})),
        ("options.tolerance", ({"tolerance": 0.1}, {"tolerance": 0.2})),
    ],
)
def test_ranks_started_with_different_options_all_stop_and_name_the_field(field, values):
    def body(rank):
        with pytest.raises(ValueError, match=f"disagree about {field}: rank 0: .*, rank 1: "):
            train(rank, TinyConfig(), options(**values[rank.group.rank]), num_steps=1)

    run_ranks(2, body)


def test_ranks_with_different_models_all_stop_and_name_the_field():
    def body(rank):
        config = TinyConfig(hidden_dim=20 + rank.group.rank)
        with pytest.raises(ValueError, match="disagree about layer layers.0 shapes"):
            train(rank, config, options(), num_steps=1)

    run_ranks(2, body)


def test_a_home_expert_whose_tokens_all_went_to_guests_gets_their_gradients(monkeypatch):
    # No plan would do that for balance alone: force it, so that homes compute nothing at all.
    def everything_to_guests(counts_SE, guests_RK):
        quota_SRK = np.zeros((counts_SE.shape[0], *guests_RK.shape), dtype=np.int64)
        for expert in np.unique(guests_RK[guests_RK >= 0]):
            rank, slot = np.argwhere(guests_RK == expert)[0]
            quota_SRK[:, rank, slot] = counts_SE[:, expert]
        return quota_SRK

    monkeypatch.setattr(layer_agent, "split_pass", forced_split(everything_to_guests))
    monkeypatch.setattr(layer_agent, "plan_layer", lambda problem, **_: SimpleNamespace(guests_RK=SWAPPED_RK))
    config = TinyConfig(num_experts=2, num_layers=2, tokens_by_rank=(30, 20), dtype=torch.float64)
    got = run(config, options(num_slots=1), num_steps=2, num_ranks=2)
    assert guests_moved(got) == 2 * 2 * 2
    assert_same_gradients(got, train_dense(config, num_ranks=2, num_steps=2), tolerance=1e-10)


SWAPPED_RK = np.array([[1], [0]])
"""Each of two ranks hosts the other's only expert."""


def test_autocast_to_bf16_exchanges_rows_of_one_dtype():
    config = TinyConfig(dtype=torch.float32, num_layers=2)

    def body(rank, agent_options):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return train(rank, config, agent_options, num_steps=2)

    static, got = (merged(run_ranks(RANKS, partial(body, agent_options=each))) for each in (None, options()))
    assert guests_moved(got) > 0
    assert got.losses == pytest.approx(static.losses, rel=2e-2)


@pytest.mark.parametrize("residency", ["resident", "shared"])
def test_frozen_experts_are_balanced_and_the_other_gradients_are_right(residency):
    config = TinyConfig()

    def body(rank, agent_options):
        model = TinyMoE(config, rank.group)
        for layer in model.layers:
            layer.experts.requires_grad_(False)
        agent = Agent(model, agent_options, groups=rank.agent_groups)
        gradients = []
        for step in range(2):
            agent.begin_step()
            for index in range(2):
                x = batch(config, step=step, rank=rank.group.rank, micro_batch=index)
                loss_of(checkpoint(model, x.requires_grad_(), use_reentrant=False)).backward()
            assert all(layer.pins.num_in_flight == 0 for layer in agent._agent.state.layers)
            summary = agent.end_step()
            assert summary.guests_intra + summary.guests_inter > 0
            agent.weights_changed()
            gradients.append([layer.router.weight.grad.clone() for layer in model.layers])
            model.zero_grad()
        agent.close()
        return gradients

    got = run_ranks(2, partial(body, agent_options=options(ranks_per_node=1, slot_residency=residency)))
    for rank, gradients in enumerate(got):
        dense = DenseMoE(config)
        for step in range(2):
            dense.zero_grad()
            for index in range(2):
                loss_of(dense(batch(config, step=step, rank=rank, micro_batch=index))).backward()
            for router, grad in zip(dense.routers, gradients[step], strict=True):
                assert (router.weight.grad - grad).norm() <= 1e-10 * grad.norm()
