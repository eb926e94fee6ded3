from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from taot_client.measuring.layer_switch import LayerSwitch, SwitchRules, SwitchState, advance

RULES = SwitchRules(window_steps=3, patience_windows=2, probe_steps=2, first_rest_steps=4, longest_rest_steps=10)


def run(gains: list[int | None]) -> list[LayerSwitch]:
    """The switch in each step: guests are used in every step in which the layer is not off and has a gain."""
    switch, seen = LayerSwitch(), []
    for step, gain in enumerate(gains):
        seen.append(switch)
        switch = advance(switch, next_step=step + 1, gain_us=None if switch.is_off else gain, rules=RULES)
    return seen


def off_steps(gains: list[int | None]) -> list[int]:
    return [step for step, switch in enumerate(run(gains)) if switch.is_off]


def test_two_windows_of_negative_gain_in_a_row_switch_a_layer_off() -> None:
    assert off_steps([-1] * 8) == [6, 7]
    assert off_steps([-1] * 3 + [1] * 3 + [-1] * 3 + [1] * 3) == []
    assert off_steps([-5, 2, 2] * 2 + [0]) == [6]  # the sum of a window counts


def test_no_gain_is_no_loss() -> None:
    assert off_steps([0] * 100) == []


def test_steps_without_guests_do_not_count() -> None:
    assert off_steps([None] * 50) == []
    assert off_steps([-1, None] * 6) == [11]


def test_a_probe_that_fails_rests_twice_as_long_up_to_a_limit() -> None:
    lengths = [(state, len(list(steps))) for state, steps in groupby(each.state for each in run([-1] * 64))]
    assert lengths[:9] == [
        (SwitchState.ON, 6),
        (SwitchState.OFF, 4),
        (SwitchState.PROBING, 2),
        (SwitchState.OFF, 8),
        (SwitchState.PROBING, 2),
        (SwitchState.OFF, 10),
        (SwitchState.PROBING, 2),
        (SwitchState.OFF, 10),
        (SwitchState.PROBING, 2),
    ]


def test_a_probe_that_gains_brings_the_layer_back_with_all_its_patience() -> None:
    seen = run([-1] * 6 + [None] * 4 + [1, 1] + [-1] * 7)
    assert [each.state for each in seen[10:12]] == [SwitchState.PROBING] * 2
    assert seen[12] == LayerSwitch()
    assert [step for step, each in enumerate(seen) if each.is_off] == [6, 7, 8, 9, 18]


@given(st.lists(st.none() | st.integers(-100, 100), max_size=200))
def test_a_layer_never_changes_before_its_dwell_time_and_never_stays_off_for_ever(gains: list[int | None]) -> None:
    seen = run(gains)
    stretches = [(state, len(list(steps))) for state, steps in groupby(each.state for each in seen)]
    for state, length in stretches[:-1]:  # the last may have been cut short
        if state is SwitchState.OFF:
            assert RULES.first_rest_steps <= length <= RULES.longest_rest_steps
        elif state is SwitchState.PROBING:
            assert length >= RULES.probe_steps
        else:
            assert length >= RULES.window_steps * RULES.patience_windows
    for (state, _), (following, _) in zip(stretches, stretches[1:], strict=False):
        allowed = {
            SwitchState.ON: {SwitchState.OFF},
            SwitchState.OFF: {SwitchState.PROBING},
            SwitchState.PROBING: {SwitchState.ON, SwitchState.OFF},
        }
        assert following in allowed[state]
    if stretches and stretches[-1][0] is SwitchState.OFF:
        assert stretches[-1][1] <= RULES.longest_rest_steps
