"""The agent while it is switched off: plain expert parallelism, with the same summary of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group

from taot_client.coordinator import PlainCoordinator
from taot_client.counts_gather import GatheredCounts
from taot_client.model_layers import NamedLayer
from taot_client.parallel_experts import ParallelExperts
from taot_client.pinned_passes import in_backward
from taot_client.planner.step_record import ModeReason, StepMode
from taot_client.run_report import RankTotals, RunReport
from taot_client.step_summary import StepSummary, StepTally
from taot_client.trace_recorder import TraceFile
from taot_planning import imbalance, rank_loads


class PlainAgent:
    """Watches the layers' own gathers; adds nothing to what they do."""

    def __init__(self, layers: Sequence[NamedLayer]) -> None:
        self._layers = layers
        self._step = -1
        self._tally = StepTally()
        self._trace: TraceFile | None = None
        self._num_passes = [0] * len(layers)
        self._report = RunReport("TAOT is switched off")
        for index, (name, layer) in enumerate(layers):
            on_pass = self._on_pass(index, name, layer)
            layer.coordinator = PlainCoordinator(layer.group, layer.home_E, on_pass=on_pass)

    def _on_pass(self, index: int, name: str, layer: ParallelExperts) -> Callable[[GatheredCounts], None]:
        def on_pass(gathered: GatheredCounts) -> None:
            if layer.module.training and not in_backward():  # neither evaluation nor recomputation
                static = imbalance(rank_loads(gathered.counts_RE, layer.home_E))
                self._tally.add_pass(name, static=static, planned=static, achieved=static)
                if self._trace is not None and self._step >= 0:
                    at = {"step": self._step, "micro_batch": self._num_passes[index], "layer": index}
                    self._trace.add(**at, counts_RE=gathered.counts_RE)
                self._num_passes[index] += 1

        return on_pass

    def begin_step(self) -> None:
        """Begins the next step."""
        self._step += 1
        self._tally = StepTally()
        self._num_passes = [0] * len(self._layers)

    def end_step(self) -> StepSummary:
        """What the step did."""
        summary = self._tally.summary(step=self._step, mode=StepMode.HOME_ONLY, reason=ModeReason.DISABLED)
        self._report.add(summary)
        return summary

    def report(self) -> Group:
        """See `Agent.report`."""
        return self._report.render(RankTotals(), {})

    def set_micro_batch(self, index: int | None) -> None:
        """Micro-batches need no names here."""

    def record(self, trace: TraceFile) -> None:
        """Adds every pass from now on to a trace."""
        self._trace = trace

    def weights_changed(self) -> None:
        """Nobody holds copies of weights."""

    def transfer_seconds(self) -> tuple[float, float]:
        """Nothing is transferred."""
        return 0.0, 0.0

    def planner_stats(self) -> dict[str, Any]:
        """There is no planner."""
        return {}

    def close(self) -> None:
        """Stops watching."""
        for _, layer in self._layers:
            layer.coordinator = PlainCoordinator(layer.group, layer.home_E)
