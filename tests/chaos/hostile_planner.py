"""What stands between an agent and its planners and cannot be trusted; run as a script by test_hostile_planner.py.

    python hostile_planner.py FAULTS_LOG SEED PLANNER PLANNER

A real gRPC server that passes calls on to one of two real planners, and does one fault after another to them. Its port
is printed; each fault that has been delivered is a line of FAULTS_LOG.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
from chaos.hostile_plans import PLAN_FAULTS, HostilePlans
from chaos.hostile_streams import ENDING_FAULTS, NO_STREAMS, STREAM_FAULTS, HostileAnswers, PassedOn
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from taot_api.codec.duration import encode_seconds
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.refusal_details import DETAILS_KEY

SERVICE = "taot_api.v1.PlannerService"
OPENING_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""An agent that is told so when it opens a session does not ask again: a fault of its own, tested by itself."""
CODES = tuple(code for code in grpc.StatusCode if code is not grpc.StatusCode.OK)
CALL_FAULTS = (
    *(f"answers {code.name}" for code in CODES),
    "answers garbage",
    "answers a truncated message",
    "answers nothing at all",
    "answers what belongs to another method",
    "answers after the deadline",
    "never answers",
    "answer lost",
    "answer delayed",
    "call passed on twice",
    "call passed to the other planner",
    "wrong session id",
)
HONEST_SHARE = 0.45
STREAM_SHARE = 0.7
"""Of sessions; an agent whose stream is silent has no other of its session either."""


