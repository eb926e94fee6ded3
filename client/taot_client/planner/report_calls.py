"""How reports get to the planner: over one call of the session where the planner has that, else by a call each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import grpc

from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.report_call import ReportCall

if TYPE_CHECKING:
    from taot_client.planner.planner_calls import Connections

_NO_STREAM = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""An older planner, or one without room for another stream: a call for each report may be possible."""


class ReportCalls:
    """Keeps the call of the session whose reports are sent; for one thread. The call ends with its channel."""

    def __init__(self, connections: Connections, metadata: Callable[[], list[tuple[str, str]]]) -> None:
        """Opens nothing yet.

        Args:
            connections: over which the call goes.
            metadata: what goes with it.
        """
        self._connections, self._metadata = connections, metadata
        self._call: ReportCall | None = None
        self._session_id = ""
        self._single_session_id = ""

    def has_stream(self, session_id: str) -> bool:
        """Whether reports of a session are worth a try with `send`."""
        return session_id != self._single_session_id

    def forget_silence(self) -> None:
        """Tries the stream anew, after a call that nobody answered either: then it is not for the stream."""
        self._single_session_id = ""

    def send(self, request: pb.StreamReportsRequest, *, timeout: float) -> pb.ReportRoutingResponse | None:
        """Sends a report and waits for the answer; None when the planner takes none of this session in this way.

        Where the first answer of a stream does not come in time, something in between may hold streams back until
        they end: later reports of the session are for calls.

        Raises:
            grpc.RpcError: when it is refused or not answered.
        """
        call = self._call_of(request.report.session_id)
        try:
            return call.send(request, timeout=timeout)
        except grpc.RpcError as error:
            is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if call.has_answered or not (is_silent or error.code() in _NO_STREAM):
                raise
            self._single_session_id = request.report.session_id
            if is_silent:
                raise
            return None

    def _call_of(self, session_id: str) -> ReportCall:
        call = self._call
        if call is not None and session_id == self._session_id and not call.is_over:
            return call
        if call is not None:
            call.close()
            self._call = None
        with ExitStack() as stack:
            stub = stack.enter_context(self._connections.in_use())
            call = ReportCall(partial(stub.StreamReports, metadata=self._metadata()))
            # The connection is in use until the call is over.
            call.start(on_over=stack.pop_all().close)
        self._call, self._session_id = call, session_id
        return call
