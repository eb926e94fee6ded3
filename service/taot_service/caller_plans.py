"""Plans for callers that wait for them (PlanNow): who may wait, for how long, and what they are told.

Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time

from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import LayerSpec
from taot_service.admission import caller_bytes, check_caller_room, check_waiting_plans
from taot_service.config import ServiceConfig
from taot_service.metrics import ServiceMetrics
from taot_service.plan_traces import PlanTraces
from taot_service.planning_work import FinishedWork, PlanningWork, Purpose, SolvedPlan, SolverFailure
from taot_service.session import Session
from taot_service.session_book import SessionBook
from taot_service.session_lines import log_failure
from taot_service.solver_pool import SolverPool


class CallerPlans:
    """Asks the solver threads on behalf of callers."""

    def __init__(
        self,
        book: SessionBook,
        pool: SolverPool,
        *,
        config: ServiceConfig,
        metrics: ServiceMetrics,
        traces: PlanTraces | None,
    ) -> None:
        self._book, self._pool = book, pool
        self._config, self._metrics, self._traces = config, metrics, traces

    async def plan(
        self, session: Session, report: RoutingReport, *, layers: tuple[LayerSpec, ...], timeout_seconds: float
    ) -> PublishedPlan:
        """Plans a checked report, with token quotas; nothing is kept.

        Raises:
            ContractError: when there is no plan in time, or too many wait for one.
        """
        check_waiting_plans(self._book.queue, session.session_id, self._config)
        wanted_bytes = caller_bytes(session.spec, layers)
        check_caller_room(session.spec, wanted_bytes, self._config, self._book.held)
        with self._book.held.holding(session.spec.training_job, wanted_bytes):
            return await self._plan(session, report, layers=layers, timeout_seconds=timeout_seconds)

    async def _plan(
        self, session: Session, report: RoutingReport, *, layers: tuple[LayerSpec, ...], timeout_seconds: float
    ) -> PublishedPlan:
        trace = self._traces.note_checked(session.session_id, report) if self._traces is not None else None
        now_seconds = time.monotonic()
        work = PlanningWork(
            session_id=session.session_id,
            spec=session.spec,
            layers=layers,
            report=report,
            arrival_seconds=now_seconds,
            deadline_seconds=now_seconds + timeout_seconds,
            purpose=Purpose.CALLER,
        )
        finished = await self._solve(work, timeout_seconds=timeout_seconds)
        plan = self._book.publish(work, self._solved(session, finished), create_time_seconds=time.time())
        if self._traces is not None and trace is not None:
            self._traces.note_answer(finished, trace, version=plan.identity.version)
        self._metrics.plans.labels("answered").inc()
        self._metrics.observe_times(finished, now_seconds=time.monotonic())
        return plan

    async def _solve(self, work: PlanningWork, *, timeout_seconds: float) -> FinishedWork:
        try:
            return await asyncio.wait_for(self._pool.solve_now(work), timeout_seconds)
        except asyncio.TimeoutError:
            self._metrics.plans.labels("abandoned").inc()
            message = f"no plan within the {timeout_seconds:.3f} s that the caller gave: go on without"
            raise ContractError(Reason.DEADLINE_EXCEEDED, message) from None
        except asyncio.CancelledError:
            self._metrics.plans.labels("abandoned").inc()
            raise

    def _solved(self, session: Session, finished: FinishedWork) -> SolvedPlan:
        result = finished.result
        if not isinstance(result, SolverFailure):
            return result
        if result.is_abandoned:
            self._metrics.plans.labels("abandoned").inc()
            raise ContractError(Reason.DEADLINE_EXCEEDED, "no plan in the time that the caller gave: go on without")
        self._metrics.plans.labels("failed").inc()
        if result.error is not None:
            log_failure(session, finished.work, result.error)
        raise ContractError(Reason.PLANNING_FAILED, f"planning failed ({result.message}): go on without a plan")
