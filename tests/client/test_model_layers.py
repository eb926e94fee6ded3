from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from rank_threads import Rank, run_ranks
from torch import nn

from taot_client import Agent, AgentOptions, ExpertParallelGroup, ExpertParallelMoE
from taot_client.coordinator import Coordinator
from taot_client.model_layers import describe_layer, find_layers, refuse_unsupported

T = TypeVar("T")


def with_group(body: Callable[[ExpertParallelGroup], T]) -> T:
    """Runs `body` on a group of one rank."""

    def on_rank(rank: Rank) -> T:
        return body(rank.group)

    return run_ranks(1, on_rank)[0]


def make_layer(group: ExpertParallelGroup, **changes: Any) -> ExpertParallelMoE:
    return ExpertParallelMoE(**{"dim": 4, "hidden_dim": 6, "num_experts": 3, "top_k": 2, "group": group, **changes})


class Block(nn.Module):
    """A transformer block as the agent sees it."""

    def __init__(self, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.feed_forward = feed_forward


class Wrapper(nn.Module):
    """What data-parallel wrappers look like from outside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


# Finding layers.


def test_layers_are_found_in_the_order_of_the_model_dense_layers_left_out() -> None:
    def body(group: ExpertParallelGroup) -> None:
        first, second = make_layer(group), make_layer(group)
        model = nn.Sequential(Block(nn.Linear(4, 4)), Block(first), Block(nn.Linear(4, 4)), Block(second))
        assert find_layers(model) == [
            ("1.feed_forward", first.parallel_experts),
            ("3.feed_forward", second.parallel_experts),
        ]

    with_group(body)


def test_wrappers_are_looked_through() -> None:
    def body(group: ExpertParallelGroup) -> None:
        layer = make_layer(group)
        assert find_layers(Wrapper(nn.Sequential(Block(layer)))) == [("module.0.feed_forward", layer.parallel_experts)]
        assert find_layers(nn.Sequential(Wrapper(Wrapper(layer)))) == [("0.module.module", layer.parallel_experts)]

    with_group(body)


def test_compiled_modules_are_looked_through_and_leave_no_trace_in_the_name() -> None:
    def body(group: ExpertParallelGroup) -> None:
        # Wrapping alone compiles nothing.
        layer = make_layer(group)
        whole: Any = torch.compile(nn.Sequential(Block(layer)), backend="eager")
        assert type(whole).__name__ == "OptimizedModule"
        assert find_layers(whole) == [("0.feed_forward", layer.parallel_experts)]
        compiled_layer: Any = torch.compile(layer, backend="eager")
        assert find_layers(nn.Sequential(Block(compiled_layer))) == [("0.feed_forward", layer.parallel_experts)]
        assert find_layers(compiled_layer) == find_layers(layer) == [("moe", layer.parallel_experts)]

    with_group(body)


def test_a_model_without_layers_is_told_what_was_looked_for_and_what_is_there() -> None:
    with pytest.raises(ValueError, match="no mixture-of-experts layer found") as refusal:
        find_layers(Wrapper(nn.Sequential(Block(nn.Linear(4, 4)))))
    for name in ("ExpertParallelMoE", "Wrapper", "Sequential", "Block", "LayerNorm", "Linear"):
        assert name in str(refusal.value)


# Refusing what is not supported.


def refusal_of(spoil: Callable[[ExpertParallelMoE], object]) -> str:
    """What the agent says to a model whose second layer has been spoilt."""

    def body(group: ExpertParallelGroup) -> str:
        model = nn.Sequential(make_layer(group), make_layer(group))
        refuse_unsupported(find_layers(model))
        spoil(model[1])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="layer '1'") as refusal:
            refuse_unsupported(find_layers(model))
        return str(refusal.value)

    return with_group(body)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_floating_point_weights_are_accepted_trained_or_not(dtype: torch.dtype) -> None:
    def body(group: ExpertParallelGroup) -> list[tuple[torch.dtype, bool]]:
        accepted = []
        for is_trained in (True, False):
            layers = find_layers(make_layer(group).to(dtype).requires_grad_(is_trained))
            refuse_unsupported(layers)
            accepted += [(layer.experts.w_up.dtype, layer.experts.w_up.requires_grad) for _, layer in layers]
        return accepted

    assert with_group(body) == [(dtype, True), (dtype, False)]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.int8], ids=str)
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    def spoil(layer: ExpertParallelMoE) -> None:
        weight = layer.experts.w_up
        layer.experts.w_up = nn.Parameter(torch.zeros(weight.shape).to(dtype), requires_grad=False)

    message = refusal_of(spoil)
    assert f"expert weights of {dtype} are not supported" in message
    assert "torch.bfloat16" in message


def test_gradients_kept_elsewhere_are_refused_by_name() -> None:
    message = refusal_of(lambda layer: setattr(layer.experts.w_down, "main_grad", torch.zeros(1)))
    assert "`main_grad` are not supported, use `.grad`" in message


def test_gradients_kept_elsewhere_are_accepted_where_the_experts_say_that_they_come_from_grad() -> None:
    def body(group: ExpertParallelGroup) -> None:
        layer = make_layer(group)
        layer.experts.w_down.main_grad = torch.zeros(1)
        layer.experts.allows_main_grad = True
        refuse_unsupported(find_layers(layer))
        layer.experts.allows_main_grad = False
        with pytest.raises(ValueError, match="`main_grad` are not supported"):
            refuse_unsupported(find_layers(layer))

    with_group(body)


def test_experts_trained_in_part_are_refused() -> None:
    message = refusal_of(lambda layer: layer.experts.w_gate.requires_grad_(False))
    assert "training only some tensors of an expert is not supported" in message


@pytest.mark.parametrize("names", [("w_down",), ("w_gate", "w_up", "w_down")], ids=["one tensor", "whole layer"])
def test_experts_on_several_devices_are_refused(names: tuple[str, ...]) -> None:
    def spoil(layer: ExpertParallelMoE) -> None:
        for name in names:
            setattr(layer.experts, name, nn.Parameter(torch.empty_like(getattr(layer.experts, name), device="meta")))

    assert "all experts of a rank must be on one device, cpu here" in refusal_of(spoil)


def test_tensors_of_one_expert_on_several_devices_are_refused_in_the_first_layer_too() -> None:
    def body(group: ExpertParallelGroup) -> None:
        model = nn.Sequential(make_layer(group), make_layer(group))
        experts = model[0].experts
        experts.w_up = nn.Parameter(torch.empty_like(experts.w_up, device="meta"))
        with pytest.raises(ValueError, match="layer '0': all experts of a rank must be on one device, cpu here"):
            refuse_unsupported(find_layers(model))

    with_group(body)


def test_devices_without_a_mover_are_refused_by_name() -> None:
    def body(group: ExpertParallelGroup) -> None:
        layers = find_layers(nn.Sequential(make_layer(group)).to("meta"))
        with pytest.raises(ValueError, match=r"experts on 'meta' devices are not supported, .*'cpu', 'cuda'"):
            refuse_unsupported(layers)

    with_group(body)


@pytest.mark.parametrize("num_local", [0, 2, 4])
def test_weights_that_are_not_those_of_the_home_experts_are_refused(num_local: int) -> None:
    def spoil(layer: ExpertParallelMoE) -> None:
        layer.experts.w_up = nn.Parameter(torch.zeros(num_local, 4, 6))

    assert "sharded by FSDP or tensor parallelism are not supported" in refusal_of(spoil)


def test_uneven_homes_are_accepted_also_where_a_rank_has_none() -> None:
    def body(rank: Rank) -> list[int]:
        layers = find_layers(make_layer(rank.group, num_experts=4, home_E=[1, 0, 1, 1]))
        refuse_unsupported(layers)
        return [len(layer.experts.w_up) for _, layer in layers]

    assert run_ranks(3, body) == [[1], [3], [0]]


class Foreign:
    """A coordinator that somebody else has put in place of the plain one."""

    def __init__(self, plain: Coordinator) -> None:
        self.gate = plain.gate
        self.pinned_choice = plain.pinned_choice
        self.admit = plain.admit
        self.guests = plain.guests


def test_a_layer_that_another_coordinates_is_refused() -> None:
    message = refusal_of(
        lambda layer: setattr(layer.parallel_experts, "coordinator", Foreign(layer.parallel_experts.coordinator))
    )
    assert "has an agent already: close it before the next one is made" in message


def test_a_layer_has_one_agent_at_a_time() -> None:
    def body(rank: Rank) -> None:
        model = nn.Sequential(make_layer(rank.group))
        for _ in range(2):
            refuse_unsupported(find_layers(model))
            agent = Agent(model, AgentOptions(ranks_per_node=1), groups=rank.agent_groups)
            with pytest.raises(ValueError, match="layer '0' has an agent already"):
                refuse_unsupported(find_layers(model))
            agent.close()
        refuse_unsupported(find_layers(model))

    run_ranks(1, body)


def test_layers_of_two_groups_are_refused() -> None:
    def body(rank: Rank) -> str:
        other = ExpertParallelGroup(rank=0, size=1, tokens=rank.agent_groups.weights, counts=rank.agent_groups.control)
        layers = find_layers(nn.Sequential(make_layer(rank.group), make_layer(other)))
        with pytest.raises(ValueError, match="layer '1' uses another expert-parallel group than '0'") as refusal:
            refuse_unsupported(layers)
        return str(refusal.value)

    assert run_ranks(1, body)


# Describing layers, which ranks compare.


def describe_with(**changes: Any) -> dict[str, object]:
    return with_group(lambda group: describe_layer("a", make_layer(group, **changes).parallel_experts))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts": 4}, "experts"),
        ({"top_k": 1}, "top_k"),
        ({"dim": 5}, "shapes"),
        ({"hidden_dim": 7}, "shapes"),
    ],
    ids=["experts", "top_k", "dim", "hidden_dim"],
)
def test_layers_that_differ_are_described_differently(changes: dict[str, Any], field: str) -> None:
    assert describe_with(**changes)[field] != describe_with()[field]
    assert describe_with() == describe_with(seed=5), "the values of the weights are their own"


def test_homes_dtypes_and_training_are_described() -> None:
    def body(group: ExpertParallelGroup) -> list[dict[str, object]]:
        frozen = make_layer(group).requires_grad_(False)
        return [
            describe_layer("a", each.parallel_experts)
            for each in (make_layer(group), make_layer(group).bfloat16(), frozen)
        ]

    plain, narrow, frozen = with_group(body)
    assert plain["homes"] == [0, 0, 0]
    assert plain["dtypes"] != narrow["dtypes"]
    assert (plain["trained"], frozen["trained"]) == (True, False)


def test_the_shape_described_is_that_of_one_expert_however_many_are_local() -> None:
    def body(rank: Rank) -> dict[str, object]:
        # Rank 0 owns one expert, rank 1 three, rank 2 none.
        return describe_layer("a", make_layer(rank.group, num_experts=4, home_E=[1, 0, 1, 1]).parallel_experts)

    first, second, third = run_ranks(3, body)
    assert first == second == third


def test_the_layout_is_that_of_one_expert() -> None:
    def body(group: ExpertParallelGroup) -> None:
        layout = make_layer(group).experts.layout()
        assert layout.size_bytes == 3 * 4 * 6 * 4
        assert [tuple(shape) for shape in layout.shapes] == [(4, 6), (4, 6), (6, 4)]

    with_group(body)
