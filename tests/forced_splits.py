"""Splits of a pass's tokens that no plan would make, for the agent to carry out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taot_client.pass_split import PassSplit
from taot_client.token_layout import lay_out_tokens
from taot_planning import LayerPlan, Topology, rank_loads
from taot_planning.arrays import IntArray, read_only
from taot_planning.load import moved_loads


def forced_split(quotas: Callable[[IntArray, IntArray], IntArray]) -> Callable[..., PassSplit]:
    """A `split_pass` that sends to guests what `quotas` makes of counts and guests. Shape: [sources, ranks, slots]."""

    def split_pass(
        *, rank: int, counts_SE: IntArray, home_E: IntArray, topology: Topology, guests_RK: IntArray
    ) -> PassSplit:
        del topology
        quota_SRK = quotas(counts_SE, guests_RK)
        plan = LayerPlan(guests_RK=np.where(quota_SRK.any(axis=0), guests_RK, -1), quota_SRK=quota_SRK)
        static_R = read_only(rank_loads(counts_SE, home_E))
        loads_R = moved_loads(static_R, read_only(home_E), plan.guests_RK, plan.tokens_RK)
        return PassSplit(
            plan=plan,
            layout=lay_out_tokens(
                rank=rank, counts_SE=counts_SE, home_E=home_E, guests_RK=plan.guests_RK, quota_SRK=quota_SRK
            ),
            loads_2R=np.stack([static_R, loads_R]),
            has_guests=bool(quota_SRK.any()),
        )

    return split_pass


def stale_layout(split_pass: Callable[..., PassSplit]) -> Callable[..., PassSplit]:
    """A split whose layout sends guests a token of each source at most, whatever the plan says: on all ranks alike."""

    def split(*, rank: int, counts_SE: IntArray, home_E: IntArray, **others: object) -> PassSplit:
        right = split_pass(rank=rank, counts_SE=counts_SE, home_E=home_E, **others)
        layout = lay_out_tokens(
            rank=rank,
            counts_SE=counts_SE,
            home_E=home_E,
            guests_RK=right.plan.guests_RK,
            quota_SRK=np.minimum(right.plan.quota_SRK, 1),
        )
        return right._replace(layout=layout)

    return split
