"""Whatever is asked for: `taot` on layers of any shape with any of its features, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_routing import random_guests

from taot_planning import (
    EMPTY_SLOT,
    Gate,
    LayerProblem,
    LayerRates,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    plan_layer,
    rank_loads,
)
from taot_planning.arrays import MAX_COUNT, IntArray
from taot_planning.capacity import pace_of
from taot_planning.options import SEARCH_EFFORTS

SHAPES = ("even", "one hot expert", "idle ranks and experts", "skewed", "as large as counts get", "empty")


def draw_counts(rng: np.random.Generator, shape: str, num_ranks: int, num_experts: int) -> IntArray:
    """Counts of one of the shapes. Shape: [ranks, experts]."""
    if shape == "empty":
        return np.zeros((num_ranks, num_experts), dtype=np.int64)
    if shape == "even":
        return np.full((num_ranks, num_experts), 64)
    counts_RE = rng.integers(0, 50, (num_ranks, num_experts)) ** 2
    if shape == "one hot expert":
        counts_RE[:, rng.integers(num_experts)] += 100_000
    elif shape == "idle ranks and experts":
        counts_RE[rng.random(num_ranks) < 0.5] = 0
        counts_RE[:, rng.random(num_experts) < 0.5] = 0
    elif shape == "as large as counts get":
        counts_RE = np.where(rng.random(counts_RE.shape) < 0.5, MAX_COUNT, counts_RE)
    return counts_RE


def draw_topology(rng: np.random.Generator, num_ranks: int, features: frozenset[str]) -> Topology:
    """Nodes in racks, with the features asked for."""
    node_R = np.sort(rng.integers(0, max(num_ranks // 2, 1), num_ranks))
    bandwidths = (400, 100, 25) if "rates" in features else (None,) * 3
    levels = tuple(
        Level(name=name, transfer_cost_milli=cost, bandwidth_bytes_per_second=bandwidth)
        for (name, cost), bandwidth in zip((("node", 1000), ("rack", 2500), ("all", 6000)), bandwidths, strict=True)
    )
    matrix_RR = rng.integers(500, 9000, (num_ranks, num_ranks))
    np.fill_diagonal(matrix_RR, 0)
    return Topology(
        levels=levels,
        domains_RV=np.stack([node_R, node_R // 2, node_R * 0], axis=1),
        slots_R=rng.integers(0, 4, num_ranks),
        cost_matrix_milli=matrix_RR if "matrix" in features else None,
        speed_milli_R=rng.integers(300, 2000, num_ranks) if "speeds" in features else None,
        token_cap_R=rng.integers(0, 5000, num_ranks) if "caps" in features else None,
        has_relay="relay" in features,
    )


FEATURES = ("rates", "matrix", "speeds", "caps", "relay", "residents", "recent")


@st.composite
def problems(draw: st.DrawFn) -> LayerProblem:
    """A layer with any of the features."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_ranks, num_experts = draw(st.integers(1, 9)), draw(st.integers(1, 14))
    features = draw(st.frozensets(st.sampled_from(FEATURES)))
    problem = LayerProblem(
        counts_RE=draw_counts(rng, draw(st.sampled_from(SHAPES)), num_ranks, num_experts),
        home_E=rng.integers(0, num_ranks, num_experts),
        topology=draw_topology(rng, num_ranks, features),
        rates=LayerRates(token_picoseconds=10**6, expert_size_bytes=1) if "rates" in features else None,
    )
    if "residents" in features:
        problem = replace(problem, resident_RK=random_guests(int(rng.integers(1000)), problem))
    if "recent" in features:
        recent_NE = rng.integers(0, 900, (int(rng.integers(0, 4)), num_experts))
        any_RK = rng.integers(-1, num_experts, (num_ranks, problem.topology.max_slots))
        problem = replace(problem, recent_tokens_NE=recent_NE, begin_guests_RK=any_RK)
    return problem


@st.composite
def options(draw: st.DrawFn) -> PlanningOptions:
    """Any options that every layer can be planned with."""
    return PlanningOptions(
        objective=draw(st.sampled_from(["tolerance", "tolerance", "mu"])),
        tolerance_ppm=draw(st.sampled_from([0, 5_000, 15_000, 300_000])),
        mu_ppm=draw(st.sampled_from([0, 1_000, 100_000])),
        min_tokens_per_guest=draw(st.sampled_from([0, 0, 100, 5_000])),
        stretch_percent=draw(st.sampled_from([0, 150, 1_000])),
        effort=draw(st.sampled_from(SEARCH_EFFORTS)),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), asked=options())
def test_every_plan_keeps_every_promise(problem: LayerProblem, asked: PlanningOptions) -> None:
    plan = plan_layer(problem, options=asked)
    check_plan(plan, problem)
    loads_R, static_R = plan.loads_R(problem), rank_loads(problem.counts_RE, problem.home_E)
    assert loads_R.sum() == static_R.sum()
    cap_R = problem.topology.token_cap_R
    if cap_R is not None:
        assert (loads_R <= np.maximum(cap_R, static_R)).all(), "guests push no rank above its token cap"
    else:
        assert pace_of(loads_R, problem.topology) <= pace_of(static_R, problem.topology)
    guests = plan.guests_RK != EMPTY_SLOT
    used_RK = guests & (plan.tokens_RK > 0)
    assert (plan.tokens_RK[used_RK] >= asked.min_tokens_per_guest).all()
    if problem.recent_tokens_NE is None or asked.objective != "tolerance":
        np.testing.assert_array_equal(guests, used_RK)
    if set(plan.explanation.gates) & {Gate.DOMINATED, Gate.NO_GAIN, Gate.WITHIN_TOLERANCE}:
        assert not guests.any()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), asked=options())
def test_the_same_question_gets_the_same_answer(problem: LayerProblem, asked: PlanningOptions) -> None:
    first, again = (plan_layer(problem, options=asked) for _ in range(2))
    np.testing.assert_array_equal(first.guests_RK, again.guests_RK)
    np.testing.assert_array_equal(first.quota_SRK, again.quota_SRK)
    assert first.explanation.gates == again.explanation.gates
