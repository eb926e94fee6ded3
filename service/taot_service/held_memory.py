"""Bytes that sessions and callers hold, for all and for each training job. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator


class HeldMemory:
    """What has been worked out from declared sizes and not been given back yet."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """Of all training jobs."""
        self._by_job: Counter[str] = Counter()

    def job_bytes(self, training_job: str) -> int:
        """Of one training job."""
        return self._by_job[training_job]

    def take(self, training_job: str, num_bytes: int) -> None:
        """Notes that a job holds so much more; a negative number gives it back."""
        self.total_bytes += num_bytes
        self._by_job[training_job] += num_bytes
        if not self._by_job[training_job]:  # nothing is left of jobs that have gone
            del self._by_job[training_job]

    @contextlib.contextmanager
    def holding(self, training_job: str, num_bytes: int) -> Iterator[None]:
        """A job holds so much more in this block."""
        self.take(training_job, num_bytes)
        try:
            yield
        finally:
            self.take(training_job, -num_bytes)
