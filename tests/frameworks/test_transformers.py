"""Models of Hugging Face transformers, spread over two ranks with guests: trained as the unmodified model is."""

from __future__ import annotations

import copy
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from link_samples import eventually
from rank_threads import Rank, run_ranks

from taot_cli.child_process import ChildProcess
from taot_client import Agent, AgentOptions
from taot_client.adapters.transformers import TransformersExperts, full_state_dict, parallelize
from taot_client.model_layers import find_layers

transformers = pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_transformers.py"

RANKS, STEPS, VOCABULARY = 2, 3, 64

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
    # The only one that knows fp64.
    "experts_implementation": "eager",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 16, "intermediate_size": 48, "head_dim": 16},
    "Mixtral": {"num_local_experts": 8, "intermediate_size": 16},
    "Olmoe": {"num_experts": 8, "intermediate_size": 16},
    "DeepseekV3": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "intermediate_size": 48,
        "first_k_dense_replace": 1,
        "num_hidden_layers": 3,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
    },
}


def full_model(kind: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A small model whose routers like the first experts, the same for every call."""
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **CONFIGS[kind], **changes})
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter[:3] *= 8
    return model.train()


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(3, VOCABULARY, (2 + rank, 20), generator=generator)


def loss_of(model: Any, step: int, rank: int) -> torch.Tensor:
    ids = batch(step, rank)
    logits = model(ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / 100


def train_full(model: Any) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """Losses and gradients by step of the unmodified model on the data of all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, gradients = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(loss_of(model, step, rank) for rank in range(RANKS))
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: each.grad.clone() for name, each in model.named_parameters()})
        optimizer.step()
    return losses, gradients


def train_parallel(rank: Rank, model: Any, prepare: Any = None) -> tuple[list[float], list[dict], dict, int, dict]:
    """The same on one rank of two, with gradients and parameters by global expert; how many guests were used."""
    layers = parallelize(model, rank.group)
    if prepare is not None:
        prepare(model)
    agent = Agent(model, AgentOptions(ranks_per_node=1, debug=True, measured_gates=False), groups=rank.agent_groups)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, gradients, num_guests = [], [], 0
    for step in range(STEPS):
        optimizer.zero_grad()
        agent.begin_step()
        loss = loss_of(model, step, rank.group.rank)
        loss.backward()
        summary = agent.end_step()
        num_guests += summary.guests_intra + summary.guests_inter
        for name, parameter in model.named_parameters():
            if not name.startswith(tuple(layers)):
                rank.group.counts.allreduce([parameter.grad]).wait()
        total = loss.detach().clone()
        rank.group.counts.allreduce([total]).wait()
        losses.append(total.item())
        gradients.append({name: each.grad.clone() for name, each in model.named_parameters()})
        optimizer.step()
    agent.close()
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    return losses, gradients, parameters, num_guests, full_state_dict(model)


def assert_trained_alike(kind: str, got: list[Any], reference: Any, *, tolerance: float) -> None:
    losses, gradients = train_full(reference)
    experts = {name for name, each in reference.named_parameters() if ".experts." in name}
    assert experts
    for rank, (got_losses, got_gradients, parameters, num_guests, _) in enumerate(got):
        assert num_guests > 0
        assert got_losses == pytest.approx(losses, rel=tolerance)
        wanted = [*gradients, dict(reference.named_parameters())]
        for step, (found, want) in enumerate(zip([*got_gradients, parameters], wanted, strict=True)):
            assert found.keys() == want.keys()
            for name, full in want.items():
                half = full.shape[0] // RANKS
                expected = full[rank * half : (rank + 1) * half] if name in experts else full
                error = (found[name] - expected).norm() / expected.norm()
                assert error <= tolerance, f"{kind}, step {step}, {name}: {error:.2e}"


