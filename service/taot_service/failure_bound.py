"""Bounds what callers can cause who are refused again and again. Pure: callers pass in the time.

Nobody guesses 256 bits; the bound keeps answers and the log short. Who shows a good token is never held up by it,
whatever others at the same address do.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

BURST = 20
"""Refusals of one peer in a row that are answered in full."""

PER_SECOND = 1.0
"""How many of them are forgotten in a second."""

MAX_PEERS = 1024
"""Peers that are remembered; the one that was quiet for longest is forgotten first."""


class Failure(NamedTuple):
    """What becomes of one refused call."""

    is_within_bound: bool
    """Whether to answer in full; beyond the bound the answer is to come back later."""

    is_first: bool
    """Whether its peer was quiet before, so that it is worth a line in the log."""


class FailureBound:
    """Refusals by peer, as buckets that leak."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def note(self, peer: str, *, now_seconds: float) -> Failure:
        """Adds a refused call of a peer."""
        level, seen_seconds = self._peers.pop(peer, (0.0, now_seconds))
        level = max(0.0, level - (now_seconds - seen_seconds) * PER_SECOND)
        is_within_bound = level + 1 <= BURST
        self._peers[peer] = (level + 1 if is_within_bound else level, now_seconds)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return Failure(is_within_bound=is_within_bound, is_first=level == 0)
