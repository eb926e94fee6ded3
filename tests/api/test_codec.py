from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_samples import make_report, make_spec

from taot_api import ContractError, PlanIdentity, PublishedPlan, RankTelemetry, Reason
from taot_api.codec import (
    decode_plan,
    decode_report,
    decode_session_spec,
    decode_tensor,
    encode_plan,
    encode_report,
    encode_session_spec,
    encode_tensor,
)
from taot_api.published_plan import PublishedStats
from taot_api.v1 import planner_pb2 as pb
from taot_planning import Level, PlanningOptions, Topology

INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)


def assert_same(left, right):
    """Compares field by field: the data types hold arrays, which have no plain equality."""
    assert type(left) is type(right)
    if dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        # Durations travel in nanoseconds, times in seconds since 1970.
        assert left == pytest.approx(right, abs=1e-6)
    else:
        assert left == right


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape))
    values = draw(st.lists(INT32, min_size=size, max_size=size))
    return np.array(values, dtype=np.int64).reshape(shape)


@st.composite
def topologies(draw):
    num_ranks = draw(st.integers(1, 6))
    nodes_R = draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks))
    matrix = None
    if draw(st.booleans()):
        matrix = np.array(
            draw(st.lists(st.integers(1, 2**31 - 1), min_size=num_ranks**2, max_size=num_ranks**2)),
            dtype=np.int64,
        ).reshape(num_ranks, num_ranks)
        np.fill_diagonal(matrix, 0)
    return Topology(
        levels=(
            Level(name="node", transfer_cost_milli=1000),
            Level(name="rack", transfer_cost_milli=draw(st.integers(1000, 2**31 - 1))),
        ),
        domains_RV=np.stack([nodes_R, np.zeros(num_ranks, dtype=int)], axis=1),
        slots_R=draw(st.lists(st.integers(0, 4), min_size=num_ranks, max_size=num_ranks)),
        cost_matrix_milli=matrix,
    )


@given(tensors())
def test_tensors_survive_the_wire(values):
    message = pb.Int32Tensor.FromString(encode_tensor(values).SerializeToString())
    np.testing.assert_array_equal(decode_tensor(message, shape=values.shape, field="x"), values)


@given(tensors())
def test_tensor_bytes_are_little_endian_row_major(values):
    flat = values.reshape(-1).tolist()
    assert encode_tensor(values).data == b"".join(value.to_bytes(4, "little", signed=True) for value in flat)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_value_beyond_int32_is_never_wrapped(value):
    with pytest.raises(ValueError, match="must fit int32"):
        encode_tensor(np.array([value]))


@given(
    topology=topologies(),
    job=NAMES,
    incarnation=st.integers(1, 2**63 - 1),
    tolerance_ppm=st.integers(0, 100_000_000),
    min_imbalance_ppm=st.integers(0, 100_000_000),
    plan_interval=st.integers(1, 2**31 - 1),
    data=st.data(),
)
def test_session_specs_survive_the_wire(
    topology, job, incarnation, tolerance_ppm, min_imbalance_ppm, plan_interval, data
):
    layers = []
    for index in range(data.draw(st.integers(0, 3))):
        homes = data.draw(st.lists(st.integers(0, topology.num_ranks - 1), min_size=1, max_size=6))
        layer = make_spec().layers[0]
        layers.append(
            dataclasses.replace(
                layer,
                name=f"layers.{index}",
                home_E=homes,
                top_k=data.draw(st.integers(1, len(homes))),
                expert_size_bytes=data.draw(st.integers(0, 2**40)),
                drops_tokens=data.draw(st.booleans()),
            )
        )
    spec = make_spec(
        training_job=job,
        incarnation=incarnation,
        topology=topology,
        layers=tuple(layers),
        algorithm="static",
        options=PlanningOptions(tolerance_ppm=tolerance_ppm, min_imbalance_ppm=min_imbalance_ppm),
        plan_interval=plan_interval,
        client_release="1.2.3",
    )
    message = pb.OpenSessionRequest.FromString(encode_session_spec(spec).SerializeToString())
    assert_same(decode_session_spec(message), spec)


def test_absent_options_mean_the_defaults_and_zero_means_zero():
    message = encode_session_spec(make_spec())
    message.ClearField("options")
    assert decode_session_spec(message).options == PlanningOptions()
    message.options.tolerance_ppm = 0
    assert decode_session_spec(message).options == PlanningOptions(tolerance_ppm=0)


@given(
    step=st.integers(0, 2**63 - 1),
    micro_batch=st.integers(0, 2**31 - 1),
    is_rehearsal=st.booleans(),
    version=st.none() | st.integers(1, 2**63 - 1),
    seconds=st.floats(0, 1e6),
    sent_bytes=st.integers(0, 2**63 - 1),
    fallbacks=st.dictionaries(st.text(max_size=8), st.integers(0, 2**63 - 1), max_size=3),
)
def test_reports_survive_the_wire(step, micro_batch, is_rehearsal, version, seconds, sent_bytes, fallbacks):
    spec = make_spec(experts_L=(8, 12))
    telemetry = RankTelemetry(
        computed_tokens_L=np.array([5, 7]),
        exposed_transfer_seconds=seconds,
        transfer_seconds=2 * seconds,
        intra_node_sent_bytes=sent_bytes,
        inter_node_sent_bytes=sent_bytes,
        fallbacks=fallbacks,
    )
    report = dataclasses.replace(
        make_report(spec, step=0),
        step=step,
        micro_batch=micro_batch,
        is_rehearsal=is_rehearsal,
        applied_plan=None if version is None else PlanIdentity(planner_epoch="e", version=version),
        telemetry_R=(telemetry,) * 4,
    )
    message = pb.ReportRoutingRequest.FromString(encode_report("s", report).SerializeToString())
    assert message.session_id == "s"
    assert_same(decode_report(message, spec), report)


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
    )
    plan = PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=data.draw(st.integers(1, 2**63 - 1))),
        source_step=data.draw(st.integers(0, 2**63 - 1)),
        source_micro_batch=data.draw(st.integers(0, 2**31 - 1)),
        guests_L=tuple(draw_array(-1, 2**31 - 1, num_ranks, num_slots) for _ in range(num_layers)),
        stats=stats,
        layer_stats_L=(stats,) * num_layers,
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


@pytest.mark.parametrize(
    ("shape", "data", "complaint"),
    [
        ([2, 3], b"\0" * 20, "must be 24 bytes, got 20"),
        ([2, 3], b"\0" * 28, "must be 24 bytes, got 28"),
        ([3, 2], b"\0" * 24, r"must be \[2, 3\], got \[3, 2\]"),
        ([6], b"\0" * 24, r"must be \[2, 3\], got \[6\]"),
        ([2, -3], b"", r"must be \[2, 3\], got \[2, -3\]"),
        ([], b"", r"must be \[2, 3\], got \[\]"),
    ],
)
def test_a_tensor_of_another_size_is_refused_before_it_is_read(shape, data, complaint):
    with pytest.raises(ContractError, match=complaint) as caught:
        decode_tensor(pb.Int32Tensor(shape=shape, data=data), shape=[2, 3], field="token_counts[1]")
    assert caught.value.reason is Reason.INVALID_TENSOR
    assert caught.value.field == "token_counts[1]"


@pytest.mark.parametrize("axis", [-1, 2**31 - 1])
def test_a_free_axis_allocates_nothing_for_a_size_without_bytes(axis):
    with pytest.raises(ContractError):
        decode_tensor(pb.Int32Tensor(shape=[axis, 3], data=b""), shape=[None, 3], field="x")


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
