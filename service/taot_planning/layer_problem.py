"""What one layer asks of the planner: who sends how many tokens to which expert, and where experts live."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import MAX_COUNT, IntArray, frozen_ints
from taot_planning.topology import Topology


def contiguous_homes(*, num_experts: int, num_ranks: int) -> IntArray:
    """The usual homes: expert e lives on rank e * R // E. Shape: [experts]."""
    return np.arange(num_experts, dtype=np.int64) * num_ranks // num_experts


def check_homes(home_E: IntArray, *, num_ranks: int) -> None:
    """Checks that every expert has a home among the ranks.

    Raises:
        ValueError: naming the first expert without one.
    """
    outside = np.flatnonzero((home_E < 0) | (home_E >= num_ranks))
    if outside.size:
        expert = int(outside[0])
        raise ValueError(
            f"expert {expert} has no home: its home rank is {home_E[expert]}, the ranks are 0 to {num_ranks - 1}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerProblem:
    """The routing of one layer in one micro-batch, with the homes and the topology.

    Arrays are copied and checked; anything array-like may be given.
    """

    counts_RE: IntArray
    """Tokens routed from each source rank to each expert, 0 to 2^31-1. Shape: [ranks, experts]."""

    home_E: IntArray
    """Home rank of each expert. Shape: [experts]."""

    topology: Topology
    """The ranks and what a move between two of them costs."""

    def __post_init__(self) -> None:
        counts_RE = frozen_ints(self.counts_RE, name="counts", num_axes=2)
        home_E = frozen_ints(self.home_E, name="homes", num_axes=1)
        object.__setattr__(self, "counts_RE", counts_RE)
        object.__setattr__(self, "home_E", home_E)
        num_ranks = self.topology.num_ranks
        if counts_RE.shape != (num_ranks, home_E.size):
            raise ValueError(
                f"counts must be [ranks, experts] = [{num_ranks}, {home_E.size}], got {list(counts_RE.shape)}"
            )
        if home_E.size == 0:
            raise ValueError("a layer needs at least one expert")
        check_homes(home_E, num_ranks=num_ranks)
        if counts_RE.min() < 0 or counts_RE.max() > MAX_COUNT:
            bad = int(counts_RE.argmin() if counts_RE.min() < 0 else counts_RE.argmax())
            rank, expert = divmod(bad, home_E.size)
            raise ValueError(
                f"counts must be between 0 and 2^31-1, got {counts_RE[rank, expert]}"
                f" from source rank {rank} to expert {expert}"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return self.topology.num_ranks

    @property
    def num_experts(self) -> int:
        """Experts in the layer."""
        return int(self.home_E.size)
