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
from taot_client.measuring.gate_keeper import StepObservation
from taot_client.measuring.link_meter import LinkMeter
from taot_client.measuring.pass_outcomes import NotedPass, PassOutcomes, SettledPasses, imbalances
from taot_client.measuring.step_measured import StepMeasured, measured_row
from taot_client.options import AgentOptions
from taot_client.pass_split import PassSplit
from taot_client.planner.leader import Leader
from taot_client.planner.report_builder import ReportBuilder
from taot_client.planner.step_control import StepControl
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord
from taot_client.run_report import RankTotals
from taot_client.step_summary import MoveTotals, StepSummary, StepTally
from taot_client.trace_recorder import TraceFile
from taot_client.transfers.departures import Departures
from taot_client.transfers.shipment import Mover, Shipment, TransferClock
from taot_client.weight_changes import WeightChanges
from taot_planning import LayerProblem, plan_from_guests
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
        self.timed_topology = spec.topology
        self.control = control
        self.leader = leader
        self.clock = TransferClock()
        self.links = LinkMeter(spec.topology.level_RR[group.rank].tolist(), num_levels=len(spec.topology.levels))
        self.weight_mover: Mover
        self.gradient_mover: Mover
        self.departures = Departures()
        self.layers: list[LayerAgent] = []
        self.micro_batch_index: int | None = None
        self.weight_epoch = -1
        self.step = -1
        self.num_invalid_ids = 0
        self.is_in_step = False
        self.weight_changes = WeightChanges()
        self.trace: TraceFile | None = None
        self._record: StepRecord | None = None
        self._is_mismatch = False
        self._tally = StepTally()
        self._outcomes = PassOutcomes(len(spec.layers))
        self._sent_bytes = [0, 0]
        speed_milli_R = spec.topology.speed_milli_R
        is_even = speed_milli_R is None or not np.ptp(speed_milli_R)
        self._speed_milli_R = None if is_even else speed_milli_R  # alike, they need not be looked at
        self._reports = ReportBuilder(num_layers=len(spec.layers), num_ranks=group.size)

    # Where training is.

    def begin_step(self, record: StepRecord) -> None:
        """Moves on to the record's step; the weights have changed since the last."""
        was_mismatch, self._is_mismatch = self._is_mismatch, record.reason is ModeReason.RECORD_MISMATCH
        if self._is_mismatch and not was_mismatch:
            self._warn("step %d: the ranks hold different step records, every expert stays home", record.step)
        self.step, self._record, self.is_in_step = record.step, record, True
        self.weight_epoch += 1
        self.weight_changes.begin_step()
        self._tally = StepTally()
        self._outcomes = PassOutcomes(len(self.spec.layers))
        self.timed_topology = record.gates.measured.topology(self.topology)
        self._reports.begin_step()
        self.departures.clear()

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

    def check_none_in_flight(self) -> None:
        """Checks that no pass needs the weights as they were.

        Raises:
            RuntimeError: naming a layer whose forward waits for its backward.
        """
        in_flight = [each.route.name for each in self.layers if each.pins.num_in_flight]
        if in_flight:
            raise RuntimeError(f"weights changed while layer {in_flight[0]!r} waits for a backward")

    def renew_guests(self) -> None:
        """Forgets all guests, whose weights have changed, and sends for those of the plan anew. On every rank alike.

        Raises:
            RuntimeError: on every rank, if a forward waits for its backward.
        """
        self.check_none_in_flight()
        self.weight_epoch += 1
        self.departures.clear()
        for index, layer in enumerate(self.layers):
            layer.renew_guests(self.planned_guests(index) if self.mode is StepMode.PLAN else None)
        self.departures.depart_all()  # forward is under way

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

    def rank_totals(self) -> RankTotals:
        """What this rank has measured since its start."""
        return RankTotals(
            flight_seconds=self.clock.flight_seconds,
            exposed_seconds=self.clock.exposed_seconds,
            intra_node_sent_bytes=self._sent_bytes[0],
            inter_node_sent_bytes=self._sent_bytes[1],
        )

    def measured(self, layer: int, *, computed_tokens: int) -> Measured:
        """What this rank tells with the gather of a layer: what it has computed there since its start.

        With the last layer, from which reports take it, all else that it has measured as well.
        """
        if layer + 1 < len(self.layers):
            return Measured(computed_tokens=computed_tokens)
        clock, (intra, inter) = self.clock, self._sent_bytes
        times_us = round(clock.exposed_seconds * 1e6), round(clock.flight_seconds * 1e6)
        return Measured(*times_us, intra, inter, computed_tokens)

    def note_pass(self, layer: LayerAgent, layer_pass: LayerPass, split: PassSplit) -> None:
        """Notes a pass and the split of its tokens; the leader reports complete micro-batches."""
        index, counts_RE = layer.route.layer, layer_pass.gathered.counts_RE
        if self.mode is StepMode.OBSERVE:
            problem = LayerProblem(counts_RE=counts_RE, home_E=layer.home_E, topology=self.timed_topology)
            would_be_R = plan_from_guests(problem, self.planned_guests(index)).loads_R(problem)
            passes = SettledPasses([index], split.loads_2R[:1], would_be_R[None], would_be_R[None])
            self._add_passes(passes)
        else:
            noted = NotedPass(split.loads_2R, layer_pass.gathered.computed_tokens_R.copy(), split.has_guests)
            self._outcomes.note(index, counts_RE, noted)
        site = layer_pass.site
        if self.trace is not None and site.step >= 0:
            self.trace.add(step=site.step, micro_batch=site.micro_batch, layer=site.layer, counts_RE=counts_RE)
        if self.leader is None:
            return
        if layer_pass.has_guests:
            self._reports.add_applied()
        report = self._reports.add(
            step=site.step,
            micro_batch=site.micro_batch,
            layer=index,
            gathered=layer_pass.gathered,
            applied=self.record.identity if self.mode is StepMode.PLAN else None,
        )
        if report is not None:
            self.leader.report(report)

    def note_fallback(self, reason: str) -> None:
        """Notes a pass that ran without guests that were wanted; every rank notes the same."""
        self._tally.add_fallback(reason)
        self._reports.add_fallback(reason)

    def note_never_arrived(self, ranks: Sequence[int], *, layer: str, num_steps: int) -> None:
        """Notes guests that have come too late for many steps in a row; every rank notes the same."""
        self.note_fallback("never_arrived")
        self._warn(
            "step %d: guests of layer %r on ranks %s came too late in %d steps in a row: the layer stays unbalanced",
            self.step,
            layer,
            ranks,
            num_steps,
        )

    def note_mode(self) -> None:
        """Notes a pass in a step whose mode is not the configured one."""
        wanted_reasons = (ModeReason.AS_CONFIGURED, ModeReason.PAUSED)
        if self.record.reason not in wanted_reasons:
            self.note_fallback(self.record.reason.name.lower())

    def note_moves(self, totals: MoveTotals) -> None:
        """Notes guests that are sent to their slots."""
        self._tally.add_moves(totals)

    def note_sent(self, shipments: Sequence[Shipment]) -> None:
        """Counts the bytes that this rank sends."""
        nodes_R = self.topology.nodes_R
        for shipment in shipments:
            if not shipment.is_receive:
                crosses = nodes_R.item(shipment.peer) != nodes_R.item(self.group.rank)
                self._sent_bytes[int(crosses)] += shipment.buffer.numel()

    def _warn(self, message: str, *args: object) -> None:
        """Warns of what all ranks see alike."""
        logger.log(logging.WARNING if self.leader is not None else logging.DEBUG, message, *args)

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
        """What the step has done. From here to the next `begin_step` weights change. Collective."""
        self.is_in_step = False
        row_N = measured_row([layer.meter for layer in self.layers], self.links.totals())
        measured = StepMeasured.of_rows(self.control.gather(row_N), num_layers=len(self.layers))
        settled = self._outcomes.settle(measured.computed_tokens_RL)
        if settled is not None:
            self._add_passes(settled)
        if self.leader is not None:
            seen = StepObservation(
                step=self.step,
                outcomes_L=self._outcomes.layers,
                reach_seconds_L=[layer.meter.reach_seconds for layer in self.layers],
                measured=measured,
            )
            self.leader.observe(seen)
        layers_off = tuple(each.route.name for each in self.layers if self.record.gates.is_off(each.route.layer))
        return self._tally.summary(step=self.step, mode=self.mode, reason=self.record.reason, layers_off=layers_off)

    def _add_passes(self, settled: SettledPasses) -> None:
        layer_P, *loads_PR = settled
        for layer, static, planned, achieved in zip(
            layer_P, *(imbalances(each_PR, self._speed_milli_R) for each_PR in loads_PR), strict=True
        ):
            self._tally.add_pass(self.layers[layer].route.name, static=static, planned=planned, achieved=achieved)

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
