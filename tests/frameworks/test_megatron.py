"""Megatron's own layers, with and without an agent: the same losses and the same gradients of every tensor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("megatron.core")

import megatron_samples as samples
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.moe import grouped_gemm_util
from megatron_samples import RANKS, Model, Sample, distributed  # noqa: F401 - a fixture
from rank_threads import Rank, run_ranks
from tiny_moe import History, assert_same_gradients, merged

from taot_client import Agent, AgentOptions
from taot_client.adapters.megatron import parallelize

# Importing Megatron alone takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("distributed")]

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


def train_reference(sample: Sample) -> History:
    """Every expert in one process, which sees the tokens of all ranks."""
    return samples.train_unmodified(sample, samples.groups_of(samples.alone(), samples.alone()), ranks=range(RANKS))


def train_ranks(sample: Sample) -> History:
    def body(rank: Rank) -> History:
        groups = samples.groups_of(rank.group.tokens, samples.alone())
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

NARROW = {"params_dtype": torch.bfloat16, "bf16": True, "moe_router_dtype": "fp32"}
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
        model = cls.wrapped(samples.groups_of(rank.group.tokens, samples.alone()))
        assert parallelize(model, rank.group) == ["module.layers.0"]
        agent = Agent(
            model, AgentOptions(plan_source="inline", ranks_per_node=1, measured_gates=False), groups=rank.agent_groups
        )
        agent.begin_step()
        gradients = cls.run(model, ranks=[rank.group.rank])
        summary = agent.end_step()
        agent.close()
        assert all(parameter.grad is None for parameter in model.parameters())
        return History(losses=[0.0], gradients=[gradients], summaries=[summary])


def test_guest_gradients_reach_a_main_grad_that_a_hook_fills() -> None:
    reference = MainGradients.wrapped(samples.groups_of(samples.alone(), samples.alone()))
    want = MainGradients.run(reference, ranks=range(RANKS))
    got = merged(run_ranks(RANKS, MainGradients.run_rank))
    assert num_guests(got) >= 1
    assert_same_gradients(got, History(losses=[0.0], gradients=[want]), tolerance=2e-2)
    # Micro-batches are added up in fp32: the sums have bits that bf16 cannot hold.
    assert all(gradient.dtype == torch.float32 for gradient in got.gradients[0].values())
    hot = [gradient for name, gradient in got.gradients[0].items() if re.search(r"experts\.[01]\.", name)]
    assert len(hot) == 4
    assert all(bool((gradient.bfloat16().float() != gradient).any()) for gradient in hot)
