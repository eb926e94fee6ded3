"""What the layers of one agent share: where training is, what the step's record says, and what they note."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from taot_api import RoutingReport, SessionSpec
from taot_client.counts_gather import CallSite, GatheredCounts, Measured
from taot_client.groups import ExpertParallelGroup
from taot_client.layer_pass import LayerPass
from taot_client.leader import Leader
from taot_client.options import AgentOptions
from taot_client.report_builder import ReportBuilder
from taot_client.shipment import Mover, Shipment, TransferClock
from taot_client.step_control import StepControl
from taot_client.step_record import ModeReason, StepMode, StepRecord
from taot_client.step_summary import StepSummary, StepTally
from taot_client.trace_recorder import TraceFile
from taot_client.transfer_schedule import Move
from taot_planning import LayerProblem, imbalance, rank_loads
from taot_planning.arrays import IntArray

if TYPE_CHECKING:
    from taot_client.layer_agent import LayerAgent

logger = logging.getLogger(__name__)


class AgentState:
    """One per agent. Changed by the agent at step boundaries and by its layers in between."""

    def __init__(
        self,
        *,
        options: AgentOptions,
        group: ExpertParallelGroup,
        spec: SessionSpec,
        control: StepControl,
        leader: Leader | None,
    ) -> None:
        self.options = options
        self.group = group
        self.spec = spec
        self.topology = spec.topology
        self.control = control
        self.leader = leader
        self.clock = TransferClock()
        self.weight_mover: Mover
        self.gradient_mover: Mover
        self.layers: list[LayerAgent] = []
        self.micro_batch_index: int | None = None
        self.weight_epoch = -1
        self.step = -1
        self.num_invalid_ids = 0
        self.is_in_step = False
        self.trace: TraceFile | None = None
        self._record: StepRecord | None = None
        self._tally = StepTally()
        self._sent_bytes = [0, 0]
        self._reports = ReportBuilder(num_layers=len(spec.layers), num_ranks=group.size)

    # Where training is.

    def begin_step(self, record: StepRecord) -> None:
        """Moves on to the record's step; the weights have changed since the last."""
        self.step, self._record, self.is_in_step = record.step, record, True
        self.weight_epoch += 1
        self._tally = StepTally()
        self._reports.begin_step()

    @property
    def record(self) -> StepRecord:
        """The record of the step at hand.

        Raises:
            RuntimeError: before the first step.
        """
        if self._record is None:
            raise RuntimeError("call agent.begin_step() before the first forward of a step")
        return self._record

    @property
    def mode(self) -> StepMode:
        """What the ranks do about placement in this step."""
        return self.record.mode

    @property
    def transfer_timeout_seconds(self) -> float:
        """How long to wait for a transfer.

        Every wait comes after a collective that the peer has taken part in, so a merely slow peer is not a fault.
        """
        return self.options.transfer_timeout.total_seconds()

    @property
    def relay_nodes_R(self) -> IntArray | None:
        """The node of each rank where guests are passed on inside nodes; None: all come from home. Shape: [ranks]."""
        return self.topology.nodes_R if self.topology.has_relay else None

    def layer_after(self, layer: int) -> LayerAgent | None:
        """The layer behind `layer` in forward order."""
        return self.layers[layer + 1] if layer + 1 < len(self.layers) else None

    # What the layers note.

    def measured(self) -> Measured:
        """What this rank has measured since its start."""
        return Measured(
            exposed_us=round(self.clock.exposed_seconds * 1e6),
            flight_us=round(self.clock.flight_seconds * 1e6),
            intra_node_sent_bytes=self._sent_bytes[0],
            inter_node_sent_bytes=self._sent_bytes[1],
        )

    def note_pass(self, layer: LayerAgent, layer_pass: LayerPass, problem: LayerProblem) -> None:
        """Notes a pass through a layer; the leader reports the micro-batch once its last layer has run."""
        loads_R = layer_pass.plan.loads_R(problem)
        achieved_R = layer.would_be_loads(problem) if self.mode is StepMode.OBSERVE else loads_R
        speed_milli_R = self.topology.speed_milli_R
        self._tally.add_pass(
            layer.route.name,
            static=imbalance(rank_loads(problem.counts_RE, problem.home_E), speed_milli_R),
            achieved=imbalance(achieved_R, speed_milli_R),
        )
        site = layer_pass.site
        if self.trace is not None and site.step >= 0:
            at = {"step": site.step, "micro_batch": site.micro_batch, "layer": site.layer}
            self.trace.add(**at, counts_RE=layer_pass.gathered.counts_RE)
        if self.leader is None:
            return
        report = self._reports.add(
            step=site.step,
            micro_batch=site.micro_batch,
            layer=layer.route.layer,
            gathered=layer_pass.gathered,
            loads_R=loads_R,
            applied=self.record.identity if self.mode is StepMode.PLAN else None,
        )
        if report is not None:
            self.leader.report(report)

    def note_fallback(self, reason: str) -> None:
        """Notes a pass that ran without guests that were wanted; every rank notes the same."""
        self._tally.add_fallback(reason)
        self._reports.add_fallback(reason)

    def note_mode(self) -> None:
        """Notes a pass in a step whose mode is not the configured one."""
        wanted_reasons = (ModeReason.AS_CONFIGURED, ModeReason.PAUSED)
        if self.record.reason not in wanted_reasons:
            self.note_fallback(self.record.reason.name.lower())

    def note_moves(self, moves: Sequence[Move]) -> None:
        """Notes guests that are sent to their slots."""
        self._tally.add_moves(moves, self.topology)

    def note_sent(self, shipments: Sequence[Shipment]) -> None:
        """Counts the bytes that this rank sends."""
        nodes_R = self.topology.nodes_R
        for shipment in shipments:
            if not shipment.is_receive:
                crosses = nodes_R[shipment.peer] != nodes_R[self.group.rank]
                self._sent_bytes[int(crosses)] += shipment.buffer.numel()

    def note_invalid_ids(self, count: int, *, layer: str) -> None:
        """Counts choices outside the experts; the first ones are logged."""
        if count and not self.num_invalid_ids:
            logger.info(
                "rank %d, step %d: %d choices of layer %r are no experts and are left out (padding?)",
                self.group.rank,
                self.step,
                count,
                layer,
            )
        self.num_invalid_ids += count

    def end_step(self) -> StepSummary:
        """What the step has done. From here to the next `begin_step` weights change."""
        self.is_in_step = False
        return self._tally.summary(step=self.step, mode=self.mode, reason=self.record.reason)

    # What the layers ask the planner, through the leader.

    def ask_planner(self, site: CallSite, gathered: GatheredCounts) -> IntArray | None:
        """Asks the planner for one layer while all ranks wait; None without an answer. Collective."""
        answer = None
        if self.leader is not None:
            report = RoutingReport(
                step=site.step,
                micro_batch=site.micro_batch,
                valid_tokens_R=gathered.valid_tokens_R,
                counts_L=(gathered.counts_RE,),
            )
            answer = self.leader.ask(report, layer=site.layer)
        return self.control.share_answer(answer)

    def planned_guests(self, layer: int) -> IntArray:
        """The guests of a layer in the step's record. Shape: [ranks, slots]."""
        guests_RK: IntArray = np.ascontiguousarray(self.record.guests_LRK[layer])
        return guests_RK
