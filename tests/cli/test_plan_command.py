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

KEYS = {
    "name", "layer", "algorithm", "imbalance_before", "imbalance_after", "tolerance_reached", "intra_guests",
    "inter_guests", "weighted_cost", "planning_seconds", "guests", "objective", "predicted_seconds",
    "predicted_seconds_before", "explanation", "optimal", "gap",
}  # fmt: skip


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(plan)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def counts_file(tmp_path: Path) -> Path:
    """One layer of 16 ranks as `one`, two layers of 8 ranks and 60 experts as `two`."""
    one_RE = skewed_counts(1, num_ranks=16, num_experts=64)
    two_LRE = np.stack([skewed_counts(seed, num_ranks=8, num_experts=60) for seed in (2, 3)])
    return save(tmp_path / "counts.npz", one=one_RE, two=two_LRE.astype(np.int32))


def test_the_json_form_holds_one_plan_per_layer(counts_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    result = run(
        counts_file, "--ranks-per-node", 4, "--slots", 2, "--inter-cost", 3, "--tolerance", 0.02,
        "--algorithm", "taot", "--effort", "fast", "--json", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output == ""
    document = json.loads(out.read_text())
    assert set(document) == {"plans"}
    rows = document["plans"]
    assert [(row["name"], row["layer"]) for row in rows] == [("one", 0), ("two", 0), ("two", 1)]
    assert all(set(row) == KEYS for row in rows)
    archive = np.load(counts_file)
    layers = [archive["one"], *archive["two"]]
    for row, counts_RE in zip(rows, layers, strict=True):
        problem = two_level_problem(counts_RE, ranks_per_node=4)
        expected = plan_layer(problem, options=PlanningOptions(tolerance_ppm=20_000, effort="fast"))
        stats = expected.stats(problem)
        assert row["algorithm"] == "taot"
        assert row["imbalance_before"] == stats.imbalance_before
        assert row["imbalance_after"] == stats.imbalance_after
        assert row["tolerance_reached"] == (stats.imbalance_after <= 0.02)
        assert (row["intra_guests"], row["inter_guests"]) == (stats.intra_guests, stats.inter_guests)
        assert row["objective"] == {"name": "tolerance", "value": stats.weighted_cost}
        assert (row["predicted_seconds_before"], row["predicted_seconds"]) == (None, None)
        assert row["weighted_cost"] == stats.weighted_cost == stats.intra_guests + 3 * stats.inter_guests
        assert row["optimal"] is row["gap"] is None
        assert 0 < row["planning_seconds"] < 10
        guests = [
            [int(expert), rank, int(expected.tokens_RK[rank, slot])]
            for (rank, slot), expert in np.ndenumerate(expected.guests_RK)
            if expert >= 0
        ]
        assert row["guests"] == guests
        assert guests


def test_guests_in_the_json_form_explain_the_imbalance_after(counts_file: Path, tmp_path: Path) -> None:
    """A reader that knows only the counts and the guests arrives at the same number."""
    out = tmp_path / "plans.json"
    for algorithm in ("taot", "taot-paper"):
        assert run(counts_file, "--algorithm", algorithm, "--json", out).exit_code == 0
        row = json.loads(out.read_text())["plans"][0]
        tokens_E = np.load(counts_file)["one"].sum(axis=0)
        load_R = tokens_E.reshape(16, 4).sum(axis=1)
        for expert, rank, tokens in row["guests"]:
            load_R[rank] += tokens
            load_R[expert // 4] -= tokens
        assert row["imbalance_after"] == pytest.approx(load_R.max() / load_R.mean() - 1)


def test_the_exact_effort_proves_its_gap(tmp_path: Path) -> None:
    counts = save(tmp_path / "counts.npz", small=skewed_counts(3, num_ranks=4, num_experts=8))
    out = tmp_path / "plans.json"
    arguments = (counts, "--ranks-per-node", 2, "--effort", "exact", "--time-limit", 5)
    assert run(*arguments, "--json", out).exit_code == 0
    (row,) = json.loads(out.read_text())["plans"]
    assert row["guests"]
    assert row["optimal"] is True
    assert row["gap"] == 0
    result = run(*arguments)
    header = next(line for line in result.output.splitlines() if "before" in line)
    assert "gap" in header.split()
    assert "gap" not in run(counts).output


def test_static_moves_nothing_and_misses_the_tolerance(counts_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    assert run(counts_file, "--algorithm", "static", "--json", out).exit_code == 0
    for row in json.loads(out.read_text())["plans"]:
        assert row["guests"] == []
        assert row["weighted_cost"] == 0
        assert row["imbalance_before"] == row["imbalance_after"] > 0.015
        assert row["tolerance_reached"] is False


def test_the_tolerance_is_reached_to_the_whole_token(tmp_path: Path) -> None:
    """Seven tokens on two ranks cannot be split better than 4 and 3."""
    counts = save(tmp_path / "counts.npz", layer=np.array([[7, 0], [0, 0]]))
    out = tmp_path / "plans.json"
    assert run(counts, "--tolerance", 0, "--json", out).exit_code == 0
    (row,) = json.loads(out.read_text())["plans"]
    assert row["imbalance_after"] == pytest.approx(4 / 3.5 - 1)
    assert row["tolerance_reached"] is True


def test_without_json_a_table_shows_every_layer(counts_file: Path) -> None:
    result = run(counts_file)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.split() and line.split()[0] in ("one", "two")]
    assert [line.split()[:2] for line in lines] == [["one", "0"], ["two", "0"], ["two", "1"]]
    assert all("%" in line and " us" in line for line in lines)


def test_homes_come_from_a_file_when_given(tmp_path: Path) -> None:
    counts = save(tmp_path / "counts.npz", layer=np.tile([50, 50, 0, 0], (2, 1)))
    listed, array = tmp_path / "homes.json", tmp_path / "homes.npy"
    listed.write_text("[0, 1, 0, 1]")
    np.save(array, np.array([0, 1, 0, 1]))
    out = tmp_path / "plans.json"
    for arguments, before in (([], 1.0), (["--homes", listed], 0.0), (["--homes", array], 0.0)):
        assert run(counts, *arguments, "--json", out).exit_code == 0
        assert json.loads(out.read_text())["plans"][0]["imbalance_before"] == before


def error_line(result: Result) -> str:
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1, -2], [3, 4]]), "bad, layer 0: counts must be between 0 and 2^31-1, got -2 from source rank 0"),
        (np.array([[1, 2.5], [3, 4]]), "bad, layer 0: counts must hold whole numbers"),
        (np.zeros((2, 2, 2, 2)), "bad: counts must be [ranks, experts] or [layers, ranks, experts]"),
        (np.zeros(4), "got shape [4]"),
        (np.zeros((0, 4)), "got shape [0, 4]"),
        (np.array([["a", "b"]]), "counts must hold whole numbers"),
        (np.array([[None, {}]]), "Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_not_counts_are_refused_in_one_line(tmp_path: Path, array: np.ndarray, message: str) -> None:
    assert message in error_line(run(save(tmp_path / "counts.npz", bad=array)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "magic"], "unknown algorithm 'magic': choose one of echo, eplb, eplb-global, llep"),
        (["--effort", "heroic"], "unknown effort 'heroic': choose one of fast, balanced, exact"),
        (["--time-limit", "0"], "exact_seconds must be above 0"),
        (["--tolerance", "-0.1"], "tolerance must be between 0 and 100"),
        (["--tolerance", "nan"], "tolerance must be between 0 and 100"),
        (["--inter-cost", "0.5"], "inter_cost must be between 1"),
        (["--inter-cost", "nan"], "inter_cost must be between 1"),
        (["--inter-cost", "1e300"], "got 1e+300"),
        (["--ranks-per-node", "0"], "ranks_per_node must be >= 1"),
        (["--slots", "-1"], "slots must be >= 0"),
        (["--slots", str(10**30)], "--slots must be below 2^31, got 1000000"),
        (["--ranks-per-node", str(10**30)], "--ranks-per-node must be below 2^31, got 1000000"),
        (["--slots", "1000000000"], "more than the 64 experts of one"),
        (["--objective", "speed"], "unknown objective 'speed': choose one of tolerance, mu, step_time"),
        (["--objective", "step_time"], "--objective step_time needs --token-ns, --expert-bytes and a --topology"),
        (["--mu", "-1"], "mu must be between 0 and 100"),
        (["--mu", "inf"], "mu must be between 0 and 100"),
        (["--min-imbalance", "nan"], "min-imbalance must be between 0 and 100"),
        (["--min-tokens", "-1"], "min_tokens_per_guest must be between 0 and 2^31-1"),
        (["--token-ns", "5"], "--token-ns and --expert-bytes go together"),
        (["--token-ns", "nan", "--expert-bytes", "1"], "token-ns must be between 0.001 and 10^9, got nan"),
        (["--token-ns", "1", "--expert-bytes", "-1"], "expert_size_bytes must be between 0 and 2^40, got -1"),
        (["--topology", "no/such/topology.json"], "cannot read no/such/topology.json: No such file"),
        (["--topology", "x.json", "--slots", "2"], "--topology and --slots exclude each other"),
        (["--topology", "x.json", "--ranks-per-node", "8"], "--topology and --ranks-per-node exclude each other"),
        (["--topology", "x.json", "--inter-cost", "3"], "--topology and --inter-cost exclude each other"),
        (["--homes", "no/such/homes.json"], "No such file"),
        (["--json", "no/such/folder/out.json"], "No such file"),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(counts_file: Path, arguments: list[str], message: str) -> None:
    assert message in error_line(run(counts_file, *arguments))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[0, 1]", "one has 64 experts, the homes file has 2"),
        ("{", "list of home ranks"),
        ("[" * 100_000, "list of home ranks"),
        ("7", "must have 1 axes"),
    ],
)
def test_wrong_homes_are_refused_in_one_line(counts_file: Path, tmp_path: Path, content: str, message: str) -> None:
    homes = tmp_path / "homes.json"
    homes.write_text(content)
    assert message in error_line(run(counts_file, "--homes", homes))


def test_a_home_outside_the_ranks_is_refused(counts_file: Path, tmp_path: Path) -> None:
    homes = tmp_path / "homes.json"
    homes.write_text(json.dumps([16] * 64))
    assert "expert 0 has no home: its home rank is 16" in error_line(run(counts_file, "--homes", homes))


def test_files_that_are_not_npz_are_refused_in_one_line(tmp_path: Path, counts_file: Path) -> None:
    assert "No such file" in error_line(run(tmp_path / "missing.npz"))
    text, single, damaged = tmp_path / "a.npz", tmp_path / "counts.npy", tmp_path / "damaged.npz"
    text.write_text("not a zip file")
    np.save(single, np.ones((2, 2)))
    content = counts_file.read_bytes()
    damaged.write_bytes(content[:200] + bytes(100) + content[300:])
    assert "not an .npz file" in error_line(run(text))
    assert "not an .npz file" in error_line(run(single))
    assert "damaged" in error_line(run(damaged))
    empty = save(tmp_path / "empty.npz")
    assert "holds no arrays" in error_line(run(empty))
