"""Streams of callers who read nothing, say nothing, vanish, or want all the room: they cost nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import queue

import grpc
import pytest
from access_samples import JOB_A, JOB_B, write_tokens
from grpc_health.v1 import health_pb2, health_pb2_grpc
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client, refusal, report_stream
from raw_call import call_begin, half_close, message, more_room, raw_connection, vanish
from routing_samples import make_report, make_spec
from running_planner import running_planner

from taot_api.codec import encode_report, encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_service import intake_pace, plan_feed, report_streams
from taot_service import report_stream as stream_module
from taot_service.config import ServiceConfig
from taot_service.report_stream import MANY_REPORTS

METHOD = "/taot_api.v1.PlannerService/StreamReports"
SPEC_A, SPEC_B = make_spec(training_job="job-a"), make_spec(training_job="job-b")
ELSEWHERE = "127.0.0.2"
"""Another address of this machine, for another caller."""


@pytest.fixture
def planner():
    with running_planner() as started:
        yield started


@pytest.fixture
def no_trace(caplog):
    """Nothing of what a caller does leaves a stack trace in the log."""
    yield
    assert not [record for record in caplog.get_records("call") if record.exc_info]


def num_streams(planner):
    return len(planner.planner.report_streams._places)


def streamed(session_id, spec, *, step):
    return pb.StreamReportsRequest(report=encode_report(session_id, make_report(spec, step=step))).SerializeToString()


def close(client, session_id):
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)


def is_serving(planner):
    with grpc.insecure_channel(planner.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def test_who_reads_no_answers_is_read_no_further_and_holds_nobody_up(planner, client):
    session_id, number = client.open(SPEC_A), 150
    with raw_connection(planner.grpc_port) as connection:
        connection.sendall(call_begin(METHOD, window=0))
        for step in range(number):
            connection.sendall(message(streamed(session_id, SPEC_A, step=step)))
        session = planner.planner.sessions[0]
        assert eventually(lambda: session.num_reports > 2 * MANY_REPORTS)
        of_b = client.open(SPEC_B)
        for step in range(3):
            client.report_and_wait(of_b, SPEC_B, make_report(SPEC_B, step=step))
        # What was read before the first answer had to wait for room, and what is read without an answer.
        assert session.num_reports <= 4 * MANY_REPORTS < number
        connection.sendall(more_room(2**20))
        assert eventually(lambda: session.num_reports == number)


@pytest.mark.parametrize("has_more", [True, False], ids=["may go on", "has sent all"])
def test_who_reads_no_answers_is_forgotten_some_time_after_the_session(
    planner, client, monkeypatch, no_trace, has_more
):
    monkeypatch.setattr(stream_module, "END_SECONDS", 0.05)
    for incarnation in range(1, 4):
        session_id = client.open(make_spec(training_job="job-a", incarnation=incarnation))
        with raw_connection(planner.grpc_port) as connection:
            connection.sendall(call_begin(METHOD, window=0))
            for step in range(3):
                connection.sendall(message(streamed(session_id, SPEC_A, step=step)))
            if not has_more:
                connection.sendall(half_close())
            session = planner.planner.sessions[0]
            assert eventually(lambda session=session: session.num_reports == 3)
            assert num_streams(planner) == 1
            close(client, session_id)
            assert eventually(lambda: num_streams(planner) == 0)
    assert is_serving(planner)


def test_who_watches_and_reads_nothing_is_forgotten_some_time_after_the_session(planner, client, monkeypatch, no_trace):
    monkeypatch.setattr(plan_feed, "END_SECONDS", 0.05)
    session_id = client.open(SPEC_A)
    session = planner.planner.sessions[0]
    with raw_connection(planner.grpc_port) as connection:
        connection.sendall(call_begin("/taot_api.v1.PlannerService/WatchPlans", window=0))
        watch = pb.WatchPlansRequest(session_id=session_id).SerializeToString()
        connection.sendall(message(watch) + half_close())
        assert eventually(lambda: session.num_watches == 1)
        client.report_and_wait(session_id, SPEC_A, make_report(SPEC_A, step=0))
        close(client, session_id)
        assert eventually(lambda: session.num_watches == 0)
    assert is_serving(planner)


def test_who_vanishes_in_the_middle_of_a_report_leaves_the_session_as_it_was(planner, client, no_trace):
    session_id = client.open(SPEC_A)
    session, data = planner.planner.sessions[0], streamed(session_id, SPEC_A, step=1)
    for number in range(1, 4):
        data = streamed(session_id, SPEC_A, step=number)
        with raw_connection(planner.grpc_port) as connection:
            connection.sendall(call_begin(METHOD) + message(data))
            assert eventually(lambda number=number: session.num_reports == number)
            connection.sendall(message(data[:100], length=len(data)))
            assert num_streams(planner) == 1
            vanish(connection)
        assert eventually(lambda: num_streams(planner) == 0)
    client.report_and_wait(session_id, SPEC_A, make_report(SPEC_A, step=9))
    assert session.num_reports == 4


class LosesItsCaller:
    """The context of a call whose caller goes while the first answer is written."""

    def __init__(self, context):
        self._context = context

    def __getattr__(self, name):
        return getattr(self._context, name)

    async def write(self, answer):
        writing = asyncio.ensure_future(self._context.write(answer))
        await asyncio.sleep(0)
        writing.cancel()
        raise grpc.aio.InternalError


def test_who_goes_while_the_first_answer_is_written_leaves_no_trace(planner, client, monkeypatch, no_trace):
    begin = stream_module.ReportStream.__init__
    monkeypatch.setattr(
        stream_module.ReportStream, "__init__", lambda self, context, **etc: begin(self, LosesItsCaller(context), **etc)
    )
    session_id = client.open(SPEC_A)
    with raw_connection(planner.grpc_port) as connection:
        connection.sendall(call_begin(METHOD) + message(streamed(session_id, SPEC_A, step=0)) + half_close())
        assert eventually(lambda: planner.planner.sessions[0].num_reports == 1 and num_streams(planner) == 0)
    assert is_serving(planner)


def test_a_stream_of_rubbish_has_named_no_session(planner, monkeypatch):
    monkeypatch.setattr(report_streams, "FIRST_REPORT_SECONDS", 0.2)
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(planner.address) as channel:
        read = pb.StreamReportsResponse.FromString
        answers = channel.stream_stream(METHOD, response_deserializer=read)(iter(messages.get, None), timeout=60)
        messages.put(b"\xff")
        assert [each.index for each in next(answers).refused_reports] == [0]
        messages.put(b"\xff")
        assert refusal(lambda: list(answers)).info.reason == "DEADLINE_EXCEEDED"
        messages.put(None)


@pytest.mark.parametrize("has_tokens", [True, False], ids=["by tokens", "by addresses"])
def test_one_caller_does_not_take_the_room_of_all(tmp_path, has_tokens):
    tokens = write_tokens(tmp_path / "tokens") if has_tokens else None
    of_a, of_b = ([("authorization", f"Bearer {token}")] if has_tokens else [] for token in (JOB_A, JOB_B))
    source = "127.0.0.1" if has_tokens else ELSEWHERE
    config = ServiceConfig(max_calls=4, tokens=tokens)
    with (
        running_planner(config) as planner,
        planner_client(planner.address) as client,
        contextlib.ExitStack() as stack,
    ):
        for number in (1, 2):
            connection = stack.enter_context(raw_connection(planner.grpc_port, source=source))
            connection.sendall(call_begin(METHOD, metadata=of_a))
            assert eventually(lambda number=number: num_streams(planner) == number)
        refused = planner.planner.metrics.refusals.labels("OVERLOADED")._value
        connection = stack.enter_context(raw_connection(planner.grpc_port, source=source))
        connection.sendall(call_begin(METHOD, metadata=of_a))
        assert eventually(lambda: refused.get() == 1)
        if has_tokens:
            stream = stack.enter_context(report_stream(client.stub, metadata=of_a))
            seen = refusal(stream.read)
            assert (seen.code, seen.info.metadata["flag"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-calls")
            assert "from one caller" in seen.message
        for spec, metadata in ((SPEC_A, of_a), (SPEC_B, of_b)):  # calls of their own are possible all the same
            request = encode_session_spec(spec)
            session = client.stub.OpenSession(request, timeout=CALL_SECONDS, metadata=metadata).session
            report = encode_report(session.session_id, make_report(spec, step=1))
            client.stub.ReportRouting(report, timeout=CALL_SECONDS, metadata=metadata)
        stream = stack.enter_context(report_stream(client.stub, metadata=of_b))
        stream.send(session.session_id, make_report(SPEC_B, step=2))
        stream.read(1)
        assert stream.refused == {}
        assert is_serving(planner)


def test_streams_of_a_session_that_has_ended_take_no_room_of_others():
    config = ServiceConfig(max_calls=2, max_watches=4)
    with (
        running_planner(config) as planner,
        planner_client(planner.address) as client,
        contextlib.ExitStack() as stack,
    ):
        of_a, of_b = client.open(SPEC_A), client.open(SPEC_B)
        session = planner.planner.sessions[0]
        for number in range(1, 5):
            connection = stack.enter_context(raw_connection(planner.grpc_port, source=ELSEWHERE))
            connection.sendall(call_begin(METHOD, window=0) + message(streamed(of_a, SPEC_A, step=number)))
            assert eventually(lambda number=number: session.num_reports == number)
        close(client, of_a)
        assert num_streams(planner) == 4
        with report_stream(client.stub) as stream:
            stream.send(of_b, make_report(SPEC_B, step=1))
            stream.read(1)


def test_a_job_reports_into_no_session_of_another_over_a_stream_of_its_own(tmp_path):
    tokens = write_tokens(tmp_path / "tokens")
    with (
        running_planner(ServiceConfig(tokens=tokens), is_warm_awaited=False) as planner,
        planner_client(planner.address) as client,
    ):
        metadata = {job: [("authorization", f"Bearer {token}")] for job, token in (("a", JOB_A), ("b", JOB_B))}
        of_a, of_b = (
            client.stub.OpenSession(
                encode_session_spec(spec), timeout=CALL_SECONDS, metadata=metadata[job]
            ).session.session_id
            for job, spec in (("a", SPEC_A), ("b", SPEC_B))
        )
        session_b = planner.planner.open_session_of(of_b)
        seen_seconds = session_b.seen_seconds
        with report_stream(client.stub, metadata=metadata["a"]) as stream:
            stream.send(of_a, make_report(SPEC_A, step=1))
            stream.send(of_b, make_report(SPEC_B, step=1))
            stream.send(of_a, make_report(SPEC_A, step=2))
            stream.read(3)
            assert list(stream.refused) == [1]
            assert (session_b.num_reports, session_b.seen_seconds) == (0, seen_seconds)
            # The token is for another job from now on: known, and no longer for this session.
            write_tokens(tokens, (("job=job-b", JOB_A),))
            assert planner.locks.access.file.refresh()
            stream.send(of_a, make_report(SPEC_A, step=3))
            assert refusal(stream.read).info.reason == "SESSION_NOT_FOUND"
        assert planner.planner.open_session_of(of_a).num_reports == 2


@pytest.mark.parametrize(("way", "reason"), [("closed", "SESSION_NOT_FOUND"), ("drained", "SHUTTING_DOWN")])
def test_what_was_taken_is_answered_before_the_end(planner, client, monkeypatch, way, reason):
    monkeypatch.setattr(stream_module, "SOON_SECONDS", 1000.0)  # no further answer of its own accord
    session_id = client.open(SPEC_A)
    session = planner.planner.sessions[0]
    with report_stream(client.stub) as stream:
        for step in range(11):
            stream.send(session_id, make_report(SPEC_A, step=step))
        stream.read(1)
        assert eventually(lambda: session.num_reports == 11)
        assert stream.num_answered < 11
        if way == "closed":
            close(client, session_id)
        else:
            planner.on_loop(planner.planner.begin_drain)
        assert refusal(stream.read).info.reason == reason
        assert (stream.num_answered, stream.refused) == (11, {})
    with report_stream(client.stub) as late:
        late.send(session_id, make_report(SPEC_A, step=20))
        assert refusal(late.read).info.reason == reason


def test_large_reports_rest_for_their_job_in_streams_and_in_calls_of_their_own(planner, client, monkeypatch):
    pace = planner.planner.report_streams.pace
    ids = [client.open(spec) for spec in (SPEC_A, SPEC_B)]
    monkeypatch.setattr(intake_pace, "LONG_SECONDS", 1000.0)
    client.report(ids[0], make_report(SPEC_A, step=1))
    assert pace._free_seconds == {}  # small ones do not
    monkeypatch.setattr(intake_pace, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(intake_pace, "REST_FACTOR", 1e9)
    monkeypatch.setattr(intake_pace, "MOST_SECONDS", 1000.0)
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.ReportRouting(encode_report(ids[0], make_report(SPEC_A, step=2)), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with report_stream(client.stub) as stream:
        for step in range(5):
            stream.send(ids[1], make_report(SPEC_B, step=step))
        stream.read(1)
        assert {*pace._free_seconds} == {"job-a", "job-b"}
        client.stub.GetPlan(pb.GetPlanRequest(session_id=ids[0]), timeout=CALL_SECONDS)
    assert [session.num_reports for session in planner.planner.sessions] == [2, 1]
