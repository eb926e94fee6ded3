from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from link_samples import eventually
from rank_threads import Rank, run_ranks
from routing_samples import make_report, make_spec
from tiny_moe import History, TinyConfig, tiny_options, train

from taot_api import PlanIdentity, PublishedPlan, SessionSpec, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client import Agent
from taot_client.planner.planner_link import PlannerLink
from taot_planning.arrays import IntArray

NO_GUESTS_RK = np.full((4, 2), -1)
"""Four ranks with two slots each, as in `make_spec`."""


def message_of(*guests_L: IntArray, epoch: str = "epoch", version: int = 1, source_step: int = 0) -> pb.Plan:
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch=epoch, version=version),
        source_step=source_step,
        source_micro_batch=0,
        guests_L=guests_L,
    )
    return codec.encode_plan(plan)


def read(message: pb.Plan, spec: SessionSpec) -> PublishedPlan:
    """Reads a plan as the link does when one arrives; nothing is sent anywhere."""
    link = PlannerLink("127.0.0.1:1", spec)
    link.report(make_report(spec, step=0))
    return link._decode(message, spec.layers, pb.Session(planner_epoch=message.identity.planner_epoch))


def with_guest(expert: int, *, rank: int, slot: int) -> IntArray:
    guests_RK = NO_GUESTS_RK.copy()
    guests_RK[rank, slot] = expert
    return guests_RK


def test_a_plan_that_fits_is_accepted() -> None:
    plan = read(message_of(NO_GUESTS_RK, with_guest(0, rank=3, slot=1)), make_spec())
    assert plan.identity == PlanIdentity(planner_epoch="epoch", version=1)
    assert plan.guests_L[1][3, 1] == 0


def test_rubbish_is_refused_before_any_of_it_is_used() -> None:
    refused = {
        "the plan has 1 layers, expected 2": message_of(NO_GUESTS_RK),
        "expert 0 is a guest on rank 0, its own home": message_of(NO_GUESTS_RK, with_guest(0, rank=0, slot=0)),
        "the experts are 0 to 7": message_of(with_guest(8, rank=0, slot=0), NO_GUESTS_RK),
        "rank 3 holds one expert twice": message_of(NO_GUESTS_RK, np.array([[-1, -1]] * 3 + [[0, 0]])),
        "planner epoch must be": message_of(NO_GUESTS_RK, NO_GUESTS_RK, epoch="e" * 65),
        "version must be": message_of(NO_GUESTS_RK, NO_GUESTS_RK, version=0),
    }
    twice = message_of(NO_GUESTS_RK, NO_GUESTS_RK)
    twice.digest = bytes(32)
    refused["the digest does not match"] = twice
    spec = make_spec()
    for told, message in refused.items():
        with pytest.raises(ValueError, match=told):
            read(message, spec)
    with pytest.raises(ValueError, match="guest_experts"):
        read(message_of(np.full((4, 3), -1), np.full((4, 3), -1)), spec)


def test_a_guest_beyond_the_slots_of_its_rank_is_refused() -> None:
    spec = make_spec()
    uneven = dataclasses.replace(spec.topology, slots_R=[2, 2, 2, 1])
    with pytest.raises(ValueError, match="rank 3 has 1 guest slots, the plan uses its slot 1"):
        read(message_of(NO_GUESTS_RK, with_guest(0, rank=3, slot=1)), dataclasses.replace(spec, topology=uneven))


def test_a_watch_hands_over_newer_plans_only_and_none_of_counts_that_nobody_has_reported() -> None:
    spec = make_spec()
    link = HandFedLink("127.0.0.1:1", spec)
    both = (NO_GUESTS_RK, NO_GUESTS_RK)
    link.receive(message_of(*both, version=3))
    assert link.plan is None, "nothing has been reported yet"
    link.report(make_report(spec, step=5))
    taken = []
    for version, source_step in ((3, 5), (2, 5), (3, 5), (9, 6), (9, 2**62), (4, 4)):
        link.receive(message_of(*both, version=version, source_step=source_step))
        taken.append((link.plan.identity.version, link.plan.source_step))
    assert taken == [(3, 5)] * 5 + [(4, 4)]
    assert link.num_rejected_plans == 4
    assert link._unsent._errors["plan_refused"] == 4
    link.receive(message_of(*both, epoch="of a restart", version=1))
    assert link.plan.identity == PlanIdentity(planner_epoch="of a restart", version=1)


