"""torchtitan's layers with spread experts are compared with the same layers as they are, on one process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from rank_threads import run_ranks
from tiny_moe import assert_same_gradients, merged
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

pytest.importorskip("torchtitan")
pytest.importorskip("triton", reason="torchtitan imports it")

from titan_blocks import BiasedExperts, Blocks, BlocksConfig, ScoresFirstDispatcher, train_spread, train_whole
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher, TorchAOTokenDispatcher

from taot_client import Agent, AgentOptions
from taot_client.adapters import torchtitan

torch.set_num_threads(1)

RANKS, STEPS = 2, 3


def options(**changes) -> AgentOptions:
    return AgentOptions(
        **{"ranks_per_node": 1, "debug": True, "plan_source": "inline", "measured_gates": False, **changes}
    )


def check_against_whole_layers(config: BlocksConfig, *, tolerance: float, **arguments) -> None:
    """Every loss, gradient, counter and bias of three steps with guests, against the unmodified layers."""
    body = partial(train_spread, config=config, options=options(), num_steps=STEPS, **arguments)
    histories = run_ranks(RANKS, body, timeout_seconds=240)
    got, want = merged(histories), train_whole(config, num_ranks=RANKS, num_steps=STEPS)

    assert all(summary.guests_intra + summary.guests_inter > 0 for summary in got.summaries)
    for summary in got.summaries:
        assert max(summary.imbalance.values()) < max(summary.imbalance_static.values())
    assert all(math.isfinite(loss) for loss in want.losses)
    assert got.losses == pytest.approx(want.losses, rel=tolerance)
    assert_same_gradients(got, want, tolerance=tolerance)
    for history in histories:
        assert torch.stack(history.counters).equal(torch.stack(want.counters))
        assert [bias.tolist() for bias in history.biases] == [bias.tolist() for bias in want.biases]


def test_guests_leave_losses_gradients_counters_and_biases_as_they_are():
    check_against_whole_layers(BlocksConfig(), tolerance=1e-9)


def test_scores_that_multiply_the_inputs_of_experts_stay_before_them():
    before, after = (BlocksConfig(dispatcher=each) for each in (ScoresFirstDispatcher, LocalTokenDispatcher))
    losses = [train_whole(each, num_ranks=RANKS, num_steps=1).losses for each in (before, after)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    check_against_whole_layers(before, tolerance=1e-9)


@pytest.mark.parametrize("policy", [FullAC, SelectiveAC])
def test_activation_checkpointing_recomputes_the_same_pass(policy):
    config = BlocksConfig(num_layers=3, checkpointing=policy(policy.Config()).apply)
    check_against_whole_layers(config, tolerance=1e-9)


def test_experts_may_live_anywhere_and_no_shared_experts_or_bias_are_needed():
    # Rank 1 has two experts, and they are not neighbours.
    config = BlocksConfig(has_shared_experts=False, load_balance_coeff=None)
    check_against_whole_layers(config, tolerance=1e-9, home_E=[0, 0, 1, 0, 0, 0, 1, 0])


def test_a_rank_without_experts_or_tokens_takes_part():
    config = BlocksConfig(tokens_by_rank=((2, 20), (1, 0)))
    check_against_whole_layers(config, tolerance=1e-9, home_E=[0] * 8)


@pytest.mark.parametrize("experts", [GroupedExperts, BiasedExperts])
def test_experts_in_bfloat16_end_where_theirs_do_within_its_rounding(experts):
    config = BlocksConfig(experts=experts, dtype=torch.float32)
    check_against_whole_layers(config, tolerance=2e-2)


def test_a_state_dict_has_the_usual_keys_and_this_ranks_slices():
    config = BlocksConfig()
    whole = Blocks(config).state_dict()

    def body(rank):
        model = Blocks(config)
        names = torchtitan.parallelize(model, rank.group)
        return names, model.state_dict()

    for rank, (names, state) in enumerate(run_ranks(RANKS, body)):
        assert names == ["layers.0.moe", "layers.1.moe"]
        assert list(state) == list(whole)
        for key, tensor in whole.items():
            wanted = tensor[4 * rank : 4 * rank + 4] if "inner_experts" in key else tensor
            assert state[key].equal(wanted)
            assert state[key].untyped_storage().nbytes() == wanted.numel() * wanted.element_size()


def test_experts_that_are_sliced_already_stay_as_they_are():
    def body(rank):
        model = Blocks(BlocksConfig())
        for moe in model.moes:
            for parameter in moe.routed_experts.inner_experts.parameters():
                parameter.data = parameter.data[4 * rank.group.rank :][:4].clone()
        before = [parameter.data_ptr() for parameter in model.parameters()]
        torchtitan.parallelize(model, rank.group)
        return before == [parameter.data_ptr() for parameter in model.parameters()]

    assert run_ranks(RANKS, body) == [True, True]


class _ScaledExperts(GroupedExperts):
    """Keeps something for each expert that is no parameter."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.register_buffer("scale_E", torch.ones(config.num_experts))


