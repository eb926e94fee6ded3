from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import pytest
from link_samples import eventually
from planner_client import CALL_SECONDS
from routing_samples import make_report, make_spec
from scraped import samples_of

from taot_api import RankTelemetry
from taot_api.v1 import planner_pb2 as pb
from taot_planning import Gate, LayerProblem, Level, Topology, plan_from_guests, rank_loads
from taot_service.change_feed import MAX_READERS
from taot_service.config import ServiceConfig
from taot_service.http_app import create_http_app
from taot_service.layer_view import GATE_TEXTS
from taot_service.planner import Planner

CHANGES = {"x-taot-request": "1"}


@pytest.fixture
def http(planner):
    with httpx.Client(
        base_url=f"http://127.0.0.1:{planner.http_port}", timeout=CALL_SECONDS, trust_env=False
    ) as opened:
        yield opened


def detail_of(http, session_id):
    response = http.get(f"/v1/sessions/{session_id}")
    assert response.status_code == 200, response.text
    return response.json()


def test_a_session_tells_its_topology_layers_and_recent_past(http, client):
    spec = make_spec(experts_L=(8, 4))
    session_id = client.open(spec)
    new = detail_of(http, session_id)
    assert new["topology"]["domains"] == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert [(level["name"], level["cost"]) for level in new["topology"]["levels"]] == [("node", 1.0), ("cluster", 3.0)]
    assert [(layer["name"], layer["experts"]) for layer in new["layers"]] == [("layers.0", 8), ("layers.1", 4)]
    assert [layer["imbalance_planned"] for layer in new["layers"]] == [None, None]
    assert new["reports"] == new["plans"] == []
    ranks = tuple(RankTelemetry(computed_tokens_L=np.array([100 * (rank == 0) + 100, 0])) for rank in range(4))
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=3, telemetry_R=ranks))
    told = detail_of(http, session_id)
    assert [layer["imbalance_planned"] for layer in told["layers"]] == [
        pytest.approx(stats.imbalance_after) for stats in plan.layer_stats_L
    ]
    # Loads 200, 100, 100, 100: (200 - 125) / 125. Nothing was computed in the other layer.
    assert [layer["imbalance_realised"] for layer in told["layers"]] == [pytest.approx(0.6), None]
    [report] = told["reports"]
    assert (report["step"], report["imbalance_realised"], report["applied_version"]) == (3, pytest.approx(0.6), None)
    [point] = told["plans"]
    assert (point["version"], point["source_step"]) == (plan.identity.version, 3)
    assert point["guests"] == sum(int((guests_RK != -1).sum()) for guests_RK in plan.guests_L)


