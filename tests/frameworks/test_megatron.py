"""Megatron's own layers, with and without an agent: the same losses and the same gradients of every tensor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

import megatron_samples as samples
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.moe import grouped_gemm_util
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron_samples import RANKS, Model, Sample
from rank_threads import Rank, run_ranks
from tiny_moe import History, assert_same_gradients, merged

from taot_client import Agent, AgentOptions, ExpertParallelGroup
from taot_client.adapters.megatron import parallelize

# Importing Megatron alone takes seconds.
pytestmark = pytest.mark.slow

SAMPLES = {
    "gated": Sample(),
    "biases": Sample(
        config={"add_bias_linear": True, "gated_linear_unit": False, "activation_func": torch.nn.functional.gelu}
    ),
    "shared experts and losses": Sample(
        config={
            "moe_shared_expert_intermediate_size": 16,
            "moe_shared_expert_gate": True,
            "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"],
            "moe_aux_loss_coeff": [0.5, 0.5],
            "moe_z_loss_coeff": 0.1,
        }
    ),
    "biased choice in groups": Sample(
        config={
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_num_groups": 4,
            "moe_router_group_topk": 2,
            "moe_router_topk_scaling_factor": 2.5,
            "moe_router_dtype": "fp64",
        }
    ),
    "recomputed": Sample(config={"recompute_granularity": "selective", "recompute_modules": ["moe"]}),
    "micro-batches": Sample(num_micro_batches=3),
}


@pytest.fixture(autouse=True, scope="module")
def _initialised() -> Iterator[None]:
    """Megatron asks whether torch.distributed is initialised before it asks a group for its size."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def alone() -> Any:
    return run_ranks(1, lambda rank: rank.group.tokens)[0]


def train_reference(sample: Sample) -> History:
    """Every expert in one process, which sees the tokens of all ranks."""
    return samples.train_unmodified(sample, samples.groups_of(alone(), alone()), ranks=range(RANKS))


def train_ranks(sample: Sample) -> History:
    def body(rank: Rank) -> History:
        groups = samples.groups_of(rank.group.tokens, alone())
        return samples.train_with_agent(sample, groups, rank.group, rank.agent_groups)

    return merged(run_ranks(RANKS, body))


def num_guests(history: History) -> int:
    return sum(summary.guests_intra + summary.guests_inter for summary in history.summaries)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_losses_and_gradients_are_those_of_the_unmodified_layers(sample: Sample) -> None:
    want, got = train_reference(sample), train_ranks(sample)
    assert num_guests(got) >= 4
    assert got.losses == pytest.approx(want.losses, rel=1e-12)
    assert_same_gradients(got, want, tolerance=1e-12)


