"""Answers to streamed reports that nobody should believe, made from real ones."""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence

import grpc
from google.rpc import status_pb2

from taot_api.v1 import planner_pb2 as pb

NO_STREAMS = "a planner without streams"
"""Of sessions whose reports need calls of their own; how it is with a session is decided when it is opened."""

ENDING_FAULTS = (
    "never answers",
    "answers after the deadline",
    "ends before the answer",
    "breaks off with a status",
    "breaks off with UNIMPLEMENTED",
    "breaks off with RESOURCE_EXHAUSTED",
)
"""With these a report has no answer and its stream no other report."""

STREAM_FAULTS = (
    *ENDING_FAULTS,
    "garbage",
    "truncated",
    "an empty answer",
    "answered before it was asked",
    "answers late",
    "ends after the answer",
    "more answered than sent",
    "a negative count",
    "a count that falls",
    "refused with garbage",
    "refused with OK",
    "refused with a code that is none",
    "refused with NOT_FOUND",
    "refused with UNIMPLEMENTED",
    "refused again and again",
    "refuses what was never sent",
    "an epoch without end",
    "twice",
    "taken without being passed on",
    "report passed to the other planner",
)
_ABSURD = (-1, -(2**63), 10**6, 2**63 - 1)


class PassedOn:
    """A stream to a real planner, one report after the other."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._reports: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(self._reports.get, None))

    def answer(self, report: bytes) -> bytes | None:
        """The answer to a report, None when the call has ended; raises grpc.RpcError."""
        self._reports.put(report)
        answer: bytes | None = next(self._call, None)
        return answer

    def end(self) -> None:
        """Ends the call, whoever waits for it."""
        self._reports.put(None)
        self._call.cancel()


class HostileAnswers:
    """Spoils the answers of streams."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def spoil(self, fault: str | None, answer: bytes) -> Sequence[bytes]:
        """What arrives instead of `answer`; itself, where the fault is not in what arrives."""
        if fault is None:
            return [answer]
        spoilt = pb.StreamReportsResponse.FromString(answer)
        whole = {
            "garbage": lambda: [self._source.randbytes(self._source.choice((1, 40, 4000)))],
            "truncated": lambda: [answer[: len(answer) // 2]],
            "an empty answer": lambda: [b""] * self._source.choice((1, 1000)),
            "answered before it was asked": lambda: [answer, _counting(spoilt, spoilt.answered_count + 1)],
            "more answered than sent": lambda: [_counting(spoilt, self._source.choice((2**31, 2**62, 2**63 - 1)))],
            "a negative count": lambda: [_counting(spoilt, self._source.choice((-1, -(2**63)))), answer],
            "a count that falls": lambda: [answer, _counting(spoilt, spoilt.answered_count - 1)],
            "refused again and again": lambda: [self._refusing(spoilt, b"\x08\x03")] * 5,
            "twice": lambda: [answer, answer],
        }
        if fault in whole:
            return whole[fault]()
        if fault.startswith("refused with "):
            return [self._refusing(spoilt, self._status(fault.removeprefix("refused with ")))]
        if fault == "refuses what was never sent":
            indices = [*_ABSURD, spoilt.answered_count] * self._source.choice((1, 1000))
            spoilt.refused_reports.extend([pb.RefusedReport(index=index, status=b"\x08\x05") for index in indices])
        elif fault == "an epoch without end":
            spoilt.response.latest_plan.planner_epoch = "e" * 5000
        return [spoilt.SerializeToString()]

    def _status(self, what: str) -> bytes:
        if what == "garbage":
            return self._source.randbytes(self._source.choice((1, 40, 4000)))
        code = 99 if what == "a code that is none" else grpc.StatusCode[what].value[0]
        return status_pb2.Status(code=code, message="\u2603 no reason" * 50).SerializeToString()

    @staticmethod
    def _refusing(answer: pb.StreamReportsResponse, status: bytes) -> bytes:
        refused = pb.RefusedReport(index=answer.answered_count - 1, status=status)
        return pb.StreamReportsResponse(
            answered_count=answer.answered_count, refused_reports=[refused]
        ).SerializeToString()


def _counting(answer: pb.StreamReportsResponse, number: int) -> bytes:
    """The same answer for so many reports."""
    return pb.StreamReportsResponse(answered_count=number, response=answer.response).SerializeToString()
