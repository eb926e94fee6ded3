"""`make bench-load` at tiny settings: a real planner and real generator processes, and figures that add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BOUND_SECONDS = 280
"""Far above any run; a hang ends here."""


@pytest.mark.slow
@pytest.mark.timeout(BOUND_SECONDS + 20)
def test_the_load_benchmark_measures_every_figure_that_has_a_target(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "planner_load.py"), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(out.read_text())
    scale = results["scale"]
    assert [row["name"] for row in results["targets"] if row["name"] not in run.stdout] == []
    for row in results["latency"]:
        assert row["reports"] == scale["reports"]
        assert 0 < row["plan_p50_seconds"] <= row["plan_p99_seconds"]
    # Who waits for each plan gets one per report.
    assert {row["plans_of_job_min"] for row in results["latency"] if row["way"] == "closed"} == {scale["reports"]}
    for name in ("large_flood", "small_flood", "many_jobs"):
        row = results[name]
        assert row["reports"] > 0
        assert 0 <= row["plans_of_job_min"] <= row["plans_of_job_max"]
        for probe in ("livez", "health", "metrics"):
            assert 0 < row[f"{probe}_p50_seconds"] <= row[f"{probe}_p99_seconds"]
        assert row["planner_cpu_milliseconds_per_report"] > 0
    assert results["memory"]["has_torch"] is False
    assert results["memory"]["idle_bytes"] > 10**7
    assert results["restart"]["listening_to_plan_seconds"] > 0
