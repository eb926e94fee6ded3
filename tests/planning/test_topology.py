from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taot_planning import Level, Topology, two_level_topology

NODE, RACK, CLUSTER = (
    Level(name="node", transfer_cost_milli=1000),
    Level(name="rack", transfer_cost_milli=2000),
    Level(name="cluster", transfer_cost_milli=5000),
)


def three_levels(**changes: Any) -> Topology:
    """Four nodes of two ranks in two racks."""
    fields: dict[str, Any] = {
        "levels": (NODE, RACK, CLUSTER),
        "domains_RV": [[r // 2, r // 4, 0] for r in range(8)],
        "slots_R": [2] * 8,
    }
    return Topology(**(fields | changes))


def test_costs_are_those_of_the_smallest_common_domain() -> None:
    cost_RR = three_levels().cost_milli_RR
    for i in range(8):
        for j in range(8):
            expected = 0 if i == j else 1000 if i // 2 == j // 2 else 2000 if i // 4 == j // 4 else 5000
            assert cost_RR[i, j] == expected


def test_a_cost_matrix_replaces_the_costs_but_not_the_nodes() -> None:
    matrix_RR = np.arange(1, 65).reshape(8, 8)
    np.fill_diagonal(matrix_RR, 0)
    topology = three_levels(cost_matrix_milli=matrix_RR)
    assert np.array_equal(topology.cost_milli_RR, matrix_RR)
    assert topology.nodes_R.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_last_node_may_be_smaller() -> None:
    topology = two_level_topology(num_ranks=5, ranks_per_node=2, slots=1, inter_cost=2.5)
    assert topology.nodes_R.tolist() == [0, 0, 1, 1, 2]
    assert topology.cost_milli_RR[0].tolist() == [0, 1000, 2500, 2500, 2500]


def matrix_with(row: int, column: int, value: int) -> list[list[int]]:
    matrix_RR = np.full((8, 8), 1000)
    np.fill_diagonal(matrix_RR, 0)
    matrix_RR[row, column] = value
    return matrix_RR.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": (), "domains_RV": np.zeros((8, 0))}, "at least one level"),
        ({"levels": (RACK, RACK, CLUSTER)}, "innermost level 'rack' must cost 1000 thousandths, got 2000"),
        ({"levels": (NODE, CLUSTER, RACK)}, r"must not fall .* got \[1000, 5000, 2000\]"),
        ({"domains_RV": np.zeros((0, 3))}, "at least one rank"),
        ({"domains_RV": [[0, 0]] * 8}, r"one domain per level \(3\), got 2"),
        ({"domains_RV": [[0, r // 4, 0] for r in range(8)]}, "domain 0 of level 'node' lies in two domains .*'rack'"),
        ({"domains_RV": [[r // 2, r // 4, r // 4] for r in range(8)]}, r"'cluster' must hold every rank .* \[0, 1\]"),
        ({"domains_RV": [[0.5, 0, 0]] * 8}, "domains must hold whole numbers"),
        ({"slots_R": [2] * 7}, r"one entry per rank \(8\), got 7"),
        ({"slots_R": [2] * 7 + [-1]}, "slots must be >= 0, got -1 on rank 7"),
        ({"cost_matrix_milli": np.zeros((8, 7))}, r"must be \[8, 8\], got \[8, 7\]"),
        ({"cost_matrix_milli": np.zeros((3, 3))}, r"must be \[8, 8\], got \[3, 3\]"),
        ({"cost_matrix_milli": matrix_with(2, 2, 7)}, "zero diagonal, got 7 at rank 2"),
        ({"cost_matrix_milli": matrix_with(2, 5, 0)}, "got 0 from rank 2 to rank 5"),
        ({"cost_matrix_milli": matrix_with(6, 1, -3)}, "got -3 from rank 6 to rank 1"),
        ({"cost_matrix_milli": matrix_with(6, 1, 2**31)}, "got 2147483648 from rank 6 to rank 1"),
    ],
)
def test_a_wrong_topology_is_refused_with_the_reason(changes: dict[str, Any], message: str) -> None:
    three_levels()
    with pytest.raises(ValueError, match=message):
        three_levels(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks_per_node": 0}, "ranks_per_node must be >= 1, got 0"),
        ({"num_ranks": 0}, "at least one rank"),
        ({"slots": -1}, "slots must be >= 0, got -1"),
        ({"inter_cost": 0.5}, "inter_cost must be between 1, .* got 0.5"),
        ({"inter_cost": float("nan")}, "inter_cost must be between 1, .* got nan"),
        ({"inter_cost": float("inf")}, "inter_cost must be between 1, .* got inf"),
    ],
)
def test_wrong_numbers_for_two_levels_are_refused(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"num_ranks": 4, "ranks_per_node": 2, "slots": 2, "inter_cost": 3}
    with pytest.raises(ValueError, match=message):
        two_level_topology(**(fields | changes))


def test_arrays_given_are_copied_and_cannot_be_changed() -> None:
    slots_R = np.array([2] * 8)
    topology = three_levels(slots_R=slots_R)
    slots_R[0] = 5
    assert topology.slots_R[0] == 2
    for array in (topology.slots_R, topology.domains_RV, topology.nodes_R, topology.cost_milli_RR):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
