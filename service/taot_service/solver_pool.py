"""The solver threads: each takes the next piece of work, and brings it back when it is done or gives way.

Lives on the event loop. What is next is the work queue's decision; work is handed to a thread only when one is free,
so nothing queues where it cannot be dropped any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from taot_planning import warm_up
from taot_service.planning_work import FinishedWork, PlanningWork, Purpose, SolvedPlan, SolverFailure
from taot_service.solving import advance, assist
from taot_service.work_queue import Pressure, WorkQueue

_Result = TypeVar("_Result")


class _Slice(NamedTuple):
    """What a thread brings back."""

    result: SolvedPlan | SolverFailure | None
    seconds: float
    end_seconds: float


class SolverPool:
    """Runs planning work in threads."""

    def __init__(
        self,
        *,
        num_threads: int,
        queue: WorkQueue,
        take_work: Callable[..., PlanningWork | None],
        on_done: Callable[[FinishedWork], None],
    ) -> None:
        """Starts no thread yet.

        Args:
            num_threads: how many batches of layers are planned at a time, of one report or of several.
            queue: where work waits, and where it goes back when it gives way.
            take_work: called on the loop with `now_seconds` when a thread is free; the next work of the queue, if any.
            on_done: called on the loop with what became of work that nobody waits for.
        """
        self._executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="taot-solver")
        self._num_free = num_threads
        self._queue = queue
        self._take_work = take_work
        self._on_done = on_done
        self._answers: dict[PlanningWork, asyncio.Future[FinishedWork]] = {}
        self._running: dict[PlanningWork, asyncio.Future[_Slice]] = {}
        self._helping: set[asyncio.Future[None]] = set()
        self._pressure = Pressure()
        self._is_closed = False
        self._warm_up: Future[None] | None = None

    @property
    def num_running(self) -> int:
        """Reports and calls that a thread is planning."""
        return sum(work.purpose is not Purpose.IMPROVEMENT for work in self._running)

    async def warm_up(self) -> None:
        """Compiles the kernels in a solver thread."""
        self._warm_up = self._executor.submit(warm_up)
        await asyncio.wrap_future(self._warm_up)

    def wake(self) -> None:
        """Gives free threads something to do, and lets busy ones know what waits."""
        while self._num_free and not self._is_closed:
            work = self._take_work(now_seconds=time.monotonic())
            if work is None:
                break
            future = self._start(self._run_slice, work)
            self._running[work] = future
            future.add_done_callback(partial(self._finish_slice, work))
        self._pressure = self._queue.pressure()
        self._help()

    def _help(self) -> None:
        """Lets threads that nobody wants take layers of what is planned already."""
        for work in self._running:
            # Improvements use what nobody else wants; a thread is left for whoever reports next.
            if work.purpose is Purpose.IMPROVEMENT or self._is_closed:
                continue
            for _ in range(min(self._num_free, work.progress.layers_left)):
                future = self._start(self._run_help, work)
                self._helping.add(future)
                future.add_done_callback(self._finish_help)

    def _start(self, run: Callable[[PlanningWork], _Result], work: PlanningWork) -> asyncio.Future[_Result]:
        self._num_free -= 1
        return asyncio.get_running_loop().run_in_executor(self._executor, run, work)

    async def solve_now(self, work: PlanningWork) -> FinishedWork:
        """Plans for a caller that waits. One that is cancelled costs at most the layers that are being planned."""
        answer: asyncio.Future[FinishedWork] = asyncio.get_running_loop().create_future()
        self._answers[work] = answer
        self._queue.add(work)
        self.wake()
        try:
            return await answer
        finally:
            del self._answers[work]
            work.progress.is_dropped = True
            if work in self._queue:  # no thread has it
                self._queue.discard(work)

    async def close(self, *, timeout_seconds: float) -> bool:
        """Takes no more work and gives up what is being planned after the layers in work.

        Returns:
            Whether all threads became idle in time. Compiling cannot be interrupted.
        """
        self._is_closed = True
        for work in self._running:
            work.progress.is_dropped = True
        busy: set[asyncio.Future[Any]] = set()
        if self._running or self._helping:
            threads: set[asyncio.Future[Any]] = {*self._running.values(), *self._helping}
            _, busy = await asyncio.wait(threads, timeout=timeout_seconds)
        self._executor.shutdown(wait=False, cancel_futures=True)
        return not busy and (self._warm_up is None or not self._warm_up.running())

    def _run_slice(self, work: PlanningWork) -> _Slice:
        """Runs in a solver thread."""
        start_seconds = time.monotonic()
        result = advance(work, pressure=lambda: self._pressure)
        end_seconds = time.monotonic()
        return _Slice(result, end_seconds - start_seconds, end_seconds)

    def _run_help(self, work: PlanningWork) -> None:
        """Runs in a solver thread."""
        assist(work, pressure=lambda: self._pressure)

    def _finish_help(self, done: asyncio.Future[None]) -> None:
        # Not charged: it is time that nobody else wanted.
        self._num_free += 1
        self._helping.discard(done)
        done.result()
        self.wake()

    def _finish_slice(self, work: PlanningWork, done: asyncio.Future[_Slice]) -> None:
        sliced = done.result()
        self._num_free += 1
        del self._running[work]
        self._queue.charge(work, sliced.seconds)
        if sliced.result is None and not work.progress.is_dropped:
            self._queue.add(work)
        else:
            self._queue.discard(work)
            self._hand_out(work, sliced)
        self.wake()

    def _hand_out(self, work: PlanningWork, sliced: _Slice) -> None:
        started_seconds = work.progress.started_seconds
        assert started_seconds is not None, "the thread has noted it"
        finished = FinishedWork(
            work=work,
            result=sliced.result or SolverFailure(message="nobody waits for the plan any more", is_abandoned=True),
            started_seconds=started_seconds,
            solved_seconds=sliced.end_seconds,
        )
        answer = self._answers.get(work)
        if work.purpose is not Purpose.CALLER:
            self._on_done(finished)
        elif answer is not None and not answer.done():
            answer.set_result(finished)
