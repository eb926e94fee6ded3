"""Layers planned together get the guests, the figures and the gates that each gets by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_routing import random_guests, random_problem, skewed_counts, uneven_topology

from taot_planning import LayerProblem, PlanningOptions, contiguous_homes, plan_layer, two_level_topology
from taot_planning.explanation import Gate
from taot_planning.layer_batch import LayerBatch, PlacedLayer, _are_there, can_place_together, place_together

NUM_LAYERS = 3


def alike(seed: int, **changes) -> list[LayerProblem]:
    """Layers of one uneven group, each with counts, homes, recent tokens and guests to begin with of its own."""
    first = random_problem(seed)
    topology, rng = replace(first.topology, token_cap_R=None, **changes), np.random.default_rng([seed, 7])
    shape = first.num_ranks, first.num_experts
    return [
        LayerProblem(
            counts_RE=skewed_counts(seed + 100 * layer, num_ranks=shape[0], num_experts=shape[1], tokens=900),
            home_E=rng.integers(0, shape[0], shape[1]),
            topology=topology,
            recent_tokens_NE=rng.integers(0, 500, (seed % 3, shape[1])),
            begin_guests_RK=random_guests(seed + layer, first) if seed % 2 else None,
        )
        for layer in range(NUM_LAYERS)
    ]


def together(problems: list[LayerProblem], options: PlanningOptions) -> list[PlacedLayer | None]:
    fields = ("counts_RE", "home_E", "recent_tokens_NE", "begin_guests_RK")
    arrays = [[getattr(problem, name) for problem in problems] for name in fields]
    if any(begin_RK is None for begin_RK in arrays[-1]):
        arrays[-1] = []
    return place_together(LayerBatch.of(*arrays, problems[0].topology), options)


def check_alike(placed: PlacedLayer, problem: LayerProblem, options: PlanningOptions) -> None:
    plan = plan_layer(problem, options=options)
    np.testing.assert_array_equal(placed.guests_RK, plan.guests_RK)
    np.testing.assert_array_equal(placed.tokens_RK, plan.tokens_RK)
    np.testing.assert_array_equal(placed.home_loads_R, problem.loads.load_R)
    np.testing.assert_array_equal(placed.loads_R, plan.loads_R(problem))
    assert placed.stats == plan.stats(problem)
    assert placed.gates == plan.explanation.gates


@pytest.mark.parametrize("has_relay", [False, True])
@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_each_layer_is_planned_as_by_itself(effort, has_relay):
    num_guests, gates = 0, set()
    for seed in range(40):
        problems = alike(seed, has_relay=has_relay)
        options = PlanningOptions(effort=effort, tolerance_ppm=(0, 15_000, 400_000)[seed % 3])
        if not can_place_together("taot", options, problems[0].topology):
            assert problems[0].topology.max_slots == 0
            continue
        for placed, problem in zip(together(problems, options), problems, strict=True):
            if placed is None:
                assert Gate.DOMINATED in plan_layer(problem, options=options).explanation.gates
                continue
            check_alike(placed, problem, options)
            num_guests += placed.stats.intra_guests + placed.stats.inter_guests
            gates.update(placed.gates)
    assert num_guests > 100
    assert gates == {Gate.OUT_OF_REACH, Gate.WITHIN_TOLERANCE}


def test_ranks_of_different_speeds_are_planned_together_too():
    topology = replace(
        two_level_topology(num_ranks=6, ranks_per_node=3, slots=2, inter_cost=3), speed_milli_R=[1000, 500] * 3
    )
    problems = [
        LayerProblem(
            counts_RE=skewed_counts(layer, num_ranks=6, num_experts=24, tokens=900),
            home_E=contiguous_homes(num_experts=24, num_ranks=6),
            topology=topology,
            recent_tokens_NE=skewed_counts(layer, num_ranks=2, num_experts=24, tokens=900),
        )
        for layer in range(NUM_LAYERS)
    ]
    placed_L = together(problems, PlanningOptions())
    for placed, problem in zip(placed_L, problems, strict=True):
        check_alike(placed, problem, PlanningOptions())


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("llep", {}),
        ("taot", {"objective": "mu"}),
        ("taot", {"effort": "exact"}),
        ("taot", {"min_imbalance_ppm": 1}),
        ("taot", {"min_tokens_per_guest": 2}),
    ],
)
def test_what_asks_for_more_is_planned_layer_by_layer(algorithm, options):
    topology = uneven_topology(1, num_ranks=4, max_slots=3)
    assert can_place_together("taot", PlanningOptions(), replace(topology, token_cap_R=None))
    assert not can_place_together(algorithm, PlanningOptions(**options), topology)
    assert not can_place_together("taot", PlanningOptions(), replace(topology, token_cap_R=[9] * 4))


@pytest.mark.parametrize(("layer", "change"), [(0, {"counts": -1}), (2, {"counts": 2**31}), (1, {"home": 99})])
def test_a_layer_that_is_wrong_is_left_to_be_refused(layer, change):
    problems = alike(4)
    counts_L = [problem.counts_RE.copy() for problem in problems]
    home_L = [problem.home_E.copy() for problem in problems]
    counts_L[layer][-1, -1] = change.get("counts", counts_L[layer][-1, -1])
    home_L[layer][-1] = change.get("home", home_L[layer][-1])
    recent_L = [problem.recent_tokens_NE for problem in problems]
    placed_L = place_together(LayerBatch.of(counts_L, home_L, recent_L, [], problems[0].topology), PlanningOptions())
    assert [placed is None for placed in placed_L] == [index == layer for index in range(NUM_LAYERS)]


@pytest.mark.parametrize(
    ("guests", "tokens", "is_right"),
    [
        ([[1, -1], [0, -1]], [[5, 0], [3, 0]], True),
        ([[1, -1], [0, 1]], [[5, 0], [3, 1]], False),
        ([[1, -1], [0, -1]], [[5, 1], [3, 0]], False),
        ([[1, -1], [0, -1]], [[-1, 0], [3, 0]], False),
    ],
)
def test_tokens_that_are_not_there_are_found(guests, tokens, is_right):
    assert _are_there(np.array(guests), np.array(tokens), np.array([3, 5])) == is_right
