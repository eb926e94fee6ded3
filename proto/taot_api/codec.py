"""Between messages and arrays: the only module that knows both.

Decoding checks every size against what the session declared before anything is allocated, and reports what is
wrong as `ContractError` with the path of the field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PlanIdentity, PublishedPlan, PublishedStats
from taot_api.routing_report import RankTelemetry, RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_planning import Level, PlanningOptions, Topology
from taot_planning.arrays import IntArray


def encode_tensor(values: IntArray) -> pb.Int32Tensor:
    """Packs an integer array of any shape.

    Raises:
        ValueError: if a value does not fit int32.
    """
    if values.min(initial=0) < -(2**31) or values.max(initial=0) >= 2**31:
        raise ValueError(f"values must fit int32, got {values.min()} to {values.max()}")
    return pb.Int32Tensor(shape=values.shape, data=np.ascontiguousarray(values, dtype="<i4").tobytes())


def decode_tensor(message: pb.Int32Tensor, *, shape: Sequence[int | None], field: str) -> IntArray:
    """Unpacks a tensor of a known shape into int64; None stands for an axis of any size.

    Raises:
        ContractError: INVALID_TENSOR, when shape or length are not what they should be.
    """
    got = list(message.shape)
    fits = len(got) == len(shape) and all(
        want in (None, have) and have >= 0 for want, have in zip(shape, got, strict=True)
    )
    if not fits:
        wanted = ["any" if size is None else size for size in shape]
        raise ContractError(Reason.INVALID_TENSOR, f"shape must be {wanted}, got {got}", field=field)
    if len(message.data) != 4 * math.prod(got):
        message_text = f"data of shape {got} must be {4 * math.prod(got)} bytes, got {len(message.data)}"
        raise ContractError(Reason.INVALID_TENSOR, message_text, field=field)
    return np.frombuffer(message.data, dtype="<i4").reshape(got).astype(np.int64)


def _encode_seconds(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _decode_seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def encode_session_spec(spec: SessionSpec) -> pb.OpenSessionRequest:
    """Builds the request that opens a session."""
    return pb.OpenSessionRequest(
        training_job=spec.training_job,
        group=spec.group,
        incarnation=spec.incarnation,
        layers=[
            pb.MoeLayer(
                name=layer.name,
                expert_count=layer.num_experts,
                top_k=layer.top_k,
                expert_size_bytes=layer.expert_size_bytes,
                home_ranks=layer.home_E,
                drops_tokens=layer.drops_tokens,
            )
            for layer in spec.layers
        ],
        topology=_encode_topology(spec.topology),
        options=pb.PlannerOptions(
            algorithm=spec.algorithm,
            tolerance_ppm=spec.options.tolerance_ppm,
            min_imbalance_ppm=spec.options.min_imbalance_ppm,
            plan_interval=spec.plan_interval,
        ),
        client_release=spec.client_release,
    )


def decode_session_spec(message: pb.OpenSessionRequest) -> SessionSpec:
    """Reads and checks the request that opens a session.

    Raises:
        ContractError: naming the field, what was got and what to do.
    """
    options = message.options
    return SessionSpec(
        training_job=message.training_job,
        group=message.group,
        incarnation=message.incarnation,
        layers=tuple(_decode_layer(layer, index=index) for index, layer in enumerate(message.layers)),
        topology=_decode_topology(message.topology),
        algorithm=options.algorithm if options.HasField("algorithm") else "taot",
        options=_decode_options(options),
        plan_interval=options.plan_interval if options.HasField("plan_interval") else 1,
        client_release=message.client_release,
    )


def _decode_options(message: pb.PlannerOptions) -> PlanningOptions:
    options = PlanningOptions()
    for name in ("tolerance_ppm", "min_imbalance_ppm"):
        if message.HasField(name):
            try:
                options = replace(options, **{name: getattr(message, name)})
            except ValueError as error:
                raise ContractError(Reason.INVALID_OPTION, str(error), field=f"options.{name}") from error
    return options


def _decode_layer(message: pb.MoeLayer, *, index: int) -> LayerSpec:
    if message.expert_count != len(message.home_ranks):
        raise ContractError(
            Reason.INVALID_LAYER,
            f"needs one entry per expert ({message.expert_count}), got {len(message.home_ranks)}",
            field=f"layers[{index}].home_ranks",
        )
    try:
        return LayerSpec(
            name=message.name,
            top_k=message.top_k,
            expert_size_bytes=message.expert_size_bytes,
            home_E=np.array(message.home_ranks, dtype=np.int64),
            drops_tokens=message.drops_tokens,
        )
    except ContractError as error:
        raise error.within(f"layers[{index}]") from error


def _encode_topology(topology: Topology) -> pb.Topology:
    message = pb.Topology(
        levels=[
            pb.Topology.Level(name=level.name, transfer_cost_milli=level.transfer_cost_milli)
            for level in topology.levels
        ],
        ranks=[
            pb.Topology.Rank(domains=domains_V, slot_count=slots)
            for domains_V, slots in zip(topology.domains_RV.tolist(), topology.slots_R.tolist(), strict=True)
        ],
    )
    if topology.cost_matrix_milli is not None:
        message.cost_matrix_milli.CopyFrom(encode_tensor(topology.cost_matrix_milli))
    return message


def _decode_topology(message: pb.Topology) -> Topology:
    num_ranks, num_levels = len(message.ranks), len(message.levels)
    for rank, entry in enumerate(message.ranks):
        if len(entry.domains) != num_levels:
            raise ContractError(
                Reason.INVALID_TOPOLOGY,
                f"needs one domain per level ({num_levels}), got {len(entry.domains)}",
                field=f"topology.ranks[{rank}].domains",
            )
    matrix_RR = None
    if message.HasField("cost_matrix_milli"):
        matrix_RR = decode_tensor(
            message.cost_matrix_milli, shape=[num_ranks, num_ranks], field="topology.cost_matrix_milli"
        )
    try:
        return Topology(
            levels=tuple(
                Level(name=level.name, transfer_cost_milli=level.transfer_cost_milli) for level in message.levels
            ),
            domains_RV=np.array([entry.domains for entry in message.ranks], dtype=np.int64).reshape(
                num_ranks, num_levels
            ),
            slots_R=np.array([entry.slot_count for entry in message.ranks], dtype=np.int64),
            cost_matrix_milli=matrix_RR,
        )
    except ValueError as error:
        raise ContractError(Reason.INVALID_TOPOLOGY, str(error), field="topology") from error


def encode_report(session_id: str, report: RoutingReport) -> pb.ReportRoutingRequest:
    """Builds a report."""
    message = pb.ReportRoutingRequest(
        session_id=session_id,
        step=report.step,
        micro_batch=report.micro_batch,
        is_rehearsal=report.is_rehearsal,
        valid_token_counts=report.valid_tokens_R,
        token_counts=[encode_tensor(counts_RE) for counts_RE in report.counts_L],
        telemetry=[_encode_telemetry(telemetry) for telemetry in report.telemetry_R],
    )
    if report.applied_plan is not None:
        message.applied_plan.CopyFrom(encode_identity(report.applied_plan))
    return message


def decode_report(
    message: pb.ReportRoutingRequest, spec: SessionSpec, *, layers: tuple[LayerSpec, ...] | None = None
) -> RoutingReport:
    """Reads a report; `check_report` judges what is in it.

    Raises:
        ContractError: if a tensor does not have the shape that the session declared.
    """
    layers = spec.layers if layers is None else layers
    num_ranks = spec.topology.num_ranks
    if len(message.token_counts) != len(layers):
        raise ContractError(
            Reason.INVALID_COUNTS,
            f"needs one tensor per layer ({len(layers)}), got {len(message.token_counts)}",
            field="token_counts",
        )
    return RoutingReport(
        step=message.step,
        micro_batch=message.micro_batch,
        is_rehearsal=message.is_rehearsal,
        valid_tokens_R=np.array(message.valid_token_counts, dtype=np.int64),
        counts_L=tuple(
            decode_tensor(tensor, shape=[num_ranks, layer.num_experts], field=f"token_counts[{index}]")
            for index, (tensor, layer) in enumerate(zip(message.token_counts, layers, strict=True))
        ),
        applied_plan=_decode_identity(message.applied_plan) if message.HasField("applied_plan") else None,
        telemetry_R=tuple(
            _decode_telemetry(entry, num_layers=len(spec.layers), field=f"telemetry[{rank}]")
            for rank, entry in enumerate(message.telemetry)
        ),
    )


def _encode_telemetry(telemetry: RankTelemetry) -> pb.RankTelemetry:
    return pb.RankTelemetry(
        computed_token_counts=encode_tensor(telemetry.computed_tokens_L),
        exposed_transfer_duration=_encode_seconds(telemetry.exposed_transfer_seconds),
        transfer_duration=_encode_seconds(telemetry.transfer_seconds),
        intra_node_sent_bytes=telemetry.intra_node_sent_bytes,
        inter_node_sent_bytes=telemetry.inter_node_sent_bytes,
        fallback_counts=telemetry.fallbacks,
    )


def _decode_telemetry(message: pb.RankTelemetry, *, num_layers: int, field: str) -> RankTelemetry:
    return RankTelemetry(
        computed_tokens_L=decode_tensor(
            message.computed_token_counts, shape=[num_layers], field=f"{field}.computed_token_counts"
        ),
        exposed_transfer_seconds=_decode_seconds(message.exposed_transfer_duration),
        transfer_seconds=_decode_seconds(message.transfer_duration),
        intra_node_sent_bytes=message.intra_node_sent_bytes,
        inter_node_sent_bytes=message.inter_node_sent_bytes,
        fallbacks=dict(message.fallback_counts),
    )


def encode_identity(identity: PlanIdentity) -> pb.PlanIdentity:
    """Names a plan."""
    return pb.PlanIdentity(planner_epoch=identity.planner_epoch, version=identity.version)


def _decode_identity(message: pb.PlanIdentity) -> PlanIdentity:
    return PlanIdentity(planner_epoch=message.planner_epoch, version=message.version)


def encode_plan(plan: PublishedPlan) -> pb.Plan:
    """Builds a plan with its digest."""
    message = pb.Plan(
        identity=encode_identity(plan.identity),
        source_step=plan.source_step,
        source_micro_batch=plan.source_micro_batch,
        digest=plan.digest(),
        stats=_encode_stats(plan.stats),
    )
    timestamp = Timestamp()
    timestamp.FromNanoseconds(round(plan.create_time_seconds * 1e9))
    message.create_time.CopyFrom(timestamp)
    for index, guests_RK in enumerate(plan.guests_L):
        layer = message.layers.add(guest_experts=encode_tensor(guests_RK))
        if plan.layer_stats_L:
            layer.stats.CopyFrom(_encode_stats(plan.layer_stats_L[index]))
        if plan.quota_L:
            layer.token_quotas.CopyFrom(_encode_quotas(plan.quota_L[index]))
    return message


def decode_plan(message: pb.Plan, *, num_ranks: int, num_slots: int) -> PublishedPlan:
    """Reads a plan and compares its digest.

    Raises:
        ContractError: if a tensor has the wrong shape or the digest does not match.
    """
    plan = PublishedPlan(
        identity=_decode_identity(message.identity),
        source_step=message.source_step,
        source_micro_batch=message.source_micro_batch,
        guests_L=tuple(
            decode_tensor(layer.guest_experts, shape=[num_ranks, num_slots], field=f"layers[{index}].guest_experts")
            for index, layer in enumerate(message.layers)
        ),
        stats=_decode_stats(message.stats),
        layer_stats_L=tuple(_decode_stats(layer.stats) for layer in message.layers),
        quota_L=tuple(
            _decode_quotas(layer.token_quotas, num_ranks=num_ranks, num_slots=num_slots, field=f"layers[{index}]")
            for index, layer in enumerate(message.layers)
            if layer.HasField("token_quotas")
        ),
        create_time_seconds=message.create_time.seconds + message.create_time.nanos / 1e9,
    )
    if plan.digest() != message.digest:
        raise ContractError(Reason.INVALID_TENSOR, "the digest does not match the plan", field="digest")
    return plan


def _encode_stats(stats: PublishedStats) -> pb.PlanStats:
    return pb.PlanStats(
        imbalance_before=stats.imbalance_before,
        imbalance_after=stats.imbalance_after,
        weighted_cost=stats.weighted_cost,
        transfer_size_bytes=stats.transfer_size_bytes,
        planning_duration=_encode_seconds(stats.planning_seconds),
    )


def _decode_stats(message: pb.PlanStats) -> PublishedStats:
    return PublishedStats(
        imbalance_before=message.imbalance_before,
        imbalance_after=message.imbalance_after,
        weighted_cost=message.weighted_cost,
        transfer_size_bytes=message.transfer_size_bytes,
        planning_seconds=_decode_seconds(message.planning_duration),
    )


def _encode_quotas(quota_SRK: IntArray) -> pb.Int32Tensor:
    sources, ranks, slots = np.nonzero(quota_SRK)
    flat_slots = ranks * quota_SRK.shape[2] + slots
    return encode_tensor(np.stack([flat_slots, sources, quota_SRK[sources, ranks, slots]], axis=1))


def _decode_quotas(message: pb.Int32Tensor, *, num_ranks: int, num_slots: int, field: str) -> IntArray:
    rows = decode_tensor(message, shape=[None, 3], field=f"{field}.token_quotas")
    limits = [num_ranks * num_slots, num_ranks, 2**31]
    if ((rows < 0) | (rows >= limits)).any():
        raise ContractError(
            Reason.INVALID_TENSOR,
            f"rows are (slot, source rank, tokens) below {limits}",
            field=f"{field}.token_quotas",
        )
    quota_SRK = np.zeros((num_ranks, num_ranks, num_slots), dtype=np.int64)
    quota_SRK[rows[:, 1], rows[:, 0] // max(num_slots, 1), rows[:, 0] % max(num_slots, 1)] = rows[:, 2]
    return quota_SRK
