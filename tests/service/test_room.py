"""What a planner has no room for is refused at once, with advice where waiting helps, and hurts nobody else."""

from __future__ import annotations

import contextlib

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from planner_client import CALL_SECONDS, planner_client, refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner
from session_book_samples import make_book, open_session

from taot_api import ContractError, Reason
from taot_api.codec import encode_report, encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_service.admission import held_bytes
from taot_service.call_guard import MAX_OPEN_STREAMS, _tolerant
from taot_service.config import ServiceConfig
from taot_service.limits import check_limits
from taot_service.wire_check import MAX_FIELDS, MAX_NUMBER_BYTES, MAX_PARTS, SMALL_BYTES, check_parts

OPEN = pb.OpenSessionRequest.DESCRIPTOR


def retry_seconds_of(error: grpc.RpcError) -> float | None:
    """The advice of a refused call."""
    packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
    retry = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(retry):
            return retry.retry_delay.ToTimedelta().total_seconds()
    return None


def test_one_job_does_not_fill_the_planner():
    book = make_book(max_sessions=4, max_sessions_per_job=2)
    for group in ("a", "b"):
        open_session(book, make_spec(training_job="crowd", group=group))
    with pytest.raises(ContractError, match="--max-sessions-per-job") as caught:
        open_session(book, make_spec(training_job="crowd", group="c"))
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.LIMIT_EXCEEDED, 10.0)
    open_session(book, make_spec(training_job="crowd", group="a", incarnation=2))
    open_session(book, make_spec(training_job="alone"))


def test_the_memory_of_all_sessions_is_bounded_by_what_they_declare():
    spec = make_spec()
    book = make_book(max_held_bytes=2 * held_bytes(spec), max_held_bytes_per_job=2**40)
    for _ in range(2):
        open_session(book)
    with pytest.raises(ContractError, match="--max-held-bytes") as caught:
        open_session(book)
    assert caught.value.retry_seconds is not None, "others may end"
    with pytest.raises(ContractError, match="--max-held-bytes") as caught:
        open_session(make_book(max_held_bytes=held_bytes(spec) - 1))
    assert caught.value.retry_seconds is None, "waiting makes no session smaller"


def test_the_memory_of_a_planner_is_not_for_one_job_alone():
    spec = make_spec(training_job="crowd", group="a")
    book = make_book(max_held_bytes_per_job=2 * held_bytes(spec))
    for group in ("a", "b"):
        open_session(book, make_spec(training_job="crowd", group=group))
    with pytest.raises(ContractError, match="--max-held-bytes-per-job") as caught:
        open_session(book, make_spec(training_job="crowd", group="c"))
    assert caught.value.retry_seconds is not None, "others of the job may end"
    open_session(book, make_spec(training_job="crowd", group="a", incarnation=2))
    open_session(book, make_spec(training_job="alone"))
    with pytest.raises(ContractError, match="--max-held-bytes-per-job") as caught:
        open_session(make_book(max_held_bytes_per_job=held_bytes(spec) - 1), spec)
    assert caught.value.retry_seconds is None, "waiting makes no session smaller"
    config = ServiceConfig()
    assert config.max_held_bytes_per_job <= config.max_held_bytes // 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda request: request.layers[0].home_ranks.extend([0] * 5000), "layers[0].expert_count"),
        (lambda request: setattr(request.layers[0], "expert_count", 2**31 - 1), "layers[0].expert_count"),
        (lambda request: setattr(request.layers[1], "name", "x" * 300), "layers[1].name"),
        (lambda request: [request.topology.levels.add() for _ in range(20)], "topology.levels"),
        (lambda request: setattr(request.topology.ranks[2], "slot_count", 2**31 - 1), "topology.ranks[2].slot_count"),
    ],
)
def test_declared_sizes_are_refused_before_arrays_are_made(change, field):
    request = encode_session_spec(make_spec())
    check_limits(request, ServiceConfig())
    change(request)
    with pytest.raises(ContractError) as caught:
        check_limits(request, ServiceConfig())
    assert caught.value.field == field


