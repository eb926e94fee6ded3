"""Reads a plan of the planner and checks it as a whole, before any of it is used."""

from __future__ import annotations

from collections.abc import Sequence

from taot_api import LayerSpec, PublishedPlan, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.step_record import check_identity
from taot_planning import Topology
from taot_planning.layer_plan import check_guests


def decode_checked(message: pb.Plan, *, layers: Sequence[LayerSpec], topology: Topology, epoch: str) -> PublishedPlan:
    """Reads a plan for some layers of a group.

    Args:
        message: the plan.
        layers: the layers it should be for.
        topology: the ranks of the group.
        epoch: the planner epoch of the session; a plan of another is never taken.

    Raises:
        ValueError: if this group cannot carry it out.
    """
    plan = codec.decode_plan(message, num_ranks=topology.num_ranks, num_slots=topology.max_slots)
    check_identity(plan.identity)
    if len(plan.guests_L) != len(layers):
        raise ValueError(f"the plan has {len(plan.guests_L)} layers, expected {len(layers)}")
    for layer, guests_RK in zip(layers, plan.guests_L, strict=True):
        check_guests(guests_RK, home_E=layer.home_E, slots_R=topology.slots_R)
    if plan.identity.planner_epoch != epoch:
        got = plan.identity.planner_epoch[:64]
        raise ValueError(f"the plan is of planner epoch {got!r}, the session of {epoch!r}")
    return plan
