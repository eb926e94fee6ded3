"""Tokens over real gRPC: a job opens and uses its own sessions, and cannot tell whether others are there."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from access_samples import ADMIN, ANY_JOB, GRANTS, JOB_A, JOB_B, READ, UNKNOWN, write_tokens
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from planner_client import CALL_SECONDS, refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner

from taot_api.codec import encode_report, encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceStub
from taot_service.config import ServiceConfig

SPEC_A, SPEC_B = make_spec(training_job="job-a"), make_spec(training_job="job-b")


@pytest.fixture
def token_file(tmp_path):
    return write_tokens(tmp_path / "tokens")


@pytest.fixture
def planner(token_file):
    config = ServiceConfig(tokens=token_file, max_message_bytes=64 * 2**20)
    with running_planner(config, is_warm_awaited=False) as started:
        yield started


@pytest.fixture
def channel(planner):
    with grpc.insecure_channel(planner.address, options=[("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield opened


class Caller:
    """The planner API with a token, or without."""

    def __init__(self, channel: grpc.Channel, token: str | None) -> None:
        self._stub = PlannerServiceStub(channel)
        self.metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def call(self, method: str, request):
        return getattr(self._stub, method)(request, timeout=CALL_SECONDS, metadata=self.metadata)

    def open(self, spec) -> str:
        return self.call("OpenSession", encode_session_spec(spec)).session.session_id


def calls_of(session_id: str, spec) -> dict[str, object]:
    """A good request of every method that names a session."""
    report = encode_report(session_id, make_report(spec, step=1))
    return {
        "ReportRouting": report,
        "PlanNow": pb.PlanNowRequest(report=report),
        "GetPlan": pb.GetPlanRequest(session_id=session_id),
    }


def watch(caller: Caller, session_id: str):
    return next(caller.call("WatchPlans", pb.WatchPlansRequest(session_id=session_id)))


@pytest.mark.parametrize(
    "token", [None, UNKNOWN, "", JOB_A[:-1], READ.upper()], ids=["none", "unknown", "empty", "cut", "shouted"]
)
def test_without_a_known_token_nothing_is_answered(planner, channel, token):
    caller = Caller(channel, token)
    calls = [lambda: caller.open(SPEC_A), lambda: watch(caller, "x")]
    calls += [lambda method=m, request=r: caller.call(method, request) for m, r in calls_of("x", SPEC_A).items()]
    calls.append(lambda: caller.call("CloseSession", pb.CloseSessionRequest(session_id="x")))
    for call in calls:
        seen = refusal(call)
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert planner.planner.metrics.refusals.labels("UNAUTHENTICATED")._value.get() == len(calls)


def test_a_method_is_there_for_a_contract_that_no_stub_has_left_out():
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["PlannerService"].methods}
    assert methods == {"OpenSession", "StreamReports", "WatchPlans", "CloseSession", *calls_of("x", SPEC_A)}


@pytest.mark.parametrize("token", [READ, ADMIN], ids=["read", "admin"])
def test_tokens_of_people_are_not_for_jobs(channel, token):
    assert refusal(lambda: Caller(channel, token).open(SPEC_A)).info.reason == "PERMISSION_DENIED"


def test_a_job_opens_its_own_sessions_only_and_learns_nothing_of_others(planner, channel):
    a, b = Caller(channel, JOB_A), Caller(channel, JOB_B)
    before = refusal(lambda: b.open(SPEC_A))
    assert before.code is grpc.StatusCode.PERMISSION_DENIED
    assert before.info.metadata["training_job"] == "job-a"
    of_a = a.open(SPEC_A)
    assert refusal(lambda: b.open(SPEC_A)) == before  # whether or not the job is there
    assert Caller(channel, ANY_JOB).open(SPEC_A) == of_a
    of_b = b.open(SPEC_B)
    assert of_b != of_a


def test_sessions_of_other_jobs_look_like_sessions_that_never_were(planner, channel):
    a, b = Caller(channel, JOB_A), Caller(channel, JOB_B)
    of_a, never = a.open(SPEC_A), "0" * 32
    session = planner.planner.sessions[0]

    def seen_by_b(session_id: str) -> list[tuple[object, str, str]]:
        calls = [lambda m=m, r=r: b.call(m, r) for m, r in calls_of(session_id, SPEC_A).items()]
        seen = [refusal(call) for call in [*calls, lambda: watch(b, session_id)]]
        return [(each.code, each.info.reason, each.message.replace(session_id, "ID")) for each in seen]

    seen_seconds = session.seen_seconds
    assert seen_by_b(of_a) == seen_by_b(never)
    assert {reason for _, reason, _ in seen_by_b(of_a)} == {"SESSION_NOT_FOUND"}
    assert b.call("CloseSession", pb.CloseSessionRequest(session_id=of_a)) == pb.CloseSessionResponse()
    # Neither disturbed nor kept alive.
    assert session.seen_seconds == seen_seconds
    assert session.num_reports == 0
    a.call("ReportRouting", calls_of(of_a, SPEC_A)["ReportRouting"])
    # Nor afterwards: how a session has ended is the business of its job.
    a.call("CloseSession", pb.CloseSessionRequest(session_id=of_a))
    assert seen_by_b(of_a) == seen_by_b(never)
    assert "closed" in refusal(lambda: a.call("GetPlan", pb.GetPlanRequest(session_id=of_a))).message


def test_tokens_are_granted_and_revoked_while_the_planner_runs(planner, channel, token_file, caplog):
    a = Caller(channel, JOB_A)
    session_id = a.open(SPEC_A)
    write_tokens(token_file, GRANTS[1:])
    planner.on_loop(planner.locks.refresh)
    seen = refusal(lambda: a.call("GetPlan", pb.GetPlanRequest(session_id=session_id)))
    assert seen.info.reason == "UNAUTHENTICATED"
    # A file that cannot be used changes nothing: it lets in neither everybody nor nobody.
    for content in ("rubbish", f"read {JOB_A}", ""):
        token_file.write_text(content)
        planner.on_loop(planner.locks.refresh)
        Caller(channel, JOB_B).open(SPEC_B)
        assert refusal(lambda: a.open(SPEC_A)).info.reason == "UNAUTHENTICATED"
    token_file.unlink()
    planner.on_loop(planner.locks.refresh)
    Caller(channel, JOB_B).open(SPEC_B)
    assert JOB_A not in caplog.text
    write_tokens(token_file, (("job=job-a", UNKNOWN),))
    planner.on_loop(planner.locks.refresh)
    assert Caller(channel, UNKNOWN).open(SPEC_A) == session_id
    assert refusal(lambda: Caller(channel, JOB_B).open(SPEC_B)).info.reason == "UNAUTHENTICATED"


def test_health_is_open_and_reflection_is_not(channel):
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)

    def reflect(metadata):
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return next(stub.ServerReflectionInfo(iter([request]), timeout=CALL_SECONDS, metadata=metadata))

    assert refusal(lambda: reflect([])).info.reason == "UNAUTHENTICATED"
    assert reflect(Caller(channel, JOB_A).metadata).list_services_response.service


def test_methods_that_are_not_there_are_no_way_in(channel):
    call = channel.unary_unary("/taot_api.v1.PlannerService/Nothing")
    assert refusal(lambda: call(b"", timeout=CALL_SECONDS)).info.reason == "UNAUTHENTICATED"


def test_a_large_request_without_a_token_is_not_read(channel):
    # Larger than the planner would read: with a token it is refused for its size, without one before that.
    large = pb.ReportRoutingRequest(session_id="x" * (65 * 2**20))
    assert refusal(lambda: Caller(channel, None).call("ReportRouting", large)).info.reason == "UNAUTHENTICATED"
    with pytest.raises(grpc.RpcError) as caught:
        Caller(channel, JOB_A).call("ReportRouting", large)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_without_tokens_configured_nothing_changes():
    with (
        running_planner(ServiceConfig(), is_warm_awaited=False) as planner,
        contextlib.closing(grpc.insecure_channel(planner.address)) as channel,
    ):
        opened = {Caller(channel, token).open(SPEC_A) for token in (None, UNKNOWN)}
        assert opened == {session.session_id for session in planner.planner.sessions}
