"""All sessions of one planner process: who may open, what is planned next, when a session ends.

Pure: no I/O, clocks, threads or chance. Callers pass in ids and the time (any clock that never goes back);
every decision names its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PlanIdentity, PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import SessionSpec
from taot_service.admission import check_room, held_bytes
from taot_service.config import ServiceConfig
from taot_service.ended_sessions import EndedSessions, EndReason, Run
from taot_service.held_memory import HeldMemory
from taot_service.planning_work import PlanningWork, Purpose, SolvedPlan
from taot_service.session import ReportDecision, Session
from taot_service.spec_difference import first_difference
from taot_service.work_queue import WorkQueue


class OpenOutcome(Enum):
    """What became of a request to open a session; the value is its name in logs."""

    CREATED = "created"
    """A new session."""

    REPLACED_OLDER = "replaced_older"
    """A new session in place of an older incarnation of the same group."""

    SAME = "same"
    """The session that this incarnation has already opened."""


@dataclass(frozen=True, kw_only=True)
class EndDecision:
    """The end of a session."""

    session: Session
    """As it was."""

    uncounted: tuple[PlanningWork, ...]
    """What was dropped with it and no thread will bring back: reports that wait or have given way, the improvement."""


@dataclass(frozen=True, kw_only=True)
class OpenDecision:
    """The answer to a request to open a session."""

    session: Session
    """The session of this incarnation."""

    outcome: OpenOutcome
    """What was done."""

    replaced: EndDecision | None = None
    """The session that ended for it."""


class SessionBook:
    """The state of all sessions."""

    def __init__(
        self,
        *,
        planner_epoch: str,
        lease_seconds: float,
        limits: ServiceConfig,
        publish_within_seconds: float = math.inf,
    ) -> None:
        self.planner_epoch = planner_epoch
        self.queue = WorkQueue()
        """What waits for the solver: the newest report of each session, unless another is in work."""
        self.held = HeldMemory()
        """What sessions hold, and the calls of their ranks."""
        self._lease_seconds = lease_seconds
        self._limits = limits
        self._publish_within_seconds = publish_within_seconds
        self._sessions: dict[str, Session] = {}
        self._by_group: dict[tuple[str, str], Session] = {}
        self._ended = EndedSessions(planner_epoch=planner_epoch)
        self._version = 0

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Open sessions in the order of opening."""
        return tuple(self._sessions.values())

    def open(
        self, spec: SessionSpec, *, session_id: str, create_time_seconds: float, now_seconds: float
    ) -> OpenDecision:
        """Opens the session of one incarnation of a group, under `session_id` when it is new.

        Raises:
            ContractError: STALE_INCARNATION when a newer one is open, INVALID_INCARNATION when this one was
                opened with other content, LIMIT_EXCEEDED when there is no room for it.
        """
        older = self._by_group.get((spec.training_job, spec.group))
        if older is not None and spec.incarnation < older.spec.incarnation:
            raise ContractError(
                Reason.STALE_INCARNATION,
                f"group {spec.group!r} of job {spec.training_job!r} has the newer incarnation"
                f" {older.spec.incarnation}, got {spec.incarnation}: this run has been replaced, stop it",
                field="incarnation",
                metadata={
                    "incarnation": str(spec.incarnation),
                    "newer_incarnation": str(older.spec.incarnation),
                },
            )
        if older is not None and spec.incarnation == older.spec.incarnation:
            _check_same_content(spec, older.spec)
            older.seen_seconds = now_seconds
            return OpenDecision(session=older, outcome=OpenOutcome.SAME)
        others = [session.spec for session in self.sessions if session is not older]
        freed_bytes = 0 if older is None else held_bytes(older.spec)
        check_room(spec, others, self._limits, self.held, freed_bytes=freed_bytes)
        replaced = None if older is None else self._end(older, EndReason.REPLACED)
        session = Session(
            session_id=session_id,
            spec=spec,
            create_time_seconds=create_time_seconds,
            now_seconds=now_seconds,
            publish_within_seconds=self._publish_within_seconds,
        )
        session.is_paused = self._ended.is_paused(_run_of(spec))
        self._sessions[session_id] = session
        self.held.take(spec.training_job, held_bytes(spec))
        self._by_group[spec.training_job, spec.group] = session
        outcome = OpenOutcome.CREATED if older is None else OpenOutcome.REPLACED_OLDER
        return OpenDecision(session=session, outcome=outcome, replaced=replaced)

    def find(self, session_id: str, *, now_seconds: float) -> Session:
        """The open session of that id, whose lease starts anew.

        Raises:
            ContractError: saying why there is none.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise self.missing(session_id)
        session.seen_seconds = now_seconds
        return session

    def open_session_of(self, session_id: str) -> Session | None:
        """The open session of that id, if there is one; its lease goes on."""
        return self._sessions.get(session_id)

    def job_of(self, session_id: str) -> str | None:
        """The training job of a session that is open or remembered; its lease goes on."""
        session = self._sessions.get(session_id)
        return self._ended.job_of(session_id) if session is None else session.spec.training_job

    def never_opened(self, session_id: str) -> ContractError:
        """The error for an id that was never given out, or not to the caller."""
        return self._ended.never_opened(session_id)

    def missing(self, session_id: str) -> ContractError:
        """Why there is no open session of that id, as an error for its caller."""
        return self._ended.missing(session_id)

    def accept_report(self, session_id: str, report: RoutingReport, *, now_seconds: float) -> ReportDecision:
        """Takes a checked report of an open session."""
        session = self.find(session_id, now_seconds=now_seconds)
        decision = session.accept(report, now_seconds=now_seconds)
        outdated, waiting = decision.outdated, session.waiting
        if outdated is not None and outdated in self.queue:
            self.queue.discard(outdated)
        if decision.has_superseded and waiting is not None and waiting in self.queue:
            self.queue.move_to_end(waiting)
        else:
            self._queue(session)
        return decision

    def take_work(self, *, now_seconds: float) -> PlanningWork | None:
        """The next work of the queue, if any, which goes back there or is ended there by whoever takes it.

        Each session has one report in work at a time.
        """
        work = self.queue.take(now_seconds=now_seconds)
        if work is not None and work.purpose is Purpose.REPORT:
            session = self._sessions[work.session_id]
            if work is session.waiting:  # and not back from giving way
                session.take_work()
        return work

    def install(
        self, work: PlanningWork, solved: SolvedPlan, *, create_time_seconds: float
    ) -> PublishedPlan | EndReason:
        """Puts the plan of `work` in force, or says why its session is gone. A hurried one is improved afterwards."""
        session = self._sessions.get(work.session_id)
        if session is None:
            return self._ended.reason_of(work.session_id)
        plan = self.publish(work, solved, create_time_seconds=create_time_seconds)
        session.keep_plan(plan, solved)
        session.finish_work()
        improvement = session.improve(work, solved)
        if improvement is not None:
            self.queue.add(improvement)
        self._queue(session)
        return plan

    def end_improvement(
        self, work: PlanningWork, solved: SolvedPlan | None, *, create_time_seconds: float
    ) -> PublishedPlan | None:
        """Puts an improved plan in force where it is better and still of use; None where it is not."""
        session = self._sessions.get(work.session_id)
        if session is None or not session.end_improvement(work, solved):
            return None
        assert solved is not None
        plan = self.publish(work, solved, create_time_seconds=create_time_seconds)
        session.keep_plan(plan, solved)
        return plan

    def give_up(self, work: PlanningWork) -> EndReason | None:
        """Notes that `work` has no plan; the plan in force stays. Returns why its session is gone, if it is."""
        session = self._sessions.get(work.session_id)
        if session is None:
            return self._ended.reason_of(work.session_id)
        session.finish_work()
        self._queue(session)
        return None

    def publish(self, work: PlanningWork, solved: SolvedPlan, *, create_time_seconds: float) -> PublishedPlan:
        """Gives a solved plan its identity; versions grow over all sessions of the process."""
        self._version += 1
        return PublishedPlan(
            identity=PlanIdentity(planner_epoch=self.planner_epoch, version=self._version),
            source_step=work.report.step,
            source_micro_batch=work.report.micro_batch,
            guests_L=solved.guests_L,
            stats=solved.stats,
            layer_stats_L=solved.layer_stats_L,
            gates_L=tuple(tuple(gate.value for gate in gates) for gates in solved.gates_L),
            quota_L=solved.quota_L,
            create_time_seconds=create_time_seconds,
        )

    def close(self, session_id: str) -> EndDecision | None:
        """Ends a session; None when it is not open, which is no error."""
        session = self._sessions.get(session_id)
        return None if session is None else self._end(session, EndReason.CLOSED)

    def expire(self, *, now_seconds: float) -> tuple[EndDecision, ...]:
        """Ends the sessions that have neither called nor watched within the lease."""
        silent = tuple(
            session
            for session in self._sessions.values()
            if session.num_watches == 0 and now_seconds - session.seen_seconds > self._lease_seconds
        )
        return tuple(self._end(session, EndReason.EXPIRED) for session in silent)

    def _queue(self, session: Session) -> None:
        if session.has_work and session.waiting is not None and session.waiting not in self.queue:
            self.queue.add(session.waiting)

    def _end(self, session: Session, reason: EndReason) -> EndDecision:
        del self._sessions[session.session_id]
        del self._by_group[session.spec.training_job, session.spec.group]
        self.held.take(session.spec.training_job, -held_bytes(session.spec))
        dropped, in_work = session.drop_work(), session.in_work
        uncounted = tuple(work for work in dropped if work is not in_work or work in self.queue)
        for work in dropped:
            if work in self.queue:
                self.queue.discard(work)
        # An operator's pause is for a run: one that was out of reach for longer than its lease stays paused.
        is_paused = session.is_paused and reason is EndReason.EXPIRED
        self._ended.add(session.session_id, run=_run_of(session.spec), reason=reason, is_paused=is_paused)
        return EndDecision(session=session, uncounted=uncounted)


def _run_of(spec: SessionSpec) -> Run:
    return Run(spec.training_job, spec.group, spec.incarnation)


def _check_same_content(spec: SessionSpec, opened: SessionSpec) -> None:
    field = first_difference(spec, opened)
    if field is not None:
        raise ContractError(
            Reason.INVALID_INCARNATION,
            f"incarnation {spec.incarnation} of group {spec.group!r} was opened with another {field}:"
            " start a changed run with a larger incarnation",
            field=field,
            metadata={"incarnation": str(spec.incarnation)},
        )
