"""How fast large reports are taken from streams, so that others have the event loop too. Pure; time is an argument."""

from __future__ import annotations

REST_FACTOR = 6.0
"""Time from one report to the next, over all streams, in times of what taking the first one took. Reading and parsing
take about as long again, and threads that plan want the GIL: with 3 a flood left a quarter of the plans."""

MOST_SECONDS = 1.0
"""The longest rest: agents wait two seconds for an answer, and no flood shall be felt long after its end."""

LONG_SECONDS = 0.0005
"""Reports that take less need no rest: others come in between."""


class IntakePace:
    """Shared by all streams: each rests after a large report until its turn comes again."""

    def __init__(self) -> None:
        """Begins without a queue."""
        self._free_seconds = 0.0

    def rest_after(self, spent_seconds: float, *, now_seconds: float) -> float:
        """How long a stream is to read nothing.

        Args:
            spent_seconds: processor time that taking its last report has taken.
            now_seconds: time on any clock that all calls share.

        Returns:
            Seconds, 0 where it need not rest.
        """
        if spent_seconds < LONG_SECONDS:
            return 0.0
        free_seconds = max(self._free_seconds, now_seconds) + REST_FACTOR * spent_seconds
        self._free_seconds = min(free_seconds, now_seconds + MOST_SECONDS)
        return self._free_seconds - now_seconds
