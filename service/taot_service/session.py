"""One session: what it has reported, what is to be planned, what was planned. Pure; time is an argument.

A report is remembered by its key (step, micro-batch, rehearsal or not), so that a repeat changes nothing.
The memory is bounded: past it the smallest keys are forgotten, and what is not above a forgotten key counts
as a repeat too. Plans never go back in time: only a report above the newest one taken for planning is
planned.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import SessionSpec
from taot_planning.arrays import IntArray
from taot_service.admission import KEPT_PLANS
from taot_service.effort_choice import EffortSeconds
from taot_service.planning_work import PlanningWork, Purpose, SolvedPlan
from taot_service.recent_tokens import RecentTokens
from taot_service.session_history import SessionHistory

MAX_REPORT_KEYS = 1024
"""Reports remembered per session: some hundred steps of the usual number of micro-batches."""


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
    """Whether an earlier report was still waiting and is dropped for it."""

    outdated: PlanningWork | None = None
    """An improvement of the plan in force that is dropped for it, whether it waits or is in work."""


class Session:
    """The state of one expert-parallel group."""

    def __init__(
        self,
        *,
        session_id: str,
        spec: SessionSpec,
        create_time_seconds: float,
        now_seconds: float,
        publish_within_seconds: float = math.inf,
    ) -> None:
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
        self.num_failures = 0
        """Reports, calls and improvements that could not be planned."""
        self.failure_places: set[str] = set()
        """Where in the code they failed."""
        self._plans: deque[PublishedPlan] = deque(maxlen=KEPT_PLANS)
        self._waiting: PlanningWork | None = None
        self._in_work: PlanningWork | None = None
        self._improvement: PlanningWork | None = None
        self._publish_within_seconds = publish_within_seconds
        self._layer_seconds = EffortSeconds()
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
    def waiting(self) -> PlanningWork | None:
        """The report that waits to be planned."""
        return self._waiting

    @property
    def in_work(self) -> PlanningWork | None:
        """The report that is being planned, or has given way."""
        return self._in_work

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
        has_superseded = self._wait_with(report, recent_L, now_seconds)
        return ReportDecision(
            outcome=ReportOutcome.PLANNED, has_superseded=has_superseded, outdated=self._forget_improvement()
        )

    def take_work(self) -> PlanningWork:
        """Notes that the waiting report is being planned; `finish_work` must follow before the next."""
        assert self.has_work
        work, self._waiting = self._waiting, None
        self._in_work = work
        assert work is not None
        if self.newest_plan is not None:
            work.begin_L = self.newest_plan.guests_L
        return work

    def finish_work(self) -> None:
        """Notes that the report handed out is done with, well or not."""
        self._in_work = None

    def keep_plan(self, plan: PublishedPlan, solved: SolvedPlan) -> None:
        """Puts a plan in force."""
        self._plans.append(plan)
        self.num_plans += 1
        self.last_solved = solved
        self._layer_seconds = solved.layer_seconds.after(self._layer_seconds)
        self.history.add_plan(plan)

    def improve(self, work: PlanningWork, solved: SolvedPlan) -> PlanningWork | None:
        """The work of searching once more, and harder, for a plan just put in force that was made in a hurry.

        None where it was not, or where a newer report waits.
        """
        if not solved.is_hurried(self.spec.options.effort) or self._waiting is not None:
            return None
        self._improvement = replace(
            work, purpose=Purpose.IMPROVEMENT, publish_seconds=None, improves=solved, begin_L=solved.guests_L
        )
        return self._improvement

    def end_improvement(self, work: PlanningWork, solved: SolvedPlan | None) -> bool:
        """Notes that an improvement is done with; True when its plan is wanted and better."""
        if work is not self._improvement:
            return False
        self._improvement = None
        if solved is None:
            return False
        self._layer_seconds = solved.layer_seconds.or_else(self._layer_seconds)
        return solved.num_improved > 0

    def drop_work(self) -> list[PlanningWork]:
        """Gives up everything that waits or is in work, for a session that ends."""
        dropped = [work for work in (self._waiting, self._in_work, self._improvement) if work is not None]
        for work in dropped:
            work.progress.is_dropped = True
        self._waiting = self._improvement = None
        return dropped

    def _wait_with(self, report: RoutingReport, recent_L: Sequence[IntArray], now_seconds: float) -> bool:
        """Lets a report wait to be planned. Returns whether another one is dropped for it."""
        # Other algorithms know no effort.
        is_timed = self.spec.algorithm == "taot" and self.spec.options.effort == "balanced"
        publish_seconds = now_seconds + self._publish_within_seconds if is_timed else None
        if self._waiting is not None:
            self._waiting.renew(
                report,
                recent_L,
                arrival_seconds=now_seconds,
                publish_seconds=publish_seconds,
                layer_seconds=self._layer_seconds,
            )
            return True
        self._waiting = PlanningWork(
            session_id=self.session_id,
            spec=self.spec,
            layers=self.spec.layers,
            report=report,
            recent_L=recent_L,
            arrival_seconds=now_seconds,
            publish_seconds=publish_seconds,
            layer_seconds=self._layer_seconds,
        )
        return False

    def _forget_improvement(self) -> PlanningWork | None:
        outdated, self._improvement = self._improvement, None
        if outdated is not None:
            outdated.progress.is_dropped = True
        return outdated

    def _remember(self, key: tuple[int, int, bool]) -> bool:
        if key in self._keys or key <= self._forgotten:
            return False
        self._keys.add(key)
        heapq.heappush(self._key_heap, key)
        if len(self._key_heap) > MAX_REPORT_KEYS:
            self._forgotten = heapq.heappop(self._key_heap)
            self._keys.remove(self._forgotten)
        return True
