"""What an adapter forgets of an expert is refused at start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE
from torch import nn

from taot_client import Agent, AgentOptions
from taot_client.home_experts import FusedExperts, Weights
from taot_client.parallel_experts import ParallelExperts
from taot_client.self_test import check_experts
from taot_client.transfers.expert_layout import ExpertLayout

DIM, HIDDEN, EXPERTS = 6, 10, 4


class ToyExperts(FusedExperts, nn.Module):
    """A framework's experts: weights, a bias, and a scale in a buffer; this is its complete and right adapter."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, fresh: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
        self.w_in = nn.Parameter(draw(EXPERTS, DIM, HIDDEN))
        self.w_out = nn.Parameter(draw(EXPERTS, HIDDEN, DIM))
        self.bias = nn.Parameter(torch.zeros(EXPERTS, DIM, dtype=dtype) if fresh else draw(EXPERTS, DIM))
        self.register_buffer("scale", torch.ones(EXPERTS) if fresh else torch.rand(EXPERTS, generator=generator) + 0.5)
        self.dropout = nn.Dropout(0.5)

    @property
    def dim(self) -> int:
        return DIM

    def tensors(self) -> Weights:
        return self.w_in, self.w_out, self.bias, self.scale

    def apply_weights(self, x_ND, w_in, w_out, bias, scale) -> torch.Tensor:
        return self.dropout((x_ND @ w_in).relu() @ w_out * scale.to(x_ND.dtype) + bias)

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        return self.apply_weights(
            x_ND, self.w_in[local], self.w_out[local], self.bias[local], self.get_buffer("scale")[local]
        )

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        return self.apply_weights(x_ND, *expert)


class UnlistedBias(ToyExperts):
    def tensors(self) -> Weights:
        return self.w_in, self.w_out, self.scale

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        w_in, w_out, scale = expert
        return self.apply_weights(x_ND, w_in, w_out, torch.zeros(()), scale)


class UnlistedScale(ToyExperts):
    def tensors(self) -> Weights:
        return self.w_in, self.w_out, self.bias

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        return self.apply_weights(x_ND, *expert, torch.ones(()))


class UnusedBias(ToyExperts):
    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        w_in, w_out, _, scale = expert
        return self.apply_weights(x_ND, w_in, w_out, torch.zeros(()), scale)


class UnusedScale(ToyExperts):
    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        return self.apply_weights(x_ND, *expert[:3], torch.ones(()))


class ScaleOfTheFirst(ToyExperts):
    """Derived state that stays where it was: the first expert is right, the others are not."""

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        return self.apply_weights(x_ND, *expert[:3], self.get_buffer("scale")[0])


class CopiedViews(ToyExperts):
    def split(self, tensors: Weights) -> list[Weights]:
        return super().split(tuple(each.clone() for each in tensors))


class OwnViews(ToyExperts):
    def split(self, tensors: Weights) -> list[Weights]:
        return super().split(self.tensors())


class DetachedViews(ToyExperts):
    def split(self, tensors: Weights) -> list[Weights]:
        return super().split(tuple(each.detach() for each in tensors))


class HalfViews(ToyExperts):
    def split(self, tensors: Weights) -> list[Weights]:
        return [(w_in, w_out[:5], bias, scale) for w_in, w_out, bias, scale in super().split(tensors)]


class OneForAll(ToyExperts):
    def split(self, tensors: Weights) -> list[Weights]:
        return [super().split(tensors)[0]] * EXPERTS


class OtherLayout(ToyExperts):
    def layout(self) -> ExpertLayout:
        return ExpertLayout.of([self.w_out, self.w_in, self.bias, self.scale])


class Failing(ToyExperts):
    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        raise KeyError("no such kernel")


class FlatOutput(ToyExperts):
    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        return super().compute(x_ND, expert).flatten()


class TransposedExperts(ToyExperts):
    """Weights kept the other way round, so that what the experts multiply with is strided."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        self.w_in = nn.Parameter(self.w_in.data.transpose(1, 2).contiguous())

    def split(self, tensors: Weights) -> list[Weights]:
        return [(w_in.t(), *others) for w_in, *others in super().split(tensors)]

    def layout(self) -> ExpertLayout:
        w_in, w_out, bias, scale = self.tensors()
        return ExpertLayout.of([w_in.transpose(1, 2), w_out, bias, scale])

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        w_in, w_out, bias, scale = (each[local] for each in self.tensors())
        return self.apply_weights(x_ND, w_in.t(), w_out, bias, scale)


class StridedExperts(ToyExperts):
    """Experts that are columns of one wide matrix, as some grouped kernels keep them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        self.w_in = nn.Parameter(self.w_in.data.permute(1, 0, 2).reshape(DIM, EXPERTS * HIDDEN).clone())

    def split(self, tensors: Weights) -> list[Weights]:
        columns = tensors[0].unflatten(1, (EXPERTS, HIDDEN)).unbind(1)
        return list(zip(columns, *(each.unbind(0) for each in tensors[1:]), strict=True))

    def layout(self) -> ExpertLayout:
        return ExpertLayout.of_shapes(
            [
                (torch.Size([DIM, HIDDEN]), self.w_in.dtype),
                *((each.shape[1:], each.dtype) for each in self.tensors()[1:]),
            ]
        )

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        columns = self.w_in[:, local * HIDDEN : (local + 1) * HIDDEN]
        return self.apply_weights(x_ND, columns, self.w_out[local], self.bias[local], self.get_buffer("scale")[local])