def _sharded(model: Blocks) -> None:
    experts = model.moes[1].routed_experts.inner_experts
    mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    experts.w2_EDF = nn.Parameter(DTensor.from_local(experts.w2_EDF.data, mesh, [Shard(0)], run_check=False))


def _with_gradient(model: Blocks) -> None:
    parameter = model.moes[0].routed_experts.inner_experts.w1_EFD
    parameter.grad = torch.zeros_like(parameter)


def _with_other_experts(model: Blocks) -> None:
    experts = model.moes[0].routed_experts.inner_experts
    experts.w3_EFD = nn.Parameter(experts.w3_EFD[:3].detach())


def _expert_parallel(model: Blocks) -> None:
    model.moes[0].routed_experts.token_dispatcher.ep_mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)


def _padded(model: Blocks) -> None:
    config = TorchAOTokenDispatcher.Config(num_experts=8, top_k=2, pad_multiple=16)
    model.moes[0].routed_experts.token_dispatcher = TorchAOTokenDispatcher(config)


def _without_layers(model: Blocks) -> None:
    model.layers = nn.ModuleDict()


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            BlocksConfig(),
            _sharded,
            r"layers.1.moe.*w2_EDF.*apply this adapter in place of torchtitan's expert parallel",
        ),
        (BlocksConfig(), _expert_parallel, r"layers.0.moe.*torchtitan's expert parallelism is on"),
        (BlocksConfig(), _with_gradient, r"layers.0.moe.*w1_EFD has a gradient already"),
        (BlocksConfig(), _with_other_experts, r"w3_EFD.*\(3, 24, 16\) is neither.*all 8 experts nor.*the 4 at home"),
        (BlocksConfig(), _without_layers, r"no layer of torchtitan's class MoE found among Blocks, ModuleDict"),
        (BlocksConfig(experts=_ScaledExperts), lambda model: None, r"_ScaledExperts keeps scale_E beside"),
        (BlocksConfig(), _padded, r"TorchAOTokenDispatcher is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_on_every_rank(config, change, message):
    def body(rank):
        model = Blocks(config)
        if rank.group.rank == 1:
            change(model)
        with pytest.raises(ValueError, match=message):
            torchtitan.parallelize(model, rank.group)

    run_ranks(RANKS, body)


def test_homes_outside_the_group_are_refused():
    def body(rank):
        with pytest.raises(ValueError, match=r"layers.0.moe.*8 experts and needs a home among ranks 0 to 1"):
            torchtitan.parallelize(Blocks(BlocksConfig()), rank.group, home_E=[0, 2, 0, 0, 1, 1, 1, 1])

    run_ranks(RANKS, body)


def test_experts_are_spread_once():
    def body(rank):
        model = Blocks(BlocksConfig())
        torchtitan.parallelize(model, rank.group)
        with pytest.raises(ValueError, match=r"layers.0.moe.*spread already"):
            torchtitan.parallelize(model, rank.group)

    run_ranks(RANKS, body)


def test_a_part_of_an_expert_that_the_adapter_forgets_is_refused_at_start(monkeypatch):
    def without_bias(experts):
        return tuple(p for name, p in experts._module.named_parameters() if name != "mlp2_bias_ED")

    monkeypatch.setattr(torchtitan.TorchtitanExperts, "tensors", without_bias)

    def body(rank):
        model = Blocks(BlocksConfig(experts=BiasedExperts, dtype=torch.float32))
        torchtitan.parallelize(model, rank.group)
        with pytest.raises(ValueError, match=r"layers.0.moe.*`compute` failed"):
            Agent(model, options(), groups=rank.agent_groups)

    run_ranks(RANKS, body)
