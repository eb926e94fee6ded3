"""Weights that change inside a step, from outside: told by one rank, acted on by all at one point of the program."""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray


class WeightChanges:
    """Counts the changes that this rank announces in a step, and compares what all ranks have announced.

    The count rides on the counts gather, so that ranks need not announce a change at the same place, nor all of them.
    """

    def __init__(self, *, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self.begin_step()

    def begin_step(self) -> None:
        """Starts from nothing: a step sends for its guests anyway."""
        self.num_announced = 0
        self._agreed_R: IntArray = np.zeros(self._num_ranks, dtype=np.int64)

    def announce(self) -> None:
        """Notes that weights of this rank have changed; heard by all ranks at their next gather."""
        self.num_announced += 1

    def hear(self, announced_R: IntArray) -> bool:
        """Takes what all ranks have announced in this step; whether any of it is new. Shape: [ranks]."""
        is_new = bool((announced_R != self._agreed_R).any())
        if is_new:
            self._agreed_R = announced_R.copy()
        return is_new
