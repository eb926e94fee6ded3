"""The gRPC front end: messages in, messages out. Thin; decisions are the planner's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from taot_api.codec import decode_report, decode_session_spec, encode_plan
from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import check_report
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1 import planner_pb2_grpc
from taot_planning import __version__
from taot_service.grpc_gate import CallerJobs
from taot_service.intake_pace import IntakeClock
from taot_service.limits import check_limits
from taot_service.planner import Planner
from taot_service.report_intake import StreamedReports, answer_to_report, take_report
from taot_service.report_stream import ReportStream
from taot_service.session import Session

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    """Implements taot_api.v1.PlannerService; what it raises as ContractError is refused by the `CallGuard`."""

    def __init__(self, planner: Planner, jobs: CallerJobs) -> None:
        self._planner, self._jobs = planner, jobs

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionResponse:
        """Opens the session of one group."""
        _time_remaining(context)
        return self._open_session(request)

    async def ReportRouting(self, request: pb.ReportRoutingRequest, context: Context) -> pb.ReportRoutingResponse:
        """Takes a report; its plan follows in the background."""
        _time_remaining(context)
        session = self._find_session(request.session_id)
        clock = IntakeClock()
        try:
            take_report(self._planner, session, request)
            answer = answer_to_report(session)
        finally:  # what is wrong with it may have taken as long to find
            await self._planner.report_streams.pace.rest(session.spec.training_job, clock)
        return answer

    async def StreamReports(self, requests: AsyncIterator[Any], context: Context) -> None:
        """Takes reports of a session as they come, and answers many at once."""
        del requests  # read from the context, one by one
        streams = self._planner.report_streams
        stream = ReportStream(context, pace=streams.pace, on_refusal=self._planner.metrics.count_refusal)
        reports = StreamedReports(self._planner, stream, find_session=self._find_session, renew_caller=self._jobs.renew)
        with streams.open(stream, caller=self._jobs.caller_of(context)):
            await stream.run(reports)

    async def PlanNow(self, request: pb.PlanNowRequest, context: Context) -> pb.PlanNowResponse:
        """Plans while the caller waits."""
        return await self._plan_now(request, timeout_seconds=_time_remaining(context))

    async def WatchPlans(self, request: pb.WatchPlansRequest, context: Context) -> AsyncIterator[pb.WatchPlansResponse]:
        """Streams plans until the session ends."""
        del context
        session = self._find_session(request.session_id)
        subscription = self._planner.subscribe(session, after_version=request.after_version)
        try:
            while True:
                yield await subscription.next_encoded(_encode_response)
        finally:
            self._planner.unsubscribe(session, subscription)

    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.GetPlanResponse:
        """Returns one plan that is still kept."""
        _time_remaining(context)
        return self._get_plan(request)

    async def CloseSession(self, request: pb.CloseSessionRequest, context: Context) -> pb.CloseSessionResponse:
        """Closes a session."""
        _time_remaining(context)
        return self._close_session(request)

    def _open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        # Before the rest is read: what a caller may not open needs no answer to what is wrong with it.
        self._jobs.check(request.training_job)
        check_limits(request, self._planner.config)
        session = self._planner.open_session(decode_session_spec(request))
        create_time = Timestamp()
        create_time.FromNanoseconds(round(session.create_time_seconds * 1e9))
        lease_duration = Duration()
        lease_duration.FromNanoseconds(round(self._planner.config.lease_seconds * 1e9))
        return pb.OpenSessionResponse(
            session=pb.Session(
                session_id=session.session_id,
                planner_epoch=self._planner.planner_epoch,
                create_time=create_time,
                lease_duration=lease_duration,
                planner_release=__version__,
            )
        )

    def _find_session(self, session_id: str) -> Session:
        """The open session, which is thereby kept alive; one of another caller's job is not there."""
        if self._is_foreign(session_id):
            raise self._planner.never_opened(session_id)
        return self._planner.find_session(session_id)

    def _is_foreign(self, session_id: str) -> bool:
        job = self._planner.job_of(session_id)
        return job is not None and not self._jobs.may_use(job)

    async def _plan_now(self, request: pb.PlanNowRequest, *, timeout_seconds: float) -> pb.PlanNowResponse:
        session = self._find_session(request.report.session_id)
        layers = _select_layers(request, session.spec)
        request.report.ClearField("telemetry")
        try:
            report = decode_report(request.report, session.spec, layers=layers)
            check_report(report, session.spec, layers=layers)
        except ContractError as error:
            raise error.within("report") from error
        plan = await self._planner.plan_now(session, report, layers=layers, timeout_seconds=timeout_seconds)
        return pb.PlanNowResponse(plan=encode_plan(plan))

    def _get_plan(self, request: pb.GetPlanRequest) -> pb.GetPlanResponse:
        session = self._find_session(request.session_id)
        plan = session.find_plan(request.version) if request.HasField("version") else session.newest_plan
        if plan is None:
            raise _plan_not_found(session, request)
        return pb.GetPlanResponse(plan=encode_plan(plan))

    def _close_session(self, request: pb.CloseSessionRequest) -> pb.CloseSessionResponse:
        if not self._is_foreign(request.session_id):
            self._planner.close_session(request.session_id)
        return pb.CloseSessionResponse()


def _encode_response(plan: PublishedPlan) -> pb.WatchPlansResponse:
    return pb.WatchPlansResponse(plan=encode_plan(plan))


def _time_remaining(context: Context) -> float:
    """Seconds until the caller gives up.

    Raises:
        ContractError: DEADLINE_REQUIRED when it never does.
    """
    # None stands for "no deadline", although the type says otherwise.
    seconds: float | None = context.time_remaining()
    if seconds is None:
        raise ContractError(
            Reason.DEADLINE_REQUIRED,
            "the call has no deadline: set one, so that training never waits without a bound",
        )
    return seconds


def _select_layers(request: pb.PlanNowRequest, spec: SessionSpec) -> tuple[LayerSpec, ...]:
    indices = list(request.layer_indices)
    if not indices:
        return spec.layers
    for position, index in enumerate(indices):
        field = f"layer_indices[{position}]"
        if not 0 <= index < len(spec.layers):
            message = f"must be below the {len(spec.layers)} layers of the session, got {index}"
            raise ContractError(Reason.INVALID_LAYER, message, field=field)
    if len(set(indices)) != len(indices):
        raise ContractError(Reason.INVALID_LAYER, "names a layer twice: name each once", field="layer_indices")
    return tuple(spec.layers[index] for index in indices)


def _plan_not_found(session: Session, request: pb.GetPlanRequest) -> ContractError:
    if not request.HasField("version"):
        return ContractError(Reason.PLAN_NOT_FOUND, "the session has no plan yet: report routing first")
    return ContractError(
        Reason.PLAN_NOT_FOUND,
        f"plan {request.version} of session {session.session_id!r} was never made or is no longer kept:"
        " ask for the newest by leaving the version out",
        field="version",
        metadata={"version": str(request.version), "session_id": session.session_id},
    )
