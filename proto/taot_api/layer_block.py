"""What the layers with as many experts declare, as arrays: their reports are read and judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taot_api.count_kernels import are_right
from taot_api.layer_counts import layers_alike
from taot_planning.arrays import IntArray

if TYPE_CHECKING:
    from taot_api.session_spec import LayerSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBlock:
    """Layers with as many experts."""

    layers: Sequence[int]
    """Their indices, in forward order."""

    num_experts: int
    """Of each of them."""

    top_k_L: IntArray
    """Experts chosen per token."""

    drops_L: NDArray[np.bool_]
    """Whether the router may drop tokens."""

    def has_right(self, counts_LRE: NDArray[np.int32] | IntArray, valid_tokens_R: IntArray) -> bool:
        """Whether counts of these layers keep all rules. Arrays are read-only, valid tokens in the range of counts."""
        return bool(are_right(counts_LRE, valid_tokens_R, self.top_k_L, self.drops_L))


def layer_blocks(layers: Sequence[LayerSpec]) -> tuple[LayerBlock, ...]:
    """The blocks of some layers, in the order of the first layer of each."""
    blocks = []
    for num_experts, indices in layers_alike(layer.num_experts for layer in layers).items():
        top_k_L = np.array([layers[index].top_k for index in indices], dtype=np.int64)
        drops_L = np.array([layers[index].drops_tokens for index in indices], dtype=np.bool_)
        for array in (top_k_L, drops_L):
            array.setflags(write=False)  # one kind of argument for the kernel
        blocks.append(LayerBlock(layers=indices, num_experts=num_experts, top_k_L=top_k_L, drops_L=drops_L))
    return tuple(blocks)
