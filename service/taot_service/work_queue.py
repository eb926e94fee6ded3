"""Work that waits for a solver thread, and which piece is next. Pure; time is an argument.

Training jobs, and the sessions of a job, share the solver fairly, whether they report or call. Within a session, and
among those whose turn it is, callers that wait come first. Improvements get what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from taot_service.fair_share import FairShare, Path
from taot_service.planning_work import PlanningWork, Purpose

CALLER_CREDIT_SECONDS = 0.25
"""Solver time by which the calls of a session may be ahead of its own reports and still go first: some layers of the
largest groups."""

SLICE_SECONDS = 0.01
"""Solver time after which work gives way to other work of its kind, after the layers in work."""


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """What waits, for the threads that ask whether to give way."""

    has_urgent: bool = False
    """Whether a caller is next."""

    has_shared: bool = False
    """Whether reports or callers wait that share the solver."""

    @property
    def is_any(self) -> bool:
        """Whether a thread that only helps should be free for others."""
        return self.has_urgent or self.has_shared


def must_give_way(purpose: Purpose, *, sliced_seconds: float, pressure: Pressure) -> bool:
    """Whether work goes back into the queue after the layer it has just planned.

    Args:
        purpose: what it is for.
        sliced_seconds: for how long it has had the thread.
        pressure: what waits.
    """
    if purpose is Purpose.IMPROVEMENT:
        return pressure.is_any
    if pressure.has_urgent and purpose is not Purpose.CALLER:
        return True
    return pressure.is_any and sliced_seconds >= SLICE_SECONDS


class WorkQueue:
    """Everything that waits for the solver."""

    def __init__(self) -> None:
        self._waiting: dict[PlanningWork, Path] = {}
        self._share = FairShare(head_starts={Purpose.CALLER.value: CALLER_CREDIT_SECONDS})
        self._sharing: set[PlanningWork] = set()
        """Reports and callers that wait or are in work; improvements use time that nobody else wants."""

    def __contains__(self, work: PlanningWork) -> bool:
        return work in self._waiting

    def num_waiting(self, purpose: Purpose, *, session_id: str | None = None) -> int:
        """Pieces of work that wait, of one session or of all."""
        return sum(work.purpose is purpose and session_id in {None, work.session_id} for work in self._waiting)

    def add(self, work: PlanningWork) -> None:
        """Takes work that is new, or that has given way."""
        self._waiting[work] = work.path
        if work.purpose is not Purpose.IMPROVEMENT and work not in self._sharing:
            self._sharing.add(work)
            self._share.enter(work.path)

    def move_to_end(self, work: PlanningWork) -> None:
        """Lets work that waits, and now has a newer report, wait as if it had just come."""
        self._waiting[work] = self._waiting.pop(work)

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
        chosen = self._next_shared() or next(iter(self._waiting), None)
        if chosen is None:
            return None
        if chosen in self._sharing:
            self._share.begin(chosen.path)
        del self._waiting[chosen]
        return chosen

    def pressure(self) -> Pressure:
        """What waits at the moment."""
        if not any(work.purpose is Purpose.CALLER for work in self._waiting):
            return Pressure(has_shared=any(work.purpose is Purpose.REPORT for work in self._waiting))
        chosen = self._next_shared()
        return Pressure(has_urgent=chosen is not None and chosen.purpose is Purpose.CALLER, has_shared=True)

    def _next_shared(self) -> PlanningWork | None:
        """The report or call that is next; of equals callers go first."""
        first: dict[Path, PlanningWork] = {}
        for purpose in (Purpose.CALLER, Purpose.REPORT):
            for work, path in self._waiting.items():
                if work.purpose is purpose:
                    first.setdefault(path, work)
        return first[self._share.choose(first)] if first else None

    def _drop_late(self, now_seconds: float) -> None:
        late = [
            work for work in self._waiting if work.deadline_seconds is not None and work.deadline_seconds <= now_seconds
        ]
        for work in late:
            work.progress.is_dropped = True
            self.discard(work)
