"""The loops over the counts of a report, compiled: a planner takes thousands of reports a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.kernel import brief_kernel


@brief_kernel
def unpack(raw_LRE: NDArray[np.int32], counts_LRE: IntArray, tokens_LE: IntArray) -> None:
    """Copies counts, and adds them up over the ranks.

    Args:
        raw_LRE: the counts as they travel, read-only.
        counts_LRE: becomes them.
        tokens_LE: zeros; becomes the tokens of each expert.
    """
    num_layers, num_ranks, num_experts = raw_LRE.shape
    for layer in range(num_layers):
        for rank in range(num_ranks):
            for expert in range(num_experts):
                count = np.int64(raw_LRE[layer, rank, expert])
                counts_LRE[layer, rank, expert] = count
                tokens_LE[layer, expert] += count


@brief_kernel
def are_right(counts_LRE: IntArray, valid_tokens_R: IntArray, top_k_L: IntArray, drops_L: NDArray[np.bool_]) -> bool:
    """Whether counts keep all rules; all arrays are read-only, and valid tokens are in the range of counts."""
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


def warm_up() -> None:
    """Compiles the kernels, or takes them from the disk, so that no report has to wait for that."""
    raw_LRE = np.frombuffer(bytes(4), dtype="<i4").reshape(1, 1, 1)
    counts_LRE, tokens_LE = np.empty((1, 1, 1), dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    unpack(raw_LRE, counts_LRE, tokens_LE)
    ones, drops_L = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
    for array in (counts_LRE, ones, drops_L):
        array.setflags(write=False)
    assert not are_right(counts_LRE, ones, ones, drops_L), "a token is missing"
