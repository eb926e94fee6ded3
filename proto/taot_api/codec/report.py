"""Reports of leaders as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from taot_api.codec.duration import decode_seconds, encode_seconds
from taot_api.codec.plan import decode_identity, encode_identity
from taot_api.codec.tensor import decode_tensor, encode_tensor, tensor_data
from taot_api.contract_error import ContractError, Reason
from taot_api.layer_block import LayerBlock, layer_blocks
from taot_api.layer_counts import CountsBlock, LayerCounts
from taot_api.measured_rates import MeasuredRates
from taot_api.routing_report import RankTelemetry, RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_api.v1 import planner_pb2 as pb


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
    if report.measured_rates is not None:
        message.measured_rates.token_picoseconds.extend(report.measured_rates.token_picoseconds_L)
        message.measured_rates.bandwidths_bytes_per_second.extend(report.measured_rates.bandwidth_V)
    return message


def decode_report(
    message: pb.ReportRoutingRequest, spec: SessionSpec, *, layers: tuple[LayerSpec, ...] | None = None
) -> RoutingReport:
    """Reads a report; `check_report` judges what is in it.

    Raises:
        ContractError: if a tensor does not have the shape that the session declared.
    """
    blocks = spec.layer_blocks if layers is None else layer_blocks(layers)
    num_layers = len(spec.layers if layers is None else layers)
    if len(message.token_counts) != num_layers:
        raise ContractError(
            Reason.INVALID_COUNTS,
            f"needs one tensor per layer ({num_layers}), got {len(message.token_counts)}",
            field="token_counts",
        )
    valid_tokens_R = np.array(message.valid_token_counts, dtype=np.int64)
    valid_tokens_R.setflags(write=False)  # so that a check need not make a view for its kernel
    return RoutingReport(
        step=message.step,
        micro_batch=message.micro_batch,
        is_rehearsal=message.is_rehearsal,
        valid_tokens_R=valid_tokens_R,
        counts_L=_decode_counts(message.token_counts, blocks, spec.topology.num_ranks),
        applied_plan=decode_identity(message.applied_plan) if message.HasField("applied_plan") else None,
        telemetry_R=tuple(
            _decode_telemetry(entry, num_layers=len(spec.layers), field=f"telemetry[{rank}]")
            for rank, entry in enumerate(message.telemetry)
        ),
        measured_rates=_decode_rates(message.measured_rates) if message.HasField("measured_rates") else None,
    )


def _decode_counts(tensors: Sequence[pb.Int32Tensor], blocks: Iterable[LayerBlock], num_ranks: int) -> LayerCounts:
    """Reads the counts of all layers into one array for each block."""
    counts = []
    for block in blocks:
        shape, num_bytes, parts = [num_ranks, block.num_experts], 4 * num_ranks * block.num_experts, []
        for index in block.layers:
            tensor = tensors[index]
            data = tensor.data
            if tensor.shape != shape or len(data) != num_bytes:
                data = tensor_data(tensor, shape=shape, field=f"token_counts[{index}]")  # which says what is wrong
            parts.append(data)
        counts_LRE = np.frombuffer(b"".join(parts), dtype="<i4").reshape(len(parts), *shape)
        counts.append(CountsBlock(layers=block.layers, counts_LRE=counts_LRE))
    return LayerCounts(counts)


def _decode_rates(message: pb.MeasuredRates) -> MeasuredRates:
    return MeasuredRates(
        token_picoseconds_L=tuple(message.token_picoseconds),
        bandwidth_V=tuple(message.bandwidths_bytes_per_second),
    )


def _encode_telemetry(telemetry: RankTelemetry) -> pb.RankTelemetry:
    return pb.RankTelemetry(
        computed_token_counts=encode_tensor(telemetry.computed_tokens_L),
        exposed_transfer_duration=encode_seconds(telemetry.exposed_transfer_seconds),
        transfer_duration=encode_seconds(telemetry.transfer_seconds),
        intra_node_sent_bytes=telemetry.intra_node_sent_bytes,
        inter_node_sent_bytes=telemetry.inter_node_sent_bytes,
        fallback_counts=telemetry.fallbacks,
        applied_layer_count=telemetry.applied_layers,
        error_counts=telemetry.errors,
    )


def _decode_telemetry(message: pb.RankTelemetry, *, num_layers: int, field: str) -> RankTelemetry:
    return RankTelemetry(
        computed_tokens_L=decode_tensor(
            message.computed_token_counts, shape=[num_layers], field=f"{field}.computed_token_counts"
        ),
        exposed_transfer_seconds=decode_seconds(message.exposed_transfer_duration),
        transfer_seconds=decode_seconds(message.transfer_duration),
        intra_node_sent_bytes=message.intra_node_sent_bytes,
        inter_node_sent_bytes=message.inter_node_sent_bytes,
        fallbacks=dict(message.fallback_counts),
        applied_layers=message.applied_layer_count,
        errors=dict(message.error_counts),
    )
