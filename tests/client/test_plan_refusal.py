from __future__ import annotations

import numpy as np
import pytest
from routing_samples import make_spec

from taot_api import PlanIdentity, PublishedPlan, SessionSpec, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner_link import PlannerLink
from taot_planning.arrays import IntArray

NO_GUESTS_RK = np.full((4, 2), -1)
"""Four ranks with two slots each, as in `make_spec`."""


def message_of(*guests_L: IntArray, epoch: str = "epoch", version: int = 1) -> pb.Plan:
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch=epoch, version=version),
        source_step=3,
        source_micro_batch=0,
        guests_L=guests_L,
    )
    return codec.encode_plan(plan)


def read(message: pb.Plan, spec: SessionSpec) -> PublishedPlan:
    """Reads a plan as the link does when one arrives; nothing is sent anywhere."""
    return PlannerLink("127.0.0.1:1", spec)._decode(message, spec.layers)


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
