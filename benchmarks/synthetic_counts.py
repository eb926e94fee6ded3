"""Made-up counts that start at a given imbalance."""

from __future__ import annotations

import numpy as np

from taot_planning import contiguous_homes, imbalance, rank_loads
from taot_planning.arrays import FloatArray, IntArray

TOKENS_PER_RANK = 32_768
"""4,096 tokens, top-8."""

EXPERT_CONCENTRATION = 0.5
"""Dirichlet parameter of the experts' popularity: few hot, many cold."""

SOURCE_CONCENTRATION = 20.0
"""Dirichlet parameter of how an expert's tokens are spread over the sources: shares differ by about a fifth."""


def counts_at(start_imbalance: float, *, num_ranks: int, num_experts: int, seed: int) -> IntArray:
    """Draws counts whose imbalance over contiguous homes is the one asked for, up to whole tokens.

    A popularity is drawn from a symmetric Dirichlet distribution, again until its imbalance is at least the
    one asked for, and mixed with the uniform one. The imbalance of a mixture is that of the popularity times its
    weight, which gives the weight at once. Totals of experts are the mixture in whole tokens (largest remainder);
    each is spread over the sources by a multinomial draw. So only the sources are noisy, not the start.

    Args:
        start_imbalance: (max - mean) / mean over the ranks.
        num_ranks: ranks.
        num_experts: experts, a multiple of the ranks.
        seed: chooses the draw.

    Returns:
        Tokens from each source to each expert. Shape: [ranks, experts].
    """
    generator = np.random.default_rng([seed, num_ranks, round(start_imbalance * 1000)])
    homes_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    drawn = 0.0
    while drawn < start_imbalance:
        popularity_E = generator.dirichlet(np.full(num_experts, EXPERT_CONCENTRATION))
        load_R = np.bincount(homes_E, weights=popularity_E, minlength=num_ranks)
        drawn = float(load_R.max() * num_ranks - 1)
    weight = start_imbalance / drawn
    shares_E = weight * popularity_E + (1 - weight) / num_experts
    totals_E = _whole(shares_E, TOKENS_PER_RANK * num_ranks)
    columns = [
        generator.multinomial(total, generator.dirichlet(np.full(num_ranks, SOURCE_CONCENTRATION)))
        for total in totals_E.tolist()
    ]
    counts_RE = np.stack(columns, axis=1).astype(np.int64)
    assert abs(imbalance(rank_loads(counts_RE, homes_E)) - start_imbalance) < 1e-3
    return counts_RE


def _whole(shares_E: FloatArray, total: int) -> IntArray:
    """Whole numbers in proportion to the shares that add up to the total, by largest remainder."""
    exact_E = shares_E * total
    whole_E = np.floor(exact_E).astype(np.int64)
    first = np.argsort(whole_E - exact_E, kind="stable")[: total - int(whole_E.sum())]
    whole_E[first] += 1
    return whole_E
