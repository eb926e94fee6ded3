"""The loops over the counts of a report, compiled: a planner takes thousands of reports a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.kernel import brief_kernel


@brief_kernel
def add_up(counts_LRE: NDArray[np.int32] | IntArray, tokens_LE: IntArray) -> None:
    """Adds read-only counts up over the ranks, to what is in `tokens_LE`."""
    num_layers, num_ranks, num_experts = counts_LRE.shape
    for layer in range(num_layers):
        for rank in range(num_ranks):
            for expert in range(num_experts):
                tokens_LE[layer, expert] += counts_LRE[layer, rank, expert]


@brief_kernel
def are_right(
    counts_LRE: NDArray[np.int32] | IntArray, valid_tokens_R: IntArray, top_k_L: IntArray, drops_L: NDArray[np.bool_]
) -> bool:
    """Whether counts keep all rules; all arrays are read-only, and valid tokens are in the range of counts."""
    num_layers, num_ranks, num_experts = counts_LRE.shape
    for layer in range(num_layers):
        for rank in range(num_ranks):
            valid, total, signs = valid_tokens_R[rank], np.int64(0), np.int64(0)
            for expert in range(num_experts):
                count = np.int64(counts_LRE[layer, rank, expert])
                # A token chooses an expert at most once. Without a branch the loop takes several counts at a time.
                signs |= count | (valid - count)
                total += count
            if signs < 0:
                return False
            missing = valid * top_k_L[layer] - total
            if missing < 0 or (missing > 0 and not drops_L[layer]):
                return False
    return True


def warm_up() -> None:
    """Compiles the kernels, or takes them from the disk, so that no report has to wait for that."""
    raw_LRE = np.frombuffer(bytes(4), dtype="<i4").reshape(1, 1, 1)
    add_up(raw_LRE, np.zeros((1, 1), dtype=np.int64))
    ones, drops_L = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
    for array in (ones, drops_L):
        array.setflags(write=False)
    assert not are_right(raw_LRE, ones, ones, drops_L), "a token is missing"
