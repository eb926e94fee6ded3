"""Reports on their way out: bounded, and never a reason to wait for the one who puts them in."""

from __future__ import annotations

import threading
from collections import deque

from taot_api import RoutingReport


class ReportQueue:
    """First in, first out; when it is full the oldest gives way, since the newest routing is what plans need."""

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[RoutingReport] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_dropped = 0
        """Reports that gave way."""

    def put(self, report: RoutingReport) -> RoutingReport | None:
        """Adds a report; returns the one that gave way for it, if any."""
        with self._changed:
            dropped = self._waiting.popleft() if len(self._waiting) == self._capacity else None
            self.num_dropped += dropped is not None
            self._waiting.append(report)
            self._changed.notify()
        return dropped

    def get(self) -> RoutingReport | None:
        """Waits for a report; None once the queue is closed, whatever is left in it."""
        with self._changed:
            while not (self._waiting or self._is_closed):
                self._changed.wait()
            return None if self._is_closed else self._waiting.popleft()

    def close(self) -> None:
        """Lets whoever waits go."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