class HandFedLink(PlannerLink):
    """A link without a network: plans are handed to it, and go the way of plans that arrive."""

    def start(self, *, wait) -> str | None:
        self._state.is_connected = True
        return None

    def report(self, report) -> None:
        """Nobody listens."""
        self._take(report)

    def receive(self, *messages: pb.Plan) -> None:
        responses = [pb.WatchPlansResponse(plan=message) for message in messages]
        self._channel = SimpleNamespace(stub=SimpleNamespace(WatchPlans=lambda request: iter(responses)))
        self._session = pb.Session(session_id="s", planner_epoch=messages[0].identity.planner_epoch)
        self._follow()
        self._channel = None


GOOD_L = (with_guest(0, rank=3, slot=0), with_guest(1, rank=2, slot=1))
BAD = {
    "a duplicate guest": message_of(GOOD_L[0], np.array([[-1, -1]] * 3 + [[0, 0]]), version=2),
    "an expert out of range": message_of(with_guest(8, rank=0, slot=0), GOOD_L[1], version=3),
    "more guests than slots": message_of(*(np.array([[-1, -1, -1]] * 3 + [[0, 1, 2]]),) * 2, version=4),
    "a missing layer": message_of(GOOD_L[1], version=5),
    "counts that nobody has reported": message_of(*GOOD_L, version=2**62, source_step=2**62),
}


def train_with(plans_by_step: dict[int, pb.Plan]) -> list[History]:
    """Trains with plans that arrive before given steps, and so are in force from the step after them on."""

    def body(rank: Rank) -> History:
        agents: list[Agent] = []

        def feed(agent: Agent, step: int) -> None:
            agents[:] = [agent]
            if agent.planner_stats and step in plans_by_step:
                link = agent._agent.state.leader.link
                link.receive(plans_by_step[step])
                assert link.num_rejected_plans == max(len([each for each in plans_by_step if each <= step]) - 1, 0)

        def await_guests(place: str, step: int) -> None:
            # Which guests are late depends on the machine, and with it the last bits of a gradient.
            if place == "after begin":
                state = agents[0]._agent.state
                for layer in state.layers:
                    mine_K = layer.supply.resident_RK[rank.group.rank]
                    wanted = sum(1 << int(slot) for slot in np.flatnonzero(mine_K != -1))
                    ready = lambda layer=layer: layer.supply.slots.ready_bits(weight_epoch=state.weight_epoch)  # noqa: E731
                    assert eventually(lambda wanted=wanted, ready=ready: ready() == wanted)

        options = tiny_options(ranks_per_node=2, planner_address="127.0.0.1:1")
        return train(rank, TinyConfig(num_layers=2), options, num_steps=8, before_step=feed, at=await_guests)

    return run_ranks(4, body)


def test_training_does_not_notice_plans_that_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("taot_client.planner.leader.PlannerLink", HandFedLink)
    good = message_of(*GOOD_L)
    undisturbed = train_with({1: good})
    disturbed = train_with({1: good, **dict(enumerate(BAD.values(), start=2))})
    assert [summary.mode.name for summary in disturbed[0].summaries] == ["HOME_ONLY"] * 2 + ["PLAN"] * 6
    assert [summary.guests_intra + summary.guests_inter for summary in disturbed[0].summaries[2:]] == [2] * 6
    for one, other in zip(undisturbed, disturbed, strict=True):
        assert one.losses == other.losses
        for left, right in zip(one.gradients, other.gradients, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)
