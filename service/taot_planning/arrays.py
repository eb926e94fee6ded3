"""Checked, read-only integer arrays: what every data type of this package stores."""

from __future__ import annotations

from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]

FloatArray: TypeAlias = NDArray[np.float64]

MAX_COUNT = 2**31 - 1
"""Largest token count of one (source rank, expert) pair, the largest int32 that the wire carries."""


def frozen_ints(values: ArrayLike, *, name: str, num_axes: int) -> IntArray:
    """Copies `values` into a read-only int64 array; what this function has frozen before is shared.

    Raises:
        ValueError: if the values are not whole numbers or do not have `num_axes` axes.
    """
    if _is_frozen(values) and values.ndim == num_axes:
        return values
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != num_axes:
        raise ValueError(f"{name} must have {num_axes} axes, got shape {array.shape}")
    if array.dtype.kind == "f" and np.all(np.isfinite(array)) and np.array_equal(array, np.trunc(array)):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype} values that are not")
    frozen = np.array(array, dtype=np.int64, order="C")
    frozen.setflags(write=False)
    return frozen


def _is_frozen(values: ArrayLike) -> TypeGuard[IntArray]:
    """Whether nobody can write to the array: it is read-only, and not a view of one that is not."""
    base = getattr(values, "base", None)
    return (
        isinstance(values, np.ndarray)
        and values.dtype == np.int64
        and (base is None or (isinstance(base, np.ndarray) and base.base is None and not base.flags.writeable))
        and not values.flags.writeable
        and values.flags.c_contiguous
    )


def read_only(values: IntArray) -> IntArray:
    """A read-only int64 view, or copy where the layout requires it.

    Kernels are compiled once per kind of argument, and writable arrays are another kind: where the same kind
    is passed always, nothing compiles in the middle of a training step.
    """
    flags = values.flags
    if not flags.writeable and flags.c_contiguous and values.dtype == np.int64:
        return values
    view = np.ascontiguousarray(values, dtype=np.int64).view()
    view.setflags(write=False)
    return view
