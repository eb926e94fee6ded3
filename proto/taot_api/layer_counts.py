"""Counts of many layers that are worked on together: those of layers with as many experts are one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from taot_api.count_kernels import add_up
from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class CountsBlock:
    """The counts of the layers with as many experts."""

    layers: Sequence[int]
    """Their indices, in forward order."""

    counts_LRE: NDArray[np.int32] | IntArray
    """Their counts, read-only, in the type that they came in. Shape: [these layers, ranks, experts]."""

    @cached_property
    def tokens_LE(self) -> IntArray:
        """Tokens of each expert, over all ranks."""
        num_layers, _, num_experts = self.counts_LRE.shape
        tokens_LE = np.zeros((num_layers, num_experts), dtype=np.int64)
        add_up(self.counts_LRE, tokens_LE)
        return tokens_LE


class LayerCounts(Sequence[IntArray]):
    """One read-only [ranks, experts] array per layer, made from its block whenever somebody asks.

    Of most reports of a flood nobody does.
    """

    def __init__(self, blocks: Iterable[CountsBlock]) -> None:
        """Of blocks that hold each layer once."""
        self.blocks = tuple(blocks)
        """All of it."""

    def __len__(self) -> int:
        return sum(len(block.layers) for block in self.blocks)

    @overload
    def __getitem__(self, index: int) -> IntArray: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[IntArray, ...]: ...
    def __getitem__(self, index: int | slice) -> IntArray | tuple[IntArray, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        block, place = self._places[range(len(self))[index]]
        counts_RE: IntArray = block.counts_LRE[place].astype(np.int64)
        counts_RE.setflags(write=False)
        return counts_RE

    def __iter__(self) -> Iterator[IntArray]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def _places(self) -> dict[int, tuple[CountsBlock, int]]:
        return {layer: (block, place) for block in self.blocks for place, layer in enumerate(block.layers)}


def blocks_of(counts_L: Sequence[IntArray]) -> tuple[CountsBlock, ...]:
    """The blocks of some layers: those that they are made of, or copies.

    Args:
        counts_L: one [ranks, experts] array per layer.
    """
    if isinstance(counts_L, LayerCounts):
        return counts_L.blocks
    blocks = []
    for layers in layers_alike(counts_RE.shape[1] for counts_RE in counts_L).values():
        counts_LRE = np.stack([counts_L[layer] for layer in layers]).astype(np.int64)
        counts_LRE.setflags(write=False)
        blocks.append(CountsBlock(layers=layers, counts_LRE=counts_LRE))
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
