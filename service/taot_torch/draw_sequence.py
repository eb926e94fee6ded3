"""The fixed pseudo-random sequence of the search, any number of draws ahead at once.

One draw takes x to a x + c (mod 2^31), so n draws take it to a^n x + c_n. With a^n and c_n in tables the searches of a
batch can draw different numbers of times in one operation (F. Brown, "Random Number Generation with Arbitrary
Strides", 1994).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_FACTOR, _OFFSET, _MASK = 1103515245, 12345, 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class DrawSequence:
    """Tables that jump ahead in the sequence."""

    factor_N: Tensor
    """a^n for n = 0, 1, ... draws. Shape: [draws + 1]."""

    offset_N: Tensor
    """c_n. Shape: [draws + 1]."""

    def ahead(self, chance_B: Tensor) -> Tensor:
        """The states after 0, 1, ... draws. Shape: [searches, draws + 1]."""
        return (chance_B[:, None] * self.factor_N + self.offset_N) & _MASK


def make_sequence(num_draws: int, *, device: torch.device) -> DrawSequence:
    """Tables for up to `num_draws` draws at once."""
    factors, offsets = [1], [0]
    for _ in range(num_draws):
        factors.append(factors[-1] * _FACTOR & _MASK)
        offsets.append((offsets[-1] * _FACTOR + _OFFSET) & _MASK)
    return DrawSequence(
        factor_N=torch.tensor(factors, dtype=torch.int64, device=device),
        offset_N=torch.tensor(offsets, dtype=torch.int64, device=device),
    )


def number(state: Tensor, bound: Tensor | int) -> Tensor:
    """The number, 0 to bound - 1, that a state of the sequence stands for."""
    return (state >> 7) % bound
