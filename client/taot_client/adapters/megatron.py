"""Adapter for Megatron-LM (`megatron.core`): its `MoELayer`s share their experts through `ParallelExperts`.

A layer keeps its router with all losses and biases, its shared experts, its recomputation and its state dict. What
comes between routing and shared experts is replaced: dispatch, the routed experts' computation, and combine.
Megatron itself is never imported here: its layers are known by their class names.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from taot_client.adapters.megatron_experts import experts_of
from taot_client.agreement import share_refusals
from taot_client.groups import ExpertParallelGroup, expert_parallel_group
from taot_client.parallel_experts import ATTRIBUTE, ParallelExperts

logger = logging.getLogger(__name__)

LAYER_CLASS = "MoELayer"

_REFUSED = {
    "moe_expert_capacity_factor": "tokens beyond a capacity would be dropped; guests are there to serve them",
    "moe_pad_expert_input_to_capacity": "padding belongs to no token",
    "moe_apply_probs_on_input": "weights are applied to what the experts return",
    "moe_shared_expert_overlap": "the dispatcher that the shared experts overlap with is replaced",
    "moe_latent_size": "the latent projections need Transformer Engine, with which this was never tested",
    "moe_router_padding_for_quantization": "padding belongs to no token",
    "overlap_moe_expert_parallel_comm": "the dispatcher that other layers overlap with is replaced",
    "delay_wgrad_compute": "weight gradients must be made in backward",
    "gradient_accumulation_fusion": "it writes `main_grad` past autograd, where guest gradients could not be added",
    "fine_grained_activation_offloading": "guests are not offloaded",
    "fp8": "scales of guests are not kept",
    "fp4": "scales of guests are not kept",
}
"""Options of Megatron's configuration that must be off, and why."""

_REPLACED = ("preprocess", "dispatch", "routed_experts_compute", "combine", "postprocess")
"""The parts of a layer's forward, in their order, that come after its router."""


def parallelize(model: nn.Module, group: ExpertParallelGroup | None = None) -> list[str]:
    """Lets every `MoELayer` of a model compute its routed experts with `ParallelExperts`. Collective over their group.

    To be called once, after the model has been moved, cast and wrapped, and before an `Agent` is made of it. Without
    an agent the layers do what they did: every expert computes its tokens at home. Weights stay where they are and are
    named as before.

    Args:
        model: wrapped or not; the chunks of a virtual pipeline as an `nn.ModuleList`.
        group: over the ranks of Megatron's expert-parallel group; built over it when None.

    Returns:
        The names of the layers, in the order of the model.

    Raises:
        ValueError: if there is no such layer; on every rank, if one does what is not supported. The model is as before.
    """
    layers = [(name, module) for name, module in model.named_modules() if _is_moe_layer(module)]
    if not layers:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(f"no Megatron `{LAYER_CLASS}` found among {', '.join(classes)}; nothing to spread over ranks")
    ep_group = _shared_group(layers)
    if group is None:
        group = expert_parallel_group(ep_group)
    with share_refusals(group.counts, size=group.size):
        _refuse_param_gather(model)
        parallel = [_spread(name, layer, group) for name, layer in layers]
    # Only now, so that a refusal leaves the model as it was.
    for (_, layer), each in zip(layers, parallel, strict=True):
        _attach(layer, each)
    logger.info("%d Megatron MoE layers spread over %d ranks", len(layers), group.size)
    return [name for name, _ in layers]


