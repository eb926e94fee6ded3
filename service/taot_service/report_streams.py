"""The open calls that report micro-batch after micro-batch, and their bounds: each is of one session, or of none yet.

Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from taot_api.contract_error import ContractError, Reason
from taot_service.admission import check_calls
from taot_service.intake_pace import IntakePace
from taot_service.report_stream import ReportStream

FIRST_REPORT_SECONDS = 10.0
"""Within which a call has to name its session."""


@dataclass(kw_only=True)
class _Place:
    """What an open call takes."""

    caller: Hashable
    """Who has opened it."""

    session_id: str | None = None
    """The open session that it is of; None: it is of none."""


class ReportStreams:
    """Knows them by session, so that they end with it, and by caller, so that none takes all room."""

    def __init__(self, *, max_loose: int, max_of_session: int) -> None:
        """Begins with none.

        Args:
            max_loose: calls that are of no open session, since they have not named it yet or it has ended. One
                caller may have half of them; what it has beyond that when a session ends counts for nobody else.
            max_of_session: calls of one session.
        """
        self.pace = IntakePace()
        """Of all who report."""
        self._max_loose, self._max_of_session = max_loose, max_of_session
        self._max_loose_of_caller = max(max_loose // 2, 1)
        self._places: dict[ReportStream, _Place] = {}
        self._timers: dict[ReportStream, asyncio.TimerHandle] = {}
        self._end: ContractError | None = None

    @contextmanager
    def open(self, stream: ReportStream, *, caller: Hashable) -> Iterator[None]:
        """Counts a call of a caller while it is open.

        Raises:
            ContractError: OVERLOADED when there is no room, or why nothing is taken any more.
        """
        if self._end is not None:
            raise self._end
        self._check_loose(caller)
        self._places[stream] = _Place(caller=caller)
        self._timers[stream] = asyncio.get_running_loop().call_later(FIRST_REPORT_SECONDS, stream.end, _silent())
        try:
            yield
        finally:
            self._stop_timer(stream)
            del self._places[stream]

    def name(self, stream: ReportStream, session_id: str) -> None:
        """Notes that an open call is of a session.

        Raises:
            ContractError: OVERLOADED.
        """
        num_streams = sum(place.session_id == session_id for place in self._places.values()) + 1
        check_calls(
            num_streams, self._max_of_session, flag="--max-watches", what="open streams of reports of a session"
        )
        self._places[stream].session_id = session_id
        self._stop_timer(stream)

    def end_session(self, session_id: str, error: ContractError) -> None:
        """Ends the calls of a session with `error`; they are of none until their callers have taken notice."""
        for stream, place in self._places.items():
            if place.session_id == session_id:
                place.session_id = None
                stream.end(error)

    def end_all(self, error: ContractError) -> None:
        """Ends all calls, and those to come, with `error`."""
        self._end = error
        for stream in self._places:
            stream.end(error)

    def _check_loose(self, caller: Hashable) -> None:
        num_loose = Counter(place.caller for place in self._places.values() if place.session_id is None)
        flag, limit = "--max-calls", self._max_loose_of_caller
        what = "streams of reports without an open session from one caller"
        check_calls(num_loose[caller] + 1, limit, flag=flag, what=what)
        num_in_all = sum(min(number, limit) for number in num_loose.values()) + 1
        check_calls(num_in_all, self._max_loose, flag=flag, what="streams of reports without an open session")

    def _stop_timer(self, stream: ReportStream) -> None:
        timer = self._timers.pop(stream, None)
        if timer is not None:
            timer.cancel()


def _silent() -> ContractError:
    return ContractError(
        Reason.DEADLINE_EXCEEDED,
        f"no report of an open session within {FIRST_REPORT_SECONDS:.0f} s: begin the call when there is one",
    )
