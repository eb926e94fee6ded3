"""What one layer asks of the planner: who sends how many tokens to which expert, and where experts live."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from taot_planning.arrays import MAX_COUNT, IntArray, frozen_ints
from taot_planning.kernel import brief_kernel
from taot_planning.load import MeasuredLoads, measure_loads
from taot_planning.topology import Topology

MAX_TOKEN_PICOSECONDS = 10**12
"""The slowest expert that can be told: a second a token."""


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


@brief_kernel
def _are_within(values_NE: IntArray, most: int) -> bool:
    """Whether all values are between 0 and `most`."""
    for row in range(values_NE.shape[0]):
        for column in range(values_NE.shape[1]):
            if not 0 <= values_NE[row, column] <= most:
                return False
    return True


@dataclass(frozen=True, kw_only=True)
class LayerRates:
    """What computing and moving an expert of this layer takes; with it the time of a layer can be predicted."""

    token_picoseconds: int
    """Time that a rank of normal speed takes to compute one token in one expert, forward; 1 to 10^12."""

    expert_size_bytes: int
    """Weights to move per guest, 0 to 2^40."""

    def __post_init__(self) -> None:
        if not 1 <= self.token_picoseconds <= MAX_TOKEN_PICOSECONDS:
            raise ValueError(f"token_picoseconds must be between 1 and 10^12, got {self.token_picoseconds}")
        if not 0 <= self.expert_size_bytes <= 2**40:
            raise ValueError(f"expert_size_bytes must be between 0 and 2^40, got {self.expert_size_bytes}")


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

    resident_RK: IntArray | None = None
    """Experts whose present weights each rank holds as guests already, -1 where none: these guests are free. A table
    with nobody in it becomes None. Shape: [ranks, any number]."""

    recent_tokens_NE: IntArray | None = None
    """Tokens of each expert in recent micro-batches, newest first, `counts_RE` not among them: the placement is for the
    micro-batch to come, and is to hold for what these show it may look like. None: it is for `counts_RE`.
    Shape: [micro-batches, experts]."""

    begin_guests_RK: IntArray | None = None
    """Guests that the search for a placement for the micro-batch to come begins with, -1 where none: those of the plan
    in force, most of which are wanted again. What is impossible among them is passed over. A table with nobody in it
    becomes None. Heeded with `recent_tokens_NE` alone. Shape: [ranks, slots]."""

    rates: LayerRates | None = None
    """What computing and moving take; None: unknown, and no step time is predicted."""

    loads: MeasuredLoads = field(init=False)
    """What the counts add up to."""

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
        loads = measure_loads(counts_RE, home_E)
        if not loads.is_valid:
            self._refuse(counts_RE, home_E)
        loads.load_R.setflags(write=False)
        object.__setattr__(self, "loads", loads)
        self._freeze_optional()

    @staticmethod
    def _refuse(counts_RE: IntArray, home_E: IntArray) -> None:
        """Raises the ValueError for counts or homes that are out of range."""
        check_homes(home_E, num_ranks=counts_RE.shape[0])
        if counts_RE.min() < 0 or counts_RE.max() > MAX_COUNT:
            bad = int(counts_RE.argmin() if counts_RE.min() < 0 else counts_RE.argmax())
            rank, expert = divmod(bad, home_E.size)
            raise ValueError(
                f"counts must be between 0 and 2^31-1, got {counts_RE[rank, expert]}"
                f" from source rank {rank} to expert {expert}"
            )

    def _freeze_optional(self) -> None:
        resident_RK = self._frozen_guests(self.resident_RK, name="resident guests")
        object.__setattr__(self, "resident_RK", resident_RK)
        begin_RK = self._frozen_guests(self.begin_guests_RK, name="guests to begin with")
        if begin_RK is not None and begin_RK.shape[1] != self.topology.max_slots:
            raise ValueError(
                f"guests to begin with must have one column per slot ({self.topology.max_slots}),"
                f" got {begin_RK.shape[1]}"
            )
        object.__setattr__(self, "begin_guests_RK", begin_RK)
        if self.recent_tokens_NE is not None:
            recent_NE = frozen_ints(self.recent_tokens_NE, name="recent tokens", num_axes=2)
            object.__setattr__(self, "recent_tokens_NE", recent_NE)
            if recent_NE.shape[1] != self.num_experts:
                raise ValueError(
                    f"recent tokens must have one column per expert ({self.num_experts}), got {recent_NE.shape[1]}"
                )
            if not _are_within(recent_NE, MAX_COUNT * self.num_ranks):
                raise ValueError("recent tokens must be between 0 and 2^31-1 from each rank")

    def _frozen_guests(self, guests_RK: IntArray | None, *, name: str) -> IntArray | None:
        """Copies and checks a table of guests; None where nobody is in it, so that plans need not ask who is."""
        if guests_RK is None:
            return None
        guests_RK = frozen_ints(guests_RK, name=name, num_axes=2)
        if guests_RK.shape[0] != self.num_ranks:
            raise ValueError(f"{name} must have one row per rank ({self.num_ranks}), got {len(guests_RK)}")
        if guests_RK.min(initial=0) < -1 or guests_RK.max(initial=0) >= self.num_experts:
            raise ValueError(f"{name} must be experts below {self.num_experts}, or -1")
        return guests_RK if guests_RK.max(initial=-1) >= 0 else None

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return self.topology.num_ranks

    @property
    def num_experts(self) -> int:
        """Experts in the layer."""
        return int(self.home_E.size)
