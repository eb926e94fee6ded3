"""What all ranks have measured, gathered once at the end of each step.

Axis letters: L layers, R ranks, V levels (within a node, between nodes). Whole numbers since the start, so that a step
that was not ended properly is part of the next difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from taot_client.measuring.layer_meter import LayerMeter
from taot_client.measuring.link_meter import LinkTotals
from taot_planning.arrays import IntArray

_PER_LAYER = 4
_PER_LEVEL = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StepMeasured:
    """One row per rank."""

    computed_tokens_RL: IntArray
    """Tokens computed, recomputations left out. Shape: [ranks, layers]."""

    compute_us_RL: IntArray
    """Microseconds of the experts' forwards. Shape: [ranks, layers]."""

    timed_tokens_RL: IntArray
    """Tokens of these forwards; on a GPU the times come later than the tokens. Shape: [ranks, layers]."""

    exposed_us_RL: IntArray
    """Microseconds that training stood still for guests of the layer, forward and backward. Shape: [ranks, layers]."""

    link_us_RV: IntArray
    """Microseconds of receiving guest weights. Shape: [ranks, levels]."""

    link_bytes_RV: IntArray
    """Bytes received in that time. Shape: [ranks, levels]."""

    @classmethod
    def zero(cls, *, num_ranks: int, num_layers: int, num_levels: int) -> StepMeasured:
        """What has been measured at the start."""
        length = _PER_LAYER * num_layers + _PER_LEVEL * num_levels
        return cls.of_rows(np.zeros((num_ranks, length), dtype=np.int64), num_layers=num_layers)

    @classmethod
    def of_rows(cls, rows_RN: IntArray, *, num_layers: int) -> StepMeasured:
        """Reads what the ranks wrote with `measured_row`. Shape: [ranks, numbers]."""
        cuts = [num_layers * part for part in range(1, _PER_LAYER + 1)]
        num_levels = (rows_RN.shape[1] - cuts[-1]) // _PER_LEVEL
        parts = np.split(rows_RN, [*cuts, cuts[-1] + num_levels], axis=1)
        return cls(**{field.name: part for field, part in zip(fields(cls), parts, strict=True)})

    def since(self, before: StepMeasured) -> StepMeasured:
        """What has been measured after `before`."""
        return StepMeasured(
            **{each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        )


def measured_row(meters_L: Sequence[LayerMeter], links: LinkTotals) -> IntArray:
    """What one rank has measured, in the order of the fields of `StepMeasured`. Shape: [numbers]."""
    timed_L = [meter.compute_time() for meter in meters_L]
    return np.array(
        [
            *(meter.computed_tokens for meter in meters_L),
            *(timed.microseconds for timed in timed_L),
            *(timed.tokens for timed in timed_L),
            *(meter.exposed_us() for meter in meters_L),
            *links.microseconds_V,
            *links.bytes_V,
        ],
        dtype=np.int64,
    )
