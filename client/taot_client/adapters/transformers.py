"""Hugging Face `transformers`: the experts of a model spread over the ranks of an expert-parallel group.

    model = AutoModelForCausalLM.from_pretrained(...)
    layers = parallelize(model, expert_parallel_group())
    agent = Agent(model)

Served are the models of transformers 5 whose experts are fused tensors behind `use_experts_implementation`, such as
Qwen3-MoE, Mixtral, OLMoE and DeepSeek-V3. Routers, attention and shared experts stay whole on every rank: the training
loop adds up their gradients over the ranks, as in data parallelism. Gradients of experts are sums over the tokens of
all ranks as they are: where the loss of a rank is a mean, divide it by the number of ranks and add up. Auxiliary losses
of the router see the tokens of their own rank.

Only instances are changed, and nothing of `transformers` is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from taot_client.agreement import share_refusals
from taot_client.groups import ExpertParallelGroup
from taot_client.home_experts import FusedExperts, Weights
from taot_client.parallel_experts import ATTRIBUTE, ParallelExperts, homes_of
from taot_client.self_test import check_experts
from taot_planning.arrays import IntArray

_ARGUMENTS = ["hidden_states", "top_k_index", "top_k_weights"]

_EXPERT_PARALLEL = "_is_expert_parallel"
"""An attribute of all experts made by `use_experts_implementation`."""


class TransformersExperts(FusedExperts):
    """The home experts in a module of transformers that holds no others."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._forward: Callable[..., torch.Tensor] = type(module).forward

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        return int(self._module.down_proj.shape[2 if self._module.is_transposed else 1])

    def tensors(self) -> Weights:
        """See `HomeExperts`."""
        return tuple(getattr(self._module, name) for name in tensor_names(self._module))

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """See `HomeExperts`."""
        choice = torch.full((x_ND.shape[0], 1), local, device=x_ND.device)
        return self._forward(self._module, x_ND, choice, x_ND.new_ones(choice.shape))

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """See `HomeExperts`."""
        w_up, w_down = expert
        hidden_ND = self._linear(x_ND, w_up)
        hidden_ND = self._module._apply_gate(hidden_ND) if self._module.has_gate else self._module.act_fn(hidden_ND)
        return self._linear(hidden_ND, w_down)

    def _linear(self, x_ND: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x_ND @ weight if self._module.is_transposed else nn.functional.linear(x_ND, weight)


def parallelize(model: nn.Module, group: ExpertParallelGroup, *, home_E: IntArray | None = None) -> list[str]:
    """Keeps the home experts of this rank in every layer of a model and computes with those of all ranks. Collective.

    Call it on the full model, with the same weights on every rank, before optimizers, `Agent` and wrappers are made.
    Parameters keep their names; those of experts become slices of the full ones. Every rank must run each forward,
    also in evaluation and generation.

    Args:
        model: a model of transformers, whole on this rank.
        group: the ranks that share the experts.
        home_E: home rank of each expert, for all layers; expert e on rank e * R // E by default. Shape: [experts].

    Returns:
        The names of the modules that hold the experts; all parameters outside them are whole on every rank.

    Raises:
        ValueError: on every rank, naming the layer and what is not supported; the model cannot be used afterwards.
    """
    with share_refusals(group.counts, size=group.size):
        found = _find_experts(model)
        for name, module in found:
            _refuse_unknown(name, module)
            _refuse_homes(name, module, group, home_E)
        layers = [(name, _spread(module, group, home_E)) for name, module in found]
        check_experts([(name, layer) for name, layer in layers if not _is_empty(layer)])
    return [name for name, _ in layers]


def full_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a parallel model with all experts, on rank 0 of their group, to be saved or loaded. Collective.

    Other ranks get an empty dict. `model.save_pretrained(folder, state_dict=...)` writes it as a whole model.
    """
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    is_first = True
    for name, module in model.named_modules():
        parallel = vars(module).get(ATTRIBUTE)
        if isinstance(parallel, ParallelExperts) and isinstance(parallel.experts, TransformersExperts):
            is_first = parallel.group.rank == 0
            for tensor_name in tensor_names(module):
                key = f"{name}.{tensor_name}" if name else tensor_name
                state[key] = _gather(state[key], parallel)
    return state if is_first else {}


def tensor_names(module: Any) -> tuple[str, str]:
    """The names of the fused tensors of an experts module, in the order in which an expert uses them."""
    return ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")


def _find_experts(model: nn.Module) -> list[tuple[str, Any]]:
    found = [(name, module) for name, module in model.named_modules() if _holds_experts(module)]
    if not found:
        raise ValueError(
            f"no experts found in {type(model).__name__}: looked for modules with `num_experts` and fused tensors of"
            " that length, as transformers 5 makes them"
        )
    return found


def _holds_experts(module: nn.Module) -> bool:
    num_experts = getattr(module, "num_experts", None)
    fused = [each for each in module.parameters(recurse=False) if each.ndim == 3]
    return hasattr(module, _EXPERT_PARALLEL) or any(each.shape[0] == num_experts for each in fused)


def _refuse_unknown(name: str, module: Any) -> None:
    where = f"layer {name!r}, experts of class {type(module).__name__}"
    if ATTRIBUTE in vars(module):
        raise ValueError(f"{where}: spread over ranks already")
    if not hasattr(module, _EXPERT_PARALLEL):
        raise ValueError(f"{where}: not made by `use_experts_implementation`, so their layout is unknown")
    if getattr(module, _EXPERT_PARALLEL):
        raise ValueError(f"{where}: spread by transformers' own expert parallelism; load the model without it")
    odd = {
        "biases": module.has_bias,
        "a norm after each expert": module.has_post_expert_norm,
        "interleaved gates": not module.is_concatenated,
    }
    if any(odd.values()):
        listed = ", ".join(what for what, is_there in odd.items() if is_there)
        raise ValueError(f"{where}: {listed} are not supported; train this model without the adapter")
    _refuse_tensors(where, module)
    arguments = list(inspect.signature(type(module).forward).parameters)[1:]
    if arguments != _ARGUMENTS:
        raise ValueError(f"{where}: forward takes {arguments} instead of {_ARGUMENTS}")
    if not isinstance(getattr(module.config, "num_experts_per_tok", None), int):
        raise ValueError(f"{where}: its config does not say `num_experts_per_tok`, the number of choices of a token")


def _refuse_tensors(where: str, module: Any) -> None:
    """Everything that may belong to an expert must be known, else it would stay behind when one travels."""
    known = set(tensor_names(module))
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    if named.keys() != known:
        raise ValueError(f"{where}: tensors {sorted(named)} instead of {sorted(known)}, whose layout is unknown")
    if any(isinstance(tensor, DTensor) for tensor in named.values()):
        raise ValueError(f"{where}: sharded by FSDP or tensor parallelism; spread experts before that")
    shapes = {tensor_name: tuple(tensor.shape) for tensor_name, tensor in named.items()}
    if any(len(shape) != 3 or shape[0] != module.num_experts for shape in shapes.values()):
        raise ValueError(f"{where}: shapes {shapes} are not those of {module.num_experts} fused experts")


def _refuse_homes(name: str, module: Any, group: ExpertParallelGroup, home_E: IntArray | None) -> None:
    homes = homes_of(module.num_experts, group, home_E)
    if homes.shape != (module.num_experts,) or homes.min() < 0 or homes.max() >= group.size:
        raise ValueError(
            f"layer {name!r} has {module.num_experts} experts and needs a home among ranks 0 to {group.size - 1} for"
            f" each, got {homes.tolist()}"
        )


def _spread(module: Any, group: ExpertParallelGroup, home_E: IntArray | None) -> ParallelExperts:
    """Leaves the home experts in a module and sends its forward through `ParallelExperts`."""
    parallel = ParallelExperts(
        module=module,
        experts=TransformersExperts(module),
        num_experts=module.num_experts,
        top_k=module.config.num_experts_per_tok,
        group=group,
        home_E=home_E,
    )
    rows = torch.from_numpy(parallel.home_experts)
    for name in tensor_names(module):
        full = getattr(module, name)
        kept = full.detach()[rows.to(full.device)]
        setattr(module, name, nn.Parameter(kept, requires_grad=full.requires_grad))
    # So the framework's own forward serves as the oracle of what is left.
    module.num_experts = len(rows)

    def forward(hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        x_TD = hidden_states.reshape(-1, hidden_states.shape[-1])
        choices = (-1, parallel.top_k)
        y_TD = parallel.apply(x_TD, top_k_index.reshape(choices), top_k_weights.reshape(choices))
        # Some routers keep their weights in fp32.
        y: torch.Tensor = y_TD.to(hidden_states.dtype).view_as(hidden_states)
        return y

    setattr(module, ATTRIBUTE, parallel)
    module.forward = forward
    return parallel


def _is_empty(layer: ParallelExperts) -> bool:
    """Whether the weights are yet to come: a model on the meta device."""
    return any(tensor.is_meta for tensor in layer.experts.tensors())


def _gather(local: torch.Tensor, parallel: ParallelExperts) -> torch.Tensor:
    """All experts of a fused tensor, on the host of rank 0; other ranks send theirs. Shape: [experts, ...]."""
    group, home_E = parallel.group, parallel.home_E
    if group.rank != 0:
        if local.numel():
            # As bytes: not every backend carries every dtype.
            group.tokens.send([local.detach().contiguous().view(torch.uint8)], 0, 0).wait()
        return local
    full = torch.empty((home_E.size, *local.shape[1:]), dtype=local.dtype)
    for home in range(group.size):
        rows = np.flatnonzero(home_E == home)
        piece = local.detach()
        if home and rows.size:
            piece = torch.empty((rows.size, *local.shape[1:]), dtype=local.dtype, device=local.device)
            group.tokens.recv([piece.view(torch.uint8)], home, 0).wait()
        if rows.size:
            full[torch.from_numpy(rows)] = piece.cpu()
    return full
