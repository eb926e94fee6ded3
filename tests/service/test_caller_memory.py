"""What PlanNow calls hold counts like what sessions hold: refused beyond the limit, given back with the answer."""

from __future__ import annotations

import grpc
import pytest
from link_samples import eventually
from planner_client import CALL_SECONDS, planner_client, refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner
from session_book_samples import make_book, open_session

from taot_api import ContractError, Reason
from taot_api.codec import encode_report
from taot_api.v1 import planner_pb2 as pb
from taot_service.admission import caller_bytes, check_caller_room, held_bytes
from taot_service.config import ServiceConfig
from taot_service.held_memory import HeldMemory

SPEC = make_spec(training_job="caller")


def make_room(num_calls: int, **others: int) -> ServiceConfig:
    """Room for one session like SPEC in each job, and so many calls."""
    room = held_bytes(SPEC) + num_calls * caller_bytes(SPEC, SPEC.layers)
    return ServiceConfig(**({"max_held_bytes_per_job": room} | others))


def call(client, session_id):
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(SPEC, step=1)))
    return client.stub.PlanNow.future(request, timeout=CALL_SECONDS)


def test_a_call_needs_room_for_counts_guests_and_quotas_of_its_layers():
    # 4 ranks, 2 slots, layers of 8 experts.
    assert caller_bytes(SPEC, SPEC.layers[:1]) == 8 * (4 * 8 + 4 * 2 + 4 * 4 * 2)
    assert caller_bytes(SPEC, SPEC.layers) == 2 * caller_bytes(SPEC, SPEC.layers[:1])


def test_calls_beyond_the_memory_of_their_job_are_refused_and_others_go_on():
    config = make_room(2)
    with running_planner(config) as planner, planner_client(planner.address) as client:
        session_id = client.open(SPEC)
        of_another_job = client.open(make_spec(training_job="other"))
        # The only thread is taken, so that whatever waits goes on waiting.
        planner.on_loop(lambda: setattr(planner.planner._pool, "_num_free", 0))
        held = planner.planner._book.held
        before = held.total_bytes
        waiting = [call(client, session_id) for _ in range(2)]
        wanted = caller_bytes(SPEC, SPEC.layers)
        assert eventually(lambda: held.total_bytes == before + 2 * wanted, seconds=CALL_SECONDS)
        seen = refusal(lambda: client.plan_now(session_id, make_report(SPEC, step=1)))
        assert (seen.code, seen.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert seen.info.metadata["flag"] == "--max-held-bytes-per-job"
        waiting.append(call(client, of_another_job))
        assert eventually(lambda: held.total_bytes == before + 3 * wanted, seconds=CALL_SECONDS)
        waiting.pop(0).cancel()
        assert eventually(lambda: held.total_bytes == before + 2 * wanted, seconds=CALL_SECONDS)
        waiting.append(call(client, session_id))
        planner.on_loop(lambda: (setattr(planner.planner._pool, "_num_free", 1), planner.planner._pool.wake()))
        assert all(each.result(timeout=CALL_SECONDS).plan.layers for each in waiting)
        assert eventually(lambda: held.total_bytes == before, seconds=CALL_SECONDS)


@pytest.mark.parametrize("flag", ["--max-held-bytes", "--max-held-bytes-per-job"])
def test_a_call_that_no_waiting_makes_room_for_is_told_so(flag):
    limits = ServiceConfig(**{flag[2:].replace("-", "_"): 1000})
    with pytest.raises(ContractError, match=f"{flag}$") as caught:
        check_caller_room(SPEC, 1001, limits, HeldMemory())
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.LIMIT_EXCEEDED, None)
    held = HeldMemory()
    with held.holding(SPEC.training_job, 1), pytest.raises(ContractError, match=f"{flag}$") as caught:
        check_caller_room(SPEC, 1000, limits, held)
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.OVERLOADED, 0.5)
    check_caller_room(SPEC, 1000, limits, held)


def test_a_session_is_not_opened_into_the_memory_of_calls():
    book = make_book(max_held_bytes_per_job=2 * held_bytes(SPEC))
    open_session(book, make_spec(training_job="caller", group="a"))
    wanted = make_spec(training_job="caller", group="b")
    with book.held.holding("caller", 1):
        with pytest.raises(ContractError, match="--max-held-bytes-per-job"):
            open_session(book, wanted)
        open_session(book, make_spec(training_job="caller", group="a", incarnation=2))
    open_session(book, wanted)


def test_nothing_is_left_of_sessions_that_have_ended():
    book = make_book()
    for incarnation in (1, 2):
        session = open_session(book, make_spec(training_job="ends", incarnation=incarnation)).session
    assert book.held.total_bytes == book.held.job_bytes("ends") == held_bytes(session.spec)
    book.close(session.session_id)
    assert book.held.total_bytes == book.held.job_bytes("ends") == 0
    assert not book.held._by_job
