"""The guest slots of a group while a baseline fills them."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray, read_only
from taot_planning.layer_plan import EMPTY_SLOT, LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.token_sources import split_sources


class GuestSlots:
    """Fills the slots of each rank from the first on, and refuses what a rank cannot hold.

    The methods that the baselines follow know no limit of slots, or another one. Here no rank ever holds more
    guests than it has slots, one expert twice, or an expert that is at home there.
    """

    guests_RK: IntArray
    """Expert in each slot, -1 where empty. Shape: [ranks, slots]."""

    tokens_RK: IntArray
    """Tokens each guest takes over. Shape: [ranks, slots]."""

    def __init__(self, problem: LayerProblem) -> None:
        self._problem = problem
        self._slots = problem.topology.slots_R.tolist()
        self._homes = problem.home_E.tolist()
        self._guests: list[list[int]] = [[] for _ in range(problem.num_ranks)]
        shape = (problem.num_ranks, problem.topology.max_slots)
        self.guests_RK = np.full(shape, EMPTY_SLOT, dtype=np.int64)
        self.tokens_RK = np.zeros(shape, dtype=np.int64)

    def has_room(self, expert: int, rank: int) -> bool:
        """Whether the rank can take the expert as a guest."""
        guests = self._guests[rank]
        return len(guests) < self._slots[rank] and self._homes[expert] != rank and expert not in guests

    def put(self, expert: int, rank: int, tokens: int) -> None:
        """Puts a guest into the rank's next free slot."""
        assert self.has_room(expert, rank), f"rank {rank} cannot take expert {expert}"
        slot = len(self._guests[rank])
        self._guests[rank].append(expert)
        self.guests_RK[rank, slot], self.tokens_RK[rank, slot] = expert, tokens

    def ranks_of(self, expert: int) -> list[int]:
        """Ranks that hold the expert as a guest, in ascending order."""
        return [rank for rank, guests in enumerate(self._guests) if expert in guests]

    def to_plan(self) -> LayerPlan:
        """The plan in which guests take tokens of near sources first, see `split_sources`."""
        quota_SRK = split_sources(self._problem, read_only(self.guests_RK), self.tokens_RK)
        return LayerPlan(guests_RK=self.guests_RK, quota_SRK=quota_SRK)
