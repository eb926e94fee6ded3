"""Whether a layer may have guests: off where they cost more than they gain, tried again later. A pure state machine.

on -> (several windows of negative gain in a row) -> off -> (rest) -> probing -> on, or off for twice as long
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class SwitchRules:
    """How patient a switch is."""

    window_steps: int = 8
    """Steps with guests whose gains are judged together."""

    patience_windows: int = 3
    """Windows of negative gain in a row after which the layer is switched off."""

    probe_steps: int = 4
    """Steps with guests that decide whether a layer that was off stays on."""

    first_rest_steps: int = 32
    """Steps that a layer stays off the first time; twice as long after each probe that fails."""

    longest_rest_steps: int = 1024
    """The most."""


RULES = SwitchRules()


class SwitchState(Enum):
    """Whether the layer has guests, and why."""

    ON = "on"
    OFF = "off"
    PROBING = "probing"


@dataclass(frozen=True, kw_only=True)
class LayerSwitch:
    """One layer's switch between two steps."""

    state: SwitchState = SwitchState.ON
    """What holds for the next step."""

    gain_us: int = 0
    """Gain of the window so far, in microseconds."""

    window_steps: int = 0
    """Steps with guests in it."""

    bad_windows: int = 0
    """Windows of negative gain in a row."""

    rest_steps: int = 0
    """Length of the last rest; 0 before the first."""

    rests_until: int = 0
    """The step at which the rest ends; of meaning while off."""

    @property
    def is_off(self) -> bool:
        """Whether the layer has no guests."""
        return self.state is SwitchState.OFF


def advance(
    switch: LayerSwitch, *, next_step: int, gain_us: int | None, rules: SwitchRules | None = None
) -> LayerSwitch:
    """The switch for `next_step`.

    Args:
        switch: as it was in the step that has ended.
        next_step: the step to decide for.
        gain_us: measured gain of the step that has ended, in microseconds; None where no guests were used.
        rules: how patient to be.
    """
    rules = rules or RULES
    if switch.is_off:
        is_resting = next_step < switch.rests_until
        return switch if is_resting else LayerSwitch(state=SwitchState.PROBING, rest_steps=switch.rest_steps)
    if gain_us is None:
        return switch
    window = replace(switch, gain_us=switch.gain_us + gain_us, window_steps=switch.window_steps + 1)
    is_probing = switch.state is SwitchState.PROBING
    if window.window_steps < (rules.probe_steps if is_probing else rules.window_steps):
        return window
    return _judge(
        window, next_step=next_step, patience_windows=1 if is_probing else rules.patience_windows, rules=rules
    )


def _judge(window: LayerSwitch, *, next_step: int, patience_windows: int, rules: SwitchRules) -> LayerSwitch:
    """What follows from a window that is complete."""
    if window.gain_us >= 0:
        return LayerSwitch()
    bad_windows = window.bad_windows + 1
    if bad_windows < patience_windows:
        return replace(window, gain_us=0, window_steps=0, bad_windows=bad_windows)
    rest = min(2 * window.rest_steps or rules.first_rest_steps, rules.longest_rest_steps)
    return LayerSwitch(state=SwitchState.OFF, rest_steps=rest, rests_until=next_step + rest)
