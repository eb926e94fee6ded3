"""Nodes of the agent's own in the autograd graph act as torch's own ways of making them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from taot_client.transfers.graph_nodes import applied, differentiable_once


class Doubled(torch.autograd.Function):
    """Twice its input, once differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor]:
        assert not torch.is_grad_enabled()
        return (2 * grad,)


doubled = applied(Doubled)


def test_a_node_has_its_gradient_whether_or_not_a_graph_of_it_is_wanted() -> None:
    x = torch.ones(3, requires_grad=True)
    for create_graph in (False, True):
        (grad,) = torch.autograd.grad((doubled(x) * x).sum(), x, create_graph=create_graph)
        assert grad.tolist() == [4.0] * 3


def test_it_cannot_be_differentiated_twice() -> None:
    x = torch.ones(3, requires_grad=True)
    weight = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad((doubled(x) * weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