@pytest.mark.parametrize(
    "data",
    [b"\x22\x00" * (SMALL_BYTES // 2), b"\x22\x80\x80\x80\x09\x2a" + b"\xfa\xff\xff\x08" + b"\x00" * 0x8FFFFFA],
    ids=["empty layers", "home ranks"],
)
def test_bytes_that_would_become_much_more_in_memory_are_not_parsed(data):
    assert len(data) > 2 * MAX_PARTS or len(data) > MAX_NUMBER_BYTES
    with pytest.raises(ContractError, match="reads at most") as caught:
        check_parts(data, OPEN)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED


def test_handlers_look_at_bytes_before_they_parse_them():
    parsed = []
    refused = _tolerant(parsed.append, OPEN)(b"\x22\x00" * (SMALL_BYTES // 2))
    assert isinstance(refused, ContractError)
    assert not parsed


@pytest.mark.parametrize(
    "field",
    [b"\xa0\x1f\x00", b"\xa5\x1f" + bytes(4), b"\xa1\x1f" + bytes(8), b"\x18\x01", b"\xaa\x01\x00"],
    ids=["varints", "fixed32", "fixed64", "one field again and again", "texts"],
)
def test_the_check_itself_looks_at_so_many_fields_and_no_more(field):
    data = field * max(MAX_FIELDS + 1, SMALL_BYTES // len(field) + 1)
    with pytest.raises(ContractError, match="reads at most"):
        check_parts(data, OPEN)


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_nothing_hides_behind_a_group(wire_type):
    hidden = b"\x22\x00" * (SMALL_BYTES // 2)
    with pytest.raises(ContractError, match=f"wire type {wire_type}") as caught:
        check_parts(bytes([8 | wire_type]) + hidden, OPEN)
    assert caught.value.reason is Reason.INVALID_MESSAGE


def test_large_requests_that_are_right_are_parsed_and_no_message_is_left_to_the_parser():
    spec = make_spec(num_ranks=64, experts_L=(256,) * 32, top_k=1)
    data = encode_report("s", make_report(spec, step=1, num_tokens=8)).SerializeToString()
    assert len(data) > SMALL_BYTES
    check_parts(data, pb.ReportRoutingRequest.DESCRIPTOR)
    check_parts(b"\xff" * SMALL_BYTES, OPEN)


def test_health_watches_and_reflection_take_the_room_of_nobody():
    with (
        running_planner(ServiceConfig(), is_warm_awaited=False) as planner,
        planner_client(planner.address) as client,
        grpc.insecure_channel(planner.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request, asked = health_pb2.HealthCheckRequest(), reflection_pb2.ServerReflectionRequest(list_services="")
        watches = [health.Watch(request, timeout=CALL_SECONDS) for _ in range(MAX_OPEN_STREAMS)]
        for watch in watches:
            next(watch)
        seen = refusal(lambda: next(health.Watch(request, timeout=CALL_SECONDS)))
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        seen = refusal(lambda: next(reflection.ServerReflectionInfo(iter([asked]), timeout=CALL_SECONDS)))
        assert seen.info.reason == "OVERLOADED"
        health.Check(request, timeout=CALL_SECONDS)
        client.open(make_spec())
        watches.pop().cancel()
        while True:  # until the planner has noticed
            again = health.Watch(request, timeout=CALL_SECONDS)
            with contextlib.suppress(grpc.RpcError):
                next(again)
                break


def test_calls_beyond_the_limit_are_refused_with_advice_while_health_is_well():
    config = ServiceConfig(max_calls=1, max_watches=1, max_waiting_plans_per_session=1)
    with running_planner(config) as planner, planner_client(planner.address) as client:
        spec = make_spec()
        session_id = client.open(spec)
        watch = client.watch(session_id)
        client.report(session_id, make_report(spec, step=1))
        next(watch)
        seen = refusal(lambda: next(client.watch(session_id)))
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        with pytest.raises(grpc.RpcError) as caught:
            next(client.watch(session_id))
        assert retry_seconds_of(caught.value) == pytest.approx(0.5)
        # All threads are busy: calls wait, and the one beyond the limit does not.
        planner.on_loop(lambda: setattr(planner.planner._pool, "_num_free", 0))
        request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=2)))
        waiting = client.stub.PlanNow.future(request, timeout=CALL_SECONDS)
        while not planner.on_loop(lambda: planner.planner._pool._answers):
            pass
        seen = refusal(lambda: client.plan_now(session_id, make_report(spec, step=2)))
        assert (seen.info.reason, seen.info.metadata["flag"]) == ("OVERLOADED", "--max-calls")
        health = health_pb2_grpc.HealthStub(grpc.insecure_channel(planner.address))
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        url = f"http://127.0.0.1:{planner.http_port}/livez"
        assert httpx.get(url, timeout=CALL_SECONDS, trust_env=False).status_code == 200
        planner.on_loop(lambda: (setattr(planner.planner._pool, "_num_free", 1), planner.planner._pool.wake()))
        assert waiting.result(timeout=CALL_SECONDS).plan.layers
        watch.cancel()
