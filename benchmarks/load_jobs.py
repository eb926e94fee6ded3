"""Made-up jobs for the load benchmark: sessions, and reports that are encoded before the clock starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_api.codec import encode_report
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_planning import PlanningOptions, contiguous_homes, two_level_topology

TOKENS_PER_RANK = 4096

TOP_K = 8

EXPERT_CONCENTRATION = 3.0
"""Dirichlet parameter of the experts' popularity in a layer: hot and cold ones, a start imbalance of some tens of per
cent."""

STEP_DRIFT = 0.1
"""Standard deviation of the logarithm of an expert's popularity between micro-batches, which then share more than 90 %
of their tokens, as they do on real routing of one kind of data."""

NUM_VARIANTS = 8
"""Different micro-batches that reports take in turn."""


class JobSize(NamedTuple):
    """The sizes of a job."""

    num_ranks: int
    num_layers: int
    num_experts: int

    @property
    def counts_bytes(self) -> int:
        """Bytes of the counts in one report."""
        return 4 * self.num_ranks * self.num_layers * self.num_experts


def make_spec(size: JobSize, *, name: str, recent_reports: int | None) -> SessionSpec:
    """A job of one group in nodes of eight ranks that plans with effort `fast`."""
    layers = tuple(
        LayerSpec(
            name=f"layers.{index}",
            top_k=TOP_K,
            expert_size_bytes=2**20,
            home_E=contiguous_homes(num_experts=size.num_experts, num_ranks=size.num_ranks),
        )
        for index in range(size.num_layers)
    )
    return SessionSpec(
        training_job=name,
        group="ep0",
        incarnation=1,
        topology=two_level_topology(num_ranks=size.num_ranks, ranks_per_node=8, slots=2, inter_cost=3),
        layers=layers,
        options=PlanningOptions(effort="fast"),
        recent_reports=recent_reports,
    )


def encode_variants(size: JobSize) -> list[bytes]:
    """Encoded reports that lack what `encode_report_of` adds."""
    generator = np.random.default_rng(0)
    shares_LE = generator.dirichlet(np.full(size.num_experts, EXPERT_CONCENTRATION), size=size.num_layers)
    variants = []
    for _ in range(NUM_VARIANTS):
        drifted_LE = shares_LE * np.exp(generator.normal(0.0, STEP_DRIFT, shares_LE.shape))
        # A token chooses an expert once: no expert can have more tokens of a rank than there are.
        drifted_LE = np.minimum(drifted_LE / drifted_LE.sum(axis=1, keepdims=True), 0.8 / TOP_K)
        drifted_LE /= drifted_LE.sum(axis=1, keepdims=True)
        report = RoutingReport(
            step=0,
            micro_batch=0,
            valid_tokens_R=np.full(size.num_ranks, TOKENS_PER_RANK, dtype=np.int64),
            counts_L=tuple(
                generator.multinomial(TOP_K * TOKENS_PER_RANK, shares_E, size=size.num_ranks) for shares_E in drifted_LE
            ),
        )
        variants.append(encode_report("", report).SerializeToString())
    return variants


def encode_report_of(session_id: str, step: int, variant: bytes) -> bytes:
    """A whole report: encoded messages one after the other are the encoding of both together."""
    return variant + pb.ReportRoutingRequest(session_id=session_id, step=step).SerializeToString()


def encode_streamed(report: bytes) -> bytes:
    """The request that holds a report, which is its only field, among those of a stream."""
    tag = pb.StreamReportsRequest.REPORT_FIELD_NUMBER << 3 | 2
    size, rest = bytearray([tag]), len(report)
    while rest > 0x7F:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(size) + bytes([rest]) + report
