"""The agent's reports over a stream: as calls of their own for the link, also where the planner has no streams."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from link_samples import WAIT, eventually, report, spec

from taot_api import codec
from taot_api.v1 import planner_pb2 as pb
from taot_api.v1.planner_pb2_grpc import PlannerServiceServicer, add_PlannerServiceServicer_to_server
from taot_client.planner.planner_calls import Connections, PlannerCalls
from taot_client.planner.planner_link import PlannerLink
from taot_client.planner.refusal_details import details_of
from taot_client.planner.report_call import ReportCall

CALL_SECONDS = 30.0


@contextlib.contextmanager
def calls_to(address):
    channel = grpc.insecure_channel(address)
    connections = Connections(channel)
    try:
        yield PlannerCalls(connections, lambda: None, None)
    finally:
        connections.close()
        assert eventually(lambda: answer_threads() == []), "a thread outlives its connection"


def answer_threads():
    return [thread for thread in threading.enumerate() if thread.name == "taot-answers"]


@contextlib.contextmanager
def other_planner(servicer):
    """A planner of other code, such as an older one."""
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    add_PlannerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_refused_report_is_the_error_that_a_call_would_raise_and_the_next_goes_over_the_same_stream(planner):
    with calls_to(planner.address) as calls:
        session = calls.OpenSession(codec.encode_session_spec(spec("refused")), timeout=CALL_SECONDS).session
        good = codec.encode_report(session.session_id, report())
        wrong = pb.ReportRoutingRequest.FromString(good.SerializeToString())
        wrong.step = -1
        calls.ReportRouting(good, timeout=CALL_SECONDS)
        (thread,) = answer_threads()
        with pytest.raises(grpc.RpcError) as caught:
            calls.ReportRouting(wrong, timeout=CALL_SECONDS)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert details_of(caught.value).reason == "INVALID_STEP"
        good.step = 1
        calls.ReportRouting(good, timeout=CALL_SECONDS)
        assert answer_threads() == [thread]
        calls.CloseSession(pb.CloseSessionRequest(session_id=session.session_id), timeout=CALL_SECONDS)
        with pytest.raises(grpc.RpcError) as caught:
            calls.ReportRouting(good, timeout=CALL_SECONDS)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert details_of(caught.value).metadata["planner_epoch"] == session.planner_epoch


def test_each_session_has_a_stream_of_its_own(planner):
    with calls_to(planner.address) as calls:
        for name in ("one", "other"):
            session = calls.OpenSession(codec.encode_session_spec(spec(name)), timeout=CALL_SECONDS).session
            for step in range(2):
                calls.ReportRouting(codec.encode_report(session.session_id, report(step)), timeout=CALL_SECONDS)


class Older(PlannerServiceServicer):
    """A planner without streams; it counts calls."""

    def __init__(self):
        self.num_reports = 0

    def ReportRouting(self, request, context):
        self.num_reports += 1
        return pb.ReportRoutingResponse(is_paused=True)

    def StreamReports(self, request_iterator, context):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


def test_an_older_planner_gets_calls_of_their_own(monkeypatch):
    older = Older()
    with other_planner(older) as address, calls_to(address) as calls:
        for step in range(3):
            request = codec.encode_report("s", report(step))
            assert calls.ReportRouting(request, timeout=CALL_SECONDS).is_paused
        assert older.num_reports == 3
        assert eventually(lambda: answer_threads() == [])


class Silent(Older):
    """A planner that answers nothing, or nonsense."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.num_streams = 0

    def StreamReports(self, request_iterator, context):
        self.num_streams += 1
        for _, answer in zip(request_iterator, self.answers, strict=False):
            yield answer
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(CALL_SECONDS)