def test_a_layer_tells_loads_guests_and_why(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    report = make_report(spec, step=1)
    plan = client.report_and_wait(session_id, spec, report)
    for index, layer in enumerate(spec.layers):
        told = http.get(f"/v1/sessions/{session_id}/layers/{index}").json()
        problem = LayerProblem(counts_RE=report.counts_L[index], home_E=layer.home_E, topology=spec.topology)
        # Worked out once more from the plan that the ranks got.
        again = plan_from_guests(problem, plan.guests_L[index])
        assert told["loads"]["static"] == rank_loads(problem.counts_RE, problem.home_E).tolist()
        assert told["loads"]["planned"] == again.loads_R(problem).tolist()
        assert told["guests"]
        for guest in told["guests"]:
            assert plan.guests_L[index][guest["rank"], guest["slot"]] == guest["expert"]
            assert guest["home"] == guest["source"] == layer.home_E[guest["expert"]]
            is_across = guest["home"] // 2 != guest["rank"] // 2
            assert (guest["level_name"], guest["cost"]) == (("cluster", 3.0) if is_across else ("node", 1.0))
            assert guest["tokens"] == again.tokens_RK[guest["rank"], guest["slot"]]
        assert sum(guest["cost"] for guest in told["guests"]) == pytest.approx(plan.layer_stats_L[index].weighted_cost)
        assert [gate["name"] for gate in told["gates"]] == list(plan.gates_L[index])
        assert sum(each["is_chosen"] for each in told["considered"]) <= 1


def test_a_relayed_guest_names_the_rank_that_passes_it_on(http, client):
    topology = Topology(
        levels=(Level(name="node", transfer_cost_milli=1000), Level(name="cluster", transfer_cost_milli=5000)),
        domains_RV=np.array([[0, 0], [1, 0], [1, 0]]),
        slots_R=np.array([1, 1, 1]),
        has_relay=True,
    )
    spec = make_spec(num_ranks=3, experts_L=(3,), top_k=1, topology=topology, recent_reports=0)
    session_id = client.open(spec)
    counts_RE = np.array([[90, 0, 0], [90, 0, 0], [90, 0, 0]])  # everything for expert 0, at home on rank 0
    report = make_report(spec, step=1, num_tokens=90, counts_L=(counts_RE,))
    client.report_and_wait(session_id, spec, report)
    guests = http.get(f"/v1/sessions/{session_id}/layers/0").json()["guests"]
    assert sorted((guest["home"], guest["source"], guest["rank"], guest["cost"]) for guest in guests) == [
        (0, 0, 1, 5.0),
        (0, 1, 2, 1.0),
    ]


def test_the_plan_is_handed_out_as_a_file(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    assert http.get(f"/v1/sessions/{session_id}/plan").status_code == 404
    plans = [client.report_and_wait(session_id, spec, make_report(spec, step=step)) for step in (1, 2)]
    newest = http.get(f"/v1/sessions/{session_id}/plan")
    version = plans[1].identity.version
    assert (
        newest.headers["content-disposition"] == f'attachment; filename="{spec.training_job}-ep0-plan-{version}.json"'
    )
    assert newest.json()["digest"] == plans[1].digest().hex()
    older = http.get(f"/v1/sessions/{session_id}/plan", params={"version": plans[0].identity.version}).json()
    assert [layer["guest_experts"] for layer in older["layers"]] == [guests.tolist() for guests in plans[0].guests_L]
    assert http.get(f"/v1/sessions/{session_id}/plan", params={"version": 10**9}).status_code == 404


@pytest.mark.parametrize("path", ["", "/plan", "/layers/0"])
def test_what_is_not_there_is_not_found(http, client, path):
    assert http.get(f"/v1/sessions/nobody{path}").status_code == 404
    session_id = client.open(make_spec())
    assert http.get(f"/v1/sessions/{session_id}/layers/2").status_code == 404
    assert http.get(f"/v1/sessions/{session_id}/layers/-1").status_code == 404


def test_looking_at_a_session_does_not_keep_it_alive(http, client, planner):
    session_id = client.open(make_spec())
    session = next(each for each in planner.planner.sessions if each.session_id == session_id)
    seen_seconds = session.seen_seconds
    for path in ("", "/layers/0", "/plan"):
        http.get(f"/v1/sessions/{session_id}{path}")
    http.post(f"/v1/sessions/{session_id}/pause", headers=CHANGES)
    assert session.seen_seconds == seen_seconds


def test_a_pause_reaches_the_ranks_with_their_next_report_and_ends(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    assert http.post(f"/v1/sessions/{session_id}/pause", headers=CHANGES).json()["is_paused"]
    assert client.report(session_id, make_report(spec, step=1)).is_paused
    assert detail_of(http, session_id)["reports"][-1]["is_paused"]
    shown = ("taot_paused", (("group", spec.group), ("training_job", spec.training_job)))
    assert samples_of(http)[shown] == 1
    assert not http.post(f"/v1/sessions/{session_id}/resume", headers=CHANGES).json()["is_paused"]
    assert not client.report(session_id, make_report(spec, step=2)).is_paused
    assert samples_of(http)[shown] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/x-www-form-urlencoded"},
        CHANGES | {"origin": "http://elsewhere.example"},
        CHANGES | {"origin": "null"},
        CHANGES | {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_page_of_another_site_cannot_pause(http, client, headers):
    session_id = client.open(make_spec())
    assert http.post(f"/v1/sessions/{session_id}/pause", headers=headers).status_code == 403
    assert not detail_of(http, session_id)["session"]["is_paused"]


def test_the_loopback_does_not_answer_to_names_of_strangers(http):
    assert http.get("/v1/sessions", headers={"host": "stranger.example:8080"}).status_code == 421
    assert http.get("/v1/sessions", headers={"host": "localhost:8080"}).status_code == 200


def test_events_tell_of_sessions_and_their_changes(http, client):
    spec = make_spec()
    with http.stream("GET", "/v1/events") as stream:
        events = read_events(stream)
        name, told = next(events)
        assert name == "sessions"
        session_id = client.open(spec)
        while session_id not in {row["session_id"] for row in told["sessions"]}:
            name, told = next(events)
        client.report_and_wait(session_id, spec, make_report(spec, step=1))
        while not (name == "session" and told["plans"]):
            name, told = next(events)
        assert (told["session_id"], told["reports"]) == (session_id, 1)
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
        while name != "sessions" or session_id in {row["session_id"] for row in told["sessions"]}:
            name, told = next(events)


def read_events(stream):
    name = None
    for line in stream.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_readers_beyond_the_most_are_turned_away(http, planner):
    readers = planner.on_loop(lambda: [planner.planner.changes.subscribe() for _ in range(MAX_READERS)])
    try:
        assert http.get("/v1/events").status_code == 503
    finally:
        planner.on_loop(lambda: [reader.close() for reader in readers])


def test_a_reader_that_goes_leaves_nothing_behind(http, planner):
    with http.stream("GET", "/v1/events") as stream:
        events = read_events(stream)  # kept: who drops it closes the connection
        next(events)
        assert planner.planner.changes.num_readers == 1
    assert eventually(lambda: planner.planner.changes.num_readers == 0, seconds=CALL_SECONDS)


def test_events_end_when_the_planner_drains():
    async def scenario():
        planner = Planner(ServiceConfig())
        transport = httpx.ASGITransport(app=create_http_app(planner))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            planner.begin_drain()
            told = await asyncio.wait_for(http.get("/v1/events"), CALL_SECONDS)
            await planner.close()
            return told

    told = asyncio.run(scenario())
    assert told.headers["content-type"].startswith("text/event-stream")
    assert told.text == "event: end\ndata: {}\n\n"


def test_every_gate_is_put_into_words():
    assert set(GATE_TEXTS) == set(Gate)
