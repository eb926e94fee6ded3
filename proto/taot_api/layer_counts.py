"""Counts of many layers that are worked on together: layers with as many experts are one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class CountsBlock:
    """The counts of the layers with as many experts."""

    layers: list[int]
    """Their indices, in forward order."""

    counts_LRE: IntArray
    """Their counts. Shape: [these layers, ranks, experts]."""


class LayerCounts(tuple[IntArray, ...]):
    """One read-only [ranks, experts] array per layer, each a view of its block."""

    blocks: tuple[CountsBlock, ...]
    """All of it, in the order of the first layer of each."""

    @classmethod
    def of_blocks(cls, blocks: Iterable[CountsBlock]) -> LayerCounts:
        """The layers of some blocks that hold each layer once; nobody may change them any more."""
        blocks = tuple(blocks)
        views: dict[int, IntArray] = {}
        for block in blocks:
            block.counts_LRE.setflags(write=False)
            views.update(zip(block.layers, block.counts_LRE, strict=True))
        counts_L = cls(views[index] for index in range(len(views)))
        counts_L.blocks = blocks
        return counts_L


def blocks_of(counts_L: Sequence[IntArray]) -> tuple[CountsBlock, ...]:
    """The blocks of some layers: those that they are views of, or copies.

    Args:
        counts_L: one [ranks, experts] array per layer.
    """
    if isinstance(counts_L, LayerCounts):
        return counts_L.blocks
    return tuple(
        CountsBlock(layers=layers, counts_LRE=np.stack([counts_L[layer] for layer in layers]).astype(np.int64))
        for layers in layers_alike(counts_RE.shape[1] for counts_RE in counts_L).values()
    )


def layers_alike(num_experts_L: Iterable[int]) -> dict[int, list[int]]:
    """Indices of the layers with as many experts, by that number.

    Args:
        num_experts_L: the number of experts of each layer.
    """
    alike: dict[int, list[int]] = {}
    for index, num_experts in enumerate(num_experts_L):
        alike.setdefault(num_experts, []).append(index)
    return alike
