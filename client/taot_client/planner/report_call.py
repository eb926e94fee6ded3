"""The call over which the reports of a session go to the planner, one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.refusal_details import DETAILS_KEY

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class ReportError(grpc.RpcError):
    """A report that was refused or not answered, as the error of a call of its own."""

    def __init__(self, code: grpc.StatusCode, details: str, status: bytes | None = None) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._status = code, details, status

    def code(self) -> grpc.StatusCode:
        """Its status."""
        return self._code

    def details(self) -> str:
        """What the planner says."""
        return self._details

    def trailing_metadata(self) -> tuple[Any, ...]:
        """The details of its refusal, if there are any."""
        return () if self._status is None else ((DETAILS_KEY, self._status),)


class ReportCall:
    """A call that is open, with a thread that reads its answers. For one sender; others may `close` it."""

    def __init__(self, open_call: Callable[[Iterator[pb.StreamReportsRequest]], Any]) -> None:
        """Opens the call; `start` must follow.

        Raises:
            ValueError: where the channel is closed.
        """
        self._requests: queue.SimpleQueue[pb.StreamReportsRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_sent = self._num_answered = 0
        self._refused: dict[int, bytes] = {}
        self._response = pb.ReportRoutingResponse()
        self._error: grpc.RpcError | None = None
        self._is_closed = False
        # gRPC reads it in a thread of its own, which ends with None.
        self._call = open_call(iter(self._requests.get, None))

    @property
    def is_over(self) -> bool:
        """Whether no report should be sent any more."""
        return self._is_closed or self._error is not None

    @property
    def has_answered(self) -> bool:
        """Whether the planner has answered a report, well or not."""
        return self._num_answered > 0

    def start(self, *, on_over: Callable[[], None]) -> None:
        """Begins to read answers; calls `on_over` from the thread that does once the call is over."""
        threading.Thread(target=self._read, args=(on_over,), name="taot-answers", daemon=True).start()

    def send(self, request: pb.StreamReportsRequest, *, timeout: float) -> pb.ReportRoutingResponse:
        """Sends a report and waits for its answer, for `timeout` seconds.

        Raises:
            grpc.RpcError: when it is refused, when there is no answer, which ends the call, and when the call is over.
        """
        index, self._num_sent = self._num_sent, self._num_sent + 1
        self._requests.put(request)
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._num_answered > index or self._error is not None, timeout)
            if self._num_answered > index:
                status = self._refused.pop(index, None)
                if status is not None:
                    raise _refusal(status)
                return self._response
            error = self._error
        if not in_time or error is None:
            self.close()
            raise ReportError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer to a report within {timeout} s")
        raise error

    def close(self) -> None:
        """Ends the call."""
        self._is_closed = True
        self._call.cancel()

    def _read(self, on_over: Callable[[], None]) -> None:
        error: grpc.RpcError = ReportError(grpc.StatusCode.UNAVAILABLE, "the planner has ended the call")
        try:
            for answer in self._call:
                with self._changed:
                    self._note(answer)
                    self._changed.notify_all()
        except grpc.RpcError as caught:
            error = caught
        finally:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._requests.put(None)
            on_over()

    def _note(self, answer: pb.StreamReportsResponse) -> None:
        self._num_answered = max(self._num_answered, min(answer.answered_count, self._num_sent))
        # Of the report that is waited for; nobody asks for others.
        self._refused = {each.index: each.status for each in answer.refused_reports if each.index == self._num_sent - 1}
        if answer.HasField("response"):
            self._response = answer.response


def _refusal(packed: bytes) -> ReportError:
    try:
        status = status_pb2.Status.FromString(packed)
    except DecodeError:
        return ReportError(grpc.StatusCode.UNKNOWN, "a report was refused, and why cannot be read")
    return ReportError(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, packed)
