"""Ranks of different speeds and limits: loads are compared as times, and plans balance times."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from made_up_routing import skewed_counts, two_level_problem

from taot_planning import (
    EMPTY_SLOT,
    Gate,
    LayerProblem,
    LayerRates,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    imbalance,
    plan_layer,
    rank_loads,
    two_level_topology,
)
from taot_planning.capacity import capacities_at, pace_for, pace_of
from taot_planning.options import SEARCH_EFFORTS, Effort


def topology(speeds: list[int] | None = None, caps: list[int] | None = None, *, num_ranks: int = 3) -> Topology:
    base = two_level_topology(num_ranks=num_ranks, ranks_per_node=num_ranks, slots=2, inter_cost=3)
    return replace(base, speed_milli_R=speeds, token_cap_R=caps)


def test_a_rank_of_half_the_speed_is_in_balance_with_half_the_load() -> None:
    speeds_R = np.array([1000, 500])
    assert imbalance(np.array([10, 5]), speeds_R) == 0
    assert imbalance(np.array([10, 10]), speeds_R) == pytest.approx(0.5)
    assert imbalance(np.array([15, 0]), speeds_R) == pytest.approx(0.5)
    assert imbalance(np.array([0, 0]), speeds_R) == 0
    equal = np.array([7, 3, 2])
    assert imbalance(equal, np.array([300, 300, 300])) == pytest.approx(imbalance(equal))


@pytest.mark.parametrize("pace", [0, 1, 2, 7, 1000, 2**31, 2**50 + 1])
def test_capacities_are_what_ranks_compute_in_a_time_rounded_up(pace: int) -> None:
    speeds = [10, 333, 10_000]
    expected = [math.ceil(Fraction(pace * speed, 10_000)) for speed in speeds]
    assert capacities_at(pace, topology(speeds)).tolist() == expected
    assert capacities_at(pace, topology()).tolist() == [pace] * 3
    capped = capacities_at(pace, topology(speeds, [5, 0, 2**40])).tolist()
    assert capped == [min(capacity, cap) for capacity, cap in zip(expected, (5, 0, 2**40), strict=True)]


def test_the_pace_of_loads_is_the_first_at_which_all_have_ended() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ranks = topology(rng.integers(100, 3000, 3).tolist())
        loads_R = rng.integers(0, 60, 3)
        pace = pace_of(loads_R, ranks)
        assert (capacities_at(pace, ranks) >= loads_R).all()
        assert pace == 0 or (capacities_at(pace - 1, ranks) < loads_R).any()
        assert capacities_at(pace_for(int(loads_R.sum()), 0, ranks), ranks).sum() >= loads_R.sum()


@pytest.mark.parametrize("effort", SEARCH_EFFORTS)
@pytest.mark.parametrize("has_recent", [False, True])
def test_plans_balance_times_not_tokens(effort: Effort, has_recent: bool) -> None:
    for seed in range(5):
        problem = two_level_problem(skewed_counts(seed, num_ranks=8, num_experts=32, concentration=2.0), slots=6)
        speeds_R = np.array([1000, 500, 1000, 2000, 800, 1000, 1000, 1200])
        problem = replace(problem, topology=replace(problem.topology, speed_milli_R=speeds_R))
        if has_recent:
            problem = replace(problem, recent_tokens_NE=problem.counts_RE.sum(axis=0)[None])
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=10_000, effort=effort, stretch_percent=0))
        check_plan(plan, problem)
        loads_R = plan.loads_R(problem)
        times_R = loads_R / speeds_R
        assert times_R.max() <= 1.01 * loads_R.sum() / speeds_R.sum() + 1 / speeds_R.min()
        assert plan.stats(problem).imbalance_after == pytest.approx(times_R.max() * speeds_R.sum() / loads_R.sum() - 1)


@pytest.mark.parametrize("effort", SEARCH_EFFORTS)
def test_token_caps_are_kept_and_ranks_above_theirs_are_relieved(effort: Effort) -> None:
    for seed in range(5):
        problem = two_level_problem(skewed_counts(seed, num_ranks=8, num_experts=32, concentration=2.0), slots=6)
        static_R = rank_loads(problem.counts_RE, problem.home_E)
        cap_R = np.full(8, int(static_R.mean() * 1.3))
        hottest, coldest = int(static_R.argmax()), int(static_R.argmin())
        cap_R[coldest], cap_R[hottest] = static_R[coldest] + 10, int(static_R.mean() * 0.8)
        problem = replace(problem, topology=replace(problem.topology, token_cap_R=cap_R))
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=250_000, effort=effort))
        check_plan(plan, problem)
        assert Gate.OUT_OF_REACH not in plan.explanation.gates
        assert (plan.loads_R(problem) <= cap_R).all()


def test_a_cap_that_cannot_be_kept_is_told() -> None:
    problem = two_level_problem(np.full((2, 2), 50), ranks_per_node=2, slots=0)
    problem = replace(problem, topology=replace(problem.topology, token_cap_R=[40, 1000]))
    plan = plan_layer(problem)
    assert plan.explanation.gates == (Gate.OUT_OF_REACH,)
    assert (plan.guests_RK == EMPTY_SLOT).all()


def test_a_guest_that_is_passed_on_waits_for_its_source() -> None:
    """Across at 1 byte a second, inside at 2: the second rank has the expert after 8 + 4 seconds."""
    levels = (
        Level(name="node", transfer_cost_milli=1000, bandwidth_bytes_per_second=2),
        Level(name="cluster", transfer_cost_milli=3000, bandwidth_bytes_per_second=1),
    )
    ranks = Topology(levels=levels, domains_RV=[[0, 0], [1, 0], [1, 0]], slots_R=[0, 1, 1], has_relay=True)
    problem = LayerProblem(
        counts_RE=np.array([[3, 0, 0], [0, 0, 0], [0, 0, 0]]),
        home_E=np.array([0, 1, 2]),
        topology=ranks,
        rates=LayerRates(token_picoseconds=10**12, expert_size_bytes=8),
    )
    plan = plan_layer(replace(problem, rates=None), options=PlanningOptions(tolerance_ppm=0))
    assert (plan.guests_RK[1:] == 0).all()
    assert plan.stats(problem).predicted_seconds == pytest.approx(8 + 4 + 1)
    directly = replace(problem, topology=replace(ranks, has_relay=False))
    assert plan.stats(directly).predicted_seconds == pytest.approx(8 + 8 + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed_milli_R": [1000]}, "speeds must have one entry per rank"),
        ({"speed_milli_R": [1000, 9, 1000]}, "speeds must be between 10 and 10000, got 9 on rank 1"),
        ({"speed_milli_R": [1000, 1000, 10_001]}, "got 10001 on rank 2"),
        ({"token_cap_R": [1, -1, 1]}, "token caps must be between 0 .* got -1 on rank 1"),
        ({"speed_milli_R": [0.5, 1, 1]}, "speeds must hold whole numbers"),
    ],
)
def test_wrong_speeds_and_caps_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(topology(), **changes)


def test_a_wrong_bandwidth_is_refused() -> None:
    for bandwidth in (0, 2**50 + 1):
        level = Level(name="nvlink", transfer_cost_milli=1000, bandwidth_bytes_per_second=bandwidth)
        with pytest.raises(ValueError, match=f"bandwidth of level 'nvlink' must be .* got {bandwidth}"):
            Topology(levels=(level,), domains_RV=[[0]], slots_R=[1])
