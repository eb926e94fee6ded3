"""The planner of one process: joins the sessions, the solver threads, the feeds and the metrics.

Lives on one event loop. Decisions are the sessions'; this module reads clocks, moves work and tells people.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from taot_api import count_kernels
from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_planning import __version__
from taot_service.admission import check_calls
from taot_service.caller_plans import CallerPlans
from taot_service.change_feed import ChangeFeed
from taot_service.config import ServiceConfig
from taot_service.ended_sessions import EndReason
from taot_service.limits import check_algorithm
from taot_service.metrics import ServiceMetrics
from taot_service.plan_feed import PlanFeed, PlanSubscription
from taot_service.plan_traces import PlanTraces
from taot_service.planning_work import FinishedWork, PlanningWork, Purpose, SolvedPlan, SolverFailure
from taot_service.report_streams import ReportStreams
from taot_service.session import ReportOutcome, Session
from taot_service.session_book import EndDecision, SessionBook
from taot_service.session_lines import log_end, log_failure, log_opening, log_pause
from taot_service.solver_pool import SolverPool

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long a solver thread may take to notice that nobody wants its plan any more."""


class Planner:
    """Everything behind the two front ends."""

    def __init__(self, config: ServiceConfig, *, traces: PlanTraces | None = None) -> None:
        self.config = config
        self.traces = traces
        self.metrics = ServiceMetrics(config, release=__version__)
        self.is_warm = False
        self.is_draining = False
        self.was_used = False
        self.changes = ChangeFeed()
        self._idle_since_seconds: float | None = None
        self._book = SessionBook(
            planner_epoch=uuid.uuid4().hex,
            lease_seconds=config.lease_seconds,
            publish_within_seconds=config.publish_within,
            limits=config,
        )
        self._feeds: dict[str, PlanFeed] = {}
        self.report_streams = ReportStreams(max_loose=config.max_calls, max_of_session=config.max_watches)
        self._pool = SolverPool(
            num_threads=config.solver_threads,
            queue=self._book.queue,
            take_work=self._book.take_work,
            on_done=self._finish_work,
        )
        self._caller_plans = CallerPlans(self._book, self._pool, config=config, metrics=self.metrics, traces=traces)
        self.metrics.show("taot_sessions", "Open sessions.", lambda: len(self.sessions))
        self.metrics.show(
            "taot_sessions_paused",
            "Open sessions in which an operator wants no guests.",
            lambda: sum(session.is_paused for session in self.sessions),
        )
        self.metrics.show(
            "taot_queue_length", "Reports that wait for their plan or are being planned.", self._num_queued
        )

    @property
    def planner_epoch(self) -> str:
        """Identifies this life of the process."""
        return self._book.planner_epoch

    @property
    def is_ready(self) -> bool:
        """Whether callers should be sent here."""
        return self.is_warm and not self.is_draining

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Open sessions."""
        return self._book.sessions

    def idle_seconds(self) -> float | None:
        """Time since the last session has ended, before the first since it is warm; None meanwhile."""
        return None if self._idle_since_seconds is None else time.monotonic() - self._idle_since_seconds

    async def warm_up(self) -> None:
        """Compiles the kernels in a solver thread."""
        start = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(None, count_kernels.warm_up)
        await self._pool.warm_up()
        self.is_warm = True
        if not self.was_used:
            self._idle_since_seconds = time.monotonic()
        seconds = time.monotonic() - start
        logger.info("warm after %.1f s", seconds, extra={"warm_up_seconds": seconds})

    def open_session(self, spec: SessionSpec) -> Session:
        """Opens a session, or returns the one of the same incarnation."""
        self._refuse_when_draining()
        check_algorithm(spec, self.config)
        self.expire_sessions()
        decision = self._book.open(
            spec, session_id=uuid.uuid4().hex, create_time_seconds=time.time(), now_seconds=time.monotonic()
        )
        session = decision.session
        if decision.replaced is not None:
            self._forget(decision.replaced, EndReason.REPLACED)
        if session.session_id not in self._feeds:
            self._feeds[session.session_id] = PlanFeed()
            self.was_used = True
            self._idle_since_seconds = None
            self.metrics.groups.open(spec)
            self.metrics.groups.note_paused(spec, is_paused=session.is_paused)
            self.changes.note_sessions()
            log_opening(session, decision.outcome)
            if session.is_paused:
                log_pause(session)
        return session

    def find_session(self, session_id: str) -> Session:
        """The open session of that id; any call keeps it alive."""
        return self._book.find(session_id, now_seconds=time.monotonic())

    def open_session_of(self, session_id: str) -> Session | None:
        """The open session of that id, if there is one; asking does not keep it alive."""
        return self._book.open_session_of(session_id)

    def job_of(self, session_id: str) -> str | None:
        """The training job of a session, open or remembered; asking does not keep it alive."""
        return self._book.job_of(session_id)

    def never_opened(self, session_id: str) -> ContractError:
        """The error for an id that this planner has not given to the caller."""
        return self._book.never_opened(session_id)

    def accept_report(self, session: Session, report: RoutingReport) -> None:
        """Takes a checked report; its plan follows in the background."""
        self._refuse_when_draining()
        if self.traces is not None:
            self.traces.keep_report(session.session_id, report)
        decision = self._book.accept_report(session.session_id, report, now_seconds=time.monotonic())
        self.metrics.count_report(decision.outcome)
        if decision.has_superseded:
            self.metrics.superseded.inc()
        if decision.outdated is not None:
            self.metrics.plans.labels("improvement_dropped").inc()
        if decision.outcome not in (ReportOutcome.REPEATED, ReportOutcome.REHEARSAL):
            self.metrics.groups.note_report(
                session.spec, report, planner_epoch=self.planner_epoch, now_seconds=time.time()
            )
        if decision.outcome is not ReportOutcome.REPEATED:
            self.changes.note_session(session.session_id)
        if not decision.has_superseded:  # else as much waits as before
            self._pool.wake()

    async def plan_now(
        self,
        session: Session,
        report: RoutingReport,
        *,
        layers: tuple[LayerSpec, ...],
        timeout_seconds: float,
    ) -> PublishedPlan:
        """Plans a checked report for a caller that waits, with token quotas; nothing is kept.

        Raises:
            ContractError: when there is no plan in time, or too many wait for one.
        """
        self._refuse_when_draining()
        return await self._caller_plans.plan(session, report, layers=layers, timeout_seconds=timeout_seconds)

    def subscribe(self, session: Session, *, after_version: int) -> PlanSubscription:
        """Starts to watch a session, which stays alive meanwhile; `unsubscribe` must follow."""
        self._refuse_when_draining()
        limit = self.config.max_watches
        check_calls(session.num_watches + 1, limit, flag="--max-watches", what="open watches of a session")
        subscription = self._feeds[session.session_id].subscribe(after_version=after_version)
        session.num_watches += 1
        return subscription

    def unsubscribe(self, session: Session, subscription: PlanSubscription) -> None:
        """Stops to watch a session."""
        session.num_watches -= 1
        session.seen_seconds = time.monotonic()
        subscription.close()

    def set_paused(self, session: Session, *, is_paused: bool) -> None:
        """Asks the ranks of a session to move no guests, or to move them again; they hear it with their next report."""
        if session.is_paused != is_paused:
            session.is_paused = is_paused
            self.metrics.groups.note_paused(session.spec, is_paused=is_paused)
            log_pause(session)
            self.changes.note_session(session.session_id)

    def close_session(self, session_id: str) -> None:
        """Ends a session if it is open."""
        ended = self._book.close(session_id)
        if ended is not None:
            self._forget(ended, EndReason.CLOSED)

    def expire_sessions(self) -> None:
        """Ends the sessions whose lease has run out."""
        for ended in self._book.expire(now_seconds=time.monotonic()):
            self._forget(ended, EndReason.EXPIRED)

    def begin_drain(self) -> None:
        """Refuses new work and ends all watches and streams of reports; calls in flight go on."""
        self.is_draining = True
        self.report_streams.end_all(_shutting_down())
        for feed in self._feeds.values():
            feed.end(_shutting_down())
        self.changes.end()

    async def close(self) -> bool:
        """Stops the solver threads; False when one of them is still busy after CLOSE_SECONDS."""
        return await self._pool.close(timeout_seconds=CLOSE_SECONDS)

    def _num_queued(self) -> int:
        held_back = sum(
            session.waiting is not None and session.waiting not in self._book.queue for session in self.sessions
        )
        waiting = sum(self._book.queue.num_waiting(purpose) for purpose in (Purpose.REPORT, Purpose.CALLER))
        return self._pool.num_running + waiting + held_back

    def _finish_work(self, finished: FinishedWork) -> None:
        if finished.work.purpose is Purpose.IMPROVEMENT:
            self._finish_improvement(finished)
            return
        work, result = finished.work, finished.result
        if isinstance(result, SolverFailure):
            self._log_failure(work, result)
            ended = self._book.give_up(work)
            outcome = "abandoned" if result.is_abandoned else "failed"
            self.metrics.plans.labels("session_ended" if ended is not None else outcome).inc()
            return
        plan = self._book.install(work, result, create_time_seconds=time.time())
        if isinstance(plan, EndReason):
            self.metrics.plans.labels("session_ended").inc()
            return
        self._publish(work, plan)
        if self.traces is not None:
            self.traces.note_plan(finished, version=plan.identity.version)
        self.metrics.observe_plan(finished, result, plan, now_seconds=time.monotonic())

    def _finish_improvement(self, finished: FinishedWork) -> None:
        work, result = finished.work, finished.result
        solved = result if isinstance(result, SolvedPlan) else None
        if isinstance(result, SolverFailure):
            self._log_failure(work, result)
        plan = self._book.end_improvement(work, solved, create_time_seconds=time.time())
        if work.progress.is_dropped:  # a newer report or the end of the session: counted there
            return
        if plan is None or solved is None:
            self.metrics.plans.labels("not_better" if solved is not None else "failed").inc()
            return
        self.metrics.plans.labels("improved").inc()
        self._publish(work, plan)
        self.metrics.note_plan_of_group(work, solved, plan)

    def _log_failure(self, work: PlanningWork, failure: SolverFailure) -> None:
        session = self.open_session_of(work.session_id)
        if session is not None and failure.error is not None:
            log_failure(session, work, failure.error)

    def _publish(self, work: PlanningWork, plan: PublishedPlan) -> None:
        self.changes.note_session(work.session_id)
        if not self.is_draining:
            self._feeds[work.session_id].publish(plan)

    def _forget(self, ended: EndDecision, reason: EndReason) -> None:
        session = ended.session
        missing = self._book.missing(session.session_id)
        self._feeds.pop(session.session_id).end(missing)
        self.report_streams.end_session(session.session_id, missing)
        if not self._feeds:
            self._idle_since_seconds = time.monotonic()
        for work in ended.uncounted:
            is_report = work.purpose is Purpose.REPORT
            self.metrics.plans.labels("session_ended" if is_report else "improvement_dropped").inc()
        self.metrics.groups.forget(session.spec)
        self.changes.note_sessions()
        log_end(session, reason)

    def _refuse_when_draining(self) -> None:
        if self.is_draining:
            raise _shutting_down()


def _shutting_down() -> ContractError:
    return ContractError(Reason.SHUTTING_DOWN, "this planner is shutting down: go on without a plan and try again")
