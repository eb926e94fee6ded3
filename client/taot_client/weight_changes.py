"""Weights that change inside a step, from outside: told by one rank, acted on by all at one point of the program."""

from __future__ import annotations

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
        self._agreed_R = [0] * self._num_ranks

    def announce(self) -> None:
        """Notes that weights of this rank have changed; heard by all ranks at their next gather."""
        self.num_announced += 1

    def hear(self, announced_R: IntArray) -> bool:
        """Takes what all ranks have announced in this step; whether any of it is new. Shape: [ranks]."""
        # Lists, since comparing arrays of a few ranks takes longer.
        before_R, self._agreed_R = self._agreed_R, announced_R.tolist()
        return self._agreed_R != before_R
