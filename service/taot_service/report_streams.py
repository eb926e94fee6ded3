"""The open calls that report micro-batch after micro-batch, and their bounds: each is of one session, or of none yet.

Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from taot_api.contract_error import ContractError, Reason
from taot_service.admission import check_calls
from taot_service.intake_pace import IntakePace
from taot_service.report_stream import ReportStream

FIRST_REPORT_SECONDS = 10.0
"""Within which a call has to name its session."""


class ReportStreams:
    """Knows them by session, so that they end with it."""

    def __init__(self, *, max_loose: int, max_of_session: int) -> None:
        """Begins with none.

        Args:
            max_loose: calls that are of no open session, since they have not named it yet or it has ended.
            max_of_session: calls of one session.
        """
        self.pace = IntakePace()
        """Of all calls together."""
        self._max_loose, self._max_of_session = max_loose, max_of_session
        self._sessions: dict[ReportStream, str | None] = {}
        """Of each open call; None: it is of none."""
        self._timers: dict[ReportStream, asyncio.TimerHandle] = {}
        self._end: ContractError | None = None

    @contextmanager
    def open(self, stream: ReportStream) -> Iterator[None]:
        """Counts a call while it is open.

        Raises:
            ContractError: OVERLOADED when there is no room, or why nothing is taken any more.
        """
        if self._end is not None:
            raise self._end
        num_loose = self._num_of(None) + 1
        check_calls(num_loose, self._max_loose, flag="--max-calls", what="streams of reports without an open session")
        self._sessions[stream] = None
        self._timers[stream] = asyncio.get_running_loop().call_later(FIRST_REPORT_SECONDS, stream.end, _silent())
        try:
            yield
        finally:
            self._stop_timer(stream)
            del self._sessions[stream]

    def name(self, stream: ReportStream, session_id: str) -> None:
        """Notes that an open call is of a session.

        Raises:
            ContractError: OVERLOADED.
        """
        num_streams, limit = self._num_of(session_id) + 1, self._max_of_session
        check_calls(num_streams, limit, flag="--max-watches", what="open streams of reports of a session")
        self._sessions[stream] = session_id
        self._stop_timer(stream)

    def end_session(self, session_id: str, error: ContractError) -> None:
        """Ends the calls of a session with `error`; they are of none until their callers have taken notice."""
        for stream in [each for each, of_session in self._sessions.items() if of_session == session_id]:
            self._sessions[stream] = None
            stream.end(error)

    def end_all(self, error: ContractError) -> None:
        """Ends all calls, and those to come, with `error`."""
        self._end = error
        for stream in self._sessions:
            stream.end(error)

    def _num_of(self, session_id: str | None) -> int:
        return sum(each == session_id for each in self._sessions.values())

    def _stop_timer(self, stream: ReportStream) -> None:
        timer = self._timers.pop(stream, None)
        if timer is not None:
            timer.cancel()


def _silent() -> ContractError:
    return ContractError(
        Reason.DEADLINE_EXCEEDED,
        f"no report of an open session within {FIRST_REPORT_SECONDS:.0f} s: begin the call when there is one",
    )
