"""Why a plan is what it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taot_planning.layer_plan import LayerPlan


class Gate(Enum):
    """A rule that changed a plan; the value is its name in logs, tables and JSON."""

    BALANCED = "balanced"
    """The imbalance was not above `min_imbalance_ppm`: nothing was planned."""

    WITHIN_TOLERANCE = "within_tolerance"
    """No rank was above the tolerance."""

    MIN_TOKENS = "min_tokens"
    """Guests with fewer than `min_tokens_per_guest` tokens were left out."""

    OUT_OF_REACH = "out_of_reach"
    """The slots do not suffice for the tolerance: the plan is the most balanced that was found."""

    DOMINATED = "dominated"
    """No guests are as balanced as the plan that was found, so there are none."""

    NO_GAIN = "no_gain"
    """Moving the guests was predicted to take longer than they save, so there are none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Considered:
    """A plan that was looked at on the way."""

    name: str
    """What it is, such as `no guests`."""

    plan: LayerPlan
    """The plan; its figures are worked out by who wants to see them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """The way to a plan."""

    gates: tuple[Gate, ...] = ()
    """Rules that changed it, in the order in which they did."""

    considered: tuple[Considered, ...] = ()
    """What was looked at, in order; empty for algorithms that know one answer only."""

    lower_bound: float | None = None
    """Proven least value of the objective, by the effort `exact` only."""

    is_optimal: bool = False
    """Whether the plan is proven to be the best there is, by the effort `exact` only."""
