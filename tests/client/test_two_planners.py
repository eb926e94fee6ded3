"""Two planners behind one address are told apart from one that restarts; advice to retry is heeded."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from link_samples import WAIT, eventually, report, spec
from planner_client import CALL_SECONDS, PlannerClient, planner_client, refusal
from routing_samples import make_report, make_spec
from running_planner import running_planner

from taot_api import PlanIdentity, PublishedPlan, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.link_state import LinkState
from taot_client.planner.planner_epochs import MAX_LEFT_EPOCHS, PlannerEpochs
from taot_client.planner.planner_link import PlannerLink
from taot_client.planner.refusal_details import RefusalDetails, details_of
from taot_client.planner.retry_pause import MAX_ADVISED_SECONDS, RETRY_SECONDS, pause_seconds
from taot_client.planner.unsent_telemetry import UnsentTelemetry

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_restart_is_no_second_planner_and_an_epoch_that_is_back_is_one():
    epochs = PlannerEpochs()
    assert [epochs.note(epoch) for epoch in ("a", "a", "", "b", "b", "c")] == [False] * 6
    assert epochs.note("b")
    assert not epochs.note("b")
    assert epochs.note("c")
    for number in range(10 * MAX_LEFT_EPOCHS):
        epochs.note(f"restart {number}")
    assert len(epochs._left) == MAX_LEFT_EPOCHS


def test_two_planners_are_logged_once_and_counted_each_time(caplog):
    unsent = UnsentTelemetry()
    state = LinkState("planner:1", unsent)
    with caplog.at_level(logging.ERROR, logger="taot_client"):
        for epoch in "abab":
            state.note_epoch(epoch)
    assert unsent._errors["two_planners"] == 2
    assert len([record for record in caplog.records if "more than one planner" in record.message]) == 1


def test_a_plan_of_another_epoch_than_the_sessions_is_never_taken():
    link = PlannerLink("127.0.0.1:1", spec("epochs"))
    link._session = pb.Session(session_id="s", planner_epoch="mine")
    link.report(report(0))
    plans = [
        PublishedPlan(
            identity=PlanIdentity(planner_epoch=epoch, version=version),
            source_step=0,
            source_micro_batch=0,
            guests_L=(np.full((4, 2), -1),),
        )
        for epoch, version in (("mine", 1), ("theirs", 9))
    ]
    responses = [pb.WatchPlansResponse(plan=codec.encode_plan(plan)) for plan in plans]
    link._channel = SimpleNamespace(stub=SimpleNamespace(WatchPlans=lambda request: iter(responses)))
    link._follow()
    assert link.plan.identity == plans[0].identity
    assert link.num_rejected_plans == 1


def test_the_planner_names_its_epoch_where_it_does_not_know_a_session_and_the_link_reads_it():
    with running_planner() as planner, planner_client(planner.address) as client:
        stub = PlannerClient(grpc.insecure_channel(planner.address)).stub
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetPlan(pb.GetPlanRequest(session_id="of another planner"), timeout=CALL_SECONDS)
        details = details_of(caught.value)
        assert details.reason == "SESSION_NOT_FOUND"
        assert details.metadata["planner_epoch"] == planner.planner.planner_epoch
        first = make_spec()
        one = client.report_and_wait(client.open(first), first, make_report(first, step=1)).identity
    with running_planner() as planner, planner_client(planner.address) as client:
        seen = refusal(lambda: client.report("gone with the first", make_report(first, step=2)))
        assert seen.info.metadata["planner_epoch"] == planner.planner.planner_epoch != one.planner_epoch
        two = client.report_and_wait(client.open(first), first, make_report(first, step=1)).identity
        assert two.version == one.version
        assert two != one, "identities never clash over a restart"


def test_a_link_that_meets_two_planners_in_turn_tells_it():
    # The second planner is played by its answers: the link is told of its epoch as a refusal would.
    with running_planner() as planner:
        link = PlannerLink(planner.address, spec("two"))
        assert link.start(wait=WAIT) is None
        link._state.note_details(RefusalDetails(metadata={"planner_epoch": "the other"}))
        link.report(report(0))
        assert eventually(lambda: link.plan is not None)
        assert link._unsent._errors["two_planners"] == 1
        link.close()


@pytest.mark.parametrize(
    ("code", "advice", "low", "high"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, RETRY_SECONDS, 0.3),
        (EXHAUSTED, 2.0, 2.0, 3.0),
        (EXHAUSTED, 0.0, RETRY_SECONDS, 0.3),
        (EXHAUSTED, 1e9, MAX_ADVISED_SECONDS, 45.0),
        (EXHAUSTED, None, MAX_ADVISED_SECONDS, 45.0),
    ],
)
def test_pauses_follow_the_advice_within_bounds_and_are_spread(code, advice, low, high):
    details = RefusalDetails(retry_seconds=advice)
    assert pause_seconds(code, details, chance=0.0) == pytest.approx(low)
    assert pause_seconds(code, details, chance=1.0) == pytest.approx(high)


def test_details_that_cannot_be_read_are_none():
    for packed in (b"\xff\xff", status_pb2.Status().SerializeToString()):
        error = SimpleNamespace(trailing_metadata=lambda packed=packed: (("grpc-status-details-bin", packed),))
        assert details_of(error) == RefusalDetails()
    retry = status_pb2.Status()
    retry.details.add().Pack(error_details_pb2.RetryInfo())
    error = SimpleNamespace(trailing_metadata=lambda: (("grpc-status-details-bin", retry.SerializeToString()),))
    assert details_of(error).retry_seconds == 0.0


def test_epochs_are_kept_short_and_rubbish_between_two_plans_is_no_second_planner(caplog):
    epochs = PlannerEpochs()
    for epoch in ("a" * 1000, "b"):
        epochs.note(epoch)
    assert [len(each) for each in epochs._left] == [64]

    link = PlannerLink("127.0.0.1:1", spec("rubbish"))
    link._session = pb.Session(session_id="s", planner_epoch="mine")
    link._newest_step = 1
    link._state.note_epoch("mine")
    plans = [
        PublishedPlan(
            identity=PlanIdentity(planner_epoch=epoch, version=version),
            source_step=0,
            source_micro_batch=0,
            guests_L=(np.full((4, 2), -1),),
        )
        for version, epoch in enumerate(("mine", "rubbish", "mine"), 1)
    ]
    responses = [pb.WatchPlansResponse(plan=codec.encode_plan(plan)) for plan in plans]
    responses[1].plan.digest = bytes(32)
    link._channel = SimpleNamespace(stub=SimpleNamespace(WatchPlans=lambda request: iter(responses)))
    link._follow()
    assert (link.plan.identity.version, link.num_rejected_plans) == (3, 1)
    assert "more than one planner" not in caplog.text


def test_a_report_of_a_session_that_is_over_leaves_the_watch_of_the_next_alone():
    link = PlannerLink("127.0.0.1:1", spec("late"))
    cancelled = []
    link._watch = SimpleNamespace(cancel=lambda: cancelled.append(1))
    over, link._session = pb.Session(session_id="over"), pb.Session(session_id="next")
    not_found = SimpleNamespace(
        code=lambda: grpc.StatusCode.NOT_FOUND, details=lambda: "no such session", trailing_metadata=tuple
    )
    link._handle_failed_report(report(0), not_found, over)
    assert not cancelled
    link._handle_failed_report(report(0), not_found, link._session)
    assert cancelled