def test_losses_and_gradients_are_those_of_unmodified_expert_parallelism(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tests), *sys.path]))
    command = [sys.executable, "-W", "ignore", str(tests / "frameworks" / "megatron_job.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = [int(found) for found in re.findall(r"rank \d: (\d+) guests", done.stdout)]
    assert len(counts) == RANKS
    assert min(counts) >= 4


# Other ways to keep experts and gradients.

NARROW = {"params_dtype": torch.bfloat16, "bf16": True}
"""In bf16 the order of roundings differs: one layer and one step, so that routers see the same tokens."""


def multiply_groups(
    rows_ND: torch.Tensor, weights_EDF: torch.Tensor, counts_E: torch.Tensor, *, trans_b: bool
) -> torch.Tensor:
    """The product of the package grouped_gemm, which needs a GPU."""
    assert not trans_b
    groups = zip(rows_ND.split(counts_E.tolist()), weights_EDF, strict=True)
    return torch.cat([rows @ weight for rows, weight in groups])


def test_experts_in_grouped_matrices_travel_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_gemm_util, "grouped_gemm", multiply_groups)
    monkeypatch.setattr(grouped_gemm_util, "ops", SimpleNamespace(gmm=multiply_groups))
    sample = Sample(config={**NARROW, "moe_grouped_gemm": True}, num_layers=1, num_steps=1, num_micro_batches=3)
    want, got = train_reference(sample), train_ranks(sample)
    assert num_guests(got) >= 1
    assert any(name.endswith("weight1.7") for name in got.gradients[0])
    assert_same_gradients(got, want, tolerance=2e-2)


class MainGradients:
    """One step of a model in Megatron's data-parallel wrapper, which adds `.grad` to an fp32 `main_grad` in a hook."""

    SAMPLE = Sample(config=NARROW, num_layers=1, num_micro_batches=4)

    @classmethod
    def wrapped(cls, groups: Any) -> DistributedDataParallel:
        for name in ("pp", "dp", "dp_cp", "intra_dp_cp", "intra_expt_dp"):
            setattr(groups, name, groups.tp)
        config = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        model = Model(cls.SAMPLE, groups)
        return DistributedDataParallel(model.layers[0].config, config, model, pg_collection=groups)

    @classmethod
    def run(cls, model: DistributedDataParallel, *, ranks: Sequence[int]) -> dict[str, torch.Tensor]:
        model.zero_grad_buffer()
        for rank in ranks:
            for micro_batch in range(cls.SAMPLE.num_micro_batches):
                x = samples.batch(cls.SAMPLE, step=0, rank=rank, micro_batch=micro_batch)
                samples.loss_of(model(x.requires_grad_())).backward()
        gradients = samples.gradients_of(model.module, attribute="main_grad")
        return {name: gradient for name, gradient in gradients.items() if ".experts." in name}

    @classmethod
    def run_rank(cls, rank: Rank) -> History:
        model = cls.wrapped(samples.groups_of(rank.group.tokens, alone()))
        assert parallelize(model, rank.group) == ["module.layers.0"]
        agent = Agent(model, AgentOptions(plan_source="inline", ranks_per_node=1), groups=rank.agent_groups)
        agent.begin_step()
        gradients = cls.run(model, ranks=[rank.group.rank])
        summary = agent.end_step()
        agent.close()
        assert all(parameter.grad is None for parameter in model.parameters())
        return History(losses=[0.0], gradients=[gradients], summaries=[summary])


def test_guest_gradients_reach_a_main_grad_that_a_hook_fills() -> None:
    reference = MainGradients.wrapped(samples.groups_of(alone(), alone()))
    want = MainGradients.run(reference, ranks=range(RANKS))
    got = merged(run_ranks(RANKS, MainGradients.run_rank))
    assert num_guests(got) >= 1
    assert_same_gradients(got, History(losses=[0.0], gradients=[want]), tolerance=2e-2)
    # Micro-batches are added up in fp32: the sums have bits that bf16 cannot hold.
    assert all(gradient.dtype == torch.float32 for gradient in got.gradients[0].values())
    hot = [gradient for name, gradient in got.gradients[0].items() if re.search(r"experts\.[01]\.", name)]
    assert len(hot) == 4
    assert all(bool((gradient.bfloat16().float() != gradient).any()) for gradient in hot)


# Refusals.


def refusal_of(spoil: Callable[[Model], object], *, group: ExpertParallelGroup | None = None) -> str:
    """What the adapter says to a model that has been spoilt, and which it would have accepted."""
    with pytest.raises(ValueError, match=r".") as refusal:
        run_ranks(1, lambda rank: parallelize(spoilt(spoil), group or rank.group))
    assert run_ranks(1, lambda rank: parallelize(spoilt(lambda model: None), rank.group))[0] == ["layers.0", "layers.1"]
    return str(refusal.value)


def spoilt(spoil: Callable[[Model], object]) -> torch.nn.Module:
    groups = samples.groups_of(alone(), alone())
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
        groups = samples.groups_of(alone(), alone())
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


def test_a_model_without_layers_is_told_what_was_looked_for() -> None:
    with pytest.raises(ValueError, match="no Megatron `MoELayer` found among Linear, Sequential"):
        parallelize(torch.nn.Sequential(torch.nn.Linear(2, 2)))
