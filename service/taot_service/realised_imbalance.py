"""What ranks really computed, as they have told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taot_api.routing_report import RoutingReport
from taot_planning import imbalance
from taot_planning.arrays import IntArray


def computed_tokens(report: RoutingReport) -> IntArray:
    """Tokens that each rank computed in each layer, home and guest, of a report with telemetry. [layers, ranks]."""
    return np.stack([rank.computed_tokens_L for rank in report.telemetry_R], axis=1)


def realised_imbalances(computed_LR: IntArray, speed_milli_R: IntArray | None) -> tuple[float | None, ...]:
    """Imbalance of each layer, None where nothing was computed."""
    return tuple(imbalance(loads_R, speed_milli_R) if loads_R.any() else None for loads_R in computed_LR)


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Mean over the layers that have a value; None where none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
