"""Raw wrong input over a real channel: refused with a code, a reason, a field and a message, and survived."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from planner_client import CALL_SECONDS, refusal
from routing_samples import make_report, make_spec

from taot_api.codec import encode_report, encode_session_spec, encode_tensor
from taot_api.v1 import planner_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def spec():
    return make_spec()


@pytest.fixture
def session_id(client, spec):
    return client.open(spec)


def _open(client, change):
    request = encode_session_spec(make_spec())
    change(request)
    return refusal(lambda: client.stub.OpenSession(request, timeout=CALL_SECONDS))


def _report(client, session_id, spec, change):
    request = encode_report(session_id, make_report(spec, step=1))
    change(request)
    return refusal(lambda: client.stub.ReportRouting(request, timeout=CALL_SECONDS))


def _put_counts(request, values, shape=None):
    request.token_counts[0].CopyFrom(encode_tensor(np.array(values)))
    if shape is not None:
        del request.token_counts[0].shape[:]
        request.token_counts[0].shape.extend(shape)


@pytest.mark.parametrize(
    ("change", "reason", "field", "words"),
    [
        (
            lambda request: request.layers[0].home_ranks.pop(),
            "INVALID_LAYER",
            "layers[0].home_ranks",
            "one entry per expert (8), got 7",
        ),
        (
            lambda request: request.layers[0].home_ranks.__setitem__(5, -1),
            "INVALID_LAYER",
            "layers[0].home_ranks",
            "expert 5 has no home",
        ),
        (
            lambda request: request.topology.ranks.pop(),
            "INVALID_LAYER",
            "layers[0].home_ranks",
            "expert 6 has no home: its home rank is 3, the ranks are 0 to 2",
        ),
        (
            lambda request: request.topology.ranks[3].domains.__setitem__(1, 1),
            "INVALID_TOPOLOGY",
            "topology",
            "domains must nest",
        ),
        (
            lambda request: setattr(request.options, "algorithm", "magic"),
            "UNKNOWN_ALGORITHM",
            "options.algorithm",
            "unknown algorithm 'magic': choose one of echo, eplb, eplb-global, llep",
        ),
        (lambda request: request.ClearField("group"), "INVALID_NAME", "group", "got ''"),
    ],
)
def test_a_wrong_session_is_refused(client, change, reason, field, words):
    seen = _open(client, change)
    assert seen.code is INVALID
    assert seen.info.reason == reason
    assert seen.info.metadata["field"] == field
    assert [violation.field for violation in seen.violations] == [field]
    assert words in seen.message


@pytest.mark.parametrize(
    ("change", "reason", "field", "words"),
    [
        (
            lambda request: _put_counts(request, np.full((4, 8), -1)),
            "INVALID_COUNTS",
            "token_counts[0]",
            "got -1 from source rank 0 to expert 0",
        ),
        (
            lambda request: _put_counts(request, np.zeros((4, 9))),
            "INVALID_TENSOR",
            "token_counts[0]",
            "shape must be [4, 8], got [4, 9]",
        ),
        (
            lambda request: _put_counts(request, np.zeros((4, 7)), shape=[4, 8]),
            "INVALID_TENSOR",
            "token_counts[0]",
            "must be 128 bytes, got 112",
        ),
        (
            lambda request: _put_counts(request, np.full((4, 8), 15)),
            "INVALID_COUNTS",
            "token_counts[0]",
            "add up to 120, expected 64 valid tokens x top_k 2 = 128",
        ),
        (
            lambda request: _put_counts(request, np.full((4, 8), 65)),
            "INVALID_COUNTS",
            "token_counts[0]",
            "sends 65 tokens to expert 0 but has only 64 valid tokens",
        ),
        (
            lambda request: request.ClearField("token_counts"),
            "INVALID_COUNTS",
            "token_counts",
            "one tensor per layer (2), got 0",
        ),
        (lambda request: setattr(request, "step", -1), "INVALID_STEP", "step", "got -1"),
    ],
)
def test_a_wrong_report_is_refused_and_leaves_no_trace(client, session_id, spec, change, reason, field, words):
    seen = _report(client, session_id, spec, change)
    assert seen.code is INVALID
    assert seen.info.reason == reason
    assert seen.info.metadata["field"] == field
    assert [violation.field for violation in seen.violations] == [field]
    assert words in seen.message
    # The right report of the same step is new, not a repeat.
    assert client.report_and_wait(session_id, spec, make_report(spec, step=1)).source_step == 1


def test_counts_may_add_up_to_less_where_tokens_are_dropped_but_not_to_more(client):
    spec = make_spec(drops_tokens=True)
    session_id = client.open(spec)
    seen = _report(client, session_id, spec, lambda request: _put_counts(request, np.full((4, 8), 17)))
    assert "expected at most 64 valid tokens x top_k 2 = 128" in seen.message
    request = encode_report(session_id, make_report(spec, step=1))
    _put_counts(request, np.full((4, 8), 15))
    client.stub.ReportRouting(request, timeout=CALL_SECONDS)


def test_a_wrong_plan_now_names_the_field_inside_its_report(client, session_id, spec):
    request = pb.PlanNowRequest(report=encode_report(session_id, make_report(spec, step=1)))
    _put_counts(request.report, np.full((4, 8), 15))
    seen = refusal(lambda: client.stub.PlanNow(request, timeout=CALL_SECONDS))
    assert seen.info.metadata["field"] == "report.token_counts[0]"


@pytest.mark.parametrize(
    ("indices", "field", "words"),
    [
        ((2,), "layer_indices[0]", "below the 2 layers of the session, got 2"),
        ((0, -1), "layer_indices[1]", "got -1"),
        ((1, 1), "layer_indices", "twice"),
        ((1,), "report.token_counts", "one tensor per layer (1), got 2"),
    ],
)
def test_plan_now_refuses_layers_that_are_not_there(client, session_id, spec, indices, field, words):
    seen = refusal(lambda: client.plan_now(session_id, make_report(spec, step=1), layer_indices=indices))
    assert (seen.code, seen.info.metadata["field"]) == (INVALID, field)
    assert words in seen.message


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("OpenSession", lambda session_id: encode_session_spec(make_spec())),
        ("ReportRouting", lambda session_id: encode_report(session_id, make_report(make_spec(), step=1))),
        (
            "PlanNow",
            lambda session_id: pb.PlanNowRequest(report=encode_report(session_id, make_report(make_spec(), step=1))),
        ),
        ("GetPlan", lambda session_id: pb.GetPlanRequest(session_id=session_id)),
        ("CloseSession", lambda session_id: pb.CloseSessionRequest(session_id=session_id)),
    ],
)
def test_a_call_without_a_deadline_is_refused(client, session_id, method, request_of):
    seen = refusal(lambda: getattr(client.stub, method)(request_of(session_id)))
    assert (seen.code, seen.info.reason) == (INVALID, "DEADLINE_REQUIRED")


def test_a_watch_needs_no_deadline(client, session_id, spec):
    client.report(session_id, make_report(spec, step=1))
    watch = client.watch(session_id, timeout=None)
    assert next(watch).plan.source_step == 1
    watch.cancel()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.report("nobody", make_report(make_spec(), step=1)),
        lambda client: client.plan_now("nobody", make_report(make_spec(), step=1)),
        lambda client: next(client.watch("nobody")),
        lambda client: client.stub.GetPlan(pb.GetPlanRequest(session_id="nobody"), timeout=CALL_SECONDS),
    ],
)
def test_an_unknown_session_is_not_found(client, call):
    seen = refusal(lambda: call(client))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    assert seen.info.metadata["session_id"] == "nobody"
    assert "open it again" in seen.message


def test_a_plan_that_was_never_made_is_not_found(client, session_id, spec):
    without = refusal(lambda: client.stub.GetPlan(pb.GetPlanRequest(session_id=session_id), timeout=CALL_SECONDS))
    assert (without.code, without.info.reason) == (grpc.StatusCode.NOT_FOUND, "PLAN_NOT_FOUND")
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    request = pb.GetPlanRequest(session_id=session_id, version=10**9)
    other = refusal(lambda: client.stub.GetPlan(request, timeout=CALL_SECONDS))
    assert (other.info.reason, other.info.metadata["version"]) == ("PLAN_NOT_FOUND", "1000000000")


def test_an_older_incarnation_is_refused(client):
    client.open(make_spec(training_job="stale", incarnation=5))
    seen = refusal(lambda: client.open(make_spec(training_job="stale", incarnation=4)))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_INCARNATION")
    assert seen.info.metadata["newer_incarnation"] == "5"


def test_whatever_a_request_quotes_the_refusal_stays_short_and_ascii(client):
    seen = _open(client, lambda request: setattr(request.options, "algorithm", "\u2603\n" * 100_000))
    assert seen.info.reason == "UNKNOWN_ALGORITHM"
    assert len(seen.message) <= 1000
    assert seen.message.isascii()
    shape = list(range(50_000))
    request = encode_session_spec(make_spec())
    request.topology.cost_matrix_milli.CopyFrom(pb.Int32Tensor(shape=shape))
    seen = refusal(lambda: client.stub.OpenSession(request, timeout=CALL_SECONDS))
    assert seen.info.reason == "INVALID_TENSOR"


@pytest.mark.parametrize(
    "method",
    [
        "taot_api.v1.PlannerService/OpenSession",
        "taot_api.v1.PlannerService/ReportRouting",
        "taot_api.v1.PlannerService/PlanNow",
        "taot_api.v1.PlannerService/WatchPlans",
        "taot_api.v1.PlannerService/GetPlan",
        "taot_api.v1.PlannerService/CloseSession",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_bytes_that_are_no_message_are_refused_and_do_not_disturb_the_planner(client, planner, method, caplog):
    junk = b"\xff\xff\xff\xff not a message"
    with grpc.insecure_channel(planner.address) as channel:
        if "Reflection" in method:
            seen = refusal(lambda: list(channel.stream_stream(f"/{method}")(iter([junk]), timeout=CALL_SECONDS)))
        else:  # whether one answer is expected or many, the refusal is the same
            seen = refusal(lambda: list(channel.unary_stream(f"/{method}")(junk, timeout=CALL_SECONDS)))
    assert (seen.code, seen.info.reason) == (INVALID, "INVALID_MESSAGE")
    assert not [record for record in caplog.records if record.exc_info], "a trace in the log for what others send"
    client.open(make_spec())
