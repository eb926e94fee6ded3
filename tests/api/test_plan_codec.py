"""Plans over the wire: nothing is lost, and what was changed on the way is refused."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_fields import assert_same

from taot_api import ContractError, PlanIdentity, PublishedPlan, Reason
from taot_api.codec import decode_plan, encode_plan, encode_tensor
from taot_api.published_plan import PublishedStats
from taot_api.v1 import planner_pb2 as pb
from taot_planning.explanation import Gate

GATES = st.sampled_from([gate.value for gate in Gate]) | st.text(max_size=8)


@given(st.data())
def test_plans_survive_the_wire_with_their_digest(data):
    num_ranks, num_slots, num_layers = 3, 2, data.draw(st.integers(0, 3))

    def draw_array(low, high, *shape):
        size = int(np.prod(shape))
        values = data.draw(st.lists(st.integers(low, high), min_size=size, max_size=size))
        return np.array(values, dtype=np.int64).reshape(shape)

    has_quotas = data.draw(st.booleans())
    stats = PublishedStats(
        imbalance_before=0.5,
        imbalance_after=0.25,
        weighted_cost=3.0,
        transfer_size_bytes=data.draw(st.integers(0, 2**63 - 1)),
        planning_seconds=0.125,
        predicted_gain_seconds=data.draw(st.none() | st.floats(-1e6, 1e6)),
    )
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=data.draw(st.integers(1, 2**63 - 1))),
        source_step=data.draw(st.integers(0, 2**63 - 1)),
        source_micro_batch=data.draw(st.integers(0, 2**31 - 1)),
        guests_L=tuple(draw_array(-1, 2**31 - 1, num_ranks, num_slots) for _ in range(num_layers)),
        stats=stats,
        layer_stats_L=(stats,) * num_layers,
        gates_L=tuple(tuple(data.draw(st.lists(GATES, max_size=3))) for _ in range(num_layers)),
        quota_L=tuple(
            draw_array(0, 2**31 - 1, num_ranks, num_ranks, num_slots) for _ in range(num_layers if has_quotas else 0)
        ),
        create_time_seconds=1.75e9,
    )
    message = pb.Plan.FromString(encode_plan(plan).SerializeToString())
    assert_same(decode_plan(message, num_ranks=num_ranks, num_slots=num_slots), plan)


def _change_guest(message):
    message.layers[0].guest_experts.data = b"\x05" + message.layers[0].guest_experts.data[1:]


@pytest.mark.parametrize(
    "change",
    [
        _change_guest,
        lambda message: setattr(message.identity, "version", 8),
        lambda message: setattr(message.identity, "planner_epoch", "other"),
        lambda message: setattr(message, "source_step", 8),
        lambda message: setattr(message, "source_micro_batch", 8),
        lambda message: message.layers.add(guest_experts=message.layers[0].guest_experts),
    ],
)
def test_a_plan_that_was_changed_on_its_way_is_refused(change):
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=1),
        source_step=1,
        source_micro_batch=0,
        guests_L=(np.array([[1, -1], [0, -1]]),),
    )
    message = encode_plan(plan)
    decode_plan(message, num_ranks=2, num_slots=2)
    change(message)
    with pytest.raises(ContractError, match="digest"):
        decode_plan(message, num_ranks=2, num_slots=2)


@pytest.mark.parametrize("row", [[-1, 0, 5], [4, 0, 5], [0, 2, 5], [0, -1, 5], [0, 0, -5]])
def test_a_quota_outside_the_plan_is_refused(row):
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=1),
        source_step=1,
        source_micro_batch=0,
        guests_L=(np.array([[1, -1], [0, -1]]),),
        quota_L=(np.zeros((2, 2, 2), dtype=np.int64),),
    )
    message = encode_plan(plan)
    message.layers[0].token_quotas.CopyFrom(encode_tensor(np.array([row])))
    with pytest.raises(ContractError, match=r"layers\[0\].token_quotas: rows are") as caught:
        decode_plan(message, num_ranks=2, num_slots=2)
    assert caught.value.reason is Reason.INVALID_TENSOR


def test_the_digest_is_the_one_that_the_readme_lays_out():
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="ab", version=3),
        source_step=5,
        source_micro_batch=7,
        guests_L=(np.array([[1, -1], [0, 2]]), np.array([[4]])),
    )
    laid_out = bytes.fromhex(
        "02000000 6162"  # length of the epoch, the epoch
        "0300000000000000 0500000000000000 07000000 02000000"  # version, step, micro-batch, layers
        "02000000 02000000 01000000 ffffffff 00000000 02000000"  # ranks, slots, guests
        "01000000 01000000 04000000"
    )
    assert encode_plan(plan).digest == hashlib.sha256(laid_out).digest()


def test_gates_and_predictions_of_a_plan_are_no_part_of_its_digest():
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=1),
        source_step=1,
        source_micro_batch=0,
        guests_L=(np.array([[1, -1], [0, -1]]),),
        stats=PublishedStats(predicted_gain_seconds=-0.5),
        gates_L=(("dominated",),),
    )
    message = encode_plan(plan)
    message.ClearField("stats")
    message.layers[0].ClearField("gates")
    older = decode_plan(message, num_ranks=2, num_slots=2)
    assert older.stats.predicted_gain_seconds is None
    assert older.gates_L == ((),)
