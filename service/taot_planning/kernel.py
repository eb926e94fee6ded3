"""The one way this package compiles functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compiles a function to machine code that gives the same bits on every CPU.

    Ranks plan for themselves and must agree to the last bit. So kernels are plain scalar loops: sums run in
    the order they are written in, without `fastmath` nothing is reordered or fused, and nothing calls libm
    or NumPy's float reductions, whose results depend on the CPU. They release the GIL, and are cached on
    disk.

    Where no place for the cache can be written, each process compiles for itself.

    The disk cache notices changes of the file that a kernel is in, not of what that file imports. So call kernels from
    Python or from kernels of their own file, and where that would make a file too long (`guest_search`,
    `assignment`) or a pass too slow (`taot_client.pass_split`), clear
    `__pycache__` after a change of the file that is called, as after a change here.
    """
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: cannot cache function, no locator available
        compiled = numba.njit(nogil=True)(function)
    return cast(_Function, compiled)
