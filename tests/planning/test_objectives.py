"""Objectives and gates: what is worth moving, and when nothing is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_routing import skewed_counts, two_level_problem

from taot_planning import (
    EMPTY_SLOT,
    Gate,
    LayerPlan,
    LayerProblem,
    LayerRates,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    imbalance,
    plan_layer,
    rank_loads,
)
from taot_planning.algorithms.objective import _tolerances, objective_value
from taot_planning.layer_plan import plan_from_guests
from taot_planning.options import SEARCH_EFFORTS

GIGABYTE = 10**9


def layer(seed: int = 0, *, num_ranks: int = 8, num_experts: int = 32, slots: int = 2) -> LayerProblem:
    counts_RE = skewed_counts(seed, num_ranks=num_ranks, num_experts=num_experts, concentration=1.0)
    return two_level_problem(counts_RE, slots=slots)


def with_rates(
    problem: LayerProblem,
    *,
    expert_size_bytes: int,
    token_picoseconds: int = 50_000,
    bandwidths: tuple[int, ...] = (400, 50),
) -> LayerProblem:
    """Rates as of a GPU: 50 ns a token, 400 GB/s within a node, 50 GB/s between nodes."""
    topology = problem.topology
    levels = tuple(
        replace(level, bandwidth_bytes_per_second=bandwidth * GIGABYTE)
        for level, bandwidth in zip(topology.levels, bandwidths, strict=True)
    )
    return replace(
        problem,
        topology=replace(topology, levels=levels),
        rates=LayerRates(token_picoseconds=token_picoseconds, expert_size_bytes=expert_size_bytes),
    )


def num_guests(plan: LayerPlan) -> int:
    return int((plan.guests_RK != EMPTY_SLOT).sum())


@pytest.mark.parametrize("seed", range(4))
def test_mu_is_never_worse_than_any_tolerance_or_no_guests(seed: int) -> None:
    problem = layer(seed)
    for mu_ppm in (0, 1_000, 20_000, 100_000, 10_000_000):
        options = PlanningOptions(objective="mu", mu_ppm=mu_ppm)
        plan = plan_layer(problem, options=options)
        check_plan(plan, problem)
        value = objective_value(plan, problem, options)
        stats = plan.stats(problem)
        assert value == pytest.approx(stats.imbalance_after + mu_ppm / 1e6 * stats.weighted_cost)
        others = [plan_layer(problem, options=PlanningOptions(tolerance_ppm=each)) for each in (100_000, 400_000)]
        others.append(plan_layer(problem, algorithm="static"))
        assert all(value <= objective_value(other, problem, options) + 0.01 for other in others)
        assert value <= objective_value(others[-1], problem, options)


def test_the_dearer_cost_is_the_fewer_guests_there_are() -> None:
    problem = layer(1)
    counts = [
        plan_layer(problem, options=PlanningOptions(objective="mu", mu_ppm=mu_ppm)).stats(problem).weighted_cost
        for mu_ppm in (0, 5_000, 50_000, 500_000, 10_000_000)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2] > counts[-1] == 0


def test_no_guest_of_a_mu_plan_can_be_taken_out_with_profit() -> None:
    for seed in range(4):
        problem, options = layer(seed), PlanningOptions(objective="mu", mu_ppm=30_000)
        plan = plan_layer(problem, options=options)
        value = objective_value(plan, problem, options)
        for rank, slot in np.argwhere(plan.guests_RK != EMPTY_SLOT).tolist():
            guests_RK = plan.guests_RK.copy()
            guests_RK[rank, slot] = EMPTY_SLOT
            assert objective_value(plan_from_guests(problem, guests_RK), problem, options) >= value


def brute_force_seconds(problem: LayerProblem, plan: LayerPlan) -> float:
    """The model again, event by event: home tokens, then guests as they are there."""
    assert problem.rates is not None
    size, per_token = problem.rates.expert_size_bytes, problem.rates.token_picoseconds / 1e12
    sent, received = np.zeros(problem.num_ranks), np.zeros(problem.num_ranks)
    for rank, slot in np.argwhere(plan.guests_RK != EMPTY_SLOT).tolist():
        home = int(problem.home_E[plan.guests_RK[rank, slot]])
        level = 0 if problem.topology.nodes_R[home] == problem.topology.nodes_R[rank] else 1
        sent[home] += size / (problem.topology.levels[level].bandwidth_bytes_per_second or 0)
        received[rank] = max(
            received[rank] + size / (problem.topology.levels[level].bandwidth_bytes_per_second or 0), sent[home]
        )
    guest_R = plan.tokens_RK.sum(axis=1)
    home_R = plan.loads_R(problem) - guest_R
    return float((np.maximum(home_R * per_token, received) + guest_R * per_token).max())


def test_the_predicted_time_follows_the_model() -> None:
    for size in (0, 10**6, 10**8, 10**9, 2**40):
        problem = with_rates(layer(2), expert_size_bytes=size)
        plan = plan_layer(layer(2))
        assert plan.stats(problem).predicted_seconds == pytest.approx(brute_force_seconds(problem, plan), rel=1e-6)
    nothing = plan_layer(problem, algorithm="static")
    slowest = rank_loads(problem.counts_RE, problem.home_E).max()
    assert nothing.stats(problem).predicted_seconds == pytest.approx(slowest * 50e-9)
    assert plan.stats(layer(2)).predicted_seconds is None, "without rates nothing is predicted"


def test_a_guest_that_is_passed_on_starts_when_its_source_has_it() -> None:
    levels = tuple(
        Level(name=name, transfer_cost_milli=cost, bandwidth_bytes_per_second=bandwidth)
        for name, cost, bandwidth in (("node", 1000, 100), ("cluster", 3000, 10))
    )
    topology = Topology(levels=levels, domains_RV=np.array([[0, 0], [1, 0], [1, 0]]), slots_R=[0, 1, 1], has_relay=True)
    problem = LayerProblem(
        counts_RE=[[30, 0, 0], [0, 0, 0], [0, 0, 0]],
        home_E=[0, 1, 2],
        topology=topology,
        rates=LayerRates(token_picoseconds=10**12, expert_size_bytes=1000),
    )
    plan = plan_from_guests(problem, np.array([[-1], [0], [0]]))
    # 100 s to the other node, 10 s from rank to rank there, then ten tokens of a second each.
    assert plan.stats(problem).predicted_seconds == pytest.approx(100 + 10 + 10)
    apart = replace(problem, topology=replace(topology, has_relay=False))
    assert plan.stats(apart).predicted_seconds == pytest.approx(200 + 10), "both leave the same rank"


def test_slow_ranks_take_longer_by_their_speed() -> None:
    problem = with_rates(layer(2), expert_size_bytes=0)
    halved = replace(problem, topology=replace(problem.topology, speed_milli_R=np.full(8, 500)))
    nothing = plan_layer(problem, algorithm="static")
    assert nothing.stats(halved).predicted_seconds == pytest.approx(2 * nothing.stats(problem).predicted_seconds)


def test_the_least_step_time_is_no_longer_than_any_tolerance() -> None:
    shorter = 0
    for size in (10**5, 10**7, 3 * 10**7, 10**8):
        problem = with_rates(layer(3), expert_size_bytes=size)
        plan = plan_layer(problem, options=PlanningOptions(objective="step_time"))
        check_plan(plan, problem)
        seconds = plan.stats(problem).predicted_seconds
        for tolerance_ppm in (0, 15_000, 200_000):
            other = plan_layer(layer(3), options=PlanningOptions(tolerance_ppm=tolerance_ppm))
            assert seconds <= other.stats(problem).predicted_seconds * 1.05
            shorter += int(seconds < other.stats(problem).predicted_seconds)
        assert seconds <= plan_layer(problem, algorithm="static").stats(problem).predicted_seconds
    assert shorter > 0


def test_step_time_without_rates_or_bandwidths_is_refused() -> None:
    options = PlanningOptions(objective="step_time")
    with pytest.raises(ValueError, match="needs the rates of the layer"):
        plan_layer(layer(), options=options)
    no_bandwidth = replace(layer(), rates=LayerRates(token_picoseconds=1, expert_size_bytes=1))
    with pytest.raises(ValueError, match="bandwidth of every level"):
        plan_layer(no_bandwidth, options=options)


def test_experts_too_large_to_move_stay_home_and_smaller_ones_travel() -> None:
    """A hundred times the bytes: moving takes longer than it saves."""
    small = with_rates(layer(4), expert_size_bytes=4 * 10**6)
    plan = plan_layer(small)
    assert num_guests(plan) > 0
    assert plan.stats(small).predicted_seconds < plan_layer(small, algorithm="static").stats(small).predicted_seconds
    large = with_rates(layer(4), expert_size_bytes=400 * 10**6)
    plan = plan_layer(large)
    assert num_guests(plan) == 0
    assert plan.explanation.gates == (Gate.NO_GAIN,)
    assert num_guests(plan.explanation.considered[-1].plan) > 0, "what was given up is told"


def test_small_guests_are_left_out_and_the_rest_still_balances() -> None:
    for seed in range(4):
        problem = layer(seed, slots=3)
        plain = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0))
        least = int(np.median(plain.tokens_RK[plain.guests_RK != EMPTY_SLOT]))
        plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0, min_tokens_per_guest=least))
        check_plan(plan, problem)
        tokens = plan.tokens_RK[plan.guests_RK != EMPTY_SLOT]
        assert tokens.size < num_guests(plain)
        assert tokens.size == 0 or tokens.min() >= least
        assert Gate.MIN_TOKENS in plan.explanation.gates
        assert plan.loads_R(problem).max() <= rank_loads(problem.counts_RE, problem.home_E).max()


def test_a_layer_within_the_tolerance_says_so() -> None:
    problem = two_level_problem(np.full((4, 8), 16))
    assert plan_layer(problem).explanation.gates == (Gate.WITHIN_TOLERANCE,)


def test_a_layer_below_the_least_imbalance_says_so() -> None:
    problem = layer(0)
    before = imbalance(rank_loads(problem.counts_RE, problem.home_E))
    options = PlanningOptions(min_imbalance_ppm=round(before * 1e6) + 1)
    for algorithm in ("taot", "taot-paper", "echo"):
        plan = plan_layer(problem, algorithm=algorithm, options=options)
        assert plan.explanation.gates == (Gate.BALANCED,)
        assert num_guests(plan) == 0


def test_a_tolerance_out_of_reach_is_told_with_what_was_tried() -> None:
    problem = layer(0, slots=1)
    plan = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0))
    assert Gate.OUT_OF_REACH in plan.explanation.gates
    reached = [each.plan.loads_R(problem).max() for each in plan.explanation.considered]
    assert plan.loads_R(problem).max() == min(reached)


def test_no_plan_is_dominated_by_no_guests() -> None:
    """Two ranks are equally hot and there is one slot: relieving one of them does not help the last to end."""
    counts_RE = np.array([[50, 50, 0], [50, 50, 0], [0, 0, 0]])
    base = two_level_problem(counts_RE)
    problem = replace(base, topology=replace(base.topology, slots_R=[0, 0, 1]))
    for effort in SEARCH_EFFORTS:
        plan = plan_layer(problem, options=PlanningOptions(effort=effort))
        assert num_guests(plan) == 0
        assert plan.explanation.gates == (Gate.OUT_OF_REACH, Gate.DOMINATED)
        assert num_guests(plan.explanation.considered[-1].plan) == 1


def test_ranks_above_their_token_caps_are_relieved_though_the_last_rank_ends_no_earlier() -> None:
    base = two_level_problem(np.array([[150, 0], [0, 148]]), ranks_per_node=2, slots=1)
    problem = replace(base, topology=replace(base.topology, token_cap_R=[100, 2**62]))
    for options in (PlanningOptions(), PlanningOptions(min_imbalance_ppm=50_000)):
        plan = plan_layer(problem, options=options)
        assert plan.loads_R(problem).tolist() == [100, 198]
        assert Gate.DOMINATED not in plan.explanation.gates


def test_a_mu_plan_whose_small_guests_are_left_out_is_still_no_worse_than_none() -> None:
    dominated = 0
    for seed in range(300, 365):
        rng = np.random.default_rng(seed)
        counts_RE = rng.lognormal(3, 1.2, size=(4, 12)).astype(int)
        problem = two_level_problem(counts_RE, ranks_per_node=2)
        options = PlanningOptions(objective="mu", mu_ppm=50_000, effort="fast", min_tokens_per_guest=48)
        plan = plan_layer(problem, options=options)
        nothing = plan_layer(problem, algorithm="static")
        assert objective_value(plan, problem, options) <= objective_value(nothing, problem, options)
        dominated += Gate.DOMINATED in plan.explanation.gates
    assert dominated > 0


def test_tolerances_that_are_tried_differ() -> None:
    for before_ppm in (0, 1, 900_000, 400 * 10**6):
        tried = _tolerances(before_ppm)
        assert tried == sorted(set(tried))
        assert tried[0] == 0
        assert tried[-1] <= 100 * 10**6


def test_a_flat_topology_gives_a_plan_that_no_topology_would_change() -> None:
    """Cost 1 everywhere: which nodes there are does not matter to the guests."""
    counts_RE = skewed_counts(5, num_ranks=8, num_experts=32)
    flat = [replace_cost(two_level_problem(counts_RE, ranks_per_node=nodes), 1000) for nodes in (1, 2, 4, 8)]
    plans = [plan_layer(problem).guests_RK for problem in flat]
    for guests_RK in plans[1:]:
        np.testing.assert_array_equal(guests_RK, plans[0])


def test_a_huge_cost_keeps_guests_in_the_node_where_one_suffices() -> None:
    """Each node is balanced by itself: one hot and one cold rank of two."""
    counts_RE = np.zeros((4, 8), dtype=np.int64)
    counts_RE[:, [0, 1]], counts_RE[:, [4, 5]] = 40, 40
    problem = replace_cost(two_level_problem(counts_RE, ranks_per_node=2), 2**31 - 1)
    stats = plan_layer(problem, options=PlanningOptions(tolerance_ppm=0)).stats(problem)
    assert stats.imbalance_after == 0
    assert (stats.inter_guests, stats.intra_guests) == (0, 2)


def replace_cost(problem: LayerProblem, milli: int) -> LayerProblem:
    inner, outer = problem.topology.levels
    levels = (inner, replace(outer, transfer_cost_milli=milli))
    return replace(problem, topology=replace(problem.topology, levels=levels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu_ppm": -1}, "mu_ppm must be between"),
        ({"min_tokens_per_guest": -1}, "min_tokens_per_guest must be between"),
        ({"objective": "speed"}, "unknown objective 'speed': choose one of tolerance, mu, step_time"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanningOptions(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_picoseconds": 0}, "token_picoseconds must be between"),
        ({"expert_size_bytes": -1}, "expert_size_bytes must be between"),
    ],
)
def test_wrong_rates_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerRates(**{"token_picoseconds": 1, "expert_size_bytes": 1, **changes})
