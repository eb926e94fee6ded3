"""Plans as messages."""

from __future__ import annotations

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from taot_api.codec.duration import decode_seconds, encode_seconds
from taot_api.codec.tensor import decode_tensor, encode_tensor
from taot_api.contract_error import ContractError, Reason
from taot_api.published_plan import PlanIdentity, PublishedPlan, PublishedStats
from taot_api.v1 import planner_pb2 as pb
from taot_planning.arrays import IntArray


def encode_identity(identity: PlanIdentity) -> pb.PlanIdentity:
    """Names a plan."""
    return pb.PlanIdentity(planner_epoch=identity.planner_epoch, version=identity.version)


def decode_identity(message: pb.PlanIdentity) -> PlanIdentity:
    """Reads the name of a plan."""
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
        if plan.gates_L:
            layer.gates.extend(plan.gates_L[index])
        if plan.quota_L:
            layer.token_quotas.CopyFrom(_encode_quotas(plan.quota_L[index]))
    return message


def decode_plan(message: pb.Plan, *, num_ranks: int, num_slots: int) -> PublishedPlan:
    """Reads a plan and compares its digest.

    Raises:
        ContractError: if a tensor has the wrong shape or the digest does not match.
    """
    plan = PublishedPlan(
        identity=decode_identity(message.identity),
        source_step=message.source_step,
        source_micro_batch=message.source_micro_batch,
        guests_L=tuple(
            decode_tensor(layer.guest_experts, shape=[num_ranks, num_slots], field=f"layers[{index}].guest_experts")
            for index, layer in enumerate(message.layers)
        ),
        stats=_decode_stats(message.stats),
        layer_stats_L=tuple(_decode_stats(layer.stats) for layer in message.layers),
        gates_L=tuple(tuple(layer.gates) for layer in message.layers),
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
    gain = stats.predicted_gain_seconds
    return pb.PlanStats(
        imbalance_before=stats.imbalance_before,
        imbalance_after=stats.imbalance_after,
        weighted_cost=stats.weighted_cost,
        transfer_size_bytes=stats.transfer_size_bytes,
        planning_duration=encode_seconds(stats.planning_seconds),
        predicted_gain=None if gain is None else encode_seconds(gain),
    )


def _decode_stats(message: pb.PlanStats) -> PublishedStats:
    is_predicted = message.HasField("predicted_gain")
    return PublishedStats(
        imbalance_before=message.imbalance_before,
        imbalance_after=message.imbalance_after,
        weighted_cost=message.weighted_cost,
        transfer_size_bytes=message.transfer_size_bytes,
        planning_seconds=decode_seconds(message.planning_duration),
        predicted_gain_seconds=decode_seconds(message.predicted_gain) if is_predicted else None,
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
