"""Experts of torchtitan's mixture-of-experts layers (0.3), spread over the ranks of a group.

A layer keeps all of its own: router, expert bias, counters, shared experts, and its local token dispatcher, which
sorts the choices by expert before the experts and weighs and adds up after them. Only the forward of its grouped
experts is another: it takes the sorted rows, as theirs does, and has them computed by `ParallelExperts`.
"""

from __future__ import annotations

import copy
import importlib
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from taot_client.agreement import share_refusals
from taot_client.groups import ExpertParallelGroup
from taot_client.home_experts import FusedExperts, Weights
from taot_client.parallel_experts import ATTRIBUTE, ParallelExperts, homes_of
from taot_planning.arrays import IntArray


class TorchtitanExperts(FusedExperts):
    """The home experts in a `GroupedExperts` of torchtitan or a subclass, whose parameters begin with the expert."""

    def __init__(self, module: nn.Module, *, dim: int) -> None:
        self._module = module
        self._dim = dim

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        return self._dim

    def tensors(self) -> Weights:
        """See `HomeExperts`."""
        return tuple(self._module.parameters(recurse=False))

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """See `HomeExperts`."""
        counts = [0] * self.tensors()[0].shape[0]
        counts[local] = x_ND.shape[0]
        return _framework_forward(self._module, x_ND, torch.tensor(counts, device=x_ND.device))

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """See `HomeExperts`."""
        num_tokens = x_ND.shape[0]
        if num_tokens == 0:
            # Grouped kernels do not promise to take no rows. With one row more the weights stay in the graph as well.
            return self.compute(nn.functional.pad(x_ND, (0, 0, 0, 1)), expert)[:0]
        # A module of the same class and settings that holds one expert, whose tensors are no parameters.
        holder = copy.copy(self._module)
        names = [name for name, _ in self._module.named_parameters(recurse=False)]
        vars(holder)["_parameters"] = {name: tensor[None] for name, tensor in zip(names, expert, strict=True)}
        return _framework_forward(holder, x_ND, torch.full((1,), num_tokens, device=x_ND.device))


def parallelize(model: nn.Module, group: ExpertParallelGroup, *, home_E: IntArray | None = None) -> list[str]:
    """Spreads the experts of every mixture-of-experts layer of a model over the ranks of a group. Collective.

    Every rank keeps the experts at home on it: its slices of the parameters, under their names. Parameters that
    hold just these already stay as they are. Call it in place of torchtitan's own expert parallelism, before the
    optimizer is made and before an `Agent` is.

    Args:
        model: on every rank with the same layers, in the order of its forward.
        group: the ranks that share the experts.
        home_E: home rank of each expert; expert e on rank e * R // E by default. Shape: [experts].

    Returns:
        The names of the layers.

    Raises:
        ValueError: on every rank, if the model of any rank has no such layer or one that is not supported.
    """
    moe_class = importlib.import_module("torchtitan.models.common.moe").MoE
    with share_refusals(group.counts, size=group.size):
        layers = {name: module for name, module in model.named_modules() if isinstance(module, moe_class)}
        if not layers:
            classes = sorted({type(module).__name__ for module in model.modules()})
            raise ValueError(f"no layer of torchtitan's class MoE found among {', '.join(classes)}")
        for name, moe in layers.items():
            homes_E = homes_of(moe.router.num_experts, group, home_E)
            if homes_E.shape != (moe.router.num_experts,) or homes_E.min() < 0 or homes_E.max() >= group.size:
                raise ValueError(
                    f"layer {name!r} has {moe.router.num_experts} experts and needs a home among ranks 0 to"
                    f" {group.size - 1} for each, got {homes_E.tolist()}"
                )
            _refuse_unsupported(name, moe, int(np.count_nonzero(homes_E == group.rank)))
    for moe in layers.values():
        _spread(moe, group, home_E)
    return list(layers)


def _spread(moe: Any, group: ExpertParallelGroup, home_E: IntArray | None) -> None:
    module = moe.routed_experts.inner_experts
    parallel = ParallelExperts(
        module=moe,
        experts=TorchtitanExperts(module, dim=moe.router.gate.in_features),
        num_experts=moe.router.num_experts,
        top_k=moe.router.top_k,
        group=group,
        home_E=home_E,
    )
    home_experts = torch.from_numpy(parallel.home_experts)
    for parameter in module.parameters():
        if parameter.shape[0] != home_experts.numel():
            # The parameter stays the same object: hooks and names are kept. The copy lets go of the other experts.
            parameter.data = parameter.data[home_experts.to(parameter.device)]
    setattr(moe, ATTRIBUTE, parallel)
    module.forward = partial(_forward, parallel)


def _forward(parallel: ParallelExperts, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
    """Stands in for the forward of `GroupedExperts`: rows sorted by expert, and how many each expert has."""
    experts_E = torch.arange(parallel.num_experts, device=x_RD.device)
    experts_R = experts_E.repeat_interleave(num_tokens_per_expert_E, output_size=x_RD.shape[0])
    outputs_RD: torch.Tensor = parallel.apply_pairs(x_RD, experts_R)
    return outputs_RD


def _framework_forward(module: Any, x_ND: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
    """What the class of the module says its forward is, whatever an instance has been given instead."""
    outputs_ND: torch.Tensor = type(module).forward(module, x_ND, num_tokens_per_expert_E)
    return outputs_ND


def _refuse_unsupported(name: str, moe: Any, num_home: int) -> None:
    """Checks everything the adapter does not support.

    Raises:
        ValueError: naming the layer and what is not supported.
    """
    module = moe.routed_experts.inner_experts
    if ATTRIBUTE in vars(moe):
        raise ValueError(f"layer {name!r}: its experts have been spread already")
    _refuse_dispatcher(name, moe.routed_experts.token_dispatcher)
    # State of an expert that would not travel with it: scales, adapters, statistics.
    inside = [key for key, _ in module.named_buffers()] + [key for key, _ in module.named_children()]
    if inside:
        raise ValueError(
            f"layer {name!r}: {type(module).__name__} keeps {', '.join(inside)} beside its parameters: not supported"
        )
    for key, parameter in module.named_parameters():
        where = f"layer {name!r}, {key}"
        if isinstance(parameter, DTensor):
            raise ValueError(
                f"{where}: sharded experts (DTensor) are not supported: apply this adapter in place of torchtitan's"
                " expert parallelism, and leave the experts out of FSDP and tensor parallelism"
            )
        if parameter.shape[:1] not in ((moe.router.num_experts,), (num_home,)):
            raise ValueError(
                f"{where}: the first axis of shape {tuple(parameter.shape)} is neither that of all"
                f" {moe.router.num_experts} experts nor that of the {num_home} at home on this rank"
            )
        if parameter.grad is not None:
            raise ValueError(f"{where} has a gradient already: spread experts before the first backward")


def _refuse_dispatcher(name: str, dispatcher: Any) -> None:
    known = importlib.import_module("torchtitan.models.common.token_dispatcher")
    if getattr(dispatcher, "ep_mesh", None) is not None:
        raise ValueError(
            f"layer {name!r}: torchtitan's expert parallelism is on: apply this adapter in its place, with"
            " expert_parallel_degree 1"
        )
    # Without a mesh both of these only sort; the others pad. A subclass may weigh as it likes.
    dispatch = type(dispatcher).dispatch
    if dispatch not in (known.LocalTokenDispatcher.dispatch, known.AllToAllTokenDispatcher.dispatch):
        raise ValueError(
            f"layer {name!r}: {type(dispatcher).__name__} is not supported: choose the standard dispatcher, which"
            " sorts tokens by expert and adds no padding"
        )
