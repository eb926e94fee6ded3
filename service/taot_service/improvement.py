"""Whether the plan of a layer that was searched for once more is better than the one in force. Pure."""

from __future__ import annotations

from taot_api.published_plan import PublishedStats
from taot_planning import PlanningOptions
from taot_planning.options import PPM

IMBALANCE_STEP = 1e-6
"""Imbalances that differ by less are the same: a part per million, as in the options."""

COST_STEP = 1e-6
"""Weighted costs that differ by less are the same: they are sums of thousandths."""


def is_better(new: PublishedStats, old: PublishedStats, options: PlanningOptions) -> bool:
    """Compares two plans of one layer for the same counts by the objective of the session.

    Within the tolerance the cheaper is better, outside of it the more even. Only the newest counts are looked at,
    not the recent ones that the placements should hold for as well.
    """
    if options.objective == "step_time" and None not in {new.predicted_gain_seconds, old.predicted_gain_seconds}:
        assert new.predicted_gain_seconds is not None
        assert old.predicted_gain_seconds is not None
        return new.predicted_gain_seconds > old.predicted_gain_seconds
    if options.objective == "mu":
        mu = options.mu_ppm / PPM
        new_value, old_value = (each.imbalance_after + mu * each.weighted_cost for each in (new, old))
        return new_value < old_value - IMBALANCE_STEP
    tolerance = options.tolerance_ppm / PPM
    new_excess, old_excess = (max(0.0, each.imbalance_after - tolerance) for each in (new, old))
    if abs(new_excess - old_excess) > IMBALANCE_STEP:
        return new_excess < old_excess
    return new.weighted_cost < old.weighted_cost - COST_STEP
