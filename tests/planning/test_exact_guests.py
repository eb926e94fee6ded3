"""The effort `exact` against every placement there is, on layers small enough to list them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_routing import skewed_counts, two_level_problem
from no_scipy import hide_scipy
from placement_oracle import copies_of, cost_of, fits, fits_with_least, least_cost, placements, sums

from taot_planning import (
    LayerProblem,
    Level,
    PlanningOptions,
    Topology,
    check_plan,
    plan_from_guests,
    plan_layer,
)
from taot_planning.algorithms.exact_guests import ExactAnswer, solve_exactly
from taot_planning.algorithms.exact_program import Goal, build_program, solve_program
from taot_planning.algorithms.objective import objective_value
from taot_planning.capacity import capacities_at, pace_for
from taot_planning.layer_plan import check_guests
from taot_planning.options import PPM, Objective

OPTIONS = PlanningOptions(effort="exact", tolerance_ppm=60_000, exact_seconds=20.0)


def tiny_problem(seed: int, **changes: object) -> LayerProblem:
    """Four ranks on two nodes with five experts, mostly out of balance; `changes` go into the topology."""
    rng = np.random.default_rng(seed)
    topology = Topology(
        levels=(Level(name="node", transfer_cost_milli=1000), Level(name="cluster", transfer_cost_milli=2500)),
        domains_RV=np.array([[0, 0], [0, 0], [1, 0], [1, 0]]),
        slots_R=np.array([1, 2, 1, 1]),
    )
    counts_RE = rng.multinomial(250, rng.dirichlet(np.full(5, 2.0)), size=4)
    return LayerProblem(
        counts_RE=counts_RE,
        home_E=np.array([0, 0, 1, 2, 3]),
        topology=replace(topology, **changes),  # type: ignore[arg-type]
    )


def speeds(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice([500, 800, 1000, 1500], size=4)


def residents(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 5, size=(4, 2))


def allowed(problem: LayerProblem, options: PlanningOptions = OPTIONS) -> np.ndarray:
    pace = pace_for(int(problem.counts_RE.sum()), options.tolerance_ppm, problem.topology)
    return capacities_at(pace, problem.topology)


def as_placement(answer: ExactAnswer) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(guest for guest in row if guest >= 0) for row in answer.guests_RK.tolist())


CASES = {
    "plain": {},
    "speeds": {"speed_milli_R": speeds(1)},
    "caps": {"token_cap_R": np.array([230, 400, 1000, 1000])},
    "relays": {"has_relay": True},
    "uneven costs": {
        "cost_matrix_milli": np.random.default_rng(7).integers(1, 9, (4, 4)) * 300 * (1 - np.eye(4, dtype=int))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_no_placement_that_reaches_the_tolerance_is_cheaper(name: str) -> None:
    proven = 0
    for seed in range(4):
        problem = tiny_problem(seed, **CASES[name])
        problem = replace(problem, resident_RK=residents(seed) if seed % 2 else None)
        best = least_cost(problem, allowed(problem))
        answer = solve_exactly(problem, OPTIONS, start=None)
        check_guests(answer.guests_RK, home_E=problem.home_E, slots_R=problem.topology.slots_R)
        if best is None:
            continue
        proven += 1
        assert answer.is_optimal
        assert answer.lower_bound == pytest.approx(best)
        assert cost_of(problem, as_placement(answer)) == pytest.approx(best)
        assert fits(copies_of(problem, as_placement(answer)), allowed(problem))
    assert proven >= 2


@pytest.mark.parametrize(("resident_R", "cost"), [([-1, -1, -1, -1], 4.5), ([-1, -1, -1, 0], 2.0)])
def test_the_program_itself_charges_relays(resident_R: list[int], cost: float) -> None:
    """One expert has to go to all ranks: once over the crossing, or from the rank that has it already."""
    counts_RE = np.zeros((4, 5), dtype=np.int64)
    counts_RE[0, 0] = 400
    problem = replace(tiny_problem(0, has_relay=True), counts_RE=counts_RE, resident_RK=np.array(resident_R)[:, None])
    goal = Goal(capacity_R=np.full(4, 100))
    program = build_program(problem, goal, np.arange(5), np.ones((5, 4), dtype=np.bool_))
    assert solve_program(program, seconds=5.0).bound == pytest.approx(cost)


def test_guests_take_their_least_number_of_tokens() -> None:
    options = replace(OPTIONS, tolerance_ppm=250_000, min_tokens_per_guest=150)
    for seed in (3, 6, 7):
        problem = tiny_problem(seed)
        capacity_R = allowed(problem, options)
        best = least_cost(problem, capacity_R, 150)
        assert best is not None
        assert best > (least_cost(problem, capacity_R) or 0), "the least amount changes nothing here"
        answer = solve_exactly(problem, options, start=None)
        assert answer.is_optimal
        assert cost_of(problem, as_placement(answer)) == answer.lower_bound == pytest.approx(best)
        assert fits_with_least(problem, as_placement(answer), capacity_R, 150)


@pytest.mark.parametrize("name", ["plain", "speeds"])
def test_out_of_reach_gives_the_most_balanced_placement_at_least_cost(name: str) -> None:
    options = replace(OPTIONS, tolerance_ppm=0)
    unreached = 0
    for seed in range(4):
        problem = tiny_problem(seed, slots_R=np.array([1, 0, 1, 0]), **CASES[name])
        if least_cost(problem, allowed(problem, options)) is not None:
            continue
        unreached += 1
        pace = pace_for(int(problem.counts_RE.sum()), 0, problem.topology)
        speeds_R = problem.topology.speeds_R
        room, fastest = sums(speeds_R), int(speeds_R.max())
        pace = min(
            max(
                -(-tokens * fastest // room[ranks])
                for tokens, ranks in list(zip(*vars(copies_of(problem, each)).values(), strict=True))[1:]
            )
            for each in placements(problem)
        )
        answer = solve_exactly(problem, options, start=None)
        assert answer.is_optimal
        assert fits(copies_of(problem, as_placement(answer)), capacities_at(pace, problem.topology))
        best = least_cost(problem, capacities_at(pace, problem.topology))
        assert cost_of(problem, as_placement(answer)) == answer.lower_bound == pytest.approx(best)
    assert unreached >= 2


@pytest.mark.parametrize("name", ["plain", "speeds", "relays"])
@pytest.mark.parametrize("mu_ppm", [0, 30_000, 200_000])
def test_the_objective_mu_weighs_imbalance_against_cost(name: str, mu_ppm: int) -> None:
    problem = tiny_problem(2, **CASES[name])
    room, total = sums(problem.topology.speeds_R), int(problem.counts_RE.sum())

    def value(placement: tuple[tuple[int, ...], ...]) -> float:
        copies = copies_of(problem, placement)
        pairs = list(zip(copies.tokens, copies.ranks, strict=True))[1:]
        imbalance = max(tokens * room[-1] / (room[ranks] * total) for tokens, ranks in pairs) - 1
        return imbalance + mu_ppm / PPM * cost_of(problem, placement)

    best = min(value(each) for each in placements(problem))
    answer = solve_exactly(problem, replace(OPTIONS, objective="mu", mu_ppm=mu_ppm), start=None)
    assert answer.is_optimal
    assert value(as_placement(answer)) == pytest.approx(best, abs=2e-6)
    assert answer.lower_bound == pytest.approx(best, abs=2e-6)


def test_hot_ranks_that_collect_for_each_other_save_crossings() -> None:
    """Both hot ranks are in one node and the room is in the other: one hands its surplus to the other."""
    counts_RE = np.zeros((4, 4), dtype=np.int64)
    counts_RE[0] = [130, 110, 80, 80]
    problem = two_level_problem(counts_RE, ranks_per_node=2, slots=1)
    plan = plan_layer(problem, options=replace(OPTIONS, tolerance_ppm=200_000))
    assert plan.explanation.is_optimal
    assert plan.stats(problem).weighted_cost == 1.0
    balanced = plan_layer(problem, options=replace(OPTIONS, tolerance_ppm=0))
    assert balanced.stats(problem).weighted_cost == 5.0  # to the mean, by way of rank 0: 1 + 3 + 1
    assert balanced.loads_R(problem).tolist() == [100] * 4


def renamed(problem: LayerProblem, order_R: np.ndarray) -> LayerProblem:
    """The same layer with ranks in another order; homes move along."""
    topology = problem.topology
    place_R = np.argsort(order_R)
    return replace(
        problem,
        counts_RE=problem.counts_RE[order_R],
        home_E=place_R[problem.home_E],
        topology=replace(topology, domains_RV=topology.domains_RV[order_R], slots_R=topology.slots_R[order_R]),
    )


def test_proven_costs_do_not_depend_on_names_and_fall_with_slots_and_tolerance() -> None:
    problem = two_level_problem(skewed_counts(5, num_ranks=8, num_experts=16, concentration=1.5), ranks_per_node=4)
    more_slots = replace(problem, topology=replace(problem.topology, slots_R=problem.topology.slots_R + 1))
    order_R = np.array([2, 0, 3, 1, 5, 7, 6, 4])
    answers = [
        solve_exactly(each, replace(OPTIONS, tolerance_ppm=ppm), start=None)
        for each, ppm in (
            (problem, 60_000),
            (renamed(problem, order_R), 60_000),
            (more_slots, 60_000),
            (problem, 120_000),
        )
    ]
    assert all(each.is_optimal for each in answers)
    cost, other_names, slots, tolerance = (each.lower_bound for each in answers)
    assert other_names == cost >= max(slots, tolerance) > 0


def test_a_time_limit_leaves_a_valid_plan_and_a_bound_below_its_cost() -> None:
    problem = two_level_problem(skewed_counts(0, num_ranks=16, num_experts=64, concentration=1.5), ranks_per_node=8)
    options = replace(OPTIONS, tolerance_ppm=5_000, exact_seconds=0.5)
    plan = plan_layer(problem, options=options)
    balanced = plan_layer(problem, options=replace(options, effort="balanced"))
    check_plan(plan, problem)
    assert not plan.explanation.is_optimal
    bound = plan.explanation.lower_bound
    assert bound is not None
    assert 0 < bound < plan.stats(problem).weighted_cost <= balanced.stats(problem).weighted_cost
    assert plan.loads_R(problem).max() <= allowed(problem, options).max()


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_scipy(monkeypatch)
    with pytest.raises(ValueError, match=r"effort exact needs scipy.*taot-planner\[exact\]"):
        plan_layer(tiny_problem(0), options=OPTIONS)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0, float("nan")])
def test_a_time_limit_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="exact_seconds must be above 0 and at most a day"):
        PlanningOptions(exact_seconds=seconds)


def test_a_limit_too_short_for_anything_returns_the_plan_of_the_search() -> None:
    problem = two_level_problem(skewed_counts(0, num_ranks=16, num_experts=64), slots=1)
    options = replace(OPTIONS, tolerance_ppm=0, exact_seconds=1e-9)
    plan = plan_layer(problem, options=options)
    check_plan(plan, problem)
    searched = plan_layer(problem, options=replace(options, effort="balanced"))
    assert plan.loads_R(problem).max() <= searched.loads_R(problem).max()
    assert not plan.explanation.is_optimal


@pytest.mark.parametrize("objective", ["tolerance", "mu"])
def test_small_guests_of_the_search_do_not_win_over_the_programs_valid_plan(objective: Objective) -> None:
    """Both have to pass the gates first; a bound is never above what the plan is worth."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        problem = two_level_problem(rng.lognormal(3, 1.2, size=(3, 6)).astype(int), ranks_per_node=2)
        options = replace(OPTIONS, objective=objective, mu_ppm=10_000, min_tokens_per_guest=60, exact_seconds=3.0)
        plan = plan_layer(problem, options=options)
        balanced = plan_layer(problem, options=replace(options, effort="balanced"))
        program = plan_from_guests(problem, solve_exactly(problem, options, start=None).guests_RK)
        worth = objective_value(plan, problem, options)
        if plan.explanation.lower_bound is not None:
            assert plan.explanation.lower_bound <= worth + 1e-9
        others = [balanced]
        if program.tokens_RK[program.guests_RK >= 0].min(initial=60) >= 60:
            others.append(program)
        for other in others:
            if objective == "mu":
                assert worth <= objective_value(other, problem, options) + 1e-9
            else:
                reach = [int(each.loads_R(problem).max()) for each in (plan, other)]
                assert reach[0] <= max(reach[1], allowed(problem)[0])
