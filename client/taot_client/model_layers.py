"""The mixture-of-experts layers of a model: finding them, and refusing what the agent cannot serve yet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from taot_client.coordinator import PlainCoordinator
from taot_client.expert_layout import ExpertLayout
from taot_client.moe_layer import ExpertParallelMoE

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_DEVICES = ("cpu", "cuda")

NamedLayer = tuple[str, ExpertParallelMoE]


def find_layers(model: nn.Module) -> list[NamedLayer]:
    """The layers of a model in the order in which it holds them, which must be that of its forward.

    Raises:
        ValueError: if there is none; wrappers of the model are looked through.
    """
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, ExpertParallelMoE)]
    if not layers:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            f"no mixture-of-experts layer found: looked for {ExpertParallelMoE.__name__} among {', '.join(classes)};"
            " build the model's layers with it, or train this pipeline stage without an agent"
        )
    return [(_without_wrappers(name) or "moe", module) for name, module in layers]


def _without_wrappers(name: str) -> str:
    # A compiled module keeps the original under this name; the layer is the same, compiled or not.
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def refuse_unsupported(layers: Sequence[NamedLayer]) -> None:
    """Checks everything the agent does not support yet.

    Raises:
        ValueError: naming the layer and what is not supported.
    """
    group, device = layers[0][1].group, model_device(layers)
    if device.type not in _DEVICES:
        raise ValueError(f"experts on {device.type!r} devices are not supported, use one of {_DEVICES}")
    for name, layer in layers:
        weights = layer.experts.weights()
        if layer.group != group:
            raise ValueError(f"layer {name!r} uses another expert-parallel group than {layers[0][0]!r}")
        if not isinstance(layer.coordinator, PlainCoordinator):
            raise ValueError(f"layer {name!r} has an agent already: close it before the next one is made")
        if any(weight.device != device for weight in weights):
            raise ValueError(f"layer {name!r}: all experts of a rank must be on one device, {device} here")
        _refuse_weights(name, weights, num_home=int((layer.home_E == group.rank).sum()))


def _refuse_weights(name: str, weights: Sequence[torch.Tensor], *, num_home: int) -> None:
    if any(isinstance(weight, DTensor) or weight.shape[0] != num_home for weight in weights):
        raise ValueError(f"layer {name!r}: expert weights sharded by FSDP or tensor parallelism are not supported")
    odd = [weight.dtype for weight in weights if weight.dtype not in _DTYPES]
    if odd:
        raise ValueError(f"layer {name!r}: expert weights of {odd[0]} are not supported, use one of {_DTYPES}")
    if any(hasattr(weight, "main_grad") for weight in weights):
        raise ValueError(f"layer {name!r}: gradients kept in `main_grad` are not supported, use `.grad`")
    if len({weight.requires_grad for weight in weights}) > 1:
        raise ValueError(f"layer {name!r}: training only some tensors of an expert is not supported")


def model_device(layers: Sequence[NamedLayer]) -> torch.device:
    """Where the experts of this rank live."""
    return layers[0][1].experts.weights()[0].device


def describe_layer(name: str, layer: ExpertParallelMoE) -> dict[str, object]:
    """What ranks must agree on about a layer, as JSON values."""
    weights = layer.experts.weights()
    return {
        "name": name,
        "experts": layer.num_experts,
        "top_k": layer.top_k,
        "homes": layer.home_E.tolist(),
        "shapes": [list(weight.shape[1:]) for weight in weights],
        "dtypes": [str(weight.dtype) for weight in weights],
        "trained": all(weight.requires_grad for weight in weights),
    }


def expert_layout(layer: ExpertParallelMoE) -> ExpertLayout:
    """How one expert of a layer lies in a buffer."""
    return ExpertLayout.of(layer.experts.weights())
