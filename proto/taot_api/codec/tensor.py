"""Integer arrays of any shape as messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from taot_api.contract_error import ContractError, Reason
from taot_api.v1 import planner_pb2 as pb
from taot_planning.arrays import IntArray


def encode_tensor(values: IntArray) -> pb.Int32Tensor:
    """Packs an integer array of any shape.

    Raises:
        ValueError: if a value does not fit int32.
    """
    if values.min(initial=0) < -(2**31) or values.max(initial=0) >= 2**31:
        raise ValueError(f"values must fit int32, got {values.min()} to {values.max()}")
    return pb.Int32Tensor(shape=values.shape, data=np.ascontiguousarray(values, dtype="<i4").tobytes())


def decode_tensor(message: pb.Int32Tensor, *, shape: Sequence[int | None], field: str) -> IntArray:
    """Unpacks a tensor of a known shape into a read-only int64 array; None stands for an axis of any size.

    Raises:
        ContractError: INVALID_TENSOR, when shape or length are not what they should be.
    """
    data = tensor_data(message, shape=shape, field=field)
    values = np.frombuffer(data, dtype="<i4").reshape(message.shape).astype(np.int64)
    # Nobody else holds the array: who freezes it later need not copy it.
    values.setflags(write=False)
    return values


def tensor_data(message: pb.Int32Tensor, *, shape: Sequence[int | None], field: str) -> bytes:
    """The bytes of a tensor of a known shape; None stands for an axis of any size.

    Raises:
        ContractError: INVALID_TENSOR, when shape or length are not what they should be.
    """
    got, data = list(message.shape), message.data
    if got != shape:  # equal at once where the shape is all known, as in reports
        _check_shape(got, shape, field)
    if len(data) != 4 * math.prod(got):
        message_text = f"data of shape {got} must be {4 * math.prod(got)} bytes, got {len(data)}"
        raise ContractError(Reason.INVALID_TENSOR, message_text, field=field)
    return data


def _check_shape(got: list[int], shape: Sequence[int | None], field: str) -> None:
    fits = len(got) == len(shape) and all(
        want in (None, have) and have >= 0 for want, have in zip(shape, got, strict=True)
    )
    if not fits:
        wanted = ["any" if size is None else size for size in shape]
        raise ContractError(Reason.INVALID_TENSOR, f"shape must be {wanted}, got {got}", field=field)
