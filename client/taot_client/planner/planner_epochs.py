"""Whether one planner answers, restarted now and then, or several at one address. Pure."""

from __future__ import annotations

from collections import deque

MAX_LEFT_EPOCHS = 64
"""Epochs that are remembered after another one has answered."""

MAX_EPOCH_CHARACTERS = 64
"""What is kept of an epoch, whatever answers send."""


class PlannerEpochs:
    """The planner epochs that answers came from.

    A restart leaves an epoch for good. One that answers again after another is alive beside it.
    """

    def __init__(self) -> None:
        self._newest = ""
        self._left: deque[str] = deque(maxlen=MAX_LEFT_EPOCHS)

    def note(self, epoch: str) -> bool:
        """Takes the epoch of an answer, empty where it names none; True when it had been left before."""
        epoch = epoch[:MAX_EPOCH_CHARACTERS]
        if epoch in {"", self._newest}:
            return False
        is_back = epoch in self._left
        if is_back:
            self._left.remove(epoch)
        if self._newest:
            self._left.append(self._newest)
        self._newest = epoch
        return is_back
