"""Compute and link rates from what ranks have measured: pure, and coarse enough that noise does not move them.

A rate is a power of the fourth root of two, about 19 % apart from the next. It changes only when the estimate is a
whole quantum away from it. What has not been measured for long is forgotten: a link that was slow is tried again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from taot_planning.arrays import IntArray

QUANTA_PER_OCTAVE = 4
"""Rates between a number and its double."""

UNKNOWN = 0
"""A rate that has not been measured enough."""


@dataclass(frozen=True, kw_only=True)
class RateRules:
    """When a rate is known, and for how long."""

    least_steps: int = 3
    """Steps to measure before a rate is known."""

    life_steps: int = 256
    """Steps after which a rate that is not measured any more is forgotten."""

    kept: float = 0.9
    """Share of the past that stays in the estimate with every measured step."""


RULES = RateRules()


@dataclass(frozen=True, kw_only=True)
class Rate:
    """An estimate, and the coarse number that stands for it."""

    amount: float = 0.0
    """What was done, such as bytes; older steps count less."""

    per: float = 0.0
    """What that took, such as seconds; likewise."""

    num_steps: int = 0
    """Steps measured, the first of which does not count in the estimate."""

    last_step: int = 0
    """The newest of them."""

    quantum: int | None = None
    """Which power stands for the rate; None while it is not known."""

    @property
    def value(self) -> int:
        """The coarse rate, 1 or more, or `UNKNOWN`."""
        return UNKNOWN if self.quantum is None else power(self.quantum)


def power(quantum: int) -> int:
    """The rate that a quantum stands for, at least 1."""
    return max(1, round(math.pow(2.0, quantum / QUANTA_PER_OCTAVE)))


def quantise(rate: float, *, held: int | None = None) -> int:
    """The quantum of a rate: the one held while the rate is less than a whole quantum away, else the nearest.

    Args:
        rate: above 0; below 1 it counts as 1.
        held: the quantum so far.
    """
    exact = QUANTA_PER_OCTAVE * math.log2(max(rate, 1.0))
    if held is not None and abs(exact - held) < 1.0:
        return held
    return round(exact)


def observe(rate: Rate, *, amount: float, per: float, step: int, rules: RateRules | None = None) -> Rate:
    """The rate after a step in which `amount` took `per`; nothing was measured where either is 0."""
    rules = rules or RULES
    if amount <= 0 or per <= 0:
        is_forgotten = rate.num_steps and step - rate.last_step >= rules.life_steps
        return Rate() if is_forgotten else rate
    if not rate.num_steps:
        return Rate(num_steps=1, last_step=step)  # the first time is a warm-up and says nothing
    amount, per = rate.amount * rules.kept + amount, rate.per * rules.kept + per
    num_steps = rate.num_steps + 1
    quantum = quantise(amount / per, held=rate.quantum) if num_steps >= rules.least_steps else None
    return replace(rate, amount=amount, per=per, num_steps=num_steps, last_step=step, quantum=quantum)


def middle_rank(amount_R: IntArray, per_R: IntArray) -> tuple[int, int]:
    """What the rank measured whose rate is in the middle among those that measured anything; 0, 0 if none has.

    The middle, since a rank that was held up, by a late peer or by a broken link, says little about the others.

    Args:
        amount_R: what each rank did. Shape: [ranks].
        per_R: what that took. Shape: [ranks].
    """
    ranks = np.flatnonzero((amount_R > 0) & (per_R > 0))
    if not ranks.size:
        return 0, 0
    ordered = sorted(ranks.tolist(), key=lambda rank: int(amount_R[rank]) / int(per_R[rank]))
    rank = ordered[len(ordered) // 2]
    return int(amount_R[rank]), int(per_R[rank])
