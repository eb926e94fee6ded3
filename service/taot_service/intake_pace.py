"""How fast large reports are taken, so that others have the event loop too. Decisions are pure: time is an argument."""

from __future__ import annotations

import asyncio
import time

REST_FACTOR = 6.0
"""Time from one report to the next, over all jobs, in times of what taking the first one took. Reading and parsing
take about as long again, and threads that plan want the GIL: with 3 a flood left a quarter of the plans."""

MOST_SECONDS = 1.0
"""The longest rest: agents wait two seconds for an answer, and no flood shall be felt long after its end."""

LONG_SECONDS = 0.0005
"""Reports that take less need no rest: others come in between."""


class IntakeClock:
    """What taking one report has taken, from when this is made. Of the thread at hand."""

    def __init__(self) -> None:
        """Begins."""
        self._start_seconds, self._start_worked_seconds = time.monotonic(), time.thread_time()

    def spent_seconds(self) -> float:
        """Processor time, without what the thread has waited for others; what is not long is not told from such waits.

        The clock for that is a call of the kernel, and most reports are taken before it would matter.
        """
        passed_seconds = time.monotonic() - self._start_seconds
        return passed_seconds if passed_seconds < LONG_SECONDS else time.thread_time() - self._start_worked_seconds


class IntakePace:
    """Shared by all who report: a job has as many turns as any other, however many streams and calls it has."""

    def __init__(self) -> None:
        """Begins without a queue."""
        self._free_seconds: dict[str, float] = {}
        """When each job that has had a turn may have the next one; none of those whose time has come."""

    def rest_after(self, spent_seconds: float, *, training_job: str, now_seconds: float) -> float:
        """How long whoever has sent a report is to wait before anything more of it is read.

        Args:
            spent_seconds: processor time that taking the report has taken.
            training_job: whose report it was.
            now_seconds: time on any clock that all share.

        Returns:
            Seconds, 0 where it need not wait.
        """
        if spent_seconds < LONG_SECONDS:
            return 0.0
        resting = {job: seconds for job, seconds in self._free_seconds.items() if seconds > now_seconds}
        begin_seconds = resting.get(training_job, now_seconds)
        resting[training_job] = begin_seconds  # one of those that share the loop
        free_seconds = begin_seconds + REST_FACTOR * spent_seconds * len(resting)
        resting[training_job] = min(free_seconds, now_seconds + MOST_SECONDS)
        self._free_seconds = resting
        return resting[training_job] - now_seconds

    async def rest(self, training_job: str, clock: IntakeClock) -> None:
        """Waits as long as `rest_after` says, after a report that was taken by the clock."""
        spent_seconds = clock.spent_seconds()
        rest_seconds = self.rest_after(spent_seconds, training_job=training_job, now_seconds=time.monotonic())
        if rest_seconds > 0:
            await asyncio.sleep(rest_seconds)
