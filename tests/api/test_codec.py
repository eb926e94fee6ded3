from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_samples import make_report, make_spec
from same_fields import assert_same

from taot_api import ContractError, MeasuredRates, PlanIdentity, RankTelemetry, Reason
from taot_api.codec import (
    decode_report,
    decode_session_spec,
    decode_tensor,
    encode_report,
    encode_session_spec,
    encode_tensor,
)
from taot_api.session_spec import DEFAULT_RECENT_REPORTS
from taot_api.v1 import planner_pb2 as pb
from taot_planning import Level, PlanningOptions, Topology

INT32 = st.integers(-(2**31), 2**31 - 1)
BANDWIDTHS = st.none() | st.integers(1, 2**50)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)


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

    def per_rank(low, high):
        return draw(st.none() | st.lists(st.integers(low, high), min_size=num_ranks, max_size=num_ranks))

    return Topology(
        levels=(
            Level(name="node", transfer_cost_milli=1000, bandwidth_bytes_per_second=draw(BANDWIDTHS)),
            Level(
                name="rack",
                transfer_cost_milli=draw(st.integers(1000, 2**31 - 1)),
                bandwidth_bytes_per_second=draw(BANDWIDTHS),
            ),
        ),
        domains_RV=np.stack([nodes_R, np.zeros(num_ranks, dtype=int)], axis=1),
        slots_R=draw(st.lists(st.integers(0, 4), min_size=num_ranks, max_size=num_ranks)),
        cost_matrix_milli=matrix,
        speed_milli_R=per_rank(10, 10_000),
        token_cap_R=per_rank(0, 2**62),
        has_relay=draw(st.booleans()),
    )


@st.composite
def planning_options(draw):
    return PlanningOptions(
        objective=draw(st.sampled_from(["tolerance", "mu"])),
        tolerance_ppm=draw(st.integers(0, 100_000_000)),
        mu_ppm=draw(st.integers(0, 100_000_000)),
        min_imbalance_ppm=draw(st.integers(0, 100_000_000)),
        min_tokens_per_guest=draw(st.integers(0, 2**31 - 1)),
        stretch_percent=draw(st.integers(0, 10_000)),
        effort=draw(st.sampled_from(["fast", "balanced"])),
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
    options=planning_options(),
    plan_interval=st.integers(1, 2**31 - 1),
    recent_reports=st.none() | st.integers(0, 64),
    data=st.data(),
)
def test_session_specs_survive_the_wire(topology, job, incarnation, options, plan_interval, recent_reports, data):
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
                token_picoseconds=data.draw(st.integers(0, 10**12)),
            )
        )
    spec = make_spec(
        training_job=job,
        incarnation=incarnation,
        topology=topology,
        layers=tuple(layers),
        algorithm="static",
        options=options,
        plan_interval=plan_interval,
        recent_reports=recent_reports,
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
    message.options.recent_report_count = 0
    assert decode_session_spec(message).effective_recent_reports == 0


def test_a_session_of_an_older_client_has_the_defaults():
    older = make_spec()
    message = encode_session_spec(older)
    for name in ("mu_ppm", "min_tokens_per_guest", "effort", "objective", "recent_report_count"):
        message.options.ClearField(name)
    spec = decode_session_spec(message)
    assert_same(spec, older)
    assert spec.options == PlanningOptions()
    assert spec.effective_recent_reports == DEFAULT_RECENT_REPORTS
    assert spec.layers[0].rates is None
    topology = spec.topology
    assert (topology.speed_milli_R, topology.token_cap_R, topology.has_relay) == (None, None, False)


def test_ranks_that_say_nothing_have_the_normal_speed_and_no_cap():
    message = encode_session_spec(make_spec())
    message.topology.ranks[1].speed_milli = 500
    message.topology.ranks[2].token_cap = 0
    topology = decode_session_spec(message).topology
    np.testing.assert_array_equal(topology.speed_milli_R, [1000, 500, 1000, 1000])
    np.testing.assert_array_equal(topology.token_cap_R, [2**62, 2**62, 0, 2**62])


def test_step_time_is_an_objective_where_all_rates_are_known():
    base = make_spec()
    spec = make_spec(
        topology=dataclasses.replace(
            base.topology,
            levels=tuple(dataclasses.replace(level, bandwidth_bytes_per_second=10) for level in base.topology.levels),
        ),
        layers=tuple(dataclasses.replace(layer, token_picoseconds=5) for layer in base.layers),
        options=PlanningOptions(objective="step_time"),
    )
    assert_same(decode_session_spec(encode_session_spec(spec)), spec)


@given(
    step=st.integers(0, 2**63 - 1),
    micro_batch=st.integers(0, 2**31 - 1),
    is_rehearsal=st.booleans(),
    version=st.none() | st.integers(1, 2**63 - 1),
    seconds=st.floats(0, 1e6),
    sent_bytes=st.integers(0, 2**63 - 1),
    fallbacks=st.dictionaries(st.text(max_size=8), st.integers(0, 2**63 - 1), max_size=3),
    measured_rates=st.none()
    | st.builds(
        MeasuredRates,
        token_picoseconds_L=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
        bandwidth_V=st.tuples(st.integers(0, 2**50), st.integers(0, 2**50)),
    ),
)
def test_reports_survive_the_wire(
    step, micro_batch, is_rehearsal, version, seconds, sent_bytes, fallbacks, measured_rates
):
    spec = make_spec(experts_L=(8, 12))
    telemetry = RankTelemetry(
        computed_tokens_L=np.array([5, 7]),
        exposed_transfer_seconds=seconds,
        transfer_seconds=2 * seconds,
        intra_node_sent_bytes=sent_bytes,
        inter_node_sent_bytes=sent_bytes,
        fallbacks=fallbacks,
        applied_layers=sent_bytes // 2,
        errors=fallbacks,
    )
    report = dataclasses.replace(
        make_report(spec, step=0),
        step=step,
        micro_batch=micro_batch,
        is_rehearsal=is_rehearsal,
        applied_plan=None if version is None else PlanIdentity(planner_epoch="e", version=version),
        telemetry_R=(telemetry,) * 4,
        measured_rates=measured_rates,
    )
    message = pb.ReportRoutingRequest.FromString(encode_report("s", report).SerializeToString())
    assert message.session_id == "s"
    assert_same(decode_report(message, spec), report)


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