class HostilePlanner(grpc.GenericRpcHandler):
    """Answers all methods, with bytes for messages."""

    def __init__(self, planners: list[str], source: random.Random, log_path: str) -> None:
        options = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.enable_http_proxy", 0)]
        self._channels = [grpc.insecure_channel(address, options=options) for address in planners]
        self._source = source
        self._log = open(log_path, "a")  # noqa: SIM115 - as long as the process
        self._lock = threading.Lock()
        self._next_faults: dict[str, list[str]] = {}
        self._home, self._has_streams = 0, True
        self._plans, self._answers = HostilePlans(source), HostileAnswers(source)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rsplit("/", 1)[-1]
        if name == "WatchPlans":
            return grpc.unary_stream_rpc_method_handler(
                lambda data, context: self._watch(details.method, data, context)
            )
        if name == "StreamReports":
            return grpc.stream_stream_rpc_method_handler(
                lambda reports, context: self._stream(details.method, reports, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self._call(details.method, data, context))

    # One fault after the other, in an order that is shuffled anew each round.

    def _fault(self, method: str, faults: tuple[str, ...]) -> str | None:
        with self._lock:
            if self._source.random() < HONEST_SHARE:
                return None
            waiting = self._next_faults.setdefault(method, [])
            if not waiting:
                waiting.extend(faults)
                self._source.shuffle(waiting)
            return waiting.pop()

    def _note(self, method: str, fault: str) -> None:
        with self._lock:
            print(f"{method.rsplit('/', 1)[-1]}: {fault}", file=self._log, flush=True)

    def _call(self, method: str, data: bytes, context: grpc.ServicerContext) -> bytes:
        opens = method.endswith("OpenSession")
        faults = CALL_FAULTS
        if opens:
            faults = tuple(each for each in faults if each not in {f"answers {code.name}" for code in OPENING_REFUSED})
            self._home = self._source.randrange(len(self._channels))  # two planners, and nobody knows which
            self._has_streams = self._source.random() < STREAM_SHARE  # and how old they are
        fault = self._fault(method, faults)
        if fault is None:
            return self._pass_on(method, data, context)
        self._note(method, fault)
        if fault.startswith("answers ") and fault.removeprefix("answers ") in grpc.StatusCode.__members__:
            code = grpc.StatusCode[fault.removeprefix("answers ")]
            self._break_off(code, "\u2603 no reason" * self._source.choice((1, 50)), context)
        return self._spoil(fault, method, data, context)

    def _spoil(self, fault: str, method: str, data: bytes, context: grpc.ServicerContext) -> bytes:
        instead = {
            "answers garbage": lambda: self._source.randbytes(self._source.choice((1, 40, 4000))),
            "answers nothing at all": lambda: b"",
            "answers what belongs to another method": pb.WatchPlansResponse(
                plan=pb.Plan(source_step=2**62)
            ).SerializeToString,
            "never answers": lambda: self._stay_silent(context),
            "call passed to the other planner": lambda: self._pass_on(method, data, context, planner=1 - self._home),
            "wrong session id": pb.OpenSessionResponse(session=pb.Session(session_id="nobody's")).SerializeToString,
        }
        if fault in instead:
            return instead[fault]()
        answer = self._pass_on(method, data, context)
        if fault == "answers after the deadline":
            _hold(context, seconds=(context.time_remaining() or 0) + 0.1)
        elif fault == "answer delayed":
            _hold(context, seconds=self._source.uniform(0.05, 0.2))
        elif fault == "answer lost":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke after the call")
        elif fault == "call passed on twice":
            return self._pass_on(method, data, context)
        return answer[: len(answer) // 2] if fault == "answers a truncated message" else answer

    def _break_off(self, code: grpc.StatusCode, why: str, context: grpc.ServicerContext) -> None:
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # without advice an agent is silent for half a minute
            context.set_trailing_metadata(((DETAILS_KEY, _advice(seconds=self._source.uniform(0, 1))),))
        context.abort(code, why)

    def _stay_silent(self, context: grpc.ServicerContext) -> bytes:
        _hold(context, seconds=60)
        context.abort(grpc.StatusCode.UNAVAILABLE, "it took too long")

    def _pass_on(self, method: str, data: bytes, context: grpc.ServicerContext, *, planner: int | None = None) -> bytes:
        channel = self._channels[self._home if planner is None else planner]
        try:
            answer: bytes = channel.unary_unary(method)(data, timeout=min(context.time_remaining() or 5, 60))
        except grpc.RpcError as error:
            if method.endswith("OpenSession") and error.code() in OPENING_REFUSED:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            context.abort(error.code(), error.details() or "")
        return answer

    # Reports one after the other.

    def _stream(self, method: str, reports: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self._has_streams:
            self._note(method, NO_STREAMS)
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        home, other = (PassedOn(self._channels[index], method) for index in (self._home, 1 - self._home))
        try:
            for place in (home, other):
                context.add_callback(place.end)
            for index, data in enumerate(reports):
                fault = self._noted_fault(method)
                if fault in ENDING_FAULTS:
                    self._end_stream(fault, context)
                    return
                if fault == "taken without being passed on":
                    yield pb.StreamReportsResponse(answered_count=index + 1).SerializeToString()
                    continue
                answer = (other if fault == "report passed to the other planner" else home).answer(data)
                if answer is None:
                    return
                if fault == "answers late":
                    _hold(context, seconds=self._source.uniform(0.05, 0.4))
                yield from self._answers.spoil(fault, answer)
                if fault == "ends after the answer":
                    return
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):  # of a planner; else the caller has gone
                context.abort(error.code(), error.details() or "")
        finally:
            home.end()
            other.end()

    def _noted_fault(self, method: str) -> str | None:
        fault = self._fault(method, STREAM_FAULTS)
        if fault is not None:
            self._note(method, fault)
        return fault

    def _end_stream(self, fault: str, context: grpc.ServicerContext) -> None:
        if fault in ("never answers", "answers after the deadline"):
            _hold(context, seconds=60 if fault == "never answers" else 3)
        elif fault != "ends before the answer":
            name = fault.removeprefix("breaks off with ")
            code = grpc.StatusCode.__members__.get(name, self._source.choice(CODES))
            self._break_off(code, "no reason", context)

    # Plans on their way to the agent.

    def _watch(self, method: str, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        call = self._channels[self._home].unary_stream(method)(data)
        context.add_callback(call.cancel)
        try:
            for message in call:
                self._plans.keep(message)
                fault = self._fault(method, PLAN_FAULTS)
                if fault is None:
                    yield message
                    continue
                self._note(method, fault)
                if fault.startswith("breaks off with "):
                    self._break_off(self._source.choice(CODES), "no reason", context)
                if fault == "ends":
                    return
                if fault == "late":
                    _hold(context, seconds=0.3)
                try:
                    yield from self._plans.spoil(fault, message)
                except DecodeError:
                    continue
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")


def _advice(*, seconds: float) -> bytes:
    """The details of a refusal that says when to try again."""
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=encode_seconds(seconds)))
    return status.SerializeToString()


def _hold(context: grpc.ServicerContext, *, seconds: float) -> None:
    """Waits, as long as the caller does."""
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait(seconds)


def main() -> None:
    log_path, seed, *planners = sys.argv[1:]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=48))
    server.add_generic_rpc_handlers((HostilePlanner(planners, random.Random(int(seed)), log_path),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
