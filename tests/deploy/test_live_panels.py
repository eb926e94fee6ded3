"""Every query of every panel, asked of a real Prometheus that scrapes a live planner while a job trains."""

from __future__ import annotations

import math
import time

import pytest
from deploy_files import DEPLOY, QUERIES, with_values
from prometheus_tools import find_tool

from taot_cli.child_process import ChildProcess
from taot_cli.local_planner import local_planner
from taot_cli.local_prometheus import LocalPrometheus, local_prometheus
from taot_cli.training_example import training_command

JOB = "live-panels"
STEPS = 60
RUN_SECONDS = 400
RATE_WINDOW = "15s"
"""Rates need two scrapes; the whole run may be short."""


def train_watched(training: ChildProcess, prometheus: LocalPrometheus) -> float:
    """Follows the training run to its end; returns when Prometheus last saw its job with all that it measures."""
    seen_seconds = 0.0
    bound = time.monotonic() + RUN_SECONDS
    while training.is_running():
        assert time.monotonic() < bound, "the training run hangs"
        for sample in prometheus.query(f'timestamp(taot_imbalance_realised{{training_job="{JOB}"}})'):
            seen_seconds = float(sample["value"][1])
        time.sleep(0.2)  # between two looks, nothing is waited for
    return seen_seconds


def empty_queries(prometheus: LocalPrometheus, *, at_seconds: float) -> list[str]:
    """The queries that give nothing, or no number."""
    empty = []
    for query in QUERIES:
        expr = with_values(query.expr, training_job=JOB, __rate_interval=RATE_WINDOW)
        values = [float(each["value"][1]) for each in prometheus.query(expr, at_seconds=at_seconds)]
        if not values or any(math.isnan(value) for value in values):
            empty.append(f"{query}: {expr} gave {values}")
    return empty


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_panel_shows_data_while_a_job_trains(tmp_path):
    find_tool("prometheus")
    with (
        local_planner(tmp_path) as planner,
        local_prometheus(tmp_path, http_port=planner.http_port, rules=DEPLOY / "prometheus/rules") as prometheus,
    ):
        arguments = ["--steps", str(STEPS), "--ranks-per-node", "1", "--planner", planner.address]
        command = training_command("--job", JOB, *arguments, ranks=2)
        with ChildProcess("training", command, folder=tmp_path) as training:
            seen_seconds = train_watched(training, prometheus)
        assert seen_seconds, "Prometheus never saw the job"
        assert len(QUERIES) > 50
        assert empty_queries(prometheus, at_seconds=seen_seconds) == []
