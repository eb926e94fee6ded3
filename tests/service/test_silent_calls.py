"""Calls that are opened and send nothing: they end, and hold nobody up meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client
from routing_samples import make_report, make_spec
from running_planner import running_planner

import taot_service.request_wait
from taot_api import ContractError, Reason
from taot_api.v1 import planner_pb2 as pb
from taot_service.call_guard import CallGuard
from taot_service.config import ServiceConfig
from taot_service.grpc_front import MAX_CONNECTION_CALLS, ROOM_FOR_HEALTH, _max_concurrent_rpcs

SMALL = ServiceConfig(max_calls=1, max_sessions=1, max_watches=1)
"""Room for 130 calls or few more."""

PLANNER = "/taot_api.v1.PlannerService/"


@contextlib.contextmanager
def silent_calls(address: str, method: str, number: int) -> Iterator[list[grpc.Call]]:
    """Calls over one connection that begin and never send their request."""
    is_over = threading.Event()

    def nothing() -> Iterator[bytes]:
        is_over.wait()
        yield from ()

    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream(method)
        try:
            yield [call(nothing(), timeout=10 * CALL_SECONDS) for _ in range(number)]
        finally:
            is_over.set()


def is_well(address: str) -> bool:
    """Whether a health check over a connection of its own is answered at once."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = health_pb2.HealthCheckRequest()
        answer = health_pb2_grpc.HealthStub(channel).Check.future(request, timeout=CALL_SECONDS)
        assert answer.code() in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
        return answer.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("method", ["ReportRouting", "WatchPlans", "NoSuchMethod"])
def test_a_call_without_a_request_ends_and_a_watch_with_one_goes_on(method, monkeypatch):
    monkeypatch.setattr(taot_service.request_wait, "REQUEST_SECONDS", 0.2)
    with running_planner(ServiceConfig()) as planner, planner_client(planner.address) as client:
        spec = make_spec()
        session_id = client.open(spec)
        watch = client.watch(session_id)
        with silent_calls(planner.address, PLANNER + method, 3) as calls:
            assert eventually(lambda: all(call.done() for call in calls), seconds=CALL_SECONDS)
        client.report(session_id, make_report(spec, step=1))
        assert next(watch).plan.source_step == 1, "a call whose request has come lasts"
        watch.cancel()


def test_calls_without_a_request_that_take_all_room_leave_it_again(monkeypatch):
    monkeypatch.setattr(taot_service.request_wait, "REQUEST_SECONDS", 5.0)
    room = _max_concurrent_rpcs(SMALL)
    assert ROOM_FOR_HEALTH < room < 2 * MAX_CONNECTION_CALLS
    with (
        running_planner(SMALL) as planner,
        silent_calls(planner.address, PLANNER + "ReportRouting", room // 2 + 1) as reports,
        silent_calls(planner.address, PLANNER + "GetPlan", room // 2 + 1) as questions,
    ):
        calls = reports + questions
        assert eventually(lambda: any(call.done() for call in calls), seconds=CALL_SECONDS)
        codes = {call.code() for call in calls if call.done()}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}, "they never took the room"
        assert eventually(lambda: is_well(planner.address), seconds=CALL_SECONDS), "they never leave it"
        assert eventually(lambda: all(call.done() for call in calls), seconds=CALL_SECONDS)


def test_a_refusal_that_nobody_is_there_for_any_more_is_no_error():
    class Gone:
        async def read(self):
            return ContractError(Reason.INVALID_MESSAGE, "no message")

        async def abort(self, *arguments):
            raise grpc.aio.InternalError("the call has ended")

    guard = CallGuard(
        None, pb.DESCRIPTOR.services_by_name["PlannerService"], max_calls=1, on_refusal=lambda reason: None
    )
    with pytest.raises(asyncio.CancelledError):  # which gRPC takes for the end of a call
        asyncio.run(guard._answering(None, is_counted=True)(None, Gone()))


def test_one_connection_cannot_take_all_room():
    config = ServiceConfig(max_sessions=1, max_watches=1)
    room = _max_concurrent_rpcs(config)
    assert room > 2 * MAX_CONNECTION_CALLS
    with (
        running_planner(config) as planner,
        silent_calls(planner.address, PLANNER + "ReportRouting", room + 50) as calls,
    ):
        assert all(is_well(planner.address) for _ in range(20))
        assert not any(call.done() for call in calls)
