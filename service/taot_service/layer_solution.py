"""The checked plan of one layer, as a solver thread makes it."""

from __future__ import annotations

from dataclasses import dataclass

from taot_api.published_plan import PublishedStats
from taot_planning.arrays import IntArray
from taot_planning.explanation import Gate
from taot_planning.options import Effort
from taot_service.layer_account import LayerAccount


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSolution:
    """The checked plan of one layer."""

    guests_RK: IntArray
    """Expert in each guest slot, -1 where empty. Shape: [ranks, slots]."""

    quota_SRK: IntArray | None
    """Tokens of each source rank for each guest slot, or None. Shape: [source ranks, ranks, slots]."""

    stats: PublishedStats
    """What the plan is expected to achieve."""

    gates: tuple[Gate, ...]
    """Rules that changed it."""

    intra_guests: int
    """Guests whose home is in the same node."""

    inter_guests: int
    """Guests whose home is in another node."""

    effort: Effort
    """How hard it was searched for."""

    account: LayerAccount | None
    """What people may ask about it, or None."""
