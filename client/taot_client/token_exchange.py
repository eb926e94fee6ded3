"""Sends token activations to the ranks that compute them and back, with gradients going the other way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from taot_client.device import exchange_buffers


class _AllToAll(torch.autograd.Function):
    """Rows to every rank and rows from every rank; in backward the same with the splits exchanged."""

    @staticmethod
    def forward(
        ctx: Any,
        rows_ND: torch.Tensor,
        group: dist.ProcessGroup,
        send_splits: list[int],
        receive_splits: list[int],
    ) -> torch.Tensor:
        ctx.group, ctx.send_splits, ctx.receive_splits = group, send_splits, receive_splits
        return _all_to_all_rows(rows_ND, group, send_splits, receive_splits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _all_to_all_rows(grad_MD, ctx.group, ctx.receive_splits, ctx.send_splits), None, None, None


def _all_to_all_rows(
    rows_ND: torch.Tensor, group: dist.ProcessGroup, send_splits: list[int], receive_splits: list[int]
) -> torch.Tensor:
    received_MD = rows_ND.new_empty(sum(receive_splits), rows_ND.shape[1])
    # As bytes, since not every backend knows every dtype.
    exchange_buffers(
        received_MD.view(torch.uint8),
        rows_ND.contiguous().view(torch.uint8),
        group,
        send_splits=send_splits,
        receive_splits=receive_splits,
    )
    return received_MD


def exchange_rows(
    rows_ND: torch.Tensor, group: dist.ProcessGroup, *, send_splits: list[int], receive_splits: list[int]
) -> torch.Tensor:
    """Sends `send_splits[r]` rows to each rank r and returns the rows received, by source. Differentiable.

    Collective. Ranks without rows take part with zeros.
    """
    exchanged: torch.Tensor = _AllToAll.apply(rows_ND, group, send_splits, receive_splits)  # type: ignore[no-untyped-call]
    return exchanged
