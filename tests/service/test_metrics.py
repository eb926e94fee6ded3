"""What /metrics shows of a live planner, reported to over gRPC: values, names and labels."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from planner_client import CALL_SECONDS, planner_client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from routing_samples import make_report, make_spec
from running_planner import running_planner
from scraped import samples_of

from taot_api import RankTelemetry
from taot_api.routing_report import AGENT_ERROR_REASONS, FALLBACK_REASONS
from taot_api.v1 import planner_pb2 as pb
from taot_planning import PlanningOptions
from taot_service.config import ServiceConfig


def telemetry(**fields) -> RankTelemetry:
    return RankTelemetry(**({"computed_tokens_L": np.array([100, 10])} | fields))


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics_answer_directly_and_parse(http, path):
    response = http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in parse_text(response.text)}
    assert {"taot_sessions", "taot_reports", "taot_plans", "taot_planning_seconds", "taot_build_info"} <= names


def test_metrics_speak_openmetrics_when_asked(http):
    response = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "taot_sessions" in {family.name for family in parse_openmetrics(response.text)}


def test_metric_names_and_labels_keep_to_the_rules(http, client):
    spec = make_spec()
    report = make_report(spec, step=1, telemetry_R=(telemetry(fallbacks={"no_plan_yet": 1}),) * 4)
    client.report_and_wait(client.open(spec), spec, report)
    for family in parse_text(http.get("/metrics").text):
        assert not family.name.endswith("_created")
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"taot_[a-z_]+", family.name)
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|mb|percent|minutes)\b", family.name)
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            assert not {"job", "step", "version", "session", "session_id", "expert"} & set(sample.labels)


def test_what_the_ranks_measured_adds_up(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    ranks = tuple(
        telemetry(
            computed_tokens_L=np.array([100 * (rank == 0) + 100, 50]),
            exposed_transfer_seconds=0.5,
            transfer_seconds=2.0,
            intra_node_sent_bytes=10,
            inter_node_sent_bytes=100 * rank,
            fallbacks={"no_plan_yet": 2, "a reason nobody knows": 1},
            applied_layers=3,
            errors={"call_failed": 1, "another nobody knows": 2},
        )
        for rank in range(4)
    )
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=1, telemetry_R=ranks))
    for _ in range(3):
        client.report(session_id, make_report(spec, step=1, telemetry_R=ranks))  # repeats add nothing
    samples = samples_of(http)
    group = (("group", "ep0"), ("training_job", spec.training_job))
    assert samples["taot_exposed_transfer_seconds_total", group] == pytest.approx(2.0)
    assert samples["taot_hidden_transfer_seconds_total", group] == pytest.approx(6.0)
    assert samples["taot_applied_layers_total", group] == 12
    assert samples["taot_agent_errors_total", (group[0], ("reason", "call_failed"), group[1])] == 4
    assert samples["taot_agent_errors_total", (group[0], ("reason", "other"), group[1])] == 8
    reach = {reach: (group[0], ("reach", reach), group[1]) for reach in ("intra_node", "inter_node")}
    assert samples["taot_sent_bytes_total", reach["intra_node"]] == 40
    assert samples["taot_sent_bytes_total", reach["inter_node"]] == 600
    assert samples["taot_fallbacks_total", (group[0], ("reason", "no_plan_yet"), group[1])] == 8
    assert samples["taot_fallbacks_total", (group[0], ("reason", "other"), group[1])] == 4
    # Loads 200, 100, 100, 100 in one layer, even in the other: (200 - 125) / 125 / 2.
    assert samples["taot_imbalance_realised", group] == pytest.approx(0.3)
    assert samples["taot_imbalance_static", group] == pytest.approx(plan.stats.imbalance_before)
    assert samples["taot_imbalance_planned", group] == pytest.approx(plan.stats.imbalance_after)
    assert samples["taot_plan_weighted_cost", group] == pytest.approx(plan.stats.weighted_cost)
    guests = sum(samples["taot_plan_guests", labels] for labels in reach.values())
    assert guests == sum(int((guests_RK != -1).sum()) for guests_RK in plan.guests_L) > 0


def test_reports_and_plans_are_counted_by_what_became_of_them(http, client):
    def count(name, outcome):
        return samples_of(http).get((name, (("outcome", outcome),)), 0.0)

    spec = make_spec(plan_interval=2)
    session_id = client.open(spec)
    names = ("planned", "repeated", "rehearsal", "not_due")
    before = {name: count("taot_reports_total", name) for name in names}
    planned_before = count("taot_plans_total", "installed")
    client.report_and_wait(session_id, spec, make_report(spec, step=1))
    client.report(session_id, make_report(spec, step=1))
    client.report(session_id, make_report(spec, step=2))
    client.report(session_id, make_report(spec, step=3, is_rehearsal=True))
    assert {name: count("taot_reports_total", name) - before[name] for name in names} == dict.fromkeys(names, 1.0)
    assert count("taot_plans_total", "installed") == planned_before + 1


def test_a_report_whose_session_ends_before_a_thread_has_it_is_counted():
    with running_planner() as planner, planner_client(planner.address) as client:
        planner.on_loop(lambda: setattr(planner.planner._pool, "_num_free", 0))
        spec = make_spec()
        session_id = client.open(spec)
        client.report(session_id, make_report(spec, step=1))
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
        url = f"http://127.0.0.1:{planner.http_port}"
        with httpx.Client(base_url=url, timeout=CALL_SECONDS, trust_env=False) as http:
            assert samples_of(http)["taot_plans_total", (("outcome", "session_ended"),)] == 1
        planner.on_loop(lambda: setattr(planner.planner._pool, "_num_free", 1))


def test_the_phases_of_planning_add_up_to_the_time_from_report_to_plan(http, client):
    def seconds(samples):
        phases = {
            phase: samples["taot_planning_seconds_sum", (("phase", phase),)] for phase in ("queue", "solve", "publish")
        }
        return phases, samples["taot_report_to_plan_seconds_sum", ()]

    spec = make_spec()
    session_id = client.open(spec)
    before, before_total = seconds(samples_of(http))
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=1))
    after, after_total = seconds(samples_of(http))
    spent = {phase: after[phase] - before[phase] for phase in after}
    assert all(each > 0 for each in spent.values())
    assert spent["solve"] * ServiceConfig().solver_threads >= plan.stats.planning_seconds
    assert sum(spent.values()) == pytest.approx(after_total - before_total)


def test_what_a_session_is_known_by_follows_its_reports_and_plans(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    start = time.time()
    group = (("group", "ep0"), ("training_job", spec.training_job))
    opened = samples_of(http)
    assert opened["taot_applied_layers_total", group] == 0  # so that the first increase is one
    assert ("taot_step", group) not in opened
    client.report(session_id, make_report(spec, step=9, is_rehearsal=True, telemetry_R=(telemetry(),) * 4))
    assert ("taot_step", group) not in samples_of(http)
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=4))
    loads = {"computed_tokens_L": np.array([100, 10])}, {"computed_tokens_L": np.array([100, 50])}
    client.report(
        session_id,
        make_report(
            spec,
            step=7,
            applied_plan=plan.identity,
            telemetry_R=tuple(telemetry(**loads[rank == 2]) for rank in range(4)),
        ),
    )
    samples = samples_of(http)
    assert samples["taot_step", group] == 7
    assert samples["taot_plan_age_steps", group] == 3
    assert samples["taot_imbalance_realised", group] == pytest.approx((0 + 1.5) / 2)
    assert samples["taot_worst_layer", group] == 1
    assert samples["taot_worst_layer_imbalance", group] == pytest.approx(1.5)
    layers = [samples["taot_layer_imbalance", (group[0], ("layer", layer), group[1])] for layer in "01"]
    assert layers == pytest.approx([0, 1.5])
    for name in ("taot_last_report_timestamp_seconds", "taot_last_plan_timestamp_seconds"):
        assert start - 1 < samples[name, group] < time.time() + 1


def test_sessions_and_pauses_are_counted_while_they_last(http, client, planner):
    def shown():
        samples = samples_of(http)
        return samples["taot_sessions", ()], samples["taot_sessions_paused", ()]

    before = shown()
    session_id = client.open(make_spec())
    (session,) = [each for each in planner.planner.sessions if each.session_id == session_id]
    session.is_paused = True
    assert shown() == (before[0] + 1, before[1] + 1)
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    assert shown() == before
    assert samples_of(http)["taot_sessions_limit", ()] == ServiceConfig().max_sessions


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        ({}, {"guests": 1, "balanced": 1}),
        ({"options": PlanningOptions(tolerance_ppm=100_000_000)}, {"balanced": 2}),
        ({"options": PlanningOptions(min_imbalance_ppm=100_000_000)}, {"balanced": 2}),
        ({"options": PlanningOptions(min_tokens_per_guest=10_000)}, {"gated": 1, "balanced": 1}),
        ({"algorithm": "static"}, {"no_guests": 2}),
    ],
)
def test_layers_are_counted_by_what_came_of_them(http, client, options, outcomes):
    def counted():
        names = ("guests", "balanced", "gated", "no_guests")
        samples = samples_of(http)
        return {name: samples["taot_layers_planned_total", (("outcome", name),)] for name in names}

    spec = make_spec(top_k=1, **options)
    skewed_RE = np.zeros((4, 8), dtype=np.int64)
    skewed_RE[:, 0], skewed_RE[:, 1] = 40, 24
    even_RE = np.full((4, 8), 8)
    before = counted()
    client.report_and_wait(client.open(spec), spec, make_report(spec, step=1, counts_L=(skewed_RE, even_RE)))
    after = counted()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == outcomes


def test_predicted_gains_are_shown_where_they_are_known(http, client):
    silent = make_spec()
    levels = tuple(dataclasses.replace(level, bandwidth_bytes_per_second=10**9) for level in silent.topology.levels)
    spec = make_spec(
        topology=dataclasses.replace(silent.topology, levels=levels),
        layers=tuple(dataclasses.replace(layer, token_picoseconds=10**9) for layer in silent.layers),
    )
    session_ids = {each: client.open(each) for each in (silent, spec)}
    plans = {
        each: client.report_and_wait(session_ids[each], each, make_report(each, step=1)) for each in (silent, spec)
    }
    samples = samples_of(http)
    group = (("group", "ep0"), ("training_job", spec.training_job))
    gain_seconds = plans[spec].stats.predicted_gain_seconds
    assert gain_seconds > 0
    assert samples["taot_predicted_gain_seconds", group] == pytest.approx(gain_seconds, abs=1e-8)
    assert plans[silent].stats.predicted_gain_seconds is None
    assert ("taot_predicted_gain_seconds", (group[0], ("training_job", silent.training_job))) not in samples
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_ids[spec]), timeout=CALL_SECONDS)
    assert ("taot_predicted_gain_seconds", group) not in samples_of(http)


def test_gates_are_counted_by_layers_and_travel_with_the_plan(http, client):
    def counted():
        return samples_of(http).get(("taot_plan_gates_total", (("gate", "within_tolerance"),)), 0.0)

    spec = make_spec(options=PlanningOptions(tolerance_ppm=100_000_000))
    before = counted()
    plan = client.report_and_wait(client.open(spec), spec, make_report(spec, step=1))
    assert plan.gates_L == (("within_tolerance",), ("within_tolerance",))
    assert counted() == before + 2


def test_series_of_an_ended_session_are_removed(http, client):
    spec = make_spec(training_job="passing-by")
    session_id = client.open(spec)
    every = {
        "fallbacks": dict.fromkeys([*FALLBACK_REASONS, "unheard of"], 1),
        "errors": dict.fromkeys([*AGENT_ERROR_REASONS, "unheard of"], 1),
    }
    report = make_report(spec, step=1, telemetry_R=(telemetry(**every),) * 4)
    client.report_and_wait(session_id, spec, report)
    assert "passing-by" in http.get("/metrics").text
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    assert "passing-by" not in http.get("/metrics").text


def test_every_reason_that_the_agent_gives_has_a_series_of_its_own():
    import taot_client
    from taot_client.planner.step_record import ModeReason

    sources = "".join(path.read_text() for path in Path(taot_client.__file__).parent.rglob("*.py"))
    given = set(re.findall(r'note_fallback\("(\w+)"\)', sources))
    given |= {reason.name.lower() for reason in ModeReason} - {"as_configured"}
    assert given
    assert given <= FALLBACK_REASONS
