"""The planner of one job, from the job's first step until it has ended or comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from running_planner import PlannerProcess, planner_process

pytestmark = pytest.mark.slow

FLAGS = ["--exit-when-idle", "0", "--lease-seconds", "600"]


def run_job(planner: PlannerProcess, how: str) -> int:
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, str(here / "ending_job.py"), planner.address, how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path])},
        capture_output=True,
        timeout=100,
        check=False,
    ).returncode


def sessions(planner: PlannerProcess) -> list[dict[str, object]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{planner.http_port}/v1/sessions", timeout=20) as answer:
        return json.load(answer)["sessions"]


@pytest.mark.timeout(240)
def test_a_job_that_ends_says_goodbye_and_its_planner_ends_too():
    with planner_process(flags=FLAGS) as planner:
        assert run_job(planner, "end") == 0
        assert planner.wait() == 0


@pytest.mark.timeout(360)
def test_a_job_that_crashes_says_no_goodbye_and_finds_its_planner_again():
    with planner_process(flags=FLAGS) as planner:
        assert run_job(planner, "crash") == 1
        (session,) = sessions(planner)
        assert session["training_job"] == "ending"
        assert planner.process.poll() is None
        assert run_job(planner, "end") == 0
        assert planner.wait() == 0
        assert "replaced by a newer incarnation of its group" in planner.stderr
