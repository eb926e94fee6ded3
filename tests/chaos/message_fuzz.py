"""Sends spoilt requests to a planner and keeps what it says to them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import grpc
from chaos.message_mutator import Mutator
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from planner_client import PlannerClient, planner_client
from routing_samples import make_report, make_spec

from taot_api import MeasuredRates, RankTelemetry, SessionSpec
from taot_api.codec import encode_report, encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_planning import PlanningOptions

SERVICE = "/taot_api.v1.PlannerService/"
METHODS = ("OpenSession", "ReportRouting", "PlanNow", "WatchPlans", "GetPlan", "CloseSession")
DEADLINE_SECONDS = 30

CLEAN = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""What a spoilt request may be answered with: anything else is the planner's fault."""


@dataclass
class FuzzOutcome:
    """What became of the requests."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method and status code."""

    faults: list[str] = field(default_factory=list)
    """Answers that no request may cause, with the request."""

    def add(self, other: FuzzOutcome) -> None:
        self.answers.update(other.answers)
        self.faults.extend(other.faults)

    def table(self) -> str:
        codes = sorted({code for _, code in self.answers})
        rows = [["method", *codes]]
        rows += [[method, *[str(self.answers[method, code]) for code in codes]] for method in METHODS]
        return "\n".join("  ".join(cell.rjust(18) for cell in row) for row in rows)


def samples(session_id: str, spec: SessionSpec, *, incarnation: int) -> Mapping[str, Message]:
    """One valid request of each method, with every field in use."""
    num_ranks, num_layers = spec.topology.num_ranks, len(spec.layers)
    telemetry = RankTelemetry(
        computed_tokens_L=spec.topology.slots_R[:1].repeat(num_layers),
        exposed_transfer_seconds=0.5,
        transfer_seconds=1.5,
        fallbacks={"planner_away": 1},
        errors={"call_failed": 2},
    )
    rates = MeasuredRates(token_picoseconds_L=(1000,) * num_layers, bandwidth_V=(10**9,) * len(spec.topology.levels))
    report = make_report(spec, step=incarnation, telemetry_R=(telemetry,) * num_ranks, measured_rates=rates)
    opened = make_spec(training_job="fuzz", group=f"ep{incarnation % 8}", incarnation=incarnation + 1)
    request = encode_report(session_id, report)
    return {
        "OpenSession": encode_session_spec(opened),
        "ReportRouting": request,
        "PlanNow": pb.PlanNowRequest(report=request, layer_indices=[*range(num_layers)]),
        "WatchPlans": pb.WatchPlansRequest(session_id=session_id, after_version=1),
        "GetPlan": pb.GetPlanRequest(session_id=session_id, version=1),
        "CloseSession": pb.CloseSessionRequest(session_id="not-" + session_id),
    }


def fuzz(address: str, source: random.Random, *, num_inputs: int, should_stop: Callable[[], bool]) -> FuzzOutcome:
    """Sends `num_inputs` spoilt requests over a connection of its own."""
    outcome, mutator = FuzzOutcome(), Mutator(source)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 2**28)]
    with grpc.insecure_channel(address, options=options) as channel, planner_client(address) as client:
        spec, session_id = make_spec(), ""
        for number in range(num_inputs):
            if should_stop():
                break
            if number % 200 == 0:  # it may be gone: some of what is sent closes it
                session_id = client.open(spec)
            method = source.choice(METHODS)
            data = mutator.request(samples(session_id, spec, incarnation=number)[method])
            code, what = send(channel, method, data)
            outcome.answers[method, code.name] += 1
            if code not in CLEAN:
                outcome.faults.append(f"{method} {code.name} {what[:300]!r} for {len(data)} bytes {data[:400].hex()}")
        with contextlib.suppress(grpc.RpcError):
            client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=DEADLINE_SECONDS)
    return outcome


def send(channel: grpc.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    """Sends bytes as a request; the status, and the reason or the details.

    A watch that is served is left after a moment: it would go on for ever.
    """
    try:
        if method == "WatchPlans":
            list(channel.unary_stream(SERVICE + method)(data, timeout=0.02))
        else:
            channel.unary_unary(SERVICE + method)(data, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        if method == "WatchPlans" and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return grpc.StatusCode.OK, ""
        return error.code(), reason_of(error) or error.details() or ""
    return grpc.StatusCode.OK, ""


def reason_of(error: grpc.RpcError) -> str:
    """The reason of a refusal by the planner itself, or an empty string."""
    info = error_details_pb2.ErrorInfo()
    status = status_pb2.Status.FromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    return info.reason


def plans_of_a_quiet_job(
    client: PlannerClient, *, training_job: str, num_steps: int, is_done: Callable[[], bool]
) -> list:
    """The guests of each step of a well-behaved job that reports, waits for the plan, and so on.

    It goes on until it is done and has made `num_steps` steps; steps repeat their counts after `num_steps`.
    """
    options = PlanningOptions(effort="fast")  # with others the planner chooses how hard it searches by what waits
    spec = make_spec(training_job=training_job, experts_L=(16, 24), num_ranks=8, recent_reports=0, options=options)
    session_id = client.open(spec)
    plans: list[list] = []
    while len(plans) < num_steps or not is_done():
        step = len(plans)
        like = make_report(spec, step=1 + step % num_steps)
        plan = client.report_and_wait(session_id, spec, make_report(spec, step=1 + step, counts_L=like.counts_L))
        plans.append([guests_RK.tolist() for guests_RK in plan.guests_L])
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=DEADLINE_SECONDS)
    return plans
