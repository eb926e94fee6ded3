from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taot_client.measuring.rates import UNKNOWN, Rate, RateRules, middle_rank, observe, power, quantise

RATES = st.floats(1, 1e14)
RULES = RateRules(least_steps=3, life_steps=10)


@given(RATES, RATES)
def test_larger_rates_have_no_smaller_quanta(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert quantise(low) <= quantise(high)
    assert power(quantise(low)) <= power(quantise(high))


@given(st.floats(100, 1e14))
def test_a_quantum_is_within_a_tenth_of_its_rate(rate: float) -> None:
    assert abs(power(quantise(rate)) / rate - 1) < 0.1


@given(RATES, st.lists(st.floats(-0.03, 0.03), min_size=1, max_size=40))
def test_noise_of_three_percent_never_moves_a_rate(rate: float, noise: list[float]) -> None:
    held = quantise(rate * (1 + noise[0]))
    assert all(quantise(rate * (1 + each), held=held) == held for each in noise)


@given(RATES, st.sampled_from((0.5, 2.0)))
def test_a_rate_that_really_changes_is_followed(rate: float, factor: float) -> None:
    held = quantise(rate)
    changed = max(1.0, rate * factor)
    if abs(np.log2(changed / rate)) > 0.5:
        assert quantise(changed, held=held) == quantise(changed) != held


@given(st.floats(1e-3, 1e3), RATES, st.lists(st.floats(-0.03, 0.03), min_size=4, max_size=40))
def test_an_estimate_is_unknown_until_measured_enough_and_then_keeps_still(
    seconds: float, rate: float, noise: list[float]
) -> None:
    estimate, values = Rate(), []
    for step, each in enumerate(noise):
        estimate = observe(estimate, amount=rate * (1 + each) * seconds, per=seconds, step=step, rules=RULES)
        values.append(estimate.value)
    assert values[:2] == [UNKNOWN, UNKNOWN]
    assert set(values[2:]) == {values[2]}
    assert values[2] >= 1


def test_the_first_measured_step_is_a_warm_up() -> None:
    estimate = observe(Rate(), amount=1, per=1000, step=0, rules=RULES)
    for step in (1, 2):
        estimate = observe(estimate, amount=1024, per=1, step=step, rules=RULES)
    assert estimate.value == 1024


def test_a_rate_that_is_not_measured_any_more_is_forgotten_and_measured_afresh() -> None:
    estimate = Rate()
    for step in range(3):
        estimate = observe(estimate, amount=16, per=1, step=step, rules=RULES)
    assert estimate.value == 16
    for step in range(3, 12):
        estimate = observe(estimate, amount=0, per=0, step=step, rules=RULES)
        assert estimate.value == 16
    estimate = observe(estimate, amount=0, per=0, step=12, rules=RULES)
    assert estimate.value == UNKNOWN
    for step in range(13, 16):
        estimate = observe(estimate, amount=4096, per=1, step=step, rules=RULES)
    assert estimate.value == 4096


@pytest.mark.parametrize(
    ("amount_R", "per_R", "middle"),
    [
        ([0, 0, 0], [0, 0, 0], (0, 0)),
        ([10, 0, 0], [5, 0, 3], (10, 5)),
        ([100, 100, 100], [10, 1000, 11], (100, 11)),  # one rank's link is broken
        ([100, 1, 100], [10, 10_000, 20], (100, 20)),
    ],
)
def test_the_rank_in_the_middle_speaks_for_all(amount_R: list[int], per_R: list[int], middle: tuple[int, int]) -> None:
    assert middle_rank(np.array(amount_R), np.array(per_R)) == middle
