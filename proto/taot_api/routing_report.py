"""What the leader of a group reports: the routing of one micro-batch, and what the ranks measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from taot_api.contract_error import ContractError, Reason
from taot_api.layer_block import layer_blocks
from taot_api.layer_counts import blocks_of
from taot_api.measured_rates import MeasuredRates
from taot_api.published_plan import PlanIdentity
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_planning.arrays import MAX_COUNT, IntArray, read_only

FALLBACK_REASONS = frozenset(
    {
        "disabled",
        "layer_off",
        "never_arrived",
        "no_answer",
        "no_plan_yet",
        "not_arrived",
        "paused",
        "plan_too_old",
        "planner_away",
        "record_mismatch",
    }
)
"""Reasons of fallbacks that the planner shows by name; it shows all others together as `other`."""


AGENT_ERROR_REASONS = frozenset(
    {
        "call_failed",
        "plan_refused",
        "report_dropped",
        "report_refused",
        "two_planners",
    }
)
"""Reasons of agent errors that the planner shows by name: calls to the planner that failed, plans that the agent
refused, reports that gave way to newer ones, reports that the planner refused, answers of another planner at the same
address. All others are shown as `other`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTelemetry:
    """What one rank measured since the last report."""

    computed_tokens_L: IntArray
    """Tokens this rank really computed per layer, home and guest together. Shape: [layers]."""

    exposed_transfer_seconds: float = 0.0
    """Time the training thread stood still waiting for guest weights or gradients."""

    transfer_seconds: float = 0.0
    """Time at least one guest transfer of this rank was in flight, hidden or not."""

    intra_node_sent_bytes: int = 0
    """Guest weights and gradients sent within the node."""

    inter_node_sent_bytes: int = 0
    """Guest weights and gradients sent across nodes."""

    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Layers that ran without a plan though one was wanted, by reason (see `FALLBACK_REASONS`)."""

    applied_layers: int = 0
    """Passes through layers in which guests computed tokens. Ranks act alike: one of them tells it, as it does
    fallbacks and errors."""

    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors that training has survived, by reason (see `AGENT_ERROR_REASONS`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutingReport:
    """The routing of one micro-batch in one expert-parallel group, gathered from all its ranks."""

    step: int
    """The optimizer step the tokens were counted in."""

    micro_batch: int
    """The micro-batch within the step."""

    valid_tokens_R: IntArray
    """Tokens that were routed on each rank, padding left out. Shape: [ranks]."""

    counts_L: Sequence[IntArray]
    """Tokens routed from each source rank to each expert, one [ranks, experts] array per layer. What was decoded is
    `LayerCounts`."""

    is_rehearsal: bool = False
    """Whether these are not training tokens (warm-up, profiling, evaluation): counted, never planned from."""

    applied_plan: PlanIdentity | None = None
    """The plan in force during the micro-batch."""

    telemetry_R: tuple[RankTelemetry, ...] = ()
    """One entry per rank, or none."""

    measured_rates: MeasuredRates | None = None
    """How fast the machine was so far, if that has been measured."""


def check_report(report: RoutingReport, spec: SessionSpec, *, layers: tuple[LayerSpec, ...] | None = None) -> None:
    """Judges a report by exact rules only; an unusual load is what the planner is for.

    Args:
        report: the report; its shapes have been checked already.
        spec: the session it belongs to.
        layers: the layers that `counts_L` speaks of, all of the session's by default.

    Raises:
        ContractError: naming the layer, the source rank and the numbers that do not agree.
    """
    num_ranks = spec.topology.num_ranks
    if report.step < 0 or report.micro_batch < 0:
        message = f"step and micro_batch must be >= 0, got {report.step} and {report.micro_batch}"
        raise ContractError(Reason.INVALID_STEP, message, field="step")
    if report.valid_tokens_R.shape != (num_ranks,):
        message = f"needs one entry per rank ({num_ranks}), got {report.valid_tokens_R.size}"
        raise ContractError(Reason.INVALID_COUNTS, message, field="valid_token_counts")
    # Read without its sign, what is negative is above the bound too.
    if report.valid_tokens_R.view(np.uint64).max(initial=0) > MAX_COUNT:
        outside = (report.valid_tokens_R < 0) | (report.valid_tokens_R > MAX_COUNT)
        rank = int(np.flatnonzero(outside)[0])
        message = f"must be between 0 and 2^31-1, got {report.valid_tokens_R[rank]}"
        raise ContractError(Reason.INVALID_COUNTS, message, field=f"valid_token_counts[{rank}]")
    if report.telemetry_R and len(report.telemetry_R) != num_ranks:
        message = f"needs one entry per rank ({num_ranks}) or none, got {len(report.telemetry_R)}"
        raise ContractError(Reason.INVALID_COUNTS, message, field="telemetry")
    for rank, telemetry in enumerate(report.telemetry_R):
        _check_telemetry(telemetry, field=f"telemetry[{rank}]")
    if report.measured_rates is not None:
        report.measured_rates.check(spec)
    blocks = spec.layer_blocks if layers is None else layer_blocks(layers)
    layers = spec.layers if layers is None else layers
    assert len(report.counts_L) == len(layers), "one matrix per layer, as decoding checks"
    valid_tokens_R = read_only(report.valid_tokens_R)
    counts = blocks_of(report.counts_L)
    if not all(block.has_right(each.counts_LRE, valid_tokens_R) for block, each in zip(blocks, counts, strict=True)):
        wrong = _first_wrong_layer(report.counts_L, layers, report.valid_tokens_R)
        assert wrong is not None, "the rules are the same"
        _refuse_counts(report.counts_L[wrong], layers[wrong], report.valid_tokens_R, field=f"token_counts[{wrong}]")


def _check_telemetry(telemetry: RankTelemetry, *, field: str) -> None:
    measured = {
        "computed_token_counts": int(telemetry.computed_tokens_L.min(initial=0)),
        "exposed_transfer_duration": telemetry.exposed_transfer_seconds,
        "transfer_duration": telemetry.transfer_seconds,
        "intra_node_sent_bytes": telemetry.intra_node_sent_bytes,
        "inter_node_sent_bytes": telemetry.inter_node_sent_bytes,
        "fallback_counts": min(telemetry.fallbacks.values(), default=0),
        "applied_layer_count": telemetry.applied_layers,
        "error_counts": min(telemetry.errors.values(), default=0),
    }
    for name, value in measured.items():
        if value < 0:
            message = f"must be >= 0, got {value}: report what happened since the last report"
            raise ContractError(Reason.INVALID_COUNTS, message, field=f"{field}.{name}")


def _first_wrong_layer(
    counts_L: Sequence[IntArray], layers: Sequence[LayerSpec], valid_tokens_R: IntArray
) -> int | None:
    """Index of the first layer whose counts are to be refused."""
    for index, (counts_RE, layer) in enumerate(zip(counts_L, layers, strict=True)):
        missing_R = valid_tokens_R * layer.top_k - counts_RE.sum(axis=1)
        is_in_range = counts_RE.min(initial=0) >= 0 and (counts_RE <= valid_tokens_R[:, None]).all()
        if not is_in_range or (missing_R < 0).any() or (missing_R.any() and not layer.drops_tokens):
            return index
    return None


def _refuse_counts(counts_RE: IntArray, layer: LayerSpec, valid_tokens_R: IntArray, *, field: str) -> NoReturn:
    """Raises the ContractError for counts that are not right."""
    if counts_RE.min(initial=0) < 0 or counts_RE.max(initial=0) > MAX_COUNT:
        rank, expert = np.argwhere((counts_RE < 0) | (counts_RE > MAX_COUNT))[0].tolist()
        message = (
            f"layer {layer.name!r}: counts must be between 0 and 2^31-1,"
            f" got {counts_RE[rank, expert]} from source rank {rank} to expert {expert}"
        )
        raise ContractError(Reason.INVALID_COUNTS, message, field=field)
    # A token chooses an expert at most once.
    above = counts_RE > valid_tokens_R[:, None]
    if above.any():
        rank, expert = np.argwhere(above)[0].tolist()
        message = (
            f"layer {layer.name!r}: source rank {rank} sends {counts_RE[rank, expert]} tokens to expert"
            f" {expert} but has only {valid_tokens_R[rank]} valid tokens; leave padding out of the counts"
        )
        raise ContractError(Reason.INVALID_COUNTS, message, field=field)
    sums_R, expected_R = counts_RE.sum(axis=1), valid_tokens_R * layer.top_k
    wrong_R = sums_R > expected_R if layer.drops_tokens else sums_R != expected_R
    assert wrong_R.any(), "the counts were found to be wrong"
    rank = int(np.flatnonzero(wrong_R)[0])
    message = (
        f"layer {layer.name!r}: the counts of source rank {rank} add up to {sums_R[rank]}, expected"
        f" {'at most ' if layer.drops_tokens else ''}{valid_tokens_R[rank]} valid tokens x top_k"
        f" {layer.top_k} = {expected_R[rank]}; leave padding out of the counts, or set drops_tokens if"
        " the router drops tokens"
    )
    raise ContractError(Reason.INVALID_COUNTS, message, field=field)
