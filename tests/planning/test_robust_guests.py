"""Guests for a micro-batch to come: they hold in every scenario, judged by a linear program of HiGHS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up_routing import uneven_topology
from scipy.optimize import linprog

from taot_planning import (
    EMPTY_SLOT,
    LayerProblem,
    PlanningOptions,
    Topology,
    check_plan,
    contiguous_homes,
    imbalance,
    plan_from_guests,
    plan_layer,
    two_level_topology,
)
from taot_planning.algorithms import robust_guests
from taot_planning.algorithms.robust_guests import place_for_recent
from taot_planning.algorithms.scenarios import make_scenarios
from taot_planning.arrays import MAX_COUNT, IntArray
from taot_planning.layer_plan import check_guests
from taot_planning.options import SEARCH_EFFORTS


def draw_micro_batches(seed: int, *, num_ranks: int = 4, num_experts: int = 16, number: int = 5) -> IntArray:
    """Counts of micro-batches of one kind of data, newest first. Shape: [micro-batches, ranks, experts]."""
    rng = np.random.default_rng(seed)
    share_E = 0.5 * rng.dirichlet(np.full(num_experts, 0.7)) + 0.5 / num_experts
    shares_NRE = rng.dirichlet(share_E * 2000, (number, num_ranks))
    return np.array([[rng.multinomial(4000, share_E) for share_E in shares_RE] for shares_RE in shares_NRE])


def make_problem(counts_RE: IntArray, topology: Topology | None = None, *, slots: int = 3) -> LayerProblem:
    """A layer with contiguous homes, in nodes of two ranks unless a topology is given."""
    num_ranks, num_experts = counts_RE.shape
    return LayerProblem(
        counts_RE=counts_RE,
        home_E=contiguous_homes(num_experts=num_experts, num_ranks=num_ranks),
        topology=topology or two_level_topology(num_ranks=num_ranks, ranks_per_node=2, slots=slots, inter_cost=3),
    )


def place(counts_NRE: IntArray, topology: Topology | None = None, **options: Any):
    """The problem of the newest micro-batch, and the guests for the next."""
    problem = make_problem(counts_NRE[0], topology)
    return problem, place_for_recent(problem, counts_NRE[1:].sum(axis=1), PlanningOptions(**options))


def least_max_load(
    tokens_E: IntArray, home_E: IntArray, guests_RK: IntArray, *, weight_R: np.ndarray | float = 1.0
) -> float:
    """The smallest maximum (weighted) load that the placement allows, by a linear program over tokens of guests."""
    num_ranks = guests_RK.shape[0]
    places = np.argwhere(guests_RK != EMPTY_SLOT)
    experts_G = guests_RK[tuple(places.T)]
    load_R = np.bincount(home_E, weights=tokens_E, minlength=num_ranks)
    rows = np.zeros((num_ranks + tokens_E.size, experts_G.size + 1))
    for guest, (rank, expert) in enumerate(zip(places[:, 0], experts_G, strict=True)):
        rows[rank, guest] += 1
        rows[home_E[expert], guest] -= 1
        rows[num_ranks + expert, guest] = 1
    rows[:num_ranks] *= np.broadcast_to(weight_R, num_ranks)[:, None]
    load_R = load_R * weight_R
    rows[:num_ranks, -1] = -1
    result = linprog(
        np.eye(experts_G.size + 1)[-1], A_ub=rows, b_ub=np.concatenate([-load_R, tokens_E]), method="highs"
    )
    assert result.status == 0, result.message
    return float(result.fun)


def weighted_cost(problem: LayerProblem, guests_RK: IntArray) -> int:
    """Cost of all guests, in thousandths."""
    ranks, slots = np.nonzero(guests_RK != EMPTY_SLOT)
    return int(problem.topology.cost_milli_RR[problem.home_E[guests_RK[ranks, slots]], ranks].sum())


@pytest.mark.parametrize("seed", range(8))
def test_guests_hold_in_every_scenario_and_in_every_recent_micro_batch(seed: int) -> None:
    counts_NRE = draw_micro_batches(seed)
    problem, guests_RK = place(counts_NRE)
    scenarios_JE = make_scenarios(
        counts_NRE[0], counts_NRE[1:].sum(axis=1), stretch_percent=PlanningOptions().stretch_percent
    )
    for tokens_E in [*scenarios_JE, *counts_NRE.sum(axis=1)]:
        mean = tokens_E.sum() / problem.num_ranks
        assert least_max_load(tokens_E, problem.home_E, guests_RK) <= mean * 1.015 + 1


@pytest.mark.parametrize("seed", range(4))
def test_every_guest_is_needed_by_some_scenario(seed: int) -> None:
    counts_NRE = draw_micro_batches(seed)
    problem, guests_RK = place(counts_NRE)
    scenarios_JE = make_scenarios(
        counts_NRE[0], counts_NRE[1:].sum(axis=1), stretch_percent=PlanningOptions().stretch_percent
    )
    for rank, slot in np.argwhere(guests_RK != EMPTY_SLOT):
        without_RK = guests_RK.copy()
        without_RK[rank, slot] = EMPTY_SLOT
        highest = max(least_max_load(tokens_E, problem.home_E, without_RK) for tokens_E in scenarios_JE)
        assert highest > robust_guests.SCALE / problem.num_ranks * 1.015


@pytest.mark.parametrize("seed", range(6))
def test_guests_fit_uneven_slots_and_homes(seed: int) -> None:
    counts_NRE = draw_micro_batches(seed, num_ranks=6, num_experts=18)
    home_E = np.random.default_rng(seed).integers(0, 6, 18)
    problem = LayerProblem(
        counts_RE=counts_NRE[0], home_E=home_E, topology=uneven_topology(seed, num_ranks=6, max_slots=2)
    )
    guests_RK = place_for_recent(problem, counts_NRE[1:].sum(axis=1), PlanningOptions(tolerance_ppm=0))
    check_guests(guests_RK, home_E=home_E, slots_R=problem.topology.slots_R)


def test_the_same_input_gives_the_same_guests_and_is_left_alone() -> None:
    counts_NRE = draw_micro_batches(3, num_ranks=8, num_experts=32)
    tokens_NE = counts_NRE[1:].sum(axis=1)
    before_NE = tokens_NE.copy()
    problem = make_problem(counts_NRE[0])
    first_RK, again_RK = (place_for_recent(problem, tokens_NE, PlanningOptions()) for _ in range(2))
    np.testing.assert_array_equal(first_RK, again_RK)
    np.testing.assert_array_equal(tokens_NE, before_NE)


def test_without_older_micro_batches_the_ranks_of_the_newest_show_how_counts_stray() -> None:
    ours, plain = 0.0, 0.0
    for seed in range(8):
        to_come_RE, newest_RE = draw_micro_batches(seed, num_ranks=8, num_experts=32, number=2)
        problem, to_come = make_problem(newest_RE), make_problem(to_come_RE)
        guests_RK = place_for_recent(problem, np.zeros((0, 32), dtype=np.int64), PlanningOptions())
        ours += imbalance(plan_from_guests(to_come, guests_RK).loads_R(to_come))
        plain += imbalance(plan_from_guests(to_come, plan_layer(problem).guests_RK).loads_R(to_come))
    assert ours < plain / 2


def test_taot_places_for_the_micro_batch_to_come_where_recent_ones_are_given() -> None:
    counts_NRE = draw_micro_batches(0, num_ranks=8, num_experts=32)
    recent_NE = counts_NRE[1:].sum(axis=1)
    problem = replace(make_problem(counts_NRE[0]), recent_tokens_NE=recent_NE)
    plan = plan_layer(problem)
    check_plan(plan, problem)
    np.testing.assert_array_equal(plan.guests_RK, place_for_recent(problem, recent_NE, PlanningOptions()))
    weighed = [PlanningOptions(objective="mu"), PlanningOptions(objective="mu", stretch_percent=400)]
    for options in weighed:
        now = plan_layer(replace(problem, recent_tokens_NE=None), options=options)
        np.testing.assert_array_equal(plan_layer(problem, options=options).guests_RK, now.guests_RK)


def test_a_search_that_begins_with_what_was_found_ends_no_dearer_and_holds_as_well() -> None:
    for seed in range(6):
        counts_NRE = draw_micro_batches(seed, num_ranks=8, num_experts=32)
        problem, found_RK = place(counts_NRE)
        recent_NE = counts_NRE[1:].sum(axis=1)
        again_RK = place_for_recent(replace(problem, begin_guests_RK=found_RK), recent_NE, PlanningOptions())
        assert weighted_cost(problem, again_RK) <= weighted_cost(problem, found_RK)
        for tokens_E in make_scenarios(counts_NRE[0], recent_NE, stretch_percent=150):
            assert least_max_load(tokens_E, problem.home_E, again_RK) <= tokens_E.sum() / 8 * 1.015 + 1


def test_guests_to_begin_with_that_hold_are_only_dropped() -> None:
    """Groups as large as this one get the first answer with effort `fast`, where nothing is exchanged."""
    counts_NRE = draw_micro_batches(1, num_ranks=32, num_experts=64)
    problem, cautious_RK = place(counts_NRE, effort="fast", tolerance_ppm=5_000)
    recent_NE, options = counts_NRE[1:].sum(axis=1), PlanningOptions(effort="fast")
    kept_RK = place_for_recent(replace(problem, begin_guests_RK=cautious_RK), recent_NE, options)
    is_kept_RK = kept_RK != EMPTY_SLOT
    assert is_kept_RK.any()
    assert is_kept_RK.sum() < (cautious_RK != EMPTY_SLOT).sum()
    np.testing.assert_array_equal(kept_RK[is_kept_RK], cautious_RK[is_kept_RK])


def test_impossible_guests_to_begin_with_are_passed_over() -> None:
    """At home, in a slot that the rank does not have, twice on a rank; expert e lives on rank e // 4."""
    counts_NRE = draw_micro_batches(4, num_ranks=4, num_experts=16)
    base = two_level_topology(num_ranks=4, ranks_per_node=2, slots=3, inter_cost=3)
    problem = make_problem(counts_NRE[0], replace(base, slots_R=np.array([3, 2, 3, 1])))
    recent_NE = counts_NRE[1:].sum(axis=1)
    for effort in SEARCH_EFFORTS:
        given, cleaned = (
            place_for_recent(replace(problem, begin_guests_RK=guests_RK), recent_NE, PlanningOptions(effort=effort))
            for guests_RK in (
                [[1, 4, 4], [12, -1, 9], [8, 3, 0], [13, 2, 5]],
                [[-1, 4, -1], [12, -1, -1], [-1, 3, 0], [-1, -1, -1]],
            )
        )
        check_guests(given, home_E=problem.home_E, slots_R=problem.topology.slots_R)
        np.testing.assert_array_equal(given, cleaned)


