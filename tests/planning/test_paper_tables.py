"""The benchmark of the paper's tables: its counts start where they should, and its figures are the plans'."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from taot_planning import ALGORITHMS, contiguous_homes, imbalance, plan_layer, rank_loads

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def paper_tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("paper_tables")


@pytest.mark.parametrize("num_ranks", [8, 16, 32])
@pytest.mark.parametrize("start_percent", [10, 70, 150])
def test_counts_start_at_the_imbalance_asked_for(paper_tables: ModuleType, num_ranks: int, start_percent: int) -> None:
    seen = set()
    for seed in range(5):
        counts_RE = paper_tables.counts_at(start_percent / 100, num_ranks=num_ranks, num_experts=128, seed=seed)
        loads_R = rank_loads(counts_RE, contiguous_homes(num_experts=128, num_ranks=num_ranks))
        assert imbalance(loads_R) == pytest.approx(start_percent / 100, abs=1e-3)
        assert counts_RE.sum() == 32_768 * num_ranks
        seen.add(counts_RE.tobytes())
    assert len(seen) == 5


def test_rows_hold_mean_and_spread_over_the_seeds(paper_tables: ModuleType) -> None:
    problems = [paper_tables.make_problem(16, 30, seed) for seed in range(3)]
    costs = [plan_layer(problem, algorithm="echo").stats(problem).weighted_cost for problem in problems]
    row = paper_tables.measure(problems, "echo")
    assert row["weighted_cost"] == {"mean": pytest.approx(np.mean(costs)), "spread": pytest.approx(np.std(costs))}
    assert row["improvement_points"]["mean"] + row["residual_percent"]["mean"] == pytest.approx(30, abs=0.1)


def test_every_algorithm_is_in_the_tables_with_its_published_figures(
    paper_tables: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables.json"
    monkeypatch.setattr("sys.argv", ["paper_tables.py", "--seeds", "1", "--json", str(out)])
    paper_tables.main()
    results = json.loads(out.read_text())
    assert {row["algorithm"] for row in results["rows"] + results["ablation"]} == set(ALGORITHMS)
    shown = [row for row in results["rows"] if row["published"]]
    assert len(shown) == 2 * 5 * 4
    assert sum("improvement_points" in row["published"] for row in shown) == 2 * 3 * 4
    printed = capsys.readouterr().out
    for figures in ("3/23=72", "32/32=128", "18/5=33", "9/6=27", "4.67/18.33=59.67", "14.67/10=44.67", "15/9.67=44"):
        assert figures in printed
    assert "\u2026" not in printed, "a column was cut off"
