"""What the adapter for Megatron refuses, by name and before anything has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("megatron.core")

import megatron_samples as samples
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron_samples import Model, Sample, distributed  # noqa: F401 - a fixture
from rank_threads import Rank, run_ranks

from taot_client.adapters.megatron import parallelize

# Importing Megatron alone takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("distributed")]


def refusal_of(spoil: Callable[[Model], object]) -> str:
    """What the adapter says to a model that has been spoilt, and which it would have accepted."""
    with pytest.raises(ValueError, match=r".") as refusal:
        run_ranks(1, lambda rank: parallelize(spoilt(spoil), rank.group))
    assert run_ranks(1, lambda rank: parallelize(spoilt(lambda model: None), rank.group))[0] == ["layers.0", "layers.1"]
    return str(refusal.value)


def spoilt(spoil: Callable[[Model], object]) -> torch.nn.Module:
    groups = samples.groups_of(samples.alone(), samples.alone())
    model = Model(Sample(), groups)
    changed = spoil(model)
    return changed if isinstance(changed, torch.nn.Module) else model


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("moe_expert_capacity_factor", 1.0),
        ("moe_pad_expert_input_to_capacity", True),
        ("moe_apply_probs_on_input", True),
        ("moe_shared_expert_overlap", True),
        ("moe_latent_size", 4),
        ("moe_router_padding_for_quantization", True),
        ("overlap_moe_expert_parallel_comm", True),
        ("delay_wgrad_compute", True),
        ("gradient_accumulation_fusion", True),
        ("fine_grained_activation_offloading", True),
        ("fp8", "e4m3"),
        ("fp4", "e2m1"),
    ],
)
def test_options_that_are_not_served_are_refused_by_name(option: str, value: object) -> None:
    message = refusal_of(lambda model: setattr(model.layers[1].config, option, value))
    assert f"layer 'layers.0': {option} is not supported" in message


def test_cuda_graphs_are_refused() -> None:
    message = refusal_of(lambda model: setattr(model.layers[0].config, "cuda_graph_impl", "local"))
    assert "CUDA graphs are not supported" in message


def test_gathering_parameters_behind_forward_is_refused() -> None:
    def spoil(model: Model) -> torch.nn.Module:
        wrapper = torch.nn.Sequential(model)
        wrapper.ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
        )
        return wrapper

    assert "overlap_param_gather is not supported" in refusal_of(spoil)


def test_experts_split_over_ranks_are_refused() -> None:
    def body(rank: Rank) -> str:
        groups = samples.groups_of(samples.alone(), samples.alone())
        model = Model(Sample(), groups)
        model.layers[0].experts.tp_group = rank.group.tokens
        with pytest.raises(ValueError, match="layer 'layers.0'") as refusal:
            parallelize(model, rank.group)
        return str(refusal.value)

    assert all("experts split by tensor parallelism" in message for message in run_ranks(2, body))


def test_experts_kept_in_an_unknown_way_are_refused() -> None:
    class QuantizedMLP(SequentialMLP):
        pass

    message = refusal_of(lambda model: setattr(model.layers[0].experts, "__class__", QuantizedMLP))
    assert "layer 'layers.0': experts kept in QuantizedMLP are not supported" in message
    assert "SequentialMLP" in message


def test_experts_with_other_linear_parts_are_refused() -> None:
    message = refusal_of(
        lambda model: setattr(model.layers[0].experts.local_experts[5], "linear_fc2", torch.nn.Linear(20, 12))
    )
    assert "experts with Linear as linear_fc2 are not supported" in message


def test_experts_of_different_tensors_are_refused() -> None:
    def spoil(model: Model) -> None:
        model.layers[0].experts.local_experts[3].linear_fc1.scale = torch.nn.Parameter(torch.ones(1))

    assert "experts that consist of different tensors are not supported" in refusal_of(spoil)


def test_state_of_experts_that_would_stay_behind_is_refused() -> None:
    def spoil(model: Model) -> None:
        model.layers[0].experts.local_experts[3].linear_fc1.register_buffer("scale", torch.ones(1))

    assert "the experts' buffer 'local_experts.3.linear_fc1.scale' is not known" in refusal_of(spoil)


def test_a_layer_is_parallelized_once() -> None:
    def body(rank: Rank) -> None:
        model = spoilt(lambda model: None)
        parallelize(model, rank.group)
        with pytest.raises(ValueError, match="layer 'layers.0' has been parallelized already"):
            parallelize(model, rank.group)

    run_ranks(1, body)


def test_a_group_of_other_ranks_is_refused() -> None:
    def body(rank: Rank) -> str:
        with pytest.raises(ValueError, match="must have the ranks of Megatron's expert-parallel group") as refusal:
            parallelize(spoilt(lambda model: None), rank.group)
        return str(refusal.value)

    assert len(run_ranks(2, body)) == 2


def test_what_one_rank_refuses_ends_all_and_leaves_the_model_as_it_was() -> None:
    def body(rank: Rank) -> str:
        model = Model(Sample(), samples.groups_of(rank.group.tokens, samples.alone()))
        if rank.group.rank == 1:
            model.layers[1].experts.register_buffer("scale", torch.ones(1))
        with pytest.raises(ValueError, match="'layers.1': the experts' buffer 'scale' is not known") as refusal:
            parallelize(model, rank.group)
        assert not any("parallel_experts" in vars(layer) or "preprocess" in vars(layer) for layer in model.layers)
        return str(refusal.value)

    first, second = run_ranks(2, body)
    assert first == f"rank 1 refuses to start: {second}"


def test_a_model_without_layers_is_told_what_was_looked_for() -> None:
    with pytest.raises(ValueError, match="no Megatron `MoELayer` found among Linear, Sequential"):
        parallelize(torch.nn.Sequential(torch.nn.Linear(2, 2)))
