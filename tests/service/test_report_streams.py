"""Reports over one call: taken, refused and bounded as in calls of their own, and ended with their session."""

from __future__ import annotations

import contextlib
import signal

import grpc
import pytest
from access_samples import JOB_A, JOB_B, write_tokens
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client, refusal, report_stream
from routing_samples import make_report, make_spec
from running_planner import planner_process, running_planner

from taot_api.codec import encode_report, encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_service import report_streams
from taot_service.config import ServiceConfig
from taot_service.wire_check import MAX_PARTS

SPEC = make_spec(training_job="job-a")


@pytest.fixture
def planner():
    with running_planner() as started:
        yield started


def count_of(planner, outcome):
    return planner.planner.metrics.reports.labels(outcome)._value.get()


def num_refused(planner, reason):
    return planner.planner.metrics.refusals.labels(reason)._value.get()


def num_streams(planner):
    return len(planner.planner.report_streams._places)


def test_reports_are_taken_and_planned_and_each_is_answered(planner, client):
    session_id = client.open(SPEC)
    with report_stream(client.stub) as stream:
        for step in range(50):
            stream.send(session_id, make_report(SPEC, step=step))
        stream.read(50)
        assert (stream.num_answered, stream.refused) == (50, {})
        assert count_of(planner, "planned") == 50
        watched = (response.plan for response in client.watch(session_id))
        version = next(plan.identity.version for plan in watched if plan.source_step == 49)
        planner.on_loop(lambda: planner.planner.set_paused(planner.planner.sessions[0], is_paused=True))
        stream.send(session_id, make_report(SPEC, step=7))
        stream.read(51)
        assert stream.response.latest_plan.version == version
        assert stream.response.is_paused
        assert count_of(planner, "repeated") == 1
        stream.end()
        stream.read()
        assert stream.call.code() is grpc.StatusCode.OK


def wrong_messages(session_id):
    """Reports with something wrong, each with the reason to be refused for."""
    good = encode_report(session_id, make_report(SPEC, step=1))
    tensor, counts, step, tokens = (pb.ReportRoutingRequest.FromString(good.SerializeToString()) for _ in range(4))
    tensor.token_counts[1].shape[0] += 1
    counts.token_counts[0].data = bytes(len(counts.token_counts[0].data))
    step.step = -1
    tokens.valid_token_counts.append(3)
    many = pb.ReportRoutingRequest.FromString(good.SerializeToString())
    many.telemetry.extend([pb.RankTelemetry(inter_node_sent_bytes=1, intra_node_sent_bytes=2**40)] * MAX_PARTS)
    for _ in range(20):
        many.token_counts.add(data=bytes(2**16))
    return [
        (tensor, "INVALID_TENSOR"),
        (counts, "INVALID_COUNTS"),
        (step, "INVALID_STEP"),
        (tokens, "INVALID_COUNTS"),
        (many, "LIMIT_EXCEEDED"),
    ]


def test_what_is_wrong_with_a_report_is_told_as_in_a_call_of_its_own_and_the_stream_goes_on(planner, client):
    session_id = client.open(SPEC)
    wrong = wrong_messages(session_id)
    with report_stream(client.stub) as stream:
        for index, (message, _) in enumerate(wrong):
            stream.send(session_id, make_report(SPEC, step=100 + index))
            stream.send_message(message)
        stream.send(session_id, make_report(SPEC, step=200))
        stream.read(2 * len(wrong) + 1)
    assert sorted(stream.refused) == [2 * index + 1 for index in range(len(wrong))]
    assert count_of(planner, "planned") == len(wrong) + 1
    refused = {reason: num_refused(planner, reason) for _, reason in wrong}
    assert sum(refused.values()) == len(wrong)
    for index, (message, reason) in enumerate(wrong):
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.ReportRouting(message, timeout=CALL_SECONDS)
        alone = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        assert stream.refused[2 * index + 1] == alone
        assert refused[reason] > 0


def test_bytes_that_are_no_message_are_one_refused_report(planner, client):
    session_id = client.open(SPEC)
    good = pb.StreamReportsRequest(report=encode_report(session_id, make_report(SPEC, step=1))).SerializeToString()
    with grpc.insecure_channel(planner.address) as channel:
        method = channel.stream_stream(
            "/taot_api.v1.PlannerService/StreamReports",
            response_deserializer=pb.StreamReportsResponse.FromString,
        )
        answers = list(method(iter([good[:-3], good]), timeout=CALL_SECONDS))
    assert answers[-1].answered_count == 2
    assert [each.index for answer in answers for each in answer.refused_reports] == [0]
    assert num_refused(planner, "INVALID_MESSAGE") == 1
    assert count_of(planner, "planned") == 1


def test_a_stream_is_of_one_session(planner, client):
    one, other = client.open(SPEC), client.open(make_spec(training_job="job-b"))
    with report_stream(client.stub) as stream:
        stream.send(one, make_report(SPEC, step=1))
        stream.send(other, make_report(SPEC, step=1))
        stream.read(2)
    assert list(stream.refused) == [1]
    assert num_refused(planner, "INVALID_MESSAGE") == 1
    assert [session.num_reports for session in planner.planner.sessions] == [1, 0]


def test_two_jobs_report_at_once(planner, client):
    specs = [SPEC, make_spec(training_job="job-b", experts_L=(4,), num_ranks=2)]
    ids = [client.open(spec) for spec in specs]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(report_stream(client.stub)) for _ in specs]
        for step in range(20):
            for stream, session_id, spec in zip(streams, ids, specs, strict=True):
                stream.send(session_id, make_report(spec, step=step))
        for stream, session_id in zip(streams, ids, strict=True):
            stream.read(20)
            assert stream.refused == {}
            assert any(response.plan.source_step == 19 for response in client.watch(session_id))