def count_calls(experts: Any) -> list[int]:
    """Notes the tokens of every `compute` from now on."""
    calls, compute = [], experts.compute

    def counted(x_ND: torch.Tensor, expert: Any) -> torch.Tensor:
        calls.append(len(x_ND))
        return compute(x_ND, expert)

    experts.compute = counted
    return calls


def check(experts: Any) -> None:
    """Runs the self-test on a layer of one rank, with its experts in training."""

    def body(rank: Rank) -> None:
        module = nn.Sequential(experts).train()
        parallel = ParallelExperts(module=module, experts=experts, num_experts=EXPERTS, top_k=1, group=rank.group)
        check_experts([("toy", parallel)])

    run_ranks(1, body)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [ToyExperts, TransposedExperts, StridedExperts])
def test_fused_transposed_and_strided_experts_pass(kind: type[ToyExperts], dtype: torch.dtype) -> None:
    experts = kind(dtype)
    calls = count_calls(experts)
    check(experts)
    assert len(calls) >= 4, "two experts, with their own weights and with drawn ones"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [UnlistedBias, UnlistedScale, UnusedBias, UnusedScale])
def test_a_forgotten_bias_or_scale_is_refused(kind: type[ToyExperts], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"layer 'toy', expert 0: as a guest it computes something else.*`tensors`"):
        check(kind(dtype))


@pytest.mark.parametrize("kind", [UnusedBias, UnusedScale])
def test_it_is_refused_too_where_biases_are_zero_and_scales_are_one(kind: type[ToyExperts]) -> None:
    with pytest.raises(ValueError, match=r"expert 0 \(with drawn weights\): as a guest it computes something else"):
        check(kind(fresh=True))


def test_state_that_does_not_travel_is_refused_by_the_expert_it_does_not_belong_to() -> None:
    with pytest.raises(ValueError, match="layer 'toy', expert 3: as a guest"):
        check(ScaleOfTheFirst())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CopiedViews, "`split` copies"),
        (OwnViews, "`split` must give differentiable views of the tensors it is given"),
        (DetachedViews, "`split` must give differentiable views of the tensors it is given"),
        (HalfViews, r"hands out \d+ of the \d+ numbers in `tensors`"),
        (OneForAll, "the same part of `tensors` to two experts"),
        (OtherLayout, "expert 0: `layout` says .* and `split` gives"),
        (Failing, "the adapter's `compute` failed: KeyError"),
        (FlatOutput, r"outputs must be \[tokens, 6\]"),
    ],
)
def test_wrong_views_and_shapes_are_refused_by_name(kind: type[ToyExperts], message: str) -> None:
    with pytest.raises(ValueError, match=f"layer 'toy'.*{message}"):
        check(kind())


@pytest.mark.parametrize("kind", [ToyExperts, UnusedBias], ids=["passing", "refused"])
def test_weights_training_flags_and_random_states_are_as_before(kind: type[ToyExperts]) -> None:
    experts = kind(fresh=True)
    before = {name: value.clone() for name, value in experts.state_dict().items()}
    state = torch.get_rng_state()
    try:
        check(experts)
    except ValueError:
        assert kind is UnusedBias
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in experts.state_dict().items())
    assert experts.training
    assert experts.dropout.training
    assert all(parameter.grad is None for parameter in experts.parameters())


def test_weights_that_are_not_loaded_yet_are_no_reason_to_refuse() -> None:
    experts = ToyExperts()
    experts.w_in.data.fill_(float("nan"))
    check(experts)
    assert experts.w_in.isnan().all()


def test_an_agent_refuses_on_all_ranks_what_one_rank_found() -> None:
    config = TinyConfig(num_layers=2, num_experts=4)

    def body(rank: Rank) -> str:
        model = TinyMoE(config, rank.group)
        if rank.group.rank == 1:
            experts = model.layers[1].experts
            experts.compute = lambda x_ND, expert: x_ND @ expert[0] @ expert[2]
        with pytest.raises(ValueError, match="layer 'layers.1', expert 2: as a guest") as refusal:
            Agent(model, AgentOptions(), groups=rank.agent_groups)
        return str(refusal.value)

    others, own = run_ranks(2, body)
    assert others == f"rank 1 refuses to start: {own}"


def test_a_switched_off_agent_tests_nothing_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAOT_DISABLE", "1")

    def body(rank: Rank) -> list[int]:
        model = TinyMoE(TinyConfig(num_layers=1, num_experts=2), rank.group)
        model.layers[0].experts.compute = lambda x_ND, expert: x_ND  # which a test would refuse
        calls = count_calls(model.layers[0].experts)
        Agent(model, AgentOptions(), groups=rank.agent_groups).close()
        return calls

    assert run_ranks(1, body) == [[]]


def test_ranks_without_home_experts_have_nothing_to_test() -> None:
    config = TinyConfig(num_layers=1, num_experts=2)

    def body(rank: Rank) -> bool:
        model = TinyMoE(config, rank.group)
        calls = count_calls(model.layers[0].experts)
        Agent(model, AgentOptions(), groups=rank.agent_groups).close()
        return bool(calls)

    assert run_ranks(3, body) == [True, True, False]
