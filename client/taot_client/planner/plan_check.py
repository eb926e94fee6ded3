"""Reads a plan of the planner and checks it as a whole, before any of it is used."""

from __future__ import annotations

from collections.abc import Sequence

from taot_api import LayerSpec, PublishedPlan, codec
from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.step_record import check_identity
from taot_planning import Topology
from taot_planning.layer_plan import check_guests


def decode_checked(  # noqa: PLR0913 - a plan, and what it is held against
    message: pb.Plan,
    *,
    layers: Sequence[LayerSpec],
    topology: Topology,
    epoch: str,
    newest_step: int,
    after: PublishedPlan | None = None,
) -> PublishedPlan:
    """Reads a plan for some layers of a group.

    Args:
        message: the plan.
        layers: the layers it should be for.
        topology: the ranks of the group.
        epoch: the planner epoch of the session; a plan of another is never taken.
        newest_step: the last step whose counts the planner can have. A plan of a later one would never grow old.
        after: the plan that it would replace, if any. The same plan may come again, as it does to a watch that begins
            anew.

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
    if plan.source_step > newest_step:
        raise ValueError(f"the plan is made of counts of step {plan.source_step}, the newest are of {newest_step}")
    if after is not None and after.identity.planner_epoch == epoch:
        version, newest = plan.identity.version, after.identity.version
        if version < newest:
            raise ValueError(f"the plan is of version {version}, older than {newest} which has come before")
    return plan
