from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taot_planning import (
    LayerProblem,
    PlanningOptions,
    contiguous_homes,
    imbalance,
    plan_layer,
    rank_loads,
    two_level_topology,
)

TOPOLOGY = two_level_topology(num_ranks=2, ranks_per_node=2, slots=1, inter_cost=3)


def problem_with(**changes: Any) -> LayerProblem:
    fields: dict[str, Any] = {"counts_RE": [[1, 2, 3], [4, 5, 6]], "home_E": [0, 0, 1], "topology": TOPOLOGY}
    return LayerProblem(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts_RE": [[1, 2, 3], [4, -5, 6]]}, r"got -5 from source rank 1 to expert 1"),
        ({"counts_RE": [[1, 2, 2**31], [4, 5, 6]]}, r"2\^31-1, got 2147483648 from source rank 0 to expert 2"),
        ({"counts_RE": [[1, 2, 3]]}, r"counts must be \[ranks, experts\] = \[2, 3\], got \[1, 3\]"),
        ({"counts_RE": [[1, 2], [3, 4]]}, r"= \[2, 3\], got \[2, 2\]"),
        ({"counts_RE": [1, 2, 3]}, r"counts must have 2 axes, got shape \(3,\)"),
        ({"counts_RE": [[1, 2, 3.5], [4, 5, 6]]}, "counts must hold whole numbers, got float64"),
        ({"counts_RE": [[1, 2, np.nan], [4, 5, 6]]}, "counts must hold whole numbers, got float64"),
        ({"counts_RE": [["a", "b", "c"], ["d", "e", "f"]]}, "counts must hold whole numbers"),
        ({"home_E": [0, 0, 2]}, "expert 2 has no home: its home rank is 2, the ranks are 0 to 1"),
        ({"home_E": [0, -1, 1]}, "expert 1 has no home: its home rank is -1"),
        ({"home_E": [0, 0, 0.5]}, "homes must hold whole numbers"),
        ({"resident_RK": [[2]]}, r"resident guests must have one row per rank \(2\), got 1"),
        ({"resident_RK": [[2], [3]]}, "resident guests must be experts below 3, or -1"),
        ({"begin_guests_RK": [[2]]}, r"guests to begin with must have one row per rank \(2\), got 1"),
        ({"begin_guests_RK": [[2, -1], [0, -1]]}, r"guests to begin with must have one column per slot \(1\), got 2"),
        ({"begin_guests_RK": [[3], [0]]}, "guests to begin with must be experts below 3, or -1"),
        ({"begin_guests_RK": [[-2], [0]]}, "guests to begin with must be experts below 3, or -1"),
        ({"home_E": [], "counts_RE": np.zeros((2, 0))}, "at least one expert"),
    ],
)
def test_a_wrong_layer_is_refused_with_what_and_where(changes: dict[str, Any], message: str) -> None:
    problem_with()
    with pytest.raises(ValueError, match=message):
        problem_with(**changes)


def test_the_largest_count_is_accepted() -> None:
    assert problem_with(counts_RE=np.full((2, 3), 2**31 - 1)).counts_RE.max() == 2**31 - 1


def test_a_table_without_guests_is_none() -> None:
    problem = problem_with(resident_RK=[[-1], [-1]], begin_guests_RK=[[-1], [-1]])
    assert problem.resident_RK is None
    assert problem.begin_guests_RK is None


def test_counts_given_are_copied_and_cannot_be_changed() -> None:
    counts_RE = np.array([[1, 2, 3], [4, 5, 6]])
    problem = problem_with(counts_RE=counts_RE)
    counts_RE[0, 0] = 100
    assert problem.counts_RE[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        problem.counts_RE[0, 0] = 100


@pytest.mark.parametrize(("num_experts", "num_ranks"), [(60, 8), (7, 2), (256, 3), (4, 8), (1, 1), (128, 32)])
def test_contiguous_homes_spread_any_number_of_experts(num_experts: int, num_ranks: int) -> None:
    home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    assert home_E.tolist() == [expert * num_ranks // num_experts for expert in range(num_experts)]
    per_rank_R = np.bincount(home_E, minlength=num_ranks)
    assert per_rank_R.size == num_ranks
    assert per_rank_R.max() - per_rank_R.min() <= 1


def test_imbalance_is_over_the_loads_of_ranks_not_of_experts_or_sources() -> None:
    """Both sources send 100 and 200: the experts' ranks get 200 and 400 tokens, the mean is 300."""
    problem = problem_with(counts_RE=[[100, 200], [100, 200]], home_E=[0, 1])
    loads_R = rank_loads(problem.counts_RE, problem.home_E)
    assert loads_R.tolist() == [200, 400]
    assert imbalance(loads_R) == pytest.approx(1 / 3)
    # Unequal sources do not matter, and experts of one rank count together.
    uneven = problem_with(counts_RE=[[300, 0, 0], [0, 100, 400]], home_E=[0, 0, 1])
    assert imbalance(rank_loads(uneven.counts_RE, uneven.home_E)) == 0.0


def test_a_layer_without_tokens_is_in_balance() -> None:
    problem = problem_with(counts_RE=np.zeros((2, 3)))
    assert imbalance(rank_loads(problem.counts_RE, problem.home_E)) == 0.0
    for algorithm in ("static", "taot", "taot-paper"):
        assert not plan_layer(problem, algorithm=algorithm).quota_SRK.any()


@pytest.mark.parametrize("name", ["tolerance_ppm", "min_imbalance_ppm"])
def test_options_out_of_range_are_refused(name: str) -> None:
    for value in (-1, 100_000_001):
        with pytest.raises(ValueError, match=f"{name} must be between 0 and 100000000"):
            PlanningOptions(**{name: value})


def test_an_unknown_algorithm_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'magic': choose one of echo, eplb, eplb-global, llep"):
        plan_layer(problem_with(), algorithm="magic")


def test_layers_below_the_least_imbalance_are_left_alone() -> None:
    problem = problem_with(counts_RE=[[100, 200], [100, 200]], home_E=[0, 1])
    for algorithm in ("taot", "taot-paper"):
        alone = plan_layer(problem, algorithm=algorithm, options=PlanningOptions(min_imbalance_ppm=333_334))
        helped = plan_layer(problem, algorithm=algorithm, options=PlanningOptions(min_imbalance_ppm=333_333))
        assert (alone.guests_RK == -1).all()
        assert (helped.guests_RK >= 0).any()
