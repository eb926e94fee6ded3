"""What the leader knows of the machine, and which guests it lets through. Deciding is left to pure functions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taot_api import SessionSpec
from taot_client.measuring.gain import measured_gain_us, worthwhile_layers
from taot_client.measuring.layer_switch import LayerSwitch, advance
from taot_client.measuring.pass_outcomes import LayerOutcome
from taot_client.measuring.rates import Rate, middle_rank, observe
from taot_client.measuring.step_gates import NUM_LEVELS, StepGates
from taot_client.measuring.step_measured import StepMeasured
from taot_planning import EMPTY_SLOT, LayerProblem
from taot_planning.arrays import IntArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepObservation:
    """A step that has ended."""

    step: int
    """The step."""

    outcomes_L: Sequence[LayerOutcome]
    """What the passes of each layer came to."""

    reach_seconds_L: Sequence[float]
    """When the leader reached each layer, after its guests had left."""

    measured: StepMeasured
    """What all ranks have measured, since the start."""


class GateKeeper:
    """The leader's rates and switches of all layers."""

    def __init__(self, spec: SessionSpec, *, has_switches: bool = True) -> None:
        """Knows nothing yet. Without switches it only measures, and layers stay on."""
        self._spec = spec
        self._has_switches = has_switches
        num_layers = len(spec.layers)
        self._before = StepMeasured.zero(
            num_ranks=spec.topology.num_ranks, num_layers=num_layers, num_levels=NUM_LEVELS
        )
        self._compute_L = [Rate()] * num_layers
        self._link_V = [Rate()] * NUM_LEVELS
        self._switch_L = [LayerSwitch()] * num_layers
        self._last: StepObservation | None = None

    def observe(self, seen: StepObservation) -> None:
        """Learns from a step that has ended. Logs layers that are switched off or on again."""
        new = seen.measured.since(self._before)
        self._before, self._last = seen.measured, seen
        for level in range(NUM_LEVELS):
            num_bytes, us = middle_rank(new.link_bytes_RV[:, level], new.link_us_RV[:, level])
            self._link_V[level] = observe(self._link_V[level], amount=num_bytes, per=us * 1e-6, step=seen.step)
        for layer, outcome in enumerate(seen.outcomes_L):
            us, tokens = middle_rank(new.compute_us_RL[:, layer], new.timed_tokens_RL[:, layer])
            self._compute_L[layer] = observe(self._compute_L[layer], amount=us * 1e6, per=tokens, step=seen.step)
            if self._has_switches:
                self._turn(layer, self._gain_us(layer, outcome, new), next_step=seen.step + 1)

    def gates(self) -> StepGates:
        """What all ranks are told for the next step."""
        return StepGates(
            token_picoseconds_L=tuple(rate.value for rate in self._compute_L),
            bandwidth_V=tuple(rate.value for rate in self._link_V),
            is_off_L=tuple(switch.is_off for switch in self._switch_L),
        )

    def let_through(self, guests_LRK: IntArray) -> IntArray:
        """The planner's guests, without those of layers that are off or are not expected to gain anything.

        Shape: [layers, ranks, slots].
        """
        passed_LRK = guests_LRK.copy()
        passed_LRK[[switch.is_off for switch in self._switch_L]] = EMPTY_SLOT
        if self._last is None:
            return passed_LRK
        worth_L = worthwhile_layers(
            self._problems(self._last),
            passed_LRK,
            reach_seconds_L=self._last.reach_seconds_L,
            passes_L=[outcome.num_passes for outcome in self._last.outcomes_L],
        )
        passed_LRK[~np.array(worth_L, dtype=bool)] = EMPTY_SLOT
        return passed_LRK

    def _problems(self, seen: StepObservation) -> list[LayerProblem | None]:
        measured = self.gates().measured
        topology = measured.topology(self._spec.topology)
        return [
            None
            if outcome.counts_RE is None
            else LayerProblem(
                counts_RE=outcome.counts_RE,
                home_E=spec.home_E,
                topology=topology,
                rates=measured.rates(layer, expert_size_bytes=spec.expert_size_bytes),
            )
            for layer, (outcome, spec) in enumerate(zip(seen.outcomes_L, self._spec.layers, strict=True))
        ]

    def _gain_us(self, layer: int, outcome: LayerOutcome, new: StepMeasured) -> int | None:
        """The measured gain of a layer in the step; None before its compute rate is known, or where nothing was tried.

        Guests that came too late to be used may have been waited for all the same.
        """
        picoseconds = self._compute_L[layer].value
        exposed_us = int(new.exposed_us_RL[:, layer].max())
        if not picoseconds or not (outcome.used_guests or exposed_us):
            return None
        return measured_gain_us(
            saved_tokens=outcome.saved_tokens,
            token_picoseconds=picoseconds,
            exposed_us=exposed_us,
        )

    def _turn(self, layer: int, gain_us: int | None, *, next_step: int) -> None:
        before = self._switch_L[layer]
        now = self._switch_L[layer] = advance(before, next_step=next_step, gain_us=gain_us)
        if now.state is before.state:
            return
        detail = f", tried again in step {now.rests_until}" if now.is_off else ""
        logger.info(
            "step %d: guests of layer %r are %s%s", next_step, self._spec.layers[layer].name, now.state.value, detail
        )
