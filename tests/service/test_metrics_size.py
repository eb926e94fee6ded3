"""How large /metrics becomes, and that promtool has nothing to say about it."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from planner_client import CALL_SECONDS, PlannerClient
from prometheus_tools import find_tool
from routing_samples import make_report, make_spec

from taot_api import RankTelemetry, SessionSpec
from taot_api.routing_report import AGENT_ERROR_REASONS, FALLBACK_REASONS
from taot_api.v1 import planner_pb2 as pb
from taot_service.config import ServiceConfig

MAX_LINES = 2000
JOBS = 100
LAYERS = 48


@pytest.fixture
def scrape(http) -> Callable[[], str]:
    return lambda: http.get("/metrics").text


def series_of(text: str) -> list[str]:
    """Names and labels without values."""
    return [line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines()]


def large_spec(job: int) -> SessionSpec:
    """A job of many layers whose plans come at once and with a predicted gain: every figure of a group is known."""
    shape = {"num_ranks": 2, "experts_L": (4,) * LAYERS, "top_k": 1, "slots": 1}
    spec = make_spec(training_job=f"crowd-{job}", algorithm="static", **shape)
    levels = tuple(dataclasses.replace(level, bandwidth_bytes_per_second=10**9) for level in spec.topology.levels)
    return dataclasses.replace(
        spec,
        topology=dataclasses.replace(spec.topology, levels=levels),
        layers=tuple(dataclasses.replace(layer, token_picoseconds=10**9) for layer in spec.layers),
    )


def report_everything(client: PlannerClient, session_id: str, spec: SessionSpec) -> None:
    """Lets a job report all reasons there are, and waits for its plan."""
    counts_RE = np.array([[10, 4, 1, 1], [10, 4, 1, 1]])
    rank = RankTelemetry(
        computed_tokens_L=np.arange(LAYERS) + 1,
        fallbacks=dict.fromkeys([*FALLBACK_REASONS, "unheard of"], 1),
        errors=dict.fromkeys([*AGENT_ERROR_REASONS, "unheard of"], 1),
    )
    fields = {"valid_tokens_R": np.full(2, 16), "counts_L": (counts_RE,) * LAYERS, "telemetry_R": (rank, rank)}
    client.report_and_wait(session_id, spec, make_report(spec, step=1, **fields))
    client.report(session_id, make_report(spec, step=1, micro_batch=1, **fields))


def test_a_crowd_of_large_jobs_stays_within_the_limits_and_leaves_nothing_behind(planner, client, scrape):
    base = series_of(scrape())
    opened = [(client.open(spec), spec) for spec in map(large_spec, range(JOBS))]
    for session_id, spec in opened:
        report_everything(client, session_id, spec)
    crowded = series_of(scrape())
    limits = ServiceConfig()
    print(f"{len(base)} lines without jobs, {len(crowded)} with {JOBS} jobs of {LAYERS} layers")
    assert len(crowded) < MAX_LINES
    assert f"taot_jobs_without_series {JOBS - limits.max_labelled_groups}" in scrape()
    assert sum(line.startswith("taot_step{") for line in crowded) == limits.max_labelled_groups
    layers = [line for line in crowded if line.startswith("taot_layer_imbalance{")]
    assert len(layers) == limits.max_layer_series // LAYERS * LAYERS
    for session_id, _ in opened:
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    assert series_of(scrape()) == base


def test_no_agents_could_fill_more_lines_than_the_default_limits_allow(planner, client, scrape):
    base = len(series_of(scrape()))
    spec = large_spec(0)
    session_id = client.open(spec)
    report_everything(client, session_id, spec)
    limits = ServiceConfig()
    per_group = len(series_of(scrape())) - base - LAYERS
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    most = base + limits.max_labelled_groups * per_group + limits.max_layer_series
    print(f"{per_group} lines a group, {most} at most")
    assert most < MAX_LINES


def test_promtool_has_nothing_to_say(planner, client, scrape):
    spec = large_spec(0)
    session_id = client.open(spec)
    report_everything(client, session_id, spec)
    text = scrape()
    assert "taot_layer_imbalance{" in text
    command = [find_tool("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
