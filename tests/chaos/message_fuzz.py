"""Sends spoilt requests to a planner and keeps what it says to them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
STREAM = "StreamReports"
METHODS = ("OpenSession", "ReportRouting", STREAM, "PlanNow", "WatchPlans", "GetPlan", "CloseSession")
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
    """By method and status code; those of streams by report."""

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
        STREAM: pb.StreamReportsRequest(report=request, trace_context={"traceparent": "00-" + "1" * 32 + "-2-01"}),
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
            if method == STREAM:
                others = (client.open(make_spec(training_job="fuzz-other")), "nobody's", "")
                messages = reports_of_a_stream(source, mutator, (session_id, *others), step=number)
                outcome.add(send_stream(channel, messages, session_id=session_id))
                continue
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


@dataclass(frozen=True, kw_only=True)
class StreamedReport:
    """One message of a stream, and whether it is as it should be."""

    data: bytes
    """What is sent."""

    session_id: str | None = None
    """The session that it names, None where it has been spoilt and may name any."""


def reports_of_a_stream(
    source: random.Random, mutator: Mutator, session_ids: Sequence[str], *, step: int
) -> list[StreamedReport]:
    """Some reports of which none to all are spoilt; good ones are of the first session mostly, and of others."""
    spec, reports = make_spec(), []
    for offset in range(source.choice((1, 2, 8, 40))):
        session_id = session_ids[0] if source.random() < 0.8 else source.choice(session_ids)  # noqa: PLR2004
        message = samples(session_id, spec, incarnation=step + offset)[STREAM]
        if source.random() < 0.5:  # noqa: PLR2004
            reports.append(StreamedReport(data=mutator.request(message)))
        else:
            reports.append(StreamedReport(data=message.SerializeToString(), session_id=session_id))
    return reports


def send_stream(channel: grpc.Channel, reports: Sequence[StreamedReport], *, session_id: str) -> FuzzOutcome:
    """Sends reports over one call and reads its answers, each of which must be about reports that were sent.

    Where the first report is a good one of `session_id`, all good ones of that session must have been taken.
    """
    outcome, refused, answered, faults = FuzzOutcome(), dict[int, grpc.StatusCode](), 0, []
    call = channel.stream_stream(SERVICE + STREAM, response_deserializer=pb.StreamReportsResponse.FromString)(
        iter([report.data for report in reports]), timeout=DEADLINE_SECONDS
    )
    code, what = grpc.StatusCode.OK, ""
    try:
        for answer in call:
            new = [each.index for each in answer.refused_reports]
            if not (new == sorted({*new}) and all(answered <= index < answer.answered_count for index in new)):
                faults.append(f"refused {new} in an answer for {answered} to {answer.answered_count}")
            refused.update({each.index: _code_of(each.status) for each in answer.refused_reports})
            answered = answer.answered_count
    except grpc.RpcError as error:
        code, what = error.code(), reason_of(error) or error.details() or ""
        outcome.answers[STREAM, code.name] += 1
    if answered > len(reports) or (code is grpc.StatusCode.OK and answered < len(reports)):
        faults.append(f"{answered} of {len(reports)} reports were answered")
    for index, report in enumerate(reports[:answered]):
        is_good = reports[0].session_id == report.session_id == session_id
        if is_good and index in refused:
            faults.append(f"report {index} is good and was refused: {refused[index].name}")
        outcome.answers[STREAM, refused.get(index, grpc.StatusCode.OK).name] += 1
    faults += [f"{each.name} {what[:300]!r}" for each in (code, *refused.values()) if each not in CLEAN]
    outcome.faults += [f"{STREAM}: {fault}, of {[each.data[:400].hex() for each in reports]}" for fault in faults]
    return outcome


def _code_of(packed: bytes) -> grpc.StatusCode:
    number = status_pb2.Status.FromString(packed).code
    return next(code for code in grpc.StatusCode if code.value[0] == number)


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
