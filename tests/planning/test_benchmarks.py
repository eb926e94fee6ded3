"""The benchmarks of `make bench` at tiny settings: what their rows say is what plans and replays say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from taot_planning import contiguous_homes, imbalance, plan_from_guests, rank_loads

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a benchmark's command line after changes to its settings; returns its JSON and module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def run(name: str, *arguments: object, **settings: object) -> tuple[dict[str, Any], ModuleType]:
        module = importlib.import_module(name)
        for setting, value in settings.items():
            monkeypatch.setattr(module, setting, value)
        out = tmp_path / "out.json"
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments), "--json", str(out)])
        module.main()
        return json.loads(out.read_text()), module

    return run


def save_drifting_steps(path: Path) -> np.ndarray:
    """Five steps of one layer, 4 ranks and 8 experts, whose hot experts change with the domain in the fourth step."""
    rng = np.random.default_rng(0)
    steps = [rng.poisson([90, 60, 10, 10, 10, 10, 10, 10], (4, 8)) for _ in range(5)]
    trace = np.stack([step if index < 3 else step[:, ::-1] for index, step in enumerate(steps)])[:, None]
    np.savez(path, trace=trace, domain=np.array([3, 3, 3, 1, 1]))
    return trace


def test_planning_times_are_rows_by_size_algorithm_and_effort(
    benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("planning_time")
    small = module.Size(8, 16, num_layers=2, repeats=2, has_others=True)
    large = small._replace(num_ranks=16, has_others=False)
    results, _ = benchmark("planning_time", SIZES=[small, large], MODEL=small)
    variants = [(row["ranks"], row["algorithm"], row["effort"]) for row in results["layers"]]
    assert variants[:2] == [(8, "taot", "fast"), (8, "taot", "balanced")]
    assert (8, "taot-paper", None) in variants
    assert variants[-2:] == [(16, "taot", "fast"), (16, "taot", "balanced")]
    for row in results["layers"]:
        assert 0 < row["min_seconds"] <= row["slowest_layer_seconds"]
    static = next(row for row in results["layers"] if row["algorithm"] == "static")
    assert static["imbalance_after"] == static["imbalance_before"] > 0
    assert (results["model"]["layers"], results["model"]["effort"]) == (2, "fast")
    assert 0 < results["model"]["min_seconds"] <= results["model"]["median_seconds"]
    assert "2 layers at R = 8, E = 16 in one go, fast: best" in capsys.readouterr().out


def test_repeats_of_all_calls_alternate(benchmark: Any) -> None:
    module = importlib.import_module("planning_time")
    order: list[str] = []
    seconds_NC = module.time_calls([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert order == ["a", "b"] * 3
    assert seconds_NC.shape == (3, 2)


def test_staleness_is_shown_by_source_and_by_domain(
    benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = save_drifting_steps(tmp_path / "trace.npz")
    results, _ = benchmark("staleness", tmp_path / "trace.npz", "--ranks-per-node", 2)
    rows = {(row["part"], row["algorithm"], row["source"]): row for row in results["rows"]}
    parts = {part: rows[part, "taot", "ahead"] for part in ("all", "same domain", "other domain")}
    assert [row["steps"] for row in parts.values()] == [4, 3, 1]
    for name in ("imbalance", "weighted_cost", "node_crossings"):
        assert 4 * parts["all"][name] == pytest.approx(3 * parts["same domain"][name] + parts["other domain"][name])
    assert parts["same domain"]["imbalance"] < 0.1
    assert parts["other domain"]["imbalance"] > 0.3
    assert rows["other domain", "taot", "ahead+inline"]["imbalance"] < 0.1
    homes_E = contiguous_homes(num_experts=8, num_ranks=4)
    before = np.mean([imbalance(rank_loads(counts_RE, homes_E)) for counts_RE in trace[1:, 0]])
    assert rows["all", "static", "-"]["imbalance"] == pytest.approx(before)
    printed = capsys.readouterr().out
    assert "same domain (3)" in printed
    assert "llep" in printed
    assert "\u2026" not in printed, "a column was cut off"


def test_staleness_of_the_committed_trace_has_one_part(benchmark: Any) -> None:
    results, _ = benchmark("staleness", ALGORITHMS=("static", "taot"))
    assert (results["trace"], results["ranks"], results["nodes"]) == ("train_moe", 4, 2)
    assert {row["part"] for row in results["rows"]} == {"all"}
    assert [row["source"] for row in results["rows"]] == ["-", "ahead", "ahead+inline", "inline"]


def test_quality_compares_costs_with_the_best_known(benchmark: Any, tmp_path: Path) -> None:
    """One guest of cost 1 levels the layer; a best known cost of 2 makes that half."""
    np.savez(tmp_path / "reference.npz", layer=np.array([[30, 10], [10, 10]]))
    case = {"name": "layer", "ranks_per_node": 2, "slots": 1, "inter_cost": 3, "tolerance": 0.0}
    cases = [case | {"best_cost": 2}, case | {"best_cost": None}]
    (tmp_path / "reference.json").write_text(json.dumps(cases))
    results, _ = benchmark("quality", tmp_path / "reference.npz", REPEATS=1)
    assert [(row["effort"], row["ranks"], row["cases"]) for row in results["rows"]] == [
        ("fast", "2", 1), ("fast", "all", 1), ("balanced", "2", 1), ("balanced", "all", 1),
    ]  # fmt: skip
    assert all(row["cost_ratio"] == 0.5 and row["reached"] == 1 for row in results["rows"])


def test_the_saving_is_measured_at_no_worse_residual(benchmark: Any) -> None:
    tables = importlib.import_module("paper_tables")
    usual, matched = (tables.measure_saving(16, 2, is_matched=is_matched) for is_matched in (False, True))
    assert matched["instances"] == matched["instances_no_worse"] == 10
    assert matched["taot_residual_percent"] <= matched["taot_paper_residual_percent"]
    assert usual["taot_residual_percent"] < 1.6
    for each in (usual, matched):
        assert each["cost_saved_percent"] == pytest.approx(100 * (1 - each["taot_cost"] / each["taot_paper_cost"]))
        assert each["published_costs"]["taot-paper"] == pytest.approx((17 + 15 + 18 + 18 + 27) / 5)


def test_the_matched_tolerance_allows_the_largest_load_and_no_more(benchmark: Any) -> None:
    tables = importlib.import_module("paper_tables")
    for seed in range(5):
        problem = tables.make_problem(16, 30, seed)
        plan = plan_from_guests(problem, np.full((16, 2), -1))
        most, mean = int(plan.loads_R(problem).max()), problem.counts_RE.sum() / 16
        tolerance = tables.residual_ppm(problem, plan) / 10**6
        assert most - 1 < mean * (1 + tolerance) <= most


def test_make_bench_runs_every_benchmark() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.split("\nbench:")[1].split("\n\n")[0]
    for name in ("planning_time", "paper_tables", "staleness", "quality"):
        assert f"benchmarks/{name}.py" in recipe
        assert f"$(RESULTS)/{name}.json" in recipe
    assert "benchmarks/results/" in (ROOT / ".gitignore").read_text().splitlines()
