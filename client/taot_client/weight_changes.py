"""Weights that change inside a step, from outside: told by one rank, acted on by all at one point of the program."""

from __future__ import annotations


class WeightChanges:
    """Counts the changes that this rank announces in a step, and compares what all ranks have announced.

    The count rides on the counts gather, so that ranks need not announce a change at the same place, nor all of them.
    """

    def __init__(self) -> None:
        self.begin_step()

    def begin_step(self) -> None:
        """Starts from nothing: a step sends for its guests anyway."""
        self.num_announced = 0
        self._num_heard = 0

    def announce(self) -> None:
        """Notes that weights of this rank have changed; heard by all ranks at their next gather."""
        self.num_announced += 1

    def hear(self, num_announced: int) -> bool:
        """Takes how many changes all ranks together have announced in this step; whether any of them is new.

        No rank takes one back, so that the sum tells.
        """
        num_before, self._num_heard = self._num_heard, num_announced
        return num_announced != num_before
