"""One call that reports micro-batch after micro-batch: takes what comes, and answers many reports at once.

Lives on the event loop, in two tasks: the one of the call reads, another one writes, which must end before the first:
gRPC forgets a call with the end of its task, and writing would go on with memory that has been freed. A call is ended
by its status, which comes after all answers: a caller who reads none of them is forgotten after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import grpc.aio

from taot_api.contract_error import ContractError, Reason
from taot_api.v1 import planner_pb2 as pb
from taot_service.intake_pace import IntakeClock, IntakePace
from taot_service.refusal import refusal_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

SOON_SECONDS = 0.01
"""From one answer of a call to the next, where a single report waits for it: its sender may wait as well."""

LATER_SECONDS = 0.05
"""The same where several wait, whose sender goes on without."""

END_SECONDS = 10.0
"""Within which a caller has to read that the call has ended; until it has, the call takes room."""

MANY_REPORTS = 16
"""Reports that are answered at once. With twice as many unanswered nothing more is read."""

ENDING = frozenset(
    {
        Reason.SESSION_NOT_FOUND,
        Reason.STALE_INCARNATION,
        Reason.UNAUTHENTICATED,
        Reason.SHUTTING_DOWN,
        Reason.OVERLOADED,
    }
)
"""What is wrong with the call and not with one of its reports."""


class Reports(Protocol):
    """Where the reports of one call go."""

    @property
    def training_job(self) -> str:
        """Whose reports they are, empty before that is known."""

    def take(self, request: Any) -> None:
        """Takes a request, or raises the ContractError for it; one that could not be read is a ContractError itself."""

    def answer(self) -> pb.ReportRoutingResponse:
        """What is answered to the report that was taken last."""


class ReportStream:
    """One call."""

    def __init__(self, context: Context, *, pace: IntakePace, on_refusal: Callable[[Reason], None]) -> None:
        """Does nothing yet.

        Args:
            context: of the call.
            pace: of all calls together.
            on_refusal: told of each report, and of the call, when it is refused.
        """
        self._context, self._pace, self._on_refusal = context, pace, on_refusal
        self._answered = pb.StreamReportsResponse()
        """The next answer, but for its response."""
        self._num_unanswered = 0
        self._has_taken = False
        self._end: ContractError | None = None
        self._has_all = False
        """Whether nothing more comes."""
        self._is_due, self._has_room = asyncio.Event(), asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        """Runs for a moment after each answer."""
        self._tasks: list[asyncio.Task[None]] = []
        self._last_timer: asyncio.TimerHandle | None = None
        """Runs once the call has been ended."""

    def end(self, error: ContractError) -> None:
        """Ends the call with `error`, once what has been taken is answered, and at the latest after END_SECONDS."""
        if self._end is None:
            self._end = error
            self._is_due.set()
            self._last_timer = asyncio.get_running_loop().call_later(END_SECONDS, self._forget)

    async def run(self, reports: Reports) -> None:
        """Reads and answers until the call is over."""
        writing = asyncio.create_task(self._write(reports), name="report answers")
        reading = asyncio.current_task()
        assert reading is not None, "a call has a task of its own"
        self._tasks = [writing, reading]
        try:
            while self._end is None and (request := await self._context.read()) is not grpc.aio.EOF:
                clock = IntakeClock()
                self._take(reports, request)
                await self._pace.rest(reports.training_job, clock)
                while self._num_unanswered >= 2 * MANY_REPORTS and not writing.done():
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            self._has_all = True
            self._is_due.set()
            await asyncio.gather(writing, return_exceptions=True)
            self._tasks.clear()
            if self._last_timer is not None:
                self._last_timer.cancel()
        await writing  # which raises what has ended the call

    def _forget(self) -> None:
        """Leaves the call without a status: with the end of its tasks gRPC resets it."""
        for task in self._tasks:
            task.cancel()

    def _take(self, reports: Reports, request: Any) -> None:
        try:
            reports.take(request)
        except ContractError as error:
            if error.reason in ENDING:
                self.end(error)
                return
            self._on_refusal(error.reason)
            status = refusal_of(error).trailing_metadata[0][1]
            self._answered.refused_reports.add(index=self._answered.answered_count, status=status)
        else:
            self._has_taken = True
        self._answered.answered_count += 1
        self._num_unanswered += 1
        if self._pause is None or self._num_unanswered >= MANY_REPORTS:
            self._is_due.set()

    async def _write(self, reports: Reports) -> None:
        try:
            while True:
                await self._is_due.wait()
                self._is_due.clear()
                if self._num_unanswered:
                    await self._context.write(self._next_answer(reports))
                    self._has_room.set()
                if self._end is not None:
                    self._on_refusal(self._end.reason)
                    await self._context.abort(*refusal_of(self._end))
                if self._has_all:
                    return
        except grpc.aio.InternalError as error:
            # The caller has gone. A call that ended as if nothing were wrong would send its first headers once more.
            raise asyncio.CancelledError from error
        finally:
            if self._pause is not None:
                self._pause.cancel()
            self._has_room.set()

    def _next_answer(self, reports: Reports) -> pb.StreamReportsResponse:
        answer, self._answered = self._answered, pb.StreamReportsResponse()
        self._answered.answered_count = answer.answered_count
        if self._has_taken:
            answer.response.CopyFrom(reports.answer())
        self._num_unanswered, self._has_taken = 0, False
        if self._pause is not None:
            self._pause.cancel()
        self._pause = asyncio.get_running_loop().call_later(SOON_SECONDS, self._end_first_pause)
        return answer

    def _end_first_pause(self) -> None:
        if self._num_unanswered > 1:
            rest_seconds = LATER_SECONDS - SOON_SECONDS
            self._pause = asyncio.get_running_loop().call_later(rest_seconds, self._end_pause)
        else:
            self._end_pause()

    def _end_pause(self) -> None:
        self._pause = None
        if self._num_unanswered:
            self._is_due.set()
