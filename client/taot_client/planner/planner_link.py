"""The leader's connection to the planner: everything that waits for the network waits in its threads.

The link never raises into training. It keeps the newest plan and whether the planner answered last; a planner that
is away is looked for in the background.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import grpc

from taot_api import LayerSpec, PublishedPlan, RoutingReport, SessionSpec, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client.environment import planner_access, proxy_variables
from taot_client.fork_guard import guard
from taot_client.planner.link_state import LinkState, describe
from taot_client.planner.plan_check import decode_checked
from taot_client.planner.planner_calls import PlannerCalls
from taot_client.planner.planner_channel import PlannerChannel
from taot_client.planner.refusal_details import RefusalDetails, details_of
from taot_client.planner.report_queue import ReportQueue
from taot_client.planner.retry_pause import RETRY_SECONDS, pause_seconds
from taot_client.planner.unsent_telemetry import UnsentTelemetry
from taot_client.planner_access import PlannerAccess

logger = logging.getLogger(__name__)

_CALL_SECONDS = 2.0
_MAX_WAITING_REPORTS = 4

_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)

# Its session has ended, or its token has and the file holds a new one.
_REOPENING = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED)


class PlannerLink:
    """One session with the planner, reopened as often as it takes, until the planner refuses the job."""

    def __init__(self, address: str, spec: SessionSpec, access: PlannerAccess | None = None) -> None:
        """Prepares the link to host:port or a unix: path; `start` opens it."""
        self._address = address
        self._access = access or PlannerAccess()
        self._spec = spec
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._first_answer = threading.Event()
        self._refusal: str | None = None
        self._session: pb.Session | None = None
        self._plan: PublishedPlan | None = None
        self._watch: grpc.Call | None = None
        self._channel: PlannerChannel | None = None
        self._reports = ReportQueue(capacity=_MAX_WAITING_REPORTS)
        self._unsent = UnsentTelemetry()
        self._state = LinkState(address, self._unsent)
        self._threads: list[threading.Thread] = []
        self._newest_step = -1
        self._unanswered_step: int | None = None
        self.is_paused = False
        self.num_reconnects = 0

    # What the training thread asks. None of it waits for the network, except `plan_now`.

    def start(self, *, wait: timedelta) -> str | None:
        """Opens the session in the background and gives it `wait` to succeed.

        Returns:
            Why the planner refuses this job, or None. A planner that cannot be reached is no refusal.
        """
        try:  # here, where what is wrong is shared with all ranks
            self._channel = PlannerChannel(self._address, self._access.completed(planner_access()))
        except ValueError as error:
            return str(error)
        guard(self)
        for name, target in (("session", self._keep_session), ("reports", self._send_reports)):
            thread = threading.Thread(target=self._guarded, args=(target,), name=f"taot-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        if not self._first_answer.wait(wait.total_seconds()):
            logger.warning(
                "no planner at %s after %.1f s; training goes on without it and it is looked for in the background%s",
                self._address,
                wait.total_seconds(),
                "".join(f"; {name} is set and ignored" for name in proxy_variables()),
            )
        return self._refusal

    @property
    def _stub(self) -> PlannerCalls:
        assert self._channel is not None  # started
        return self._channel.stub

    @property
    def is_connected(self) -> bool:
        """Whether the planner answered the last call."""
        return self._state.is_connected

    @property
    def num_rejected_plans(self) -> int:
        """Plans that were not accepted."""
        return self._state.num_rejected_plans

    @property
    def plan(self) -> PublishedPlan | None:
        """The newest plan that was accepted."""
        return self._plan

    @property
    def num_dropped_reports(self) -> int:
        """Reports that were never sent, because newer ones came first."""
        return self._reports.num_dropped

    def report(self, report: RoutingReport) -> None:
        """Queues a report; when the planner is slower than training, the oldest waiting one gives way."""
        self._take(report)
        dropped = self._reports.put(report)
        if dropped is not None:
            self._unsent.add_lost(dropped)
            self._unsent.add_error("report_dropped")

    def plan_now(self, report: RoutingReport, *, layer: int, deadline: timedelta) -> PublishedPlan | None:
        """Asks for a plan of one layer and waits until `deadline`; None when there is no answer.

        A planner that is away, or has missed a deadline in this step, is not asked: a step waits for one at most.
        """
        self._take(report)
        session = self._session
        if session is None or not self.is_connected or self._unanswered_step == report.step:
            return None
        request = pb.PlanNowRequest(report=codec.encode_report(session.session_id, report), layer_indices=[layer])
        try:
            response = self._stub.PlanNow(request, timeout=deadline.total_seconds())
            return self._decode(response.plan, [self._spec.layers[layer]], session)
        except grpc.RpcError as error:
            self._unanswered_step = report.step
            self._note_failed("PlanNow", error)
        except ValueError as error:
            self._state.note_rejected(error)
        return None

    def close(self, *, says_goodbye: bool = True) -> None:
        """Says goodbye, waiting for at most a second, and ends the threads."""
        if self._channel is None or os.getpid() != self._pid or self._closing.is_set():
            return
        # Before the threads end, which are no longer connected then.
        session = self._session if says_goodbye and self.is_connected else None
        self._closing.set()
        self._reports.close()
        self._end_watch()
        if session is not None:
            try:
                self._stub.CloseSession(pb.CloseSessionRequest(session_id=session.session_id), timeout=1.0)
            except grpc.RpcError as error:
                logger.info("no goodbye to the planner at %s: %s", self._address, describe(error))
        self._channel.close()  # ends calls in flight, and with them the threads
        for thread in self._threads:
            thread.join(timeout=_CALL_SECONDS)

    def abandon(self) -> object:
        """Lets go of the connection in a forked child (see `fork_guard`)."""
        connection = (self._channel, self._watch)
        self._channel = None
        return connection

    # The session thread.

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception:  # noqa: BLE001 - the top of a thread
            if not self._closing.is_set():
                logger.exception("the link to the planner has broken; training goes on without it")
        finally:
            self._state.is_connected = False

    def _keep_session(self) -> None:
        while not self._closing.is_set():
            try:
                self._open()
                if self._refusal is not None:
                    return
                self._follow()
            except grpc.RpcError as error:
                if not self._closing.is_set():
                    self._pause(self._note_failed("connection", error))
                    continue
            self._closing.wait(RETRY_SECONDS)

    def _open(self) -> None:
        """Opens the session; a planner that refuses the job is not asked again."""
        channel = self._channel
        assert channel is not None
        channel.refresh()
        try:
            response = channel.stub.OpenSession(codec.encode_session_spec(self._spec), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            if error.code() not in _REFUSALS:
                raise
            self._refusal = error.details()
            self._state.is_connected = False
            self._reports.close()
            if self._first_answer.is_set():
                logger.error("the planner refuses this job, training goes on without it: %s", self._refusal)
            self._first_answer.set()
            return
        self._session = session = response.session
        self._state.note_opened(session)
        if self._first_answer.is_set():
            self.num_reconnects += 1
        self._first_answer.set()

    def _follow(self) -> None:
        session = self._session
        assert session is not None, "it has just been opened"
        call = self._stub.WatchPlans(pb.WatchPlansRequest(session_id=session.session_id))
        with self._lock:
            self._watch = call
        for response in call:
            if self._closing.is_set():
                return
            try:
                self._plan = self._decode(response.plan, self._spec.layers, session, after=self._plan)
            except ValueError as error:
                self._state.note_rejected(error)

    def _decode(
        self, message: pb.Plan, layers: Sequence[LayerSpec], session: pb.Session, *, after: PublishedPlan | None = None
    ) -> PublishedPlan:
        epoch, step, topology = session.planner_epoch, self._newest_step, self._spec.topology
        plan = decode_checked(message, layers=layers, topology=topology, epoch=epoch, newest_step=step, after=after)
        self._state.note_epoch(plan.identity.planner_epoch)  # not before: rubbish is of no planner
        return plan

    # The report thread.

    def _send_reports(self) -> None:
        while (report := self._reports.get()) is not None:
            session = self._session
            if session is None:
                self._unsent.add_lost(report)
                continue
            try:
                report = self._unsent.ride_on(report)  # noqa: PLW2901 - whatever becomes of it becomes of the whole
                request = codec.encode_report(session.session_id, report)
                response = self._stub.ReportRouting(request, timeout=_CALL_SECONDS)
            except grpc.RpcError as error:
                if self._closing.is_set():
                    return
                self._handle_failed_report(report, error, session)
                continue
            except Exception:  # noqa: BLE001 - the top of a thread that later reports need
                self._state.note_broken_report()
                continue
            self._state.note_success()
            self._state.note_epoch(response.latest_plan.planner_epoch)
            self.is_paused = response.is_paused

    def _handle_failed_report(self, report: RoutingReport, error: grpc.RpcError, session: pb.Session) -> None:
        if error.code() in _REFUSALS:
            logger.warning("the planner refuses a report: %s", error.details())
            self._unsent.add_error("report_refused")
            return
        self._unsent.add_lost(report)
        details = self._note_failed("ReportRouting", error)
        if error.code() in _REOPENING and session is self._session:  # else it has been opened again already
            self._end_watch()
        elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._unsent.add_error("report_refused")
            self._pause(details)

    def _end_watch(self) -> None:
        """Ends the watch; unless the link is closing, the session thread then opens a new session."""
        with self._lock:
            if self._watch is not None:
                self._watch.cancel()

    def _take(self, report: RoutingReport) -> None:
        """Notes the step of a report before anybody can answer it; refuses a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError("the agent belongs to the process that created it; a forked child cannot use it")
        self._newest_step = report.step

    def _note_failed(self, what: str, error: grpc.RpcError) -> tuple[grpc.StatusCode, RefusalDetails]:
        """Notes a call that failed; a planner without room has answered all the same."""
        details = details_of(error)
        self._state.note_details(details)
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._state.note_no_room(what, error)
        else:
            self._state.note_failure(what, error)
        return error.code(), details

    def _pause(self, failed: tuple[grpc.StatusCode, RefusalDetails]) -> None:
        code, details = failed
        self._closing.wait(pause_seconds(code, details, chance=random.random()))  # noqa: S311 - keeps jobs apart, no secret
