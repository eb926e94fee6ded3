"""The solver threads and what they do next: first whoever waits for an answer, then the sessions in turn.

Lives on the event loop. Work is handed to a thread only when one is free, so nothing queues where it cannot
be dropped any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from taot_planning import warm_up
from taot_service.planning_work import FinishedWork, PlanningWork
from taot_service.solver import solve


class _Job:
    """One piece of work on its way through a thread."""

    def __init__(self, work: PlanningWork, *, answer: asyncio.Future[FinishedWork] | None) -> None:
        self.work = work
        self.answer = answer
        """Set for a caller that waits; None for the plan of a session."""
        self.stop = threading.Event()
        """Set when nobody wants the plan any more."""

    def run(self) -> FinishedWork:
        """Runs in a solver thread."""
        started_seconds = time.monotonic()
        result = solve(self.work, has_quotas=self.answer is not None, is_wanted=lambda: not self.stop.is_set())
        return FinishedWork(
            work=self.work, result=result, started_seconds=started_seconds, solved_seconds=time.monotonic()
        )


class SolverPool:
    """Runs planning work in threads."""

    def __init__(
        self,
        *,
        num_threads: int,
        take_work: Callable[[], PlanningWork | None],
        on_done: Callable[[FinishedWork], None],
    ) -> None:
        """Starts no thread yet.

        Args:
            num_threads: how many plans are made at a time.
            take_work: called on the loop when a thread is free; the next report of a session, if any.
            on_done: called on the loop with what became of work from `take_work`.
        """
        self._executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="taot-solver")
        self._num_free = num_threads
        self._take_work = take_work
        self._on_done = on_done
        self._urgent: deque[_Job] = deque()
        self._running: dict[_Job, asyncio.Future[FinishedWork]] = {}
        self._is_closed = False
        self._warm_up: Future[None] | None = None

    @property
    def num_jobs(self) -> int:
        """Work of callers that wait for a thread, and all work that is in one."""
        return len(self._urgent) + len(self._running)

    async def warm_up(self) -> None:
        """Compiles the kernels in a solver thread."""
        self._warm_up = self._executor.submit(warm_up)
        await asyncio.wrap_future(self._warm_up)

    def wake(self) -> None:
        """Gives free threads something to do."""
        while self._num_free and not self._is_closed:
            job = self._next_job()
            if job is None:
                return
            self._num_free -= 1
            future = asyncio.get_running_loop().run_in_executor(self._executor, job.run)
            self._running[job] = future
            future.add_done_callback(partial(self._finish, job))

    async def solve_now(self, work: PlanningWork) -> FinishedWork:
        """Plans ahead of all sessions. A cancelled caller costs at most the layer that is being planned."""
        job = _Job(work, answer=asyncio.get_running_loop().create_future())
        assert job.answer is not None
        self._urgent.append(job)
        self.wake()
        try:
            return await job.answer
        finally:
            job.stop.set()
            with contextlib.suppress(ValueError):  # it has left the queue when a thread has it
                self._urgent.remove(job)

    async def close(self, *, timeout_seconds: float) -> bool:
        """Takes no more work and gives up what is being planned at the next layer.

        Returns:
            Whether all threads became idle in time. Compiling cannot be interrupted.
        """
        self._is_closed = True
        for job in self._running:
            job.stop.set()
        busy: set[asyncio.Future[FinishedWork]] = set()
        if self._running:
            _, busy = await asyncio.wait(set(self._running.values()), timeout=timeout_seconds)
        self._executor.shutdown(wait=False, cancel_futures=True)
        return not busy and (self._warm_up is None or not self._warm_up.running())

    def _next_job(self) -> _Job | None:
        if self._urgent:
            return self._urgent.popleft()
        work = self._take_work()
        return None if work is None else _Job(work, answer=None)

    def _finish(self, job: _Job, done: asyncio.Future[FinishedWork]) -> None:
        finished = done.result()
        self._num_free += 1
        del self._running[job]
        if job.answer is None:
            self._on_done(finished)
        elif not job.answer.done():
            job.answer.set_result(finished)
        self.wake()