class RoutedExperts:
    """Stands in for what a `MoELayer` does after its router."""

    def __init__(self, parallel: ParallelExperts) -> None:
        self._parallel = parallel

    def preprocess(
        self, hidden_states: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Does everything at once; what follows passes it on. Collective.

        Args:
            hidden_states: tokens. Shape: [sequence, batch, dim].
            probs: weights of the chosen experts. Shape: [tokens, experts].
            routing_map: whether an expert is chosen. Shape: [tokens, experts].
        """
        experts_TK = chosen_experts(routing_map, top_k=self._parallel.top_k)
        weights_TK = probs.gather(1, experts_TK.clamp(max=self._parallel.num_experts - 1))
        x_TD = hidden_states.reshape(-1, hidden_states.shape[-1])
        y_TD = cast(torch.Tensor, self._parallel.apply(x_TD, experts_TK, weights_TK))
        # Weights may be wider than tokens.
        return y_TD.to(hidden_states.dtype).view_as(hidden_states), probs

    def dispatch(self, hidden_states: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Passes on."""
        return hidden_states, probs

    def routed_experts_compute(self, hidden_states: torch.Tensor, probs: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Passes on, with no bias left to add."""
        del probs
        return hidden_states, None

    def combine(self, output: torch.Tensor) -> torch.Tensor:
        """Passes on."""
        return output

    def postprocess(self, output: torch.Tensor, shared_expert_output: torch.Tensor | None) -> torch.Tensor:
        """Adds what the shared experts have computed."""
        return output if shared_expert_output is None else output + shared_expert_output


def chosen_experts(routing_map: torch.Tensor, *, top_k: int) -> torch.Tensor:
    """The experts of each token, ascending; where there are fewer, ids that are no expert's. Shape: [tokens, choices].

    Args:
        routing_map: whether an expert is chosen. Shape: [tokens, experts].
        top_k: choices of a token.
    """
    num_experts = routing_map.shape[1]
    ids_E = torch.arange(num_experts, device=routing_map.device)
    # Chosen experts come first, in an order that does not depend on the kernel; the host need not wait.
    return torch.where(routing_map.bool(), ids_E, ids_E + num_experts).topk(top_k, dim=1, largest=False).values


def _is_moe_layer(module: nn.Module) -> bool:
    return any(base.__name__ == LAYER_CLASS for base in type(module).__mro__)


def _refuse_param_gather(model: nn.Module) -> None:
    for module in model.modules():
        if getattr(getattr(module, "ddp_config", None), "overlap_param_gather", False):
            raise ValueError(
                "overlap_param_gather is not supported: guests leave at the beginning of a step, when the weights that"
                " the optimizer changed would not have been gathered; turn it off"
            )


def _refuse_unsupported(name: str, layer: nn.Module) -> None:
    where, config = f"layer {name!r}", cast(Any, layer).config
    if ATTRIBUTE in vars(layer):
        raise ValueError(f"{where} has been parallelized already")
    missing = [part for part in _REPLACED if not callable(getattr(layer, part, None))]
    if missing:
        raise ValueError(f"{where}: {type(layer).__name__} without {missing} is not known; use megatron-core 0.16")
    for option, why in _REFUSED.items():
        if getattr(config, option, None):
            raise ValueError(f"{where}: {option} is not supported: {why}; turn it off")
    if getattr(config, "cuda_graph_impl", "none") != "none":
        raise ValueError(f"{where}: CUDA graphs are not supported: counts are gathered on the host; turn them off")


def _shared_group(layers: Sequence[tuple[str, nn.Module]]) -> Any:
    """Megatron's expert-parallel group, the same for all layers."""
    first_name, first = layers[0]
    for name, layer in layers:
        if cast(Any, layer).ep_group is not cast(Any, first).ep_group:
            raise ValueError(f"layer {name!r} uses another expert-parallel group than {first_name!r}")
    return cast(Any, first).ep_group


def _spread(name: str, layer: nn.Module, group: ExpertParallelGroup) -> ParallelExperts:
    _refuse_unsupported(name, layer)
    config, local = cast(Any, layer).config, list(cast(Any, layer).local_expert_indices)
    parallel = ParallelExperts(
        module=layer,
        experts=experts_of(name, layer),
        num_experts=config.num_moe_experts,
        top_k=config.moe_router_topk,
        group=group,
    )
    if parallel.home_experts.tolist() != local:
        raise ValueError(
            f"layer {name!r} keeps the experts {local} and rank {group.rank} of {group.size} should keep"
            f" {parallel.home_experts.tolist()}: `group` must have the ranks of Megatron's expert-parallel group"
        )
    return parallel


def _attach(layer: nn.Module, parallel: ParallelExperts) -> None:
    setattr(layer, ATTRIBUTE, parallel)
    routed = RoutedExperts(parallel)
    for part in _REPLACED:
        setattr(layer, part, getattr(routed, part))
