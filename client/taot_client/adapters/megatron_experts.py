"""What the routed experts of a Megatron `MoELayer` are made of, by the class that holds them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.func import functional_call

from taot_client.home_experts import HomeExperts, Weights
from taot_client.transfers.expert_layout import ExpertLayout

_LINEARS = {"linear_fc1": "ColumnParallelLinear", "linear_fc2": "RowParallelLinear"}
"""The parts of an expert's MLP and the classes whose state is known to be their parameters."""


def experts_of(name: str, layer: nn.Module) -> HomeExperts:
    """The home experts of a `MoELayer`.

    Raises:
        ValueError: naming the layer, if they are kept in a way that is not known here.
    """
    experts = cast(nn.Module, cast(Any, layer).experts)
    kind, where = type(experts).__name__, f"layer {name!r}"
    if kind not in _KINDS:
        raise ValueError(
            f"{where}: experts kept in {kind} are not supported, use one of {sorted(_KINDS)}; SequentialMLP is what"
            " `moe_grouped_gemm=False` builds without Transformer Engine"
        )
    if cast(Any, experts).tp_group.size() > 1:
        raise ValueError(f"{where}: experts split by tensor parallelism are not supported, use size 1 for them")
    for buffer, _ in experts.named_buffers():
        raise ValueError(f"{where}: the experts' buffer {buffer!r} is not known and would not travel with a guest")
    return _KINDS[kind](where, experts)


class SequentialExperts:
    """Experts in a `SequentialMLP`: a module each."""

    allows_main_grad = True
    """Megatron adds `.grad` to it in a hook, once autograd has accumulated; the fused way is refused."""

    def __init__(self, where: str, experts: nn.Module) -> None:
        """Takes the experts of a layer.

        Raises:
            ValueError: naming the layer `where`, if their parts are not known here.
        """
        self._local = tuple(cast(nn.ModuleList, experts.local_experts))
        self._names = [name for name, _ in self._local[0].named_parameters()]
        for expert in self._local:
            for part, known in _LINEARS.items():
                found = type(getattr(expert, part)).__name__
                if found != known:
                    raise ValueError(f"{where}: experts with {found} as {part} are not supported, only {known}")
            if [name for name, _ in expert.named_parameters()] != self._names:
                raise ValueError(f"{where}: experts that consist of different tensors are not supported")

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        return int(cast(Any, self._local[0]).config.hidden_size)

    def tensors(self) -> Weights:
        """See `HomeExperts`: expert after expert."""
        return tuple(expert.get_parameter(name) for expert in self._local for name in self._names)

    def split(self, tensors: Weights) -> list[Weights]:
        """See `HomeExperts`."""
        size = len(self._names)
        return [tensors[start : start + size] for start in range(0, len(tensors), size)]

    def layout(self) -> ExpertLayout:
        """See `HomeExperts`."""
        return ExpertLayout.of_shapes([(tensor.shape, tensor.dtype) for tensor in self.split(self.tensors())[0]])

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """See `HomeExperts`."""
        output, _ = self._local[local](x_ND, _unweighted(x_ND))
        return cast(torch.Tensor, output)

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """See `HomeExperts`: Megatron's own module, lent other tensors."""
        lent = dict(zip(self._names, expert, strict=True))
        output, _ = functional_call(self._local[0], lent, (x_ND, _unweighted(x_ND)))
        return cast(torch.Tensor, output)


class GroupedExperts:
    """Experts in a `GroupedMLP`: two matrices, in whose memory one expert lies after the other."""

    allows_main_grad = True
    """See `SequentialExperts`."""

    def __init__(self, where: str, experts: nn.Module) -> None:
        """Takes the experts of a layer.

        Raises:
            ValueError: naming the layer `where`, if there are other parameters than the two matrices.
        """
        names = {name for name, _ in experts.named_parameters()}
        if names != {"weight1", "weight2"}:
            raise ValueError(f"{where}: a GroupedMLP with {sorted(names)} is not supported, only weight1 and weight2")
        self._grouped = cast(Any, experts)

    @property
    def dim(self) -> int:
        """See `HomeExperts`."""
        return int(self._grouped.config.hidden_size)

    def tensors(self) -> Weights:
        """See `HomeExperts`."""
        return self._grouped.weight1, self._grouped.weight2

    def split(self, tensors: Weights) -> list[Weights]:
        """See `HomeExperts`. The first matrix is written [dim, all experts' columns] and filled expert by expert."""
        weight1, weight2 = tensors
        num_local = self._grouped.num_local_experts
        by_expert = weight1.view(num_local, self.dim, -1), weight2.view(num_local, -1, self.dim)
        return list(zip(*(weight.unbind(0) for weight in by_expert), strict=True))

    def layout(self) -> ExpertLayout:
        """See `HomeExperts`."""
        return ExpertLayout.of_shapes([(tensor.shape, tensor.dtype) for tensor in self.split(self.tensors())[0]])

    def at_home(self, x_ND: torch.Tensor, local: int) -> torch.Tensor:
        """See `HomeExperts`."""
        counts = torch.zeros(self._grouped.num_local_experts, dtype=torch.int64)
        counts[local] = x_ND.shape[0]
        output, _ = self._grouped(x_ND, counts, _unweighted(x_ND))
        return cast(torch.Tensor, output)

    def compute(self, x_ND: torch.Tensor, expert: Weights) -> torch.Tensor:
        """See `HomeExperts`: the products of a grouped kernel, with Megatron's own activation between them."""
        weight1, weight2 = expert
        hidden = self._grouped.activation_func_with_probs(x_ND @ weight1, _unweighted(x_ND)[:, None])
        return cast(torch.Tensor, hidden @ weight2)


_KINDS: dict[str, type[SequentialExperts] | type[GroupedExperts]] = {
    "SequentialMLP": SequentialExperts,
    "GroupedMLP": GroupedExperts,
}


def _unweighted(x_ND: torch.Tensor) -> torch.Tensor:
    """Weights of one: given some, Megatron takes the code of routed experts, which adds the last bias."""
    return x_ND.new_ones(x_ND.shape[0])
