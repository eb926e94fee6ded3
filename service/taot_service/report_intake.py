"""Takes reports, from calls of their own or one after the other from a stream. Thin; decisions are the planner's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from taot_api.codec import decode_report, encode_identity
from taot_api.contract_error import ContractError, Reason
from taot_api.routing_report import check_report
from taot_api.v1 import planner_pb2 as pb
from taot_service.planner import Planner
from taot_service.report_stream import ReportStream
from taot_service.session import Session


def take_report(planner: Planner, session: Session, message: pb.ReportRoutingRequest) -> None:
    """Takes a report of an open session; its plan follows in the background.

    Raises:
        ContractError: for what is wrong with it.
    """
    report = decode_report(message, session.spec)
    check_report(report, session.spec)
    planner.accept_report(session, report)


def answer_to_report(session: Session) -> pb.ReportRoutingResponse:
    """What the sender of a report is told."""
    response = pb.ReportRoutingResponse(is_paused=session.is_paused)
    if session.newest_plan is not None:
        response.latest_plan.CopyFrom(encode_identity(session.newest_plan.identity))
    return response


class StreamedReports:
    """The reports of one call, which are all of the session that the first of them names."""

    def __init__(
        self,
        planner: Planner,
        stream: ReportStream,
        *,
        find_session: Callable[[str], Session],
        renew_caller: Callable[[], None],
    ) -> None:
        """Knows no session yet.

        Args:
            planner: takes the reports.
            stream: the call.
            find_session: the open session of an id that the caller may use; raises ContractError.
            renew_caller: looks the caller up again, who may be let in no longer; raises ContractError.
        """
        self._planner, self._stream = planner, stream
        self._find_session, self._renew_caller = find_session, renew_caller
        self._session: Session | None = None

    @property
    def training_job(self) -> str:
        """That of the session, empty before the first report."""
        return "" if self._session is None else self._session.spec.training_job

    def take(self, request: pb.StreamReportsRequest | ContractError) -> None:
        """Takes one report, or what is known to be wrong with it.

        Raises:
            ContractError: for what is wrong with it, or with the call.
        """
        if isinstance(request, ContractError):
            raise request
        self._renew_caller()
        session_id = request.report.session_id
        if self._session is not None and session_id != self._session.session_id:
            message = "is not that of the first report: all reports of a call are of one session, open another call"
            raise ContractError(Reason.INVALID_MESSAGE, message, field="session_id")
        session = self._find_session(session_id)
        if self._session is None:
            self._planner.report_streams.name(self._stream, session_id)
            self._session = session
        with self._span(request):
            take_report(self._planner, session, request.report)

    def answer(self) -> pb.ReportRoutingResponse:
        """What the sender of the reports taken so far is told."""
        assert self._session is not None, "no report is taken without"
        return answer_to_report(self._session)

    def _span(self, request: pb.StreamReportsRequest) -> AbstractContextManager[None]:
        traces = self._planner.traces
        return nullcontext() if traces is None else traces.report_of_stream(request.trace_context)
