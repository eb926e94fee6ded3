"""How much each rank has too much of, and which experts carry it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PPM


@dataclass(frozen=True, kw_only=True, eq=False)
class Surplus:
    """What has to move, and where there is room, measured against a target load.

    Amounts are counted in R-ths of a token, R being the number of ranks: so the mean load is a whole number,
    and nothing is rounded before the end.
    """

    surplus_R: IntArray
    """Load above the target, in R-ths of a token. Shape: [ranks]."""

    spare_R: IntArray
    """Room below the target, in R-ths of a token. Shape: [ranks]."""

    spill_E: IntArray
    """What each expert gives away; over the experts of a rank it adds up to the rank's surplus. In R-ths of a
    token. Shape: [experts]."""

    total_tokens: int
    """Tokens of the layer."""


def measure_surplus(problem: LayerProblem, *, tolerance_ppm: int) -> Surplus:
    """Measures surplus, spare and spill against (1 + tolerance) times the mean load.

    On a hot rank small experts stay home whole and the largest carry the surplus (arXiv 2608.03676, phase 2). The
    published method has no tolerance, which is `tolerance_ppm` 0.

    Args:
        problem: the layer.
        tolerance_ppm: how far above the mean ranks may stay, in parts per million.

    Raises:
        ValueError: if ranks times tokens do not fit 64 bits.
    """
    tokens_E = problem.counts_RE.sum(axis=0)
    total = int(tokens_E.sum())
    # Loads in R-ths of a token and the target stay below this unless the tolerance is beyond any load.
    if total * problem.num_ranks >= 2**62:
        raise ValueError(f"{problem.num_ranks} ranks x {total} tokens is 2^62 or more: plan fewer tokens at a time")
    target = min(total * (PPM + tolerance_ppm) // PPM, 2**62)
    surplus_R, spare_R, spill_E = _spill(
        tokens_E, np.argsort(tokens_E, kind="stable"), problem.home_E, problem.num_ranks, target
    )
    return Surplus(surplus_R=surplus_R, spare_R=spare_R, spill_E=spill_E, total_tokens=total)


@kernel
def _spill(
    tokens_E: IntArray, ascending_E: IntArray, home_E: IntArray, num_ranks: int, target: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Runs through the experts in ascending load: what lifts its rank above the target is spilled."""
    load_R = np.zeros(num_ranks, dtype=np.int64)
    spill_E = np.zeros(tokens_E.size, dtype=np.int64)
    for expert in ascending_E:
        home = home_E[expert]
        before = max(load_R[home] - target, 0)
        load_R[home] += tokens_E[expert] * num_ranks
        spill_E[expert] = max(load_R[home] - target, 0) - before
    return np.maximum(load_R - target, 0), np.maximum(target - load_R, 0), spill_E
