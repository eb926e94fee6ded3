"""Whether the experts of every layer survive a journey through a guest slot: tested at start, before any training.

An adapter says what an expert is made of and how it is computed. What it forgets (a bias, a scale, an axis) would
train wrong without an error, on guests alone. So each layer packs experts as a guest slot holds them, computes them
from there and compares with the framework's own code at home: with the weights as they are, and with drawn ones, since
biases often start at zero and scales at one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from taot_client.home_experts import HomeExperts, Weights
from taot_client.model_layers import NamedLayer
from taot_client.parallel_experts import ParallelExperts

T = TypeVar("T")

_NUM_TOKENS = 8

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Norm of the difference of two outputs / norm of the output. Kernels may differ, in TF32 too where that is allowed;
what is forgotten of drawn weights shows in full."""


def check_experts(layers: Sequence[NamedLayer]) -> None:
    """Tests up to two home experts of each layer of this rank. Weights and random states are as before afterwards.

    Raises:
        ValueError: naming the layer, the expert and what differs.
    """
    for name, layer in layers:
        if layer.home_experts.size:
            with torch.no_grad(), _evaluating(layer.module):
                _test_layer(name, layer)


def _test_layer(name: str, layer: ParallelExperts) -> None:
    experts, home = layer.experts, layer.home_experts.tolist()
    where = f"layer {name!r}"
    tensors = tuple(tensor.detach() for tensor in experts.tensors())
    views = _attempt(where, "split", lambda: experts.split(tensors))
    _check_cover(where, tensors, views)
    _check_split_of_others(where, experts)
    for local in sorted({0, len(home) - 1}):
        _test_expert(f"{where}, expert {home[local]}", experts, views[local], local)


def _test_expert(where: str, experts: HomeExperts, views: Weights, local: int) -> None:
    layout, device = experts.layout(), views[0].device
    found = [(tuple(view.shape), view.dtype) for view in views]
    expected = [(tuple(shape), dtype) for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)]
    if found != expected:
        raise ValueError(f"{where}: `layout` says {expected} and `split` gives {found}; let both speak of one expert")

    buffer = torch.empty(layout.buffer_bytes, dtype=torch.uint8, device=device)
    layout.fill(buffer, views)
    packed = layout.views(buffer)
    if not all(_same_bits(view, other) for view, other in zip(views, packed, strict=True)):
        raise ValueError(f"{where}: its tensors did not come back from a flat buffer as they were; report this")
    # Without a seed that moves, so that every rank and every start tests the same.
    generator = torch.Generator(device=device).manual_seed(local)
    x_ND = torch.randn(_NUM_TOKENS, experts.dim, generator=generator, device=device).to(_token_dtype(views))
    _compare(where, experts, packed, local=local, x_ND=x_ND)

    own = buffer.clone()
    try:
        for view, other in zip(views, packed, strict=True):
            other.copy_(_draw(other, generator))
            view.copy_(other)
        _compare(f"{where} (with drawn weights)", experts, packed, local=local, x_ND=x_ND)
    finally:
        for view, other in zip(views, layout.views(own), strict=True):
            view.copy_(other)


def _compare(where: str, experts: HomeExperts, packed: Weights, *, local: int, x_ND: torch.Tensor) -> None:
    home_ND = _attempt(where, "at_home", lambda: experts.at_home(x_ND, local))
    guest_ND = _attempt(where, "compute", lambda: experts.compute(x_ND, packed))
    none_ND = _attempt(where, "compute", lambda: experts.compute(x_ND[:0], packed))
    shapes = [tuple(each.shape) for each in (home_ND, guest_ND, none_ND)]
    if shapes != [tuple(x_ND.shape)] * 2 + [(0, experts.dim)]:
        raise ValueError(
            f"{where}: outputs must be [tokens, {experts.dim}]; `at_home` and `compute` made {shapes[0]} and"
            f" {shapes[1]} of {_NUM_TOKENS} tokens, and {shapes[2]} of none"
        )
    # Weights that are not loaded yet may be anything: then drawn ones decide.
    if not bool(home_ND.isfinite().all()) and not bool(guest_ND.isfinite().all()):
        return
    difference, norm = (home_ND.double() - guest_ND.double()).norm().item(), home_ND.double().norm().item()
    if not difference <= _TOLERANCES[x_ND.dtype] * norm:
        raise ValueError(
            f"{where}: as a guest it computes something else than the framework does at home, |difference|"
            f" {difference:.2e} of |output| {norm:.2e}; let the adapter's `tensors` name everything that belongs to an"
            " expert (weights, biases, scales) and `compute` use it as the framework does"
        )


def _check_cover(where: str, tensors: Weights, views: Sequence[Weights]) -> None:
    """Whether the views are the tensors, each part of them once."""
    total, covered = sum(each.numel() for each in tensors), sum(view.numel() for expert in views for view in expert)
    if covered != total:
        raise ValueError(
            f"{where}: `split` hands out {covered} of the {total} numbers in `tensors`; what is left out would stay"
            " behind when an expert travels"
        )
    storages = {each.untyped_storage().data_ptr() for each in tensors}
    flat = [view for expert in views for view in expert if view.numel()]
    if any(view.untyped_storage().data_ptr() not in storages for view in flat):
        raise ValueError(f"{where}: `split` copies; it must give views of `tensors`, where gradients belong")
    if len({view.data_ptr() for view in flat}) != len(flat):
        raise ValueError(f"{where}: `split` gives the same part of `tensors` to two experts")


def _check_split_of_others(where: str, experts: HomeExperts) -> None:
    """Whether views are of the tensors given: gradients pass the gate on the home weights only then."""
    others = tuple(torch.empty_like(each, device="meta", requires_grad=True) for each in experts.tensors())
    with torch.enable_grad():
        views = _attempt(where, "split", lambda: experts.split(others))
    if not all(view.device.type == "meta" and view.requires_grad for expert in views for view in expert):
        raise ValueError(
            f"{where}: `split` must give differentiable views of the tensors it is given, not of the module's own"
        )


def _attempt(where: str, what: str, call: Callable[[], T]) -> T:
    """Calls an adapter; whatever it raises, the other ranks must hear of it."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the frameworks' code may raise anything
        raise ValueError(f"{where}: the adapter's `{what}` failed: {error!r}") from error


def _token_dtype(views: Weights) -> torch.dtype:
    # Scales may have another dtype; the large weights have that of tokens.
    return max(views, key=torch.Tensor.numel).dtype


def _draw(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Positive values, as scales need them, that keep outputs near the size of tokens."""
    bound = 1.0 if like.ndim < 2 else max(like.shape) ** -0.5
    drawn = torch.rand(like.shape, generator=generator, device=like.device)
    return (0.25 + 0.75 * drawn) * bound


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout: every submodule in evaluation, and back."""
    before = [(each, each.training) for each in module.modules()]
    try:
        for each, _ in before:
            each.training = False
        yield
    finally:
        for each, training in before:
            each.training = training
