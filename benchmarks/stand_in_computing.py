"""Computing that takes a known time: of an accelerator that a rank waits for, or of a core that it holds.

Matrix products on shared machines take 10 to 20 per cent more or less time from one second to the next, which hides
what a transfer costs. A held core is as busy as with products, and loses the same time to interrupts and to other
threads, but not to their traffic in its caches.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numba
import numpy as np
import torch
from torch.autograd.function import once_differentiable

SMALL = 1e-3
"""A gradient where nothing is computed."""

GAP_NANOSECONDS = 1500
"""Between two looks at the clock, some 50 ns apart: more than that, and somebody else had the core."""

_read_clock = ctypes.CDLL(None).clock_gettime
_read_clock.argtypes = [ctypes.c_int, ctypes.c_void_p]
_read_clock.restype = ctypes.c_int

Place = Literal["device", "core"]
"""Where it is computed: see the module."""


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _hold(nanoseconds: int) -> None:
    now = np.zeros(2, dtype=np.int64)
    _read_clock(time.CLOCK_MONOTONIC, now.ctypes.data)
    before = now[0] * 1_000_000_000 + now[1]
    held = 0
    while held < nanoseconds:
        _read_clock(time.CLOCK_MONOTONIC, now.ctypes.data)
        after = now[0] * 1_000_000_000 + now[1]
        if after - before < GAP_NANOSECONDS:
            held += after - before
        before = after


def hold_core(seconds: float) -> None:
    """Keeps this thread's core busy until the thread has had it for so long; others' time on it does not count."""
    _hold(round(seconds * 1e9))


class _StandIn(torch.autograd.Function):
    """Takes as long as computing would; rows come out as they came in."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: torch.Tensor, take: Callable[[float], None], seconds: float, *weights: torch.Tensor
    ) -> torch.Tensor:
        ctx.take, ctx.seconds, ctx.shapes = take, seconds, [weight.shape for weight in weights]
        take(seconds)
        return x_ND.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: torch.Tensor) -> tuple[Any, ...]:
        ctx.take(2 * ctx.seconds)  # one product for the rows, one for the weights
        return grad_ND, None, None, *(grad_ND.new_full((), SMALL).expand(shape) for shape in ctx.shapes)


def stand_in(place: Place, gigaflops: float, x_ND: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stands for the product of rows with all weights, where and as fast as it says."""
    flops = 2 * x_ND.shape[0] * sum(weight.numel() for weight in weights)
    take = hold_core if place == "core" else time.sleep
    result: torch.Tensor = _StandIn.apply(x_ND, take, flops / (gigaflops * 1e9), *weights)  # type: ignore[no-untyped-call]
    return result
