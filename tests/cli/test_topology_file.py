"""The file of `taot plan --topology`: what it can say, and what is said of a wrong one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taot_cli.topology_file import read_topology
from taot_planning import Topology

LEVELS = [
    {"name": "node", "cost": 1, "bandwidth_gb_per_second": 200},
    {"name": "rack", "cost": 3, "bandwidth_gb_per_second": 12.5},
    {"name": "cluster", "cost": 4.5},
]
RANKS = [{"domains": [0, 0, 0]}, {"domains": [0, 0, 0]}, {"domains": [1, 0, 0]}, {"domains": [7, 1, 0]}]
MATRIX = [[0, 1, 2.5], [1, 0, 4], [0.001, 4, 0]]


def read(tmp_path: Path, document: Any) -> Topology:
    path = tmp_path / "topology.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_topology(path)


def test_levels_and_ranks(tmp_path: Path) -> None:
    topology = read(tmp_path, {"levels": LEVELS, "ranks": RANKS})
    assert [level.name for level in topology.levels] == ["node", "rack", "cluster"]
    assert [level.bandwidth_bytes_per_second for level in topology.levels] == [200 * 10**9, 12_500_000_000, None]
    assert topology.cost_milli_RR.tolist() == [
        [0, 1000, 3000, 4500], [1000, 0, 3000, 4500], [3000, 3000, 0, 4500], [4500, 4500, 4500, 0],
    ]  # fmt: skip
    assert topology.nodes_R.tolist() == [0, 0, 1, 7]
    assert topology.slots_R.tolist() == [2, 2, 2, 2]
    assert (topology.speed_milli_R, topology.token_cap_R, topology.has_relay) == (None, None, False)


def test_ranks_say_what_is_their_own(tmp_path: Path) -> None:
    own = [{"slots": 4}, {"speed": 0.5}, {"token_cap": 100}, {"speed": 2, "slots": 0}]
    ranks = [rank | mine for rank, mine in zip(RANKS, own, strict=True)]
    topology = read(tmp_path, {"levels": LEVELS, "ranks": ranks, "slots": 3, "relay": True})
    assert topology.slots_R.tolist() == [4, 3, 3, 0]
    assert topology.speeds_R.tolist() == [1000, 500, 1000, 2000]
    assert topology.token_cap_R is not None
    assert topology.token_cap_R[2] == 100
    assert topology.token_cap_R[[0, 1, 3]].min() > 2**31 * 2**16
    assert topology.has_relay


def test_a_cost_matrix_is_enough(tmp_path: Path) -> None:
    topology = read(tmp_path, {"cost_matrix": MATRIX})
    assert topology.cost_milli_RR.tolist() == [[0, 1000, 2500], [1000, 0, 4000], [1, 4000, 0]]
    assert topology.nodes_R.tolist() == [0, 0, 0]
    assert topology.slots_R.tolist() == [2, 2, 2]


def test_a_cost_matrix_goes_before_the_costs_of_the_levels(tmp_path: Path) -> None:
    topology = read(tmp_path, {"cost_matrix": MATRIX, "levels": LEVELS, "ranks": RANKS[1:]})
    assert topology.cost_milli_RR[0, 2] == 2500
    assert topology.nodes_R.tolist() == [0, 1, 7]


def test_the_file_in_the_documentation_can_be_read(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    topology = read(tmp_path, example)
    assert topology.nodes_R.tolist() == [0, 0, 1, 1]
    assert topology.slots_R.tolist() == [2, 2, 2, 1]


def cell(row: int, column: int, text: str) -> str:
    """The matrix as JSON text with one cell replaced."""
    rows = [[str(value) for value in values] for values in MATRIX]
    rows[row][column] = text
    return '{"cost_matrix": [' + ", ".join("[" + ", ".join(values) + "]" for values in rows) + "]}"


def rank(**own: Any) -> dict[str, Any]:
    """A topology whose rank 2 says something."""
    return {"levels": LEVELS, "ranks": [*RANKS[:2], RANKS[2] | own, RANKS[3]]}


def level(**own: Any) -> dict[str, Any]:
    """A topology whose rack says something."""
    return {"levels": [LEVELS[0], LEVELS[1] | own, LEVELS[2]], "ranks": RANKS}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("7", "a topology must be an object with levels, ranks, slots, cost_matrix, relay, got 7"),
        ({}, "a topology needs levels and ranks, or a cost_matrix"),
        ({"levels": LEVELS}, "a topology needs levels and ranks, or a cost_matrix"),
        ({"levels": LEVELS, "rank": RANKS}, "unknown key 'rank' in a topology: the keys are levels, ranks"),
        ({"levels": {}, "ranks": RANKS}, "levels must be a list, got {}"),
        ({"levels": [], "ranks": RANKS}, "ranks[0].domains must have one domain per level (0), got 3"),
        ({"levels": LEVELS, "ranks": []}, "a topology needs at least one rank"),
        ({"levels": LEVELS, "ranks": 4}, "ranks must be a list, got 4"),
        ({"levels": LEVELS, "ranks": [7]}, "ranks[0] must be an object with domains"),
        ({"levels": LEVELS, "ranks": RANKS, "slots": 1.5}, "slots must be a whole number from 0 to"),
        ({"levels": LEVELS, "ranks": RANKS, "relay": "yes"}, 'relay must be true or false, got "yes"'),
        (level(name=""), 'levels[1].name must be a text, got ""'),
        (level(cost=None), "levels[1].cost must be a number from 1 to"),
        (level(cost=True), "levels[1].cost must be a number from 1 to 2.14748e+06, got true"),
        (level(cost=float("nan")), "levels[1].cost must be a number from 1 to 2.14748e+06, got NaN"),
        (level(cost=10**400), "levels[1].cost must be a number from 1 to"),
        (level(cost=9), "transfer costs must not fall from level to level"),
        (level(bandwidth_gb_per_second=-1), "levels[1].bandwidth_gb_per_second must be a number from 1e-09"),
        (level(bandwidth_gb_per_second=float("inf")), "levels[1].bandwidth_gb_per_second must be"),
        (level(bandwith=1), "unknown key 'bandwith' in levels[1]"),
        (rank(domains=[1, 0]), "ranks[2].domains must have one domain per level (3), got 2"),
        (rank(domains=None), "ranks[2].domains must be a list, got nothing"),
        (rank(domains=[1, "a", 0]), "ranks[2].domains[1] must be a whole number from 0 to 2147483647, got \"a\""),
        (rank(domains=[0, 1, 0]), "domain 0 of level 'node' lies in two domains"),
        (rank(domains=[1, 2, 3]), "the outermost level 'cluster' must hold every rank"),
        (rank(slots=-1), "ranks[2].slots must be a whole number from 0 to 2147483647, got -1"),
        (rank(speed=0), "ranks[2].speed must be a number from 0.01 to 10, got 0"),
        (rank(speed=float("nan")), "ranks[2].speed must be a number from 0.01 to 10, got NaN"),
        (rank(token_cap=-5), "ranks[2].token_cap must be a whole number from 0"),
        ({"cost_matrix": []}, "a topology needs at least one rank"),
        ({"cost_matrix": [[0, 1], [1]]}, "cost_matrix[1] must have 2 cells, as there are rows, got 1 cells"),
        ({"cost_matrix": [[0, 1, 1], [1, 0, 1]]}, "cost_matrix[0] must have 2 cells, as there are rows, got 3 cells"),
        ({"cost_matrix": [[0, 1], 7]}, "cost_matrix[1] must have 2 cells, as there are rows, got 7"),
        (cell(1, 1, "2"), "cost_matrix[1][1], on the diagonal, must be 0, got 2"),
        (cell(2, 2, "NaN"), "cost_matrix[2][2], on the diagonal, must be 0, got NaN"),
        (cell(1, 2, "NaN"), "cost_matrix[1][2] must be a number from 0.001 to 2.14748e+06, got NaN"),
        (cell(2, 0, "-3"), "cost_matrix[2][0] must be a number from 0.001 to 2.14748e+06, got -3"),
        (cell(0, 2, "0"), "cost_matrix[0][2] must be a number from 0.001"),
        (cell(0, 2, "1e999"), "cost_matrix[0][2] must be a number from 0.001"),
        (cell(0, 1, '"far"'), 'cost_matrix[0][1] must be a number from 0.001 to 2.14748e+06, got "far"'),
        ({"cost_matrix": MATRIX, "levels": LEVELS, "ranks": RANKS}, "cost_matrix has 3 rows for 4 ranks"),
        ({"cost_matrix": MATRIX, "ranks": RANKS[:3]}, "ranks[0].domains needs levels"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_file_key_rank_and_cell(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below, as plain text
        read(tmp_path, document)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "topology.json"))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    np.save(path.open("wb"), np.ones(4))
    with pytest.raises(ValueError, match="is not JSON"):
        read_topology(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_topology(tmp_path)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the key 'slots' is there twice"):
        read(tmp_path, '{"cost_matrix": [[0, 1], [1, 0]], "slots": 1, "slots": 5}')