def times_out(calls, step):
    with pytest.raises(grpc.RpcError) as caught:
        calls.ReportRouting(codec.encode_report("s", report(step)), timeout=0.2)
    return caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_where_something_in_between_holds_streams_back_reports_after_the_first_are_calls():
    silent = Silent([])
    with other_planner(silent) as address, calls_to(address) as calls:
        assert times_out(calls, 0)
        for step in (1, 2):
            assert calls.ReportRouting(codec.encode_report("s", report(step)), timeout=CALL_SECONDS).is_paused
        assert (silent.num_streams, silent.num_reports) == (1, 2)
        with pytest.raises(grpc.RpcError):  # another session, another planner perhaps
            calls.ReportRouting(codec.encode_report("other", report()), timeout=0.2)
        assert silent.num_streams == 2


class Mute(Silent):
    """A planner that answers no call either, until it is told to."""

    def __init__(self):
        super().__init__([])
        self.may_answer = threading.Event()

    def ReportRouting(self, request, context):
        self.num_reports += 1
        self.may_answer.wait(CALL_SECONDS)
        return pb.ReportRoutingResponse()


def test_a_planner_that_answers_nothing_costs_no_more_than_the_deadline_and_the_stream_is_tried_anew():
    mute = Mute()
    with other_planner(mute) as address, calls_to(address) as calls:
        try:
            assert all(times_out(calls, step) for step in range(4))
            assert eventually(lambda: (mute.num_streams, mute.num_reports) == (2, 2))
        finally:
            mute.may_answer.set()


def test_a_stream_that_has_answered_once_is_no_stream_that_is_held_back():
    silent = Silent([pb.StreamReportsResponse(answered_count=1)])
    with other_planner(silent) as address, calls_to(address) as calls:
        for step in range(2):
            calls.ReportRouting(codec.encode_report("s", report(step)), timeout=CALL_SECONDS)
            assert times_out(calls, step)
        assert (silent.num_streams, silent.num_reports) == (2, 0)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (pb.StreamReportsResponse(answered_count=2**62), None),
        (pb.StreamReportsResponse(answered_count=1, refused_reports=[{"index": 5, "status": b"x"}]), None),
        (pb.StreamReportsResponse(answered_count=1, refused_reports=[{"status": b"\xff"}]), grpc.StatusCode.UNKNOWN),
        (
            pb.StreamReportsResponse(answered_count=1, refused_reports=[{"status": b"\x08\x63"}]),
            grpc.StatusCode.UNKNOWN,
        ),
    ],
    ids=["too many", "of another", "no status", "no code"],
)
def test_nonsense_is_taken_for_an_answer_or_a_refusal(answer, code):
    with other_planner(Silent([answer])) as address, calls_to(address) as calls:
        request = codec.encode_report("s", report())
        if code is None:
            assert calls.ReportRouting(request, timeout=CALL_SECONDS) == pb.ReportRoutingResponse()
            return
        with pytest.raises(grpc.RpcError) as caught:
            calls.ReportRouting(request, timeout=CALL_SECONDS)
        assert caught.value.code() is code


def test_a_planner_that_has_answered_more_than_was_sent_has_not_answered_what_comes_next():
    with other_planner(Silent([pb.StreamReportsResponse(answered_count=2**62)])) as address, calls_to(address) as calls:
        calls.ReportRouting(codec.encode_report("s", report()), timeout=CALL_SECONDS)
        assert times_out(calls, 1)


def test_a_call_that_is_over_says_so_and_lets_go_of_who_waits_for_more_requests():
    requests, is_over = [], threading.Event()

    def open_call(iterator):
        requests.append(iterator)
        return iter([pb.StreamReportsResponse(answered_count=1)])

    ReportCall(open_call).start(on_over=is_over.set)
    assert is_over.wait(CALL_SECONDS)
    with ThreadPoolExecutor(max_workers=1) as others:
        assert others.submit(list, requests[0]).result(timeout=CALL_SECONDS) == []


def test_a_link_that_closes_leaves_no_thread(planner):
    link = PlannerLink(planner.address, spec("threads"))
    assert link.start(wait=WAIT) is None
    link.report(report())
    assert eventually(lambda: link.plan is not None and answer_threads())
    link.close()
    assert eventually(lambda: answer_threads() == [])
    assert not any(thread.is_alive() for thread in link._threads)
