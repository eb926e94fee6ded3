"""`taot plan` with objectives, gates, a topology file and explanations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from made_up_routing import skewed_counts, two_level_problem
from typer.testing import CliRunner, Result

from taot_cli.plan import plan
from taot_planning import PlanningOptions, plan_layer

HOME_TOKENS = np.array([[40, 20, 20, 20]] * 4)
"""Rank 0 has twice the tokens of the others."""


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(plan)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


class Layer:
    """A counts file of one layer, and what is planned for it."""

    def __init__(self, folder: Path, counts_RE: np.ndarray) -> None:
        self.folder, self.path = folder, folder / "counts.npz"
        np.savez(self.path, layer=counts_RE)

    def topology(self, *speeds: float, bandwidth: float | None = None, **document: Any) -> Path:
        """All ranks in one node."""
        level = {"name": "node", "cost": 1, "bandwidth_gb_per_second": bandwidth}
        ranks = [{"domains": [0], "speed": speed} for speed in speeds]
        path = self.folder / "topology.json"
        path.write_text(json.dumps({"levels": [level], "ranks": ranks} | document))
        return path

    def row(self, *arguments: object) -> dict[str, Any]:
        out = self.folder / "plans.json"
        result = run(self.path, *arguments, "--json", out)
        assert result.exit_code == 0, result.output
        (row,) = json.loads(out.read_text())["plans"]
        assert [each["chosen"] for each in row["explanation"]["considered"]].count(True) == 1
        (chosen,) = [each for each in row["explanation"]["considered"] if each["chosen"]]
        assert chosen["imbalance"] == row["imbalance_after"]
        assert chosen["weighted_cost"] == row["weighted_cost"]
        assert chosen["objective"] == row["objective"]["value"]
        return row


@pytest.fixture
def skewed(tmp_path: Path) -> Layer:
    return Layer(tmp_path, skewed_counts(1, num_ranks=16, num_experts=64))


def test_mu_weighs_imbalance_against_cost(skewed: Layer) -> None:
    free, cheap, dear = (skewed.row("--objective", "mu", "--mu", mu) for mu in (0, 0.002, 10))
    for row, mu in ((free, 0), (cheap, 0.002), (dear, 10)):
        assert row["objective"]["name"] == "mu"
        assert row["objective"]["value"] == pytest.approx(row["imbalance_after"] + mu * row["weighted_cost"])
        considered = row["explanation"]["considered"]
        assert considered[0]["name"] == "no guests"
        assert considered[0]["chosen"] == (row["guests"] == [])
        assert row["objective"]["value"] == min(each["objective"] for each in considered)
    assert free["imbalance_after"] <= cheap["imbalance_after"] < dear["imbalance_after"] == dear["imbalance_before"]
    assert dear["guests"] == []


def test_a_layer_below_the_least_imbalance_is_left_alone(skewed: Layer) -> None:
    before = skewed.row()["imbalance_before"]
    assert skewed.row("--min-imbalance", before * 1.01)["guests"] == []
    assert skewed.row("--min-imbalance", before * 0.99)["guests"]


def test_small_guests_are_left_out_and_the_gate_says_so(skewed: Layer) -> None:
    smallest = min(tokens for _, _, tokens in skewed.row()["guests"])
    row = skewed.row("--min-tokens", smallest + 1)
    assert "min_tokens" in row["explanation"]["gates"]
    assert all(tokens > smallest for _, _, tokens in row["guests"])


def test_the_tolerance_is_one_of_time_where_speeds_differ(tmp_path: Path) -> None:
    layer = Layer(tmp_path, HOME_TOKENS)
    row = layer.row("--topology", layer.topology(2, 1, 1, 1), "--tolerance", 0)
    assert row["tolerance_reached"] is True
    assert row["imbalance_before"] == row["imbalance_after"] == 0
    assert row["explanation"]["gates"] == ["within_tolerance"]
    row = layer.row("--topology", layer.topology(1, 1, 1, 1), "--algorithm", "static")
    assert row["tolerance_reached"] is False
    even = Layer(tmp_path, np.full((4, 4), 20))
    row = even.row("--topology", even.topology(2, 1, 1, 1), "--algorithm", "static")
    assert row["tolerance_reached"] is False
    assert row["imbalance_after"] == pytest.approx(5 / 4 - 1)


def test_a_rank_above_its_token_cap_misses_the_tolerance(tmp_path: Path) -> None:
    layer = Layer(tmp_path, np.full((2, 2), 20))
    ranks = [{"domains": [0], "token_cap": cap} for cap in (39, 40)]
    assert layer.row("--topology", layer.topology(ranks=ranks), "--algorithm", "static")["tolerance_reached"] is False
    ranks = [{"domains": [0], "token_cap": 40}] * 2
    assert layer.row("--topology", layer.topology(ranks=ranks), "--algorithm", "static")["tolerance_reached"] is True


def test_times_are_predicted_from_rates_and_bandwidths(tmp_path: Path) -> None:
    """100 tokens of 1 us; a guest of 1 MB at 1 GB/s is there after 1 ms, long after the home experts are done."""
    layer = Layer(tmp_path, HOME_TOKENS)
    flags = ("--topology", layer.topology(1, 1, 1, 1, bandwidth=1), "--token-ns", 1000)
    row = layer.row(*flags, "--expert-bytes", 10**6, "--algorithm", "echo")
    assert row["predicted_seconds_before"] == pytest.approx(160e-6)
    assert row["predicted_seconds"] > 1e-3
    gated = layer.row(*flags, "--expert-bytes", 10**6)
    assert gated["explanation"]["gates"] == ["no_gain"]
    assert gated["predicted_seconds"] == gated["predicted_seconds_before"] == row["predicted_seconds_before"]
    light = layer.row(*flags, "--expert-bytes", 1000, "--objective", "step_time")
    assert light["objective"] == {"name": "step_time", "value": light["predicted_seconds"]}
    # The best split has 100 tokens on every rank.
    assert 100e-6 <= light["predicted_seconds"] < 110e-6


def test_rates_without_bandwidths_predict_nothing_and_say_so(skewed: Layer) -> None:
    result = run(skewed.path, "--token-ns", 1, "--expert-bytes", 1)
    assert result.exit_code == 0
    assert result.stderr == "note: no time is predicted without the bandwidth of every level in a --topology file\n"
    assert skewed.row("--token-ns", 1, "--expert-bytes", 1)["predicted_seconds"] is None


def test_a_topology_of_another_number_of_ranks_is_refused(skewed: Layer) -> None:
    result = run(skewed.path, "--topology", skewed.topology(1, 1))
    assert result.exit_code == 2
    assert result.stderr == f"error: {skewed.folder / 'topology.json'} has 2 ranks, layer has 16\n"


def test_costs_of_a_matrix_are_those_of_the_plan(tmp_path: Path) -> None:
    counts_RE = skewed_counts(4, num_ranks=8, num_experts=32)
    layer = Layer(tmp_path, counts_RE)
    cost_milli_RR = two_level_problem(counts_RE, ranks_per_node=4).topology.cost_milli_RR
    (tmp_path / "matrix.json").write_text(json.dumps({"cost_matrix": (cost_milli_RR / 1000).tolist()}))
    by_matrix, by_nodes = layer.row("--topology", tmp_path / "matrix.json"), layer.row("--ranks-per-node", 4)
    assert by_matrix["guests"] == by_nodes["guests"]
    assert by_matrix["weighted_cost"] == by_nodes["weighted_cost"]


def test_explain_prints_a_block_per_layer_under_the_table(skewed: Layer) -> None:
    result = run(skewed.path, "--min-tokens", 10**6, "--explain")
    assert result.exit_code == 0, result.output
    table, block = result.stdout.split("layer, layer 0: ")
    assert "imbalance" not in table.replace("Imbalance", "")
    assert block.startswith("imbalance ")
    assert "  gates       min_tokens" in block
    assert "  considered  search, balanced" in block
    assert sum(line.lstrip().startswith("*") or " *" in line for line in block.splitlines()) == 1
    assert "considered" not in run(skewed.path).stdout


def test_explain_shows_the_objective_and_predicted_times(tmp_path: Path) -> None:
    layer = Layer(tmp_path, HOME_TOKENS)
    flags = ("--topology", layer.topology(1, 1, 1, 1, bandwidth=1), "--token-ns", 1000, "--expert-bytes", 1000)
    result = run(layer.path, *flags, "--objective", "step_time", "--explain")
    assert result.exit_code == 0, result.output
    assert "gain" in result.stdout.splitlines()[2]
    assert "  predicted   160 us -> " in result.stdout
    assert any(" no guests " in line and line.endswith(" 160 us") for line in result.stdout.splitlines())
    assert "  mu 0." in run(layer.path, "--objective", "mu", "--explain").stdout


def test_a_plan_that_considered_nothing_is_shown_as_chosen(skewed: Layer) -> None:
    row = skewed.row("--algorithm", "echo")
    assert [each["name"] for each in row["explanation"]["considered"]] == ["the plan"]
    row = skewed.row("--algorithm", "static")
    assert [each["name"] for each in row["explanation"]["considered"]] == ["no guests"]


def test_options_reach_the_planner(skewed: Layer) -> None:
    options = PlanningOptions(objective="mu", mu_ppm=4000, min_tokens_per_guest=50, effort="fast")
    problem = two_level_problem(np.load(skewed.path)["layer"], ranks_per_node=8)
    expected = plan_layer(problem, options=options)
    row = skewed.row("--objective", "mu", "--mu", 0.004, "--min-tokens", 50, "--effort", "fast")
    assert row["guests"] == [
        [int(expert), rank, int(expected.tokens_RK[rank, slot])]
        for (rank, slot), expert in np.ndenumerate(expected.guests_RK)
        if expert >= 0
    ]
