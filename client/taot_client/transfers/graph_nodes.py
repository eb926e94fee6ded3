"""Autograd nodes of our own that cost as little as one can: they stand where caches are cold, in every layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Backward = Callable[..., tuple[Any, ...]]


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """What `function.apply` is without the questions of `torch.func` before it.

    Those take a third of the time of a node. Nothing is lost: layers that exchange tokens refuse its transforms anyway.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def differentiable_once(backward: Backward) -> Backward:
    """Does what `once_differentiable` does, at no cost where no graph of the backward is wanted."""
    guarded = once_differentiable(backward)

    @functools.wraps(backward)
    def called(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        result: tuple[Any, ...] = (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)
        return result

    return called
