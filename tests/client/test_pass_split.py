"""The split of a pass is the one of the planning package, laid out."""

from __future__ import annotations

import numpy as np
import pytest

from taot_client.pass_split import split_pass
from taot_client.token_layout import lay_out_tokens
from taot_planning import LayerProblem, Topology, contiguous_homes, node_topology, plan_from_guests, rank_loads
from taot_planning.arrays import IntArray

RANKS, EXPERTS, SLOTS = 6, 12, 2

PLAIN = node_topology(np.arange(RANKS) // 2, slots=SLOTS, inter_cost=3.0)
UNEVEN = Topology(
    levels=PLAIN.levels,
    domains_RV=PLAIN.domains_RV,
    slots_R=PLAIN.slots_R,
    speed_milli_R=np.array([1000, 500, 1000, 1500, 1000, 1000]),
    token_cap_R=np.array([900, 500, 40, 900, 900, 900]),
)


def drawn(seed: int) -> tuple[LayerProblem, IntArray]:
    """Skewed counts, and guests of which some get no tokens; with every third seed none at all."""
    source = np.random.default_rng(seed)
    counts_RE = source.integers(0, 40, (RANKS, EXPERTS)) * (source.random(EXPERTS) < 0.6)
    home_E = contiguous_homes(num_experts=EXPERTS, num_ranks=RANKS)
    problem = LayerProblem(counts_RE=counts_RE, home_E=home_E, topology=PLAIN if seed % 2 else UNEVEN)
    guests_RK = np.full((RANKS, SLOTS), -1)
    for rank in range(RANKS if seed % 3 else 0):
        away = source.permutation(np.flatnonzero(home_E != rank))[:SLOTS]
        guests_RK[rank] = np.where(source.random(SLOTS) < 0.7, away, -1)
    return problem, guests_RK


@pytest.mark.parametrize("seed", range(12))
def test_a_pass_is_split_as_planning_says_and_laid_out_on_every_rank(seed: int) -> None:
    problem, guests_RK = drawn(seed)
    plan = plan_from_guests(problem, guests_RK)
    placed = {"home_E": problem.home_E, "guests_RK": plan.guests_RK, "quota_SRK": plan.quota_SRK}
    for rank in range(RANKS):
        split = split_pass(
            rank=rank,
            counts_SE=problem.counts_RE,
            home_E=problem.home_E,
            topology=problem.topology,
            guests_RK=guests_RK,
        )
        assert split.plan.guests_RK.tolist() == plan.guests_RK.tolist()
        assert split.plan.quota_SRK.tolist() == plan.quota_SRK.tolist()
        static_R = rank_loads(problem.counts_RE, problem.home_E)
        assert split.loads_2R.tolist() == [static_R.tolist(), plan.loads_R(problem).tolist()]
        assert split.has_guests == (plan.guests_RK >= 0).any()
        layout = lay_out_tokens(rank=rank, counts_SE=problem.counts_RE, **placed)
        assert split.layout.send_order.tolist() == layout.send_order.tolist()
        assert split.layout.group_order.tolist() == layout.group_order.tolist()
        for part in ("send_splits", "receive_splits", "tokens_C", "num_home"):
            assert getattr(split.layout, part) == getattr(layout, part)


def test_what_a_split_holds_of_its_plan_cannot_be_changed() -> None:
    problem, guests_RK = drawn(1)
    plan = split_pass(
        rank=0, counts_SE=problem.counts_RE, home_E=problem.home_E, topology=PLAIN, guests_RK=guests_RK
    ).plan
    for array in (plan.guests_RK, plan.quota_SRK):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
