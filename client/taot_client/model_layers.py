"""The mixture-of-experts layers of a model: finding them, and refusing what the agent cannot serve yet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from taot_client.coordinator import PlainCoordinator
from taot_client.home_experts import HomeExperts, Weights, allows_main_grad
from taot_client.parallel_experts import ATTRIBUTE, ParallelExperts

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_DEVICES = ("cpu", "cuda")

NamedLayer = tuple[str, ParallelExperts]


def find_layers(model: nn.Module) -> list[NamedLayer]:
    """The layers of a model in the order in which it holds them, which must be that of its forward.

    Raises:
        ValueError: if there is none; wrappers of the model are looked through.
    """
    # Of the module itself: wrappers such as compiled modules pass attributes on.
    found = [(name, vars(module).get(ATTRIBUTE)) for name, module in model.named_modules()]
    layers = [(_without_wrappers(name) or "moe", each) for name, each in found if isinstance(each, ParallelExperts)]
    if not layers:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            f"no mixture-of-experts layer found: looked for modules with `{ATTRIBUTE}`, such as ExpertParallelMoE or"
            f" what `taot_client.adapters` makes, among {', '.join(classes)}; build the model's layers with them, or"
            " train this pipeline stage without an agent"
        )
    return layers


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
        weights = layer.experts.tensors()
        if layer.group != group:
            raise ValueError(f"layer {name!r} uses another expert-parallel group than {layers[0][0]!r}")
        if not isinstance(layer.coordinator, PlainCoordinator):
            raise ValueError(f"layer {name!r} has an agent already: close it before the next one is made")
        if any(weight.device != device for weight in weights):
            raise ValueError(f"layer {name!r}: all experts of a rank must be on one device, {device} here")
        _refuse_weights(name, weights)
        if not allows_main_grad(layer.experts) and any(hasattr(weight, "main_grad") for weight in weights):
            raise ValueError(f"layer {name!r}: gradients kept in `main_grad` are not supported, use `.grad`")
        if not _splits_into(layer.experts, layer.home_experts.size):
            raise ValueError(f"layer {name!r}: expert weights sharded by FSDP or tensor parallelism are not supported")


def _splits_into(experts: HomeExperts, num_home: int) -> bool:
    try:
        return len(experts.split(experts.tensors())) == num_home
    except ValueError:  # tensors of different numbers of experts
        return False


def _refuse_weights(name: str, weights: Weights) -> None:
    if any(isinstance(weight, DTensor) for weight in weights):
        raise ValueError(f"layer {name!r}: expert weights sharded by FSDP or tensor parallelism are not supported")
    odd = [weight.dtype for weight in weights if weight.dtype not in _DTYPES]
    if odd:
        raise ValueError(f"layer {name!r}: expert weights of {odd[0]} are not supported, use one of {_DTYPES}")
    if len({weight.requires_grad for weight in weights}) > 1:
        raise ValueError(f"layer {name!r}: training only some tensors of an expert is not supported")


def model_device(layers: Sequence[NamedLayer]) -> torch.device:
    """Where the experts of this rank live."""
    return next((tensor.device for _, layer in layers for tensor in layer.experts.tensors()), torch.device("cpu"))


def describe_layer(name: str, layer: ParallelExperts) -> dict[str, object]:
    """What ranks must agree on about a layer, as JSON values."""
    layout = layer.experts.layout()
    return {
        "name": name,
        "experts": layer.num_experts,
        "top_k": layer.top_k,
        "homes": layer.home_E.tolist(),
        "shapes": [list(shape) for shape in layout.shapes],
        "dtypes": [str(dtype) for dtype in layout.dtypes],
        "trained": all(tensor.requires_grad for tensor in layer.experts.tensors()),
    }
