"""Work that waits for a solver thread, and which piece is next. Pure; time is an argument.

Callers that wait come first as long as their job and session have not used much more solver time than others that
want some; then they and the reports of sessions share it fairly. Improvements get what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from taot_service.fair_share import FairShare
from taot_service.planning_work import PlanningWork, Purpose

CALLER_CREDIT_SECONDS = 0.25
"""Solver time by which a caller's job, its session, and its calls beside the session's reports may be ahead of others
and still go first: some layers of the largest groups."""

SLICE_SECONDS = 0.01
"""Solver time after which work gives way to other work of its kind, at the next layer."""


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """What waits, for the threads that ask whether to give way."""

    has_urgent: bool = False
    """Whether a caller waits that goes first."""

    has_shared: bool = False
    """Whether reports or callers wait that share the solver."""


def must_give_way(purpose: Purpose, *, sliced_seconds: float, pressure: Pressure) -> bool:
    """Whether work goes back into the queue after the layer it has just planned.

    Args:
        purpose: what it is for.
        sliced_seconds: for how long it has had the thread.
        pressure: what waits.
    """
    if purpose is Purpose.IMPROVEMENT:
        return pressure.has_urgent or pressure.has_shared
    if pressure.has_urgent and purpose is not Purpose.CALLER:
        return True
    return (pressure.has_urgent or pressure.has_shared) and sliced_seconds >= SLICE_SECONDS


class WorkQueue:
    """Everything that waits for the solver."""

    def __init__(self) -> None:
        self._waiting: dict[PlanningWork, None] = {}
        self._share = FairShare()
        self._sharing: set[PlanningWork] = set()
        """Reports and callers that wait or are in work; improvements use time that nobody else wants."""

    def __contains__(self, work: PlanningWork) -> bool:
        return work in self._waiting

    def num_waiting(self, purpose: Purpose, *, session_id: str | None = None) -> int:
        """Pieces of work that wait, of one session or of all."""
        return sum(work.purpose is purpose and session_id in {None, work.session_id} for work in self._waiting)

    def add(self, work: PlanningWork) -> None:
        """Takes work that is new, or that has given way."""
        self._waiting[work] = None
        if work.purpose is not Purpose.IMPROVEMENT and work not in self._sharing:
            self._sharing.add(work)
            self._share.enter(work.path)

    def discard(self, work: PlanningWork) -> None:
        """Forgets work that is over, or that nobody wants any more."""
        self._waiting.pop(work, None)
        if work in self._sharing:
            self._sharing.remove(work)
            self._share.leave(work.path)

    def charge(self, work: PlanningWork, seconds: float) -> None:
        """Notes the solver time that work has used."""
        if work in self._sharing:
            self._share.charge(work.path, seconds)

    def take(self, *, now_seconds: float) -> PlanningWork | None:
        """The next piece; the caller gives it back with `add`, or ends it with `discard`."""
        self._drop_late(now_seconds)
        sharing = self._urgent() or self._shared()
        if sharing:
            path = self._share.choose([work.path for work in sharing])
            chosen = next(work for work in sharing if work.path == path)
        elif self._waiting:
            chosen = next(iter(self._waiting))
        else:
            return None
        del self._waiting[chosen]
        return chosen

    def pressure(self) -> Pressure:
        """What waits at the moment."""
        return Pressure(has_urgent=bool(self._urgent()), has_shared=bool(self._shared()))

    def _urgent(self) -> list[PlanningWork]:
        return [
            work
            for work in self._waiting
            if work.purpose is Purpose.CALLER and self._share.ahead_seconds(work.path) <= CALLER_CREDIT_SECONDS
        ]

    def _shared(self) -> list[PlanningWork]:
        return [work for work in self._waiting if work.purpose is not Purpose.IMPROVEMENT]

    def _drop_late(self, now_seconds: float) -> None:
        late = [
            work for work in self._waiting if work.deadline_seconds is not None and work.deadline_seconds <= now_seconds
        ]
        for work in late:
            work.progress.is_dropped = True
            self.discard(work)