@pytest.mark.parametrize("kind", CONFIGS)
def test_losses_gradients_and_parameters_are_those_of_the_unmodified_model(kind: str) -> None:
    full = full_model(kind)
    got = run_ranks(RANKS, lambda rank: train_parallel(rank, copy.deepcopy(full)))
    assert_trained_alike(kind, got, full, tolerance=1e-9)


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["plain", "reentrant"])
def test_activation_checkpointing_changes_nothing(use_reentrant: bool) -> None:
    full = full_model("Qwen3Moe")

    def enable(model: Any) -> None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
        assert model.model.layers[0].gradient_checkpointing

    got = run_ranks(RANKS, lambda rank: train_parallel(rank, copy.deepcopy(full), enable))
    assert_trained_alike("Qwen3Moe", got, full, tolerance=1e-9)


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_other_implementations_of_experts_pass_the_self_test_and_train_alike(implementation: str) -> None:
    full = full_model("Qwen3Moe", dtype=torch.float32, experts_implementation=implementation, num_hidden_layers=1)
    assert full.config._experts_implementation == implementation
    got = run_ranks(RANKS, lambda rank: train_parallel(rank, copy.deepcopy(full)))
    assert_trained_alike("Qwen3Moe", got, full, tolerance=1e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_names_are_those_of_the_full_model_and_values_its_slices_in_any_homes(kind: str) -> None:
    full = full_model(kind, num_hidden_layers=2)
    home_E = [1, 0, 1, 1, 0, 0, 1, 0]

    def body(rank: Rank) -> tuple[list[str], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        model = copy.deepcopy(full)
        layers = parallelize(model, rank.group, home_E=home_E)
        assert [name for name, _ in find_layers(model)] == layers
        return layers, model.state_dict(), full_state_dict(model)

    want = full.state_dict()
    got = run_ranks(RANKS, body)
    for rank, (layers, state, _) in enumerate(got):
        assert list(state) == list(want)
        at_home = torch.tensor(home_E) == rank
        for name, value in want.items():
            assert torch.equal(state[name], value[at_home] if name.startswith(tuple(layers)) else value), name
    whole, others = got[0][2], got[1][2]
    assert others == {}
    assert list(whole) == list(want)
    assert all(torch.equal(whole[name], value) for name, value in want.items())


def test_a_saved_model_is_a_whole_one(tmp_path: Path) -> None:
    full = full_model("Qwen3Moe", dtype=torch.bfloat16, num_hidden_layers=1)

    def body(rank: Rank) -> None:
        model = copy.deepcopy(full)
        parallelize(model, rank.group)
        state = full_state_dict(model)
        if rank.group.rank == 0:
            model.save_pretrained(tmp_path, state_dict=state)

    run_ranks(RANKS, body)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    want = full.state_dict()
    assert loaded.state_dict().keys() == want.keys()
    assert all(torch.equal(value, want[name]) for name, value in loaded.state_dict().items())


# Other models that look the same, and those that do not.


def experts_of(kind: str, config: dict[str, Any], module: str) -> Any:
    """The experts module of one layer of a model, with drawn weights."""
    model_config = getattr(transformers, f"{kind}Config")(**config)
    model_config._experts_implementation = "eager"
    experts = getattr(__import__(f"transformers.models.{module}", fromlist=["_"]), f"{kind}Experts")(model_config)
    generator = torch.Generator().manual_seed(5)
    for parameter in experts.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return experts


LOOK_ALIKES = {
    "Qwen2Moe": ({"hidden_size": 32, "num_experts": 4, "moe_intermediate_size": 16}, "qwen2_moe.modeling_qwen2_moe"),
    # Without gates, and with an activation of its own.
    "NemotronH": (
        {"hidden_size": 32, "n_routed_experts": 4, "moe_intermediate_size": 16},
        "nemotron_h.modeling_nemotron_h",
    ),
    # With gates that are clamped.
    "DeepseekV4": (
        {"hidden_size": 32, "n_routed_experts": 4, "moe_intermediate_size": 16, "swiglu_limit": 0.1},
        "deepseek_v4.modeling_deepseek_v4",
    ),
}


@pytest.mark.parametrize("kind", LOOK_ALIKES)
def test_experts_that_look_the_same_compute_the_same(kind: str) -> None:
    full = experts_of(kind, *LOOK_ALIKES[kind])
    x_TD = torch.randn(RANKS, 30, 32, generator=torch.Generator().manual_seed(1))
    choice_TK = torch.tensor([[0, 1], [1, 3], [2, 0]]).repeat(10, 1)
    weights_TK = torch.full(choice_TK.shape, 0.5)

    def body(rank: Rank) -> torch.Tensor:
        experts = copy.deepcopy(full)
        experts.config.num_experts_per_tok = 2
        assert parallelize(experts, rank.group) == [""]
        return experts(x_TD[rank.group.rank], choice_TK, weights_TK).detach()

    for rank, got in enumerate(run_ranks(RANKS, body)):
        assert torch.allclose(got, full(x_TD[rank], choice_TK, weights_TK), atol=1e-5)


def refusal_of(model: Any) -> str:
    def body(rank: Rank) -> str:
        with pytest.raises(ValueError, match=".") as refusal:
            parallelize(copy.deepcopy(model), rank.group)
        return str(refusal.value)

    return run_ranks(1, body)[0]


def test_interleaved_experts_with_biases_are_refused_by_name() -> None:
    config = {"hidden_size": 32, "num_local_experts": 4, "intermediate_size": 16}
    message = refusal_of(torch.nn.ModuleDict({"mlp": experts_of("GptOss", config, "gpt_oss.modeling_gpt_oss")}))
    assert "layer 'mlp', experts of class GptOssExperts: biases, interleaved gates are not supported" in message


@pytest.mark.parametrize("add", ["parameter", "buffer", "buffer of the activation"])
def test_tensors_that_nobody_knows_are_refused_by_name(add: str) -> None:
    experts = experts_of("Qwen2Moe", *LOOK_ALIKES["Qwen2Moe"])
    if add == "parameter":
        experts.scale = torch.nn.Parameter(torch.ones(4))
    else:
        (experts if add == "buffer" else experts.act_fn).register_buffer("scale", torch.ones(4))
    message = refusal_of(experts)
    assert "scale'" in message
    assert "instead of ['down_proj', 'gate_up_proj'], whose layout is unknown" in message


def test_fused_experts_of_another_make_are_refused_by_name() -> None:
    class Llama4Like(torch.nn.Module):
        num_experts = 4

        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = torch.nn.Parameter(torch.ones(4, 8, 6))

    model = torch.nn.Sequential(experts_of("Qwen2Moe", *LOOK_ALIKES["Qwen2Moe"]), Llama4Like())
    assert "layer '1', experts of class Llama4Like: not made by `use_experts_implementation`" in refusal_of(model)


def test_a_model_without_experts_and_one_that_is_spread_already_are_refused() -> None:
    assert "no experts found in Linear" in refusal_of(torch.nn.Linear(3, 3))

    def body(rank: Rank) -> None:
        model = full_model("Qwen3Moe", num_hidden_layers=1)
        with pytest.raises(ValueError, match="has 8 experts and needs a home among ranks 0 to 0 for each"):
            parallelize(model, rank.group, home_E=[0, 0, 0, 1, 0, 0, 0, 0])
        parallelize(model, rank.group)
        with pytest.raises(ValueError, match="layer 'model.layers.0.mlp.experts'.*spread over ranks already"):
            parallelize(model, rank.group)

    run_ranks(1, body)


def test_an_adapter_that_forgets_the_activation_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    full = full_model("Olmoe", num_hidden_layers=1)

    def without_activation(self: TransformersExperts, x_ND: torch.Tensor, expert: Any) -> torch.Tensor:
        gate, up = self._linear(x_ND, expert[0]).chunk(2, dim=-1)
        return self._linear(gate * up, expert[1])

    monkeypatch.setattr(TransformersExperts, "compute", without_activation)

    def body(rank: Rank) -> None:
        with pytest.raises(ValueError, match="layer 'model.layers.0.mlp.experts', expert .: as a guest"):
            parallelize(copy.deepcopy(full), rank.group)

    run_ranks(RANKS, body)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_example_trains_with_guests_and_saves_a_whole_model(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", "2", str(EXAMPLE), "--steps", "2", "--save", str(tmp_path)),
    ]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with ChildProcess("job", command, folder=tmp_path, environment=environment) as job:
        assert eventually(lambda: not job.is_running(), seconds=450)
    assert re.search(r"step 1: loss \d\.\d+, [1-9]\d* guests, imbalance", (tmp_path / "job.log").read_text())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.model.layers[1].mlp.experts.down_proj.shape[0] == 8
