"""How to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

PPM = 1_000_000
"""Parts per million in one: ratios that ranks compute with are integers."""

Effort: TypeAlias = Literal["fast", "balanced"]
"""How hard to search: `fast` for ranks that plan for themselves in a training step, `balanced` ahead of it."""

EFFORTS: tuple[Effort, ...] = get_args(Effort)


@dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """What a plan should achieve. Only `taot` has a tolerance; `min_imbalance_ppm` holds for every algorithm."""

    tolerance_ppm: int = 15_000
    """Residual imbalance asked for, in parts per million of the mean load; ranks are filled up to it."""

    min_imbalance_ppm: int = 0
    """Layers whose imbalance is not above this are left alone, in parts per million."""

    effort: Effort = "balanced"
    """How hard to search for a cheaper plan. Counted in rounds, never in time: the answer stays the same."""

    def __post_init__(self) -> None:
        for name in ("tolerance_ppm", "min_imbalance_ppm"):
            value = getattr(self, name)
            if not 0 <= value <= 100 * PPM:
                raise ValueError(f"{name} must be between 0 and {100 * PPM} (100 times the mean), got {value}")
        if self.effort not in EFFORTS:
            raise ValueError(f"unknown effort {self.effort!r}: choose one of {', '.join(EFFORTS)}")