def test_slow_ranks_and_token_caps_are_kept_in_every_scenario() -> None:
    counts_NRE = draw_micro_batches(2, num_ranks=4, num_experts=16)
    base = two_level_topology(num_ranks=4, ranks_per_node=2, slots=4, inter_cost=3)
    total = int(counts_NRE[0].sum())
    speeds_R, cap_R = np.array([1000, 700, 1000, 1000]), np.full(4, total)
    cap_R[3] = total * 27 // 100
    problem, guests_RK = place(counts_NRE, replace(base, speed_milli_R=speeds_R, token_cap_R=cap_R))
    assert (guests_RK != EMPTY_SLOT).any()
    scenarios_JE = make_scenarios(counts_NRE[0], counts_NRE[1:].sum(axis=1), stretch_percent=150)
    allowed_R = np.minimum(robust_guests.SCALE * 1.015 * speeds_R / speeds_R.sum(), robust_guests.SCALE * cap_R / total)
    for tokens_E in scenarios_JE:
        assert least_max_load(tokens_E, problem.home_E, guests_RK, weight_R=1 / allowed_R) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("bolder", "safer"),
    [
        ({"tolerance_ppm": 60_000}, {"tolerance_ppm": 0}),
        ({"stretch_percent": 0}, {"stretch_percent": 400}),
    ],
)
def test_both_knobs_buy_balance_of_the_next_micro_batch_with_cost(
    bolder: dict[str, int], safer: dict[str, int]
) -> None:
    costs, imbalances = np.zeros(2), np.zeros(2)
    for seed in range(8):
        counts_NRE = draw_micro_batches(seed, num_ranks=8, num_experts=32, number=6)
        to_come = make_problem(counts_NRE[0])
        for index, options in enumerate((bolder, safer)):
            problem, guests_RK = place(counts_NRE[1:], **options)
            costs[index] += weighted_cost(problem, guests_RK)
            imbalances[index] += imbalance(plan_from_guests(to_come, guests_RK).loads_R(to_come))
    assert costs[0] < costs[1]
    assert imbalances[0] > 2 * imbalances[1]


