"""How to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

PPM = 1_000_000
"""Parts per million in one: ratios that ranks compute with are integers."""

Effort: TypeAlias = Literal["fast", "balanced", "exact"]
"""How hard to search.

fast: for ranks that plan for themselves in a training step.
balanced: ahead of it, in the service.
exact: offline, by a mixed-integer program that also proves how much cheaper a plan could be; needs scipy.
"""

EFFORTS: tuple[Effort, ...] = get_args(Effort)

SEARCH_EFFORTS: tuple[Effort, ...] = ("fast", "balanced")
"""Efforts that search for some rounds, and give the same plan on every machine."""

MAX_EXACT_SECONDS = 86_400.0
"""The effort `exact` may take a day at most."""

Objective: TypeAlias = Literal["tolerance", "mu", "step_time"]
"""What `taot` looks for.

tolerance: the cheapest guests that reach `tolerance_ppm`.
mu: the least imbalance + mu x weighted cost (eq. 2 of the paper).
step_time: the least predicted time of the layer; needs `LayerProblem.rates` and the bandwidths of the levels.
"""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """What a plan should achieve. `min_imbalance_ppm` holds for every algorithm, the others are read by `taot`."""

    objective: Objective = "tolerance"
    """What to look for."""

    tolerance_ppm: int = 15_000
    """Residual imbalance asked for, in parts per million of the mean load; ranks are filled up to it."""

    mu_ppm: int = 2_000
    """What the objective `mu` gives for one unit of weighted cost, a guest within a node: imbalance in parts per
    million."""

    min_imbalance_ppm: int = 0
    """Layers whose imbalance is not above this are left alone, in parts per million; 0 leaves none alone."""

    min_tokens_per_guest: int = 0
    """Guests that would take fewer tokens are not made."""

    stretch_percent: int = 150
    """How far the next micro-batch may stray from the mean of recent ones, relative to how far those did, in percent.
    Heeded where `LayerProblem.recent_tokens_NE` is given: 0 trusts the mean, 400 leaves next to nothing to chance."""

    effort: Effort = "balanced"
    """How hard to search for a cheaper plan. But for `exact` it is counted in rounds, never in time: the answer stays
    the same."""

    exact_seconds: float = 30.0
    """Time for the solver in the effort `exact`, for one layer; past it the best plan so far is returned with its
    proven gap. Above 0, at most a day."""

    def __post_init__(self) -> None:
        for name in ("tolerance_ppm", "min_imbalance_ppm"):
            value = getattr(self, name)
            if not 0 <= value <= 100 * PPM:
                raise ValueError(f"{name} must be between 0 and {100 * PPM} (100 times the mean), got {value}")
        if not 0 <= self.mu_ppm <= 100 * PPM:
            raise ValueError(f"mu_ppm must be between 0 and {100 * PPM}, got {self.mu_ppm}")
        if not 0 <= self.min_tokens_per_guest < 2**31:
            raise ValueError(f"min_tokens_per_guest must be between 0 and 2^31-1, got {self.min_tokens_per_guest}")
        if not 0 <= self.stretch_percent <= 10_000:
            raise ValueError(f"stretch_percent must be between 0 and 10000, got {self.stretch_percent}")
        if self.effort not in EFFORTS:
            raise ValueError(f"unknown effort {self.effort!r}: choose one of {', '.join(EFFORTS)}")
        if not 0 < self.exact_seconds <= MAX_EXACT_SECONDS:
            raise ValueError(f"exact_seconds must be above 0 and at most a day, got {self.exact_seconds}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.objective!r}: choose one of {', '.join(OBJECTIVES)}")
