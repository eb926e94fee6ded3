"""The synchronous gRPC client of tests, and what it finds in a refusal."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from taot_api.codec import decode_plan, encode_report, encode_session_spec
from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceStub

CALL_SECONDS = 60
"""Deadline of calls that should be quick: a bound against hangs only."""


class PlannerClient:
    """The planner API in the project's own data types."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.stub = PlannerServiceStub(channel)

    def open(self, spec: SessionSpec) -> str:
        return self.stub.OpenSession(encode_session_spec(spec), timeout=CALL_SECONDS).session.session_id

    def report(self, session_id: str, report: RoutingReport) -> pb.ReportRoutingResponse:
        return self.stub.ReportRouting(encode_report(session_id, report), timeout=CALL_SECONDS)

    def watch(self, session_id: str, *, after_version: int = 0, **options: Any) -> Any:
        request = pb.WatchPlansRequest(session_id=session_id, after_version=after_version)
        return self.stub.WatchPlans(request, **({"timeout": CALL_SECONDS} | options))

    def plan_now(
        self, session_id: str, report: RoutingReport, *, layer_indices: tuple[int, ...] = ()
    ) -> pb.PlanNowResponse:
        request = pb.PlanNowRequest(report=encode_report(session_id, report), layer_indices=layer_indices)
        return self.stub.PlanNow(request, timeout=CALL_SECONDS)

    def report_and_wait(self, session_id: str, spec: SessionSpec, report: RoutingReport) -> PublishedPlan:
        """Reports, and waits for the plan that comes of it."""
        self.report(session_id, report)
        watch = self.watch(session_id)
        for response in watch:
            plan = read_plan(response.plan, spec)
            if (plan.source_step, plan.source_micro_batch) == (report.step, report.micro_batch):
                watch.cancel()
                return plan
        raise AssertionError("the watch ended without the plan")


class ReportStream:
    """A stream of reports: what is sent, and what has been answered so far."""

    def __init__(self, stub: PlannerServiceStub, **options: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub.StreamReports(iter(self._requests.get, None), **({"timeout": CALL_SECONDS} | options))
        self.num_answered = 0
        self.refused: dict[int, bytes] = {}
        self.response: pb.ReportRoutingResponse | None = None

    def send(self, session_id: str, report: RoutingReport) -> None:
        self.send_message(encode_report(session_id, report))

    def send_message(self, report: pb.ReportRoutingRequest) -> None:
        self._requests.put(pb.StreamReportsRequest(report=report))

    def end(self) -> None:
        """Sends nothing more; needed in the end, however the call has ended."""
        self._requests.put(None)

    def read(self, num_answered: int | None = None) -> None:
        """Reads answers until there are that many, or all; raises what the call ends with."""
        while num_answered is None or self.num_answered < num_answered:
            answer = next(self.call, None)
            if answer is None:
                return
            self.num_answered = answer.answered_count
            self.refused |= {each.index: each.status for each in answer.refused_reports}
            if answer.HasField("response"):
                self.response = answer.response


@contextlib.contextmanager
def report_stream(stub: PlannerServiceStub, **options: Any) -> Iterator[ReportStream]:
    stream = ReportStream(stub, **options)
    try:
        yield stream
    finally:
        stream.end()
        stream.call.cancel()


def read_plan(message: pb.Plan, spec: SessionSpec) -> PublishedPlan:
    return decode_plan(message, num_ranks=spec.topology.num_ranks, num_slots=spec.topology.max_slots)


@contextlib.contextmanager
def planner_client(address: str) -> Iterator[PlannerClient]:
    # A pool of its own, so that the channel never reuses the connection of a test before.
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield PlannerClient(channel)


class SeenRefusal(NamedTuple):
    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    violations: list[error_details_pb2.BadRequest.FieldViolation]


def refusal(call: Callable[[], Any]) -> SeenRefusal:
    """What a refused call says in its status and in its details, which must agree."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    trailing = dict(error.trailing_metadata())
    assert "grpc-status-details-bin" in trailing, f"no details in {error.code()}: {error.details()}"
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        for message in (info, bad_request):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    assert info.domain == "taot"
    for value in info.metadata.values():
        assert value in status.message
    return SeenRefusal(error.code(), status.message, info, list(bad_request.field_violations))
