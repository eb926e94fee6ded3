"""What only the leader of a group does: it speaks to the planner and decides what the next step does."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from taot_api import MeasuredRates, RoutingReport, SessionSpec
from taot_client.measuring.gate_keeper import GateKeeper, StepObservation
from taot_client.measuring.step_gates import StepGates
from taot_client.options import AgentOptions
from taot_client.planner.mode_choice import PlannerView, choose_mode
from taot_client.planner.planner_link import PlannerLink
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray

logger = logging.getLogger(__name__)


class Leader:
    """The leader's side of the agent. Without a planner address it only writes the records."""

    def __init__(self, options: AgentOptions, spec: SessionSpec) -> None:
        self._options = options
        self._spec = spec
        self._last_reason = ModeReason.AS_CONFIGURED
        self._has_gates = options.uses_measured_gates
        self._keeper = GateKeeper(spec, has_switches=self._has_gates)
        self.link: PlannerLink | None = None
        if options.planner_address is not None:
            self.link = PlannerLink(options.planner_address, spec, options.planner_access)

    def start(self) -> str:
        """Looks for the planner; returns why it refuses this job, or an empty string."""
        if self.link is None:
            return ""
        return self.link.start(wait=self._options.connect_timeout) or ""

    def close(self) -> None:
        """Says goodbye to the planner."""
        if self.link is not None:
            self.link.close()

    def leave(self) -> None:
        """Ends the link with the process.

        What an exception ends may come back, so that says no goodbye: its session stays until the next run of the
        group replaces it, or its lease has run out.
        """
        if self.link is not None:
            self.link.close(says_goodbye=not hasattr(sys, "last_type"))

    def planner_stats(self) -> dict[str, Any]:
        """The state of the link for logs; empty without a planner."""
        if self.link is None:
            return {}
        return {
            "connected": self.link.is_connected,
            "paused": self.link.is_paused,
            "reconnects": self.link.num_reconnects,
            "rejected_plans": self.link.num_rejected_plans,
            "dropped_reports": self.link.num_dropped_reports,
            "plan": self.link.plan,
        }

    def observe(self, seen: StepObservation) -> None:
        """Learns from what all ranks have measured in a step that has ended."""
        if self._has_gates or self.link is not None:
            self._keeper.observe(seen)

    def next_record(self, *, step: int) -> StepRecord:
        """Decides what `step` does. Logs when the reason changes."""
        view = PlannerView()
        if self.link is not None:
            view = PlannerView(is_connected=self.link.is_connected, is_paused=self.link.is_paused, plan=self.link.plan)
        mode, reason = choose_mode(self._options, view, step=step)
        if reason is not self._last_reason:
            logger.info("step %d: %s (%s)", step, mode.name.lower(), reason.name.lower())
            self._last_reason = reason
        plan = view.plan if mode in (StepMode.PLAN, StepMode.OBSERVE) else None
        guests_LRK = self._no_guests() if plan is None else np.stack(plan.guests_L)
        if self._has_gates and mode is StepMode.PLAN:
            guests_LRK = self._keeper.let_through(guests_LRK)
        return StepRecord(
            step=step,
            mode=mode,
            reason=reason,
            guests_LRK=guests_LRK,
            identity=plan.identity if plan else None,
            gates=self._keeper.gates() if self._has_gates else StepGates(),
        )

    def report(self, report: RoutingReport) -> None:
        """Hands a report to the planner, without waiting."""
        if self.link is not None:
            self.link.report(replace(report, measured_rates=self._measured_rates()))

    def ask(self, report: RoutingReport, *, layer: int) -> IntArray | None:
        """Asks the planner for one layer's guests while the ranks wait; None without an answer in time."""
        if self.link is None:
            return None
        plan = self.link.plan_now(report, layer=layer, deadline=self._options.plan_deadline)
        return plan.guests_L[0] if plan is not None else None

    def _measured_rates(self) -> MeasuredRates:
        """What the planner may predict gains with; nothing else depends on it."""
        measured = self._keeper.gates().measured
        levels = measured.topology(self._spec.topology).levels  # as many as the session has, whatever was measured
        return replace(measured, bandwidth_V=tuple(level.bandwidth_bytes_per_second or 0 for level in levels))

    def _no_guests(self) -> IntArray:
        topology = self._spec.topology
        return np.full((len(self._spec.layers), topology.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64)
