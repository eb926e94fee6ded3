"""What the layers with as many experts declare, as arrays: their reports are read and judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taot_api.layer_counts import layers_alike
from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel

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

    def has_right(self, counts_LRE: IntArray, valid_tokens_R: IntArray) -> bool:
        """Whether counts of these layers keep all rules. Arrays are read-only, valid tokens in the range of counts."""
        return bool(_are_right(counts_LRE, valid_tokens_R, self.top_k_L, self.drops_L))


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


def warm_up() -> None:
    """Compiles the kernel, or takes it from the disk, so that no report has to wait for that."""
    counts_LRE = np.zeros((1, 1, 1), dtype=np.int64)
    valid_tokens_R = np.zeros(1, dtype=np.int64)
    top_k_L, drops_L = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
    for array in (counts_LRE, valid_tokens_R, top_k_L, drops_L):
        array.setflags(write=False)
    block = LayerBlock(layers=[0], num_experts=1, top_k_L=top_k_L, drops_L=drops_L)
    assert block.has_right(counts_LRE, valid_tokens_R)


@kernel
def _are_right(counts_LRE: IntArray, valid_tokens_R: IntArray, top_k_L: IntArray, drops_L: NDArray[np.bool_]) -> bool:
    num_layers, num_ranks, num_experts = counts_LRE.shape
    for layer in range(num_layers):
        for rank in range(num_ranks):
            valid, total = valid_tokens_R[rank], 0
            for expert in range(num_experts):
                count = counts_LRE[layer, rank, expert]
                # A token chooses an expert at most once.
                if count < 0 or count > valid:
                    return False
                total += count
            missing = valid * top_k_L[layer] - total
            if missing < 0 or (missing > 0 and not drops_L[layer]):
                return False
    return True