def test_a_stream_of_no_session_ends(client):
    with report_stream(client.stub) as stream:
        stream.send("nobody", make_report(SPEC, step=1))
        seen = refusal(stream.read)
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


@pytest.mark.parametrize(
    ("way", "reason"),
    [("closed", "SESSION_NOT_FOUND"), ("expired", "SESSION_NOT_FOUND"), ("replaced", "STALE_INCARNATION")],
)
def test_an_idle_stream_ends_with_its_session(planner, client, way, reason):
    session_id = client.open(SPEC)
    with report_stream(client.stub) as stream:
        stream.send(session_id, make_report(SPEC, step=1))
        stream.read(1)
        if way == "closed":
            client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
        elif way == "expired":
            planner.planner.sessions[0].seen_seconds -= 2 * planner.planner.config.lease_seconds
            planner.on_loop(planner.planner.expire_sessions)
        else:
            client.open(make_spec(training_job="job-a", incarnation=2))
        assert refusal(stream.read).info.reason == reason
    assert eventually(lambda: num_streams(planner) == 0)


def test_a_stream_that_breaks_leaves_its_session_and_no_trace(planner, client):
    session_id = client.open(SPEC)
    for step in range(3):
        with report_stream(client.stub) as stream:
            stream.send(session_id, make_report(SPEC, step=step))
            stream.read(1)
            stream.call.cancel()
        assert eventually(lambda: num_streams(planner) == 0)
    client.report(session_id, make_report(SPEC, step=3))
    assert count_of(planner, "planned") == 4


def test_streams_are_bounded_and_take_no_room_of_calls():
    config = ServiceConfig(max_watches=2, max_calls=1, publish_within=1000.0)
    with running_planner(config) as planner, planner_client(planner.address) as client, contextlib.ExitStack() as stack:
        session_id = client.open(SPEC)
        streams = []
        for step in range(2):
            streams.append(stack.enter_context(report_stream(client.stub)))
            streams[-1].send(session_id, make_report(SPEC, step=step))
            streams[-1].read(1)
        streams.append(stack.enter_context(report_stream(client.stub)))
        # Two are of the session by now, and one is of none yet, which is all the room that there is.
        assert eventually(lambda: num_streams(planner) == 3)
        assert refusal(stack.enter_context(report_stream(client.stub)).read).info.reason == "OVERLOADED"
        streams[2].send(session_id, make_report(SPEC, step=5))
        assert refusal(streams[2].read).info.metadata["flag"] == "--max-watches"
        client.report(session_id, make_report(SPEC, step=6))
        streams[0].send(session_id, make_report(SPEC, step=7))
        streams[0].read(2)


def test_a_stream_that_says_nothing_ends(planner, client, monkeypatch):
    monkeypatch.setattr(report_streams, "FIRST_REPORT_SECONDS", 0.05)
    with report_stream(client.stub) as silent:
        assert refusal(silent.read).info.reason == "DEADLINE_EXCEEDED"


def test_a_stream_that_has_named_its_session_may_be_silent(planner, client):
    session_id = client.open(SPEC)
    with report_stream(client.stub) as stream:
        timers = planner.planner.report_streams._timers
        assert eventually(lambda: len(timers) == 1)
        stream.send(session_id, make_report(SPEC, step=1))
        stream.read(1)
        assert not timers


def test_a_token_opens_streams_of_its_jobs_while_it_is_known(tmp_path):
    tokens = write_tokens(tmp_path / "tokens")
    with (
        running_planner(ServiceConfig(tokens=tokens), is_warm_awaited=False) as planner,
        planner_client(planner.address) as client,
    ):
        of_a, of_b = ([("authorization", f"Bearer {token}")] for token in (JOB_A, JOB_B))
        request = encode_session_spec(SPEC)
        session_id = client.stub.OpenSession(request, timeout=CALL_SECONDS, metadata=of_a).session.session_id
        seen_seconds = planner.planner.sessions[0].seen_seconds
        for metadata, reason in (([], "UNAUTHENTICATED"), (of_b, "SESSION_NOT_FOUND")):
            with report_stream(client.stub, metadata=metadata) as stream:
                stream.send(session_id, make_report(SPEC, step=1))
                assert refusal(stream.read).info.reason == reason
        assert planner.planner.sessions[0].seen_seconds == seen_seconds  # neither disturbed nor kept alive
        with report_stream(client.stub, metadata=of_a) as stream:
            stream.send(session_id, make_report(SPEC, step=1))
            stream.read(1)
            lines = tokens.read_text().splitlines(keepends=True)
            tokens.write_text("".join(line for line in lines if "job=job-b" not in line))
            assert planner.locks.access.file.refresh()
            stream.send(session_id, make_report(SPEC, step=2))
            stream.read(2)  # known as before
            tokens.write_text("".join(line for line in lines if "job=job-a" not in line))
            assert planner.locks.access.file.refresh()
            stream.send(session_id, make_report(SPEC, step=3))
            assert refusal(stream.read).info.reason == "UNAUTHENTICATED"
        assert planner.planner.sessions[0].num_reports == 2


@pytest.mark.slow
def test_a_planner_that_drains_answers_what_it_has_taken_and_ends_idle_streams():
    with planner_process(flags=["--drain-seconds", "60"]) as process, planner_client(process.address) as client:
        session_id = client.open(SPEC)
        with report_stream(client.stub) as stream:
            for step in range(20):
                stream.send(session_id, make_report(SPEC, step=step))
            stream.read(20)
            process.signal(signal.SIGTERM)
            seen = refusal(stream.read)
            assert (seen.code, seen.info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        assert process.wait() == 0
        assert "Traceback" not in process.stderr
