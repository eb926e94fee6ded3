"""Counts of many layers that are worked on together: those of layers with as many experts are one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class CountsBlock:
    """The counts of the layers with as many experts."""

    layers: Sequence[int]
    """Their indices, in forward order."""

    counts_LRE: IntArray
    """Their counts, read-only. Shape: [these layers, ranks, experts]."""

    tokens_LE: IntArray
    """Tokens of each expert, over all ranks."""


class LayerCounts(Sequence[IntArray]):
    """One read-only [ranks, experts] array per layer: a view of its block, made when somebody asks for it."""

    def __init__(self, blocks: Iterable[CountsBlock]) -> None:
        """Of blocks that hold each layer once."""
        self.blocks = tuple(blocks)
        """All of it."""
        self._places = {layer: (block, place) for block in self.blocks for place, layer in enumerate(block.layers)}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> IntArray: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[IntArray, ...]: ...
    def __getitem__(self, index: int | slice) -> IntArray | tuple[IntArray, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        block, place = self._places[range(len(self))[index]]
        counts_RE: IntArray = block.counts_LRE[place]
        return counts_RE

    def __iter__(self) -> Iterator[IntArray]:
        return (self[index] for index in range(len(self)))


def blocks_of(counts_L: Sequence[IntArray]) -> tuple[CountsBlock, ...]:
    """The blocks of some layers: those that they are views of, or copies.

    Args:
        counts_L: one [ranks, experts] array per layer.
    """
    if isinstance(counts_L, LayerCounts):
        return counts_L.blocks
    blocks = []
    for layers in layers_alike(counts_RE.shape[1] for counts_RE in counts_L).values():
        counts_LRE = np.stack([counts_L[layer] for layer in layers]).astype(np.int64)
        counts_LRE.setflags(write=False)
        blocks.append(CountsBlock(layers=layers, counts_LRE=counts_LRE, tokens_LE=counts_LRE.sum(axis=1)))
    return tuple(blocks)


def layers_alike(num_experts_L: Iterable[int]) -> dict[int, list[int]]:
    """Indices of the layers with as many experts, by that number.

    Args:
        num_experts_L: the number of experts of each layer.
    """
    alike: dict[int, list[int]] = {}
    for index, num_experts in enumerate(num_experts_L):
        alike.setdefault(num_experts, []).append(index)
    return alike
