"""One session: what it has reported, what is to be planned, what was planned. Pure; time is an argument.

A report is remembered by its key (step, micro-batch, rehearsal or not), so that a repeat changes nothing.
The memory is bounded: past it the smallest keys are forgotten, and what is not above a forgotten key counts
as a repeat too. Plans never go back in time: only a report above the newest one taken for planning is
planned.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum

from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import SessionSpec
from taot_service.planning_work import PlanningWork, SolvedPlan
from taot_service.recent_tokens import RecentTokens
from taot_service.session_history import SessionHistory

MAX_REPORT_KEYS = 1024
"""Reports remembered per session: some hundred steps of the usual number of micro-batches."""

KEPT_PLANS = 4
"""Plans that GetPlan can still return per session."""


class ReportOutcome(Enum):
    """What became of a report; the value is its name in logs and metrics."""

    PLANNED = "planned"
    """It waits to be planned."""

    REPEATED = "repeated"
    """It was reported before, or is older than what is remembered: nothing changed."""

    REHEARSAL = "rehearsal"
    """Not training tokens: counted only."""

    NOT_DUE = "not_due"
    """The session plans once every few reports, and this was not its turn."""

    OUT_OF_DATE = "out_of_date"
    """A later report has been taken for planning already."""

    NO_LAYERS = "no_layers"
    """The session has no layers to plan."""


@dataclass(frozen=True, kw_only=True)
class ReportDecision:
    """The answer to a report."""

    outcome: ReportOutcome
    """What became of it."""

    has_superseded: bool = False
    """Whether an earlier report that was still waiting is dropped for it."""


class Session:
    """The state of one expert-parallel group."""

    def __init__(self, *, session_id: str, spec: SessionSpec, create_time_seconds: float, now_seconds: float) -> None:
        self.session_id = session_id
        self.spec = spec
        self.create_time_seconds = create_time_seconds
        """When it was opened, in seconds since 1970."""
        self.open_seconds = now_seconds
        """When it was opened, on the clock of the sessions."""
        self.seen_seconds = now_seconds
        """When it last called, on the clock of the sessions."""
        self.num_watches = 0
        self.num_reports = 0
        """Training reports, without repeats."""
        self.num_rehearsals = 0
        self.num_plans = 0
        self.is_paused = False
        """Whether an operator wants the ranks to move no guests."""
        self.last_solved: SolvedPlan | None = None
        self.history = SessionHistory()
        self._plans: deque[PublishedPlan] = deque(maxlen=KEPT_PLANS)
        self._waiting: PlanningWork | None = None
        self._in_work: PlanningWork | None = None
        self._recent = RecentTokens(capacity=spec.effective_recent_reports)
        self._newest_source = (-1, -1)
        self._keys: set[tuple[int, int, bool]] = set()
        self._key_heap: list[tuple[int, int, bool]] = []
        self._forgotten: tuple[int, int, bool] = (-1, -1, False)

    @property
    def log_fields(self) -> dict[str, str]:
        """What log records about it carry beside their message."""
        return {"session_id": self.session_id, "training_job": self.spec.training_job, "group": self.spec.group}

    @property
    def newest_plan(self) -> PublishedPlan | None:
        """The plan in force."""
        return self._plans[-1] if self._plans else None

    @property
    def has_work(self) -> bool:
        """Whether a report waits and none of this session is being planned."""
        return self._waiting is not None and self._in_work is None

    @property
    def has_waiting(self) -> bool:
        """Whether a report waits to be planned."""
        return self._waiting is not None

    def find_plan(self, version: int) -> PublishedPlan | None:
        """The plan of that version, if it is still kept."""
        return next((plan for plan in self._plans if plan.identity.version == version), None)

    def accept(self, report: RoutingReport, *, now_seconds: float) -> ReportDecision:
        """Takes a report that has been checked, and decides whether it is planned from."""
        if not self._remember((report.step, report.micro_batch, report.is_rehearsal)):
            return ReportDecision(outcome=ReportOutcome.REPEATED)
        if report.is_rehearsal:
            self.num_rehearsals += 1
            return ReportDecision(outcome=ReportOutcome.REHEARSAL)
        self.num_reports += 1
        self.history.add_report(report, speed_milli_R=self.spec.topology.speed_milli_R, is_paused=self.is_paused)
        if not self.spec.layers:
            return ReportDecision(outcome=ReportOutcome.NO_LAYERS)
        recent_L = self._recent.before(report)
        self._recent.add(report)
        if (self.num_reports - 1) % self.spec.plan_interval:
            return ReportDecision(outcome=ReportOutcome.NOT_DUE)
        source = (report.step, report.micro_batch)
        if source <= self._newest_source:
            return ReportDecision(outcome=ReportOutcome.OUT_OF_DATE)
        self._newest_source = source
        has_superseded = self._waiting is not None
        self._waiting = PlanningWork(
            session_id=self.session_id,
            spec=self.spec,
            layers=self.spec.layers,
            report=report,
            recent_L=recent_L,
            arrival_seconds=now_seconds,
        )
        return ReportDecision(outcome=ReportOutcome.PLANNED, has_superseded=has_superseded)

    def take_work(self) -> PlanningWork:
        """Hands out the waiting report; `finish_work` must follow before the next."""
        assert self.has_work
        work, self._waiting = self._waiting, None
        self._in_work = work
        assert work is not None
        return work

    def finish_work(self) -> None:
        """Notes that the report handed out is done with, well or not."""
        self._in_work = None

    def keep_plan(self, plan: PublishedPlan, solved: SolvedPlan) -> None:
        """Puts a plan in force."""
        self._plans.append(plan)
        self.num_plans += 1
        self.last_solved = solved
        self.history.add_plan(plan)

    def _remember(self, key: tuple[int, int, bool]) -> bool:
        if key in self._keys or key <= self._forgotten:
            return False
        self._keys.add(key)
        heapq.heappush(self._key_heap, key)
        if len(self._key_heap) > MAX_REPORT_KEYS:
            self._forgotten = heapq.heappop(self._key_heap)
            self._keys.remove(self._forgotten)
        return True
