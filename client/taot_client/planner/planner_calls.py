"""Calls to the planner: each with the token, and in a span where traces are wanted.

No interceptors: with them gRPC looks a method up in its channel at every call, which ends the process with a
segmentation fault where another thread has closed the channel. A stub made once raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc

from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceStub
from taot_client.planner.call_spans import CallSpans
from taot_client.planner.report_calls import ReportCalls


class LostCallError(grpc.RpcError):
    """A call that was not made, since this side has closed the connection."""

    def code(self) -> grpc.StatusCode:
        """CANCELLED, as for calls that were in flight."""
        return grpc.StatusCode.CANCELLED

    def details(self) -> str:
        """Why."""
        return "this side has closed the connection"

    def trailing_metadata(self) -> tuple[()]:
        """What the planner says: nothing."""
        return ()


class _Connection:
    """A channel, its stub, and how many calls it carries."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.stub = PlannerServiceStub(channel)
        self.num_calls = 0


class Connections:
    """The channel at hand of several threads. One that was replaced closes with the last of its calls."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._lock = threading.Lock()
        self._current = _Connection(channel)
        self._is_closed = False

    @contextmanager
    def in_use(self) -> Iterator[PlannerServiceStub]:
        """The planner's methods, for one call.

        Raises:
            LostCallError: if this side has closed the connection.
        """
        with self._lock:
            if self._is_closed:
                raise LostCallError
            used = self._current
            used.num_calls += 1
        try:
            yield used.stub
        except ValueError as error:  # which grpc raises for a closed channel, and for nothing else in a call
            raise LostCallError from error
        finally:
            with self._lock:
                used.num_calls -= 1
                is_left = used is not self._current and used.num_calls == 0
            if is_left:
                used.channel.close()

    def replace(self, channel: grpc.Channel) -> None:
        """Makes further calls go over `channel`; those in flight end as they would have."""
        left = _Connection(channel)
        with self._lock:
            if not self._is_closed:
                left, self._current = self._current, left
            is_idle = left.num_calls == 0
        if is_idle:
            left.channel.close()

    def close(self) -> None:
        """Closes the channel at hand, which ends the calls in flight over it."""
        with self._lock:
            self._is_closed = True
        self._current.channel.close()


class PlannerCalls:
    """The planner's methods, over the connection at hand. May be used by several threads.

    All raise grpc.RpcError, also where this side has closed the connection.
    """

    def __init__(self, connections: Connections, token: Callable[[], str | None], spans: CallSpans | None) -> None:
        self._connections = connections
        self._token = token
        self._spans = spans
        self._report_calls = ReportCalls(connections, self._token_metadata)

    def OpenSession(self, request: pb.OpenSessionRequest, *, timeout: float) -> pb.OpenSessionResponse:
        """Opens a session."""
        return cast(pb.OpenSessionResponse, self._call("OpenSession", request, timeout))

    def ReportRouting(self, request: pb.ReportRoutingRequest, *, timeout: float) -> pb.ReportRoutingResponse:
        """Reports counts, over the stream of the session where the planner has streams. For one thread."""
        if self._report_calls.has_stream(request.session_id):
            answer = self._stream(request, timeout)
            if answer is not None:
                return answer
        try:
            return cast(pb.ReportRoutingResponse, self._call("ReportRouting", request, timeout))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._report_calls.forget_silence()
            raise

    def PlanNow(self, request: pb.PlanNowRequest, *, timeout: float) -> pb.PlanNowResponse:
        """Asks for a plan and waits for it."""
        return cast(pb.PlanNowResponse, self._call("PlanNow", request, timeout))

    def CloseSession(self, request: pb.CloseSessionRequest, *, timeout: float) -> pb.CloseSessionResponse:
        """Says goodbye."""
        return cast(pb.CloseSessionResponse, self._call("CloseSession", request, timeout))

    def WatchPlans(self, request: pb.WatchPlansRequest) -> Any:
        """A call that yields plans as they are made, until it is cancelled."""
        with self._connections.in_use() as stub:
            call = stub.WatchPlans(request, metadata=self._token_metadata())
        return call if self._spans is None else self._spans.watch(call)

    def _stream(self, report: pb.ReportRoutingRequest, timeout: float) -> pb.ReportRoutingResponse | None:
        request = pb.StreamReportsRequest(report=report)
        if self._spans is None:
            return self._report_calls.send(request, timeout=timeout)
        with self._spans.call("ReportRouting", report) as context:
            request.trace_context.update(context)
            return self._report_calls.send(request, timeout=timeout)

    def _call(self, method: str, request: Any, timeout: float) -> Any:
        metadata = self._token_metadata()
        with self._connections.in_use() as stub:
            if self._spans is None:
                return getattr(stub, method)(request, timeout=timeout, metadata=metadata)
            with self._spans.call(method, request) as context:
                return getattr(stub, method)(request, timeout=timeout, metadata=[*metadata, *context])

    def _token_metadata(self) -> list[tuple[str, str]]:
        # Credentials of gRPC would add it on encrypted channels only.
        token = self._token()
        return [] if token is None else [("authorization", f"Bearer {token}")]
