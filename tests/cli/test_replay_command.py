from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from taot_api.trace_folder import TraceReader
from taot_cli.replay import replay
from taot_planning import PlanningOptions
from taot_replay import make_cases
from taot_replay import replay as replay_recording

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "train_moe"


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(replay)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def test_the_committed_trace_is_replayed_as_a_table_and_as_json(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run(TRACE, "--algorithms", "static,taot", "--slots", "1,2", "--json", out)
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert set(document) == {"trace", "tolerance", "effort", "recent", "cases"}
    assert (document["tolerance"], document["effort"], document["recent"]) == (0.015, "balanced", 4)
    assert document["trace"] == {
        "training_job": "train_moe", "ranks": 4, "nodes": 2, "layers": 4, "micro_batches": 21,
    }  # fmt: skip
    cases = make_cases(algorithms=["static", "taot"], sources=["ahead", "inline"], slots=[1, 2])
    expected = replay_recording(TraceReader(TRACE), cases, num_recent=4)
    assert len(document["cases"]) == len(expected) == 5
    for row, want in zip(document["cases"], expected, strict=True):
        assert set(row) == {
            "algorithm", "source", "slots", "imbalance", "intra_guests", "inter_guests", "weighted_cost",
            "node_crossings", "imbalance_by_step", "weighted_cost_by_step", "node_crossings_by_step",
        }  # fmt: skip
        assert (row["algorithm"], row["source"], row["slots"]) == (
            want.case.algorithm, want.case.source, want.case.num_slots,
        )  # fmt: skip
        assert row["imbalance"] == want.imbalance
        assert row["node_crossings"] == want.node_crossings
        assert len(row["imbalance_by_step"]) == len(row["weighted_cost_by_step"]) == 20
    lines = [line.split() for line in result.stdout.splitlines()]
    shown = [line[:3] for line in lines if line and line[0] in ("static", "taot")]
    assert shown == [[row["algorithm"], row["source"], str(row["slots"])] for row in document["cases"]]


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "a.npz"
    counts = np.random.default_rng(0).integers(0, 9, (2, 3, 4, 8))
    np.savez(path, a=counts, b=counts, flat=counts[0], bad=-counts, large=counts + 2**31, half=counts + 0.5)
    return path


def test_an_array_is_replayed_with_the_nodes_asked_for(arrays: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run(arrays, "--key", "a", "--ranks-per-node", 2, "--algorithms", "static", "--json", out)
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert document["trace"] == {"training_job": "a", "ranks": 4, "nodes": 2, "layers": 3, "micro_batches": 2}
    assert document["cases"][0]["node_crossings"] > 0


def test_sources_effort_and_recent_micro_batches_reach_the_replay(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--algorithms", "taot", "--slots", 2, "--tolerance", 0.03, "--effort", "fast", "--recent", 2]
    result = run(TRACE, *flags, "--source", "ahead+inline,inline", "--json", out)
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert (document["tolerance"], document["effort"], document["recent"]) == (0.03, "fast", 2)
    cases = make_cases(algorithms=["taot"], sources=["ahead+inline", "inline"], slots=[2])
    options = PlanningOptions(tolerance_ppm=30_000, effort="fast")
    expected = replay_recording(TraceReader(TRACE), cases, options=options, num_recent=2)
    assert [row["source"] for row in document["cases"]] == ["ahead+inline", "inline"]
    assert [row["imbalance"] for row in document["cases"]] == [each.imbalance for each in expected]
    assert [row["weighted_cost"] for row in document["cases"]] == [each.weighted_cost for each in expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "must have one array of [steps, layers, ranks, experts], got a, b, bad, large, half: name it by --key"),
        (["--key", "c"], "has no array 'c', it has a, b"),
        (["--key", "flat"], "flat must be [steps, layers, ranks, experts], got shape [3, 4, 8]"),
        (["--key", "bad"], "step 0: layer 'layers.0': counts must be between 0 and 2^31-1, got -8"),
        (["--key", "large"], "counts must be between 0 and 2^31-1"),
        (["--key", "half"], "must hold whole numbers"),
        (["--key", "a", "--slots", "x"], "slots must be whole numbers separated by commas"),
        (["--key", "a", "--algorithms", "magic"], "unknown algorithm 'magic'"),
        (["--key", "a", "--source", "none"], "unknown source 'none'"),
        (["--key", "a", "--tolerance", "-1"], "tolerance must be between 0 and 100"),
        (["--key", "a", "--effort", "heroic"], "unknown effort 'heroic'"),
        (["--key", "a", "--effort", "exact"], "unknown effort 'exact': choose one of fast, balanced"),
        (["--key", "a", "--stretch", "-1"], "stretch_percent must be between 0"),
        (["--key", "a", "--recent", "-1"], "recent must be between 0 and 64, got -1"),
        (["--key", "a", "--ranks-per-node", str(10**30)], "--ranks-per-node must be below 2^31"),
        (["--key", "a", "--ranks-per-node", "0"], "ranks_per_node must be >= 1"),
        (["--key", "a", "--inter-cost", "0"], "inter_cost must be between 1"),
    ],
)
def test_wrong_input_is_refused_in_one_line(arrays: Path, arguments: list[str], message: str) -> None:
    result = run(arrays, *arguments)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert result.stdout == ""


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.npz"
    text.write_text("x")
    for arguments, message in (
        ([tmp_path / "missing"], "cannot read"),
        ([text], "is not an .npz file"),
        ([tmp_path], "it has no meta.json"),
        ([TRACE, "--key", "x"], "--key names an array"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