def test_micro_batches_of_other_data_are_left_out() -> None:
    newest_NRE, other_NRE = draw_micro_batches(1), draw_micro_batches(2)
    alike_NE = newest_NRE[1:].sum(axis=1)
    mixed_NE = np.concatenate([other_NRE[:1].sum(axis=1), alike_NE, other_NRE[1:].sum(axis=1)])
    alone_JE, among_others_JE = (
        make_scenarios(newest_NRE[0], tokens_NE, stretch_percent=200) for tokens_NE in (alike_NE, mixed_NE)
    )
    np.testing.assert_array_equal(alone_JE, among_others_JE)


def test_scenarios_stray_as_far_as_the_sampling_error_of_the_counts() -> None:
    """The spread of the counts is known here: they are multinomial."""
    rng = np.random.default_rng(0)
    share_E = np.full(64, 1 / 64)
    counts_RE = np.array([rng.multinomial(10_000, share_E) for _ in range(8)])
    scenarios_JE = make_scenarios(counts_RE, counts_RE.sum(axis=0)[None], stretch_percent=100)
    strays_JE = (scenarios_JE[2:] - scenarios_JE[0]) / robust_guests.SCALE
    expected = np.sqrt(share_E[0] * (1 - share_E[0]) / counts_RE.sum())
    assert np.sqrt((strays_JE**2).mean()) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_few_ranks_and_ranks_without_tokens_are_no_special_case(num_ranks: int) -> None:
    counts_NRE = draw_micro_batches(0, num_ranks=num_ranks, num_experts=6)
    counts_NRE[:, 1:] = 0
    problem, guests_RK = place(counts_NRE)
    check_guests(guests_RK, home_E=problem.home_E, slots_R=problem.topology.slots_R)
    _, of_nothing_RK = place(counts_NRE * 0)
    assert (of_nothing_RK == EMPTY_SLOT).all()


