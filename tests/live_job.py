"""A job that reports routing step by step, with what its ranks computed under the plan before."""

from __future__ import annotations

import numpy as np
from planner_client import PlannerClient, read_plan

from taot_api import LayerSpec, RankTelemetry, RoutingReport, SessionSpec
from taot_api.published_plan import PublishedPlan
from taot_api.v1 import planner_pb2 as pb
from taot_planning import LayerProblem, Level, Topology, contiguous_homes, plan_from_guests, rank_loads

TOP_K = 8
TOKENS = 4096
"""Valid tokens of each rank."""


def live_spec(*, num_ranks: int, num_layers: int, num_experts: int, training_job: str, ranks_per_node: int = 4):
    """A session in nodes, in racks of four nodes."""
    node_R = np.arange(num_ranks) // ranks_per_node
    topology = Topology(
        levels=(
            Level(name="node", transfer_cost_milli=1000, bandwidth_bytes_per_second=400 * 10**9),
            Level(name="rack", transfer_cost_milli=3000, bandwidth_bytes_per_second=50 * 10**9),
            Level(name="cluster", transfer_cost_milli=5000, bandwidth_bytes_per_second=25 * 10**9),
        ),
        domains_RV=np.stack([node_R, node_R // 4, np.zeros_like(node_R)], axis=1),
        slots_R=np.full(num_ranks, 2),
    )
    layers = tuple(
        LayerSpec(
            name=f"layers.{index}.mlp",
            top_k=TOP_K,
            expert_size_bytes=12 * 2**20,
            home_E=contiguous_homes(num_experts=num_experts, num_ranks=num_ranks),
            drops_tokens=True,
            token_picoseconds=200_000,
        )
        for index in range(num_layers)
    )
    return SessionSpec(training_job=training_job, group="ep0", incarnation=1, topology=topology, layers=layers)


class LiveJob:
    """Reports one micro-batch a step."""

    def __init__(self, client: PlannerClient, spec: SessionSpec, *, seed: int = 0) -> None:
        self.client, self.spec = client, spec
        self.session_id = client.open(spec)
        self.plan: PublishedPlan | None = None
        self.step_number = 0
        self._random = np.random.default_rng(seed)
        # Layers differ in how uneven they are; what is popular drifts from step to step.
        self._taste_L = [
            self._random.normal(scale=self._random.uniform(0.1, 0.9), size=layer.num_experts) for layer in spec.layers
        ]
        self._last_counts_L: tuple[np.ndarray, ...] | None = None

    def report(self) -> pb.ReportRoutingResponse:
        """Sends the next report."""
        num_ranks = self.spec.topology.num_ranks
        report = RoutingReport(
            step=self.step_number,
            micro_batch=0,
            valid_tokens_R=np.full(num_ranks, TOKENS),
            counts_L=self._next_counts(),
            applied_plan=self.plan.identity if self.plan is not None else None,
            telemetry_R=self._telemetry(),
        )
        self._last_counts_L = report.counts_L
        self.step_number += 1
        return self.client.report(self.session_id, report)

    def step(self) -> pb.ReportRoutingResponse:
        """Sends the next report and waits for its plan."""
        response = self.report()
        watch = self.client.watch(self.session_id)
        for told in watch:
            if told.plan.source_step == self.step_number - 1:
                watch.cancel()
                self.plan = read_plan(told.plan, self.spec)
                return response
        raise AssertionError("the watch ended without the plan")

    def _next_counts(self):
        counts_L = []
        for index, taste_E in enumerate(self._taste_L):
            self._taste_L[index] = taste_E + self._random.normal(scale=0.03, size=taste_E.size)
            share_E = np.exp(taste_E) / np.exp(taste_E).sum()
            counts = self._random.multinomial(TOKENS * TOP_K, share_E, size=self.spec.topology.num_ranks)
            counts_L.append(np.minimum(counts, TOKENS))
        return tuple(counts_L)

    def _telemetry(self) -> tuple[RankTelemetry, ...]:
        if self._last_counts_L is None:
            return ()
        loads_LR = np.stack([self._loads(index, counts) for index, counts in enumerate(self._last_counts_L)])
        return tuple(
            RankTelemetry(computed_tokens_L=loads_LR[:, rank], exposed_transfer_seconds=1e-4)
            for rank in range(loads_LR.shape[1])
        )

    def _loads(self, index: int, counts_RE):
        home_E = self.spec.layers[index].home_E
        if self.plan is None:
            return rank_loads(counts_RE, home_E)
        problem = LayerProblem(counts_RE=counts_RE, home_E=home_E, topology=self.spec.topology)
        return plan_from_guests(problem, self.plan.guests_L[index]).loads_R(problem)