def test_the_largest_counts_do_not_overflow() -> None:
    small_NRE = draw_micro_batches(5)
    factor = MAX_COUNT // int(small_NRE.max())
    _, small_RK = place(small_NRE)
    _, large_RK = place(small_NRE * factor)
    np.testing.assert_array_equal(small_RK, large_RK)


def test_a_rank_without_a_limit_among_capped_ones_has_none() -> None:
    counts_RE = np.full((4, 8), 50)
    counts_RE[:, 0] = 400
    base = two_level_topology(num_ranks=4, ranks_per_node=2, slots=1, inter_cost=3)
    plain = replace(make_problem(counts_RE, base), recent_tokens_NE=counts_RE.sum(axis=0)[None])
    capped = replace(plain, topology=replace(base, token_cap_R=[2**62, 2**62, 2**62, 10**6]))
    np.testing.assert_array_equal(plan_layer(capped).guests_RK, plan_layer(plain).guests_RK)
    assert (plan_layer(plain).guests_RK != EMPTY_SLOT).any()


def test_without_slots_there_are_no_guests() -> None:
    counts_NRE = draw_micro_batches(0)
    topology = two_level_topology(num_ranks=4, ranks_per_node=2, slots=0, inter_cost=3)
    _, guests_RK = place(counts_NRE, topology)
    assert guests_RK.shape == (4, 0)
