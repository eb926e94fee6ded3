from __future__ import annotations

import asyncio

import httpx
import pytest
from planner_client import CALL_SECONDS
from routing_samples import make_report, make_spec

from taot_service.config import ServiceConfig
from taot_service.http_app import create_http_app
from taot_service.planner import Planner


def test_sessions_tell_people_what_goes_on(http, client):
    spec = make_spec()
    session_id = client.open(spec)
    rows = {row["session_id"]: row for row in http.get("/v1/sessions").json()["sessions"]}
    assert rows[session_id]["last_plan"] is None
    plan = client.report_and_wait(session_id, spec, make_report(spec, step=4))
    row = {row["session_id"]: row for row in http.get("/v1/sessions").json()["sessions"]}[session_id]
    told = {name: row[name] for name in ("training_job", "group", "ranks", "layers", "algorithm", "reports", "plans")}
    assert told == {
        "training_job": spec.training_job,
        "group": "ep0",
        "ranks": 4,
        "layers": 2,
        "algorithm": "taot",
        "reports": 1,
        "plans": 1,
    }
    assert row["last_plan"]["version"] == plan.identity.version
    assert row["last_plan"]["source_step"] == 4
    assert row["last_plan"]["imbalance_after"] == pytest.approx(plan.stats.imbalance_after)
    assert 0 <= row["idle_seconds"] <= row["age_seconds"] < CALL_SECONDS


@pytest.mark.parametrize("path", ["/redoc", "/nowhere"])
def test_pages_that_need_the_internet_are_off(http, path):
    assert http.get(path).status_code == 404


def test_readiness_follows_warmth_and_drain_while_liveness_stays():
    async def scenario():
        planner = Planner(ServiceConfig())
        transport = httpx.ASGITransport(app=create_http_app(planner))
        async with httpx.AsyncClient(transport=transport, base_url="http://planner") as http:

            async def codes():
                return [(await http.get(path)).status_code for path in ("/livez", "/readyz")]

            cold = await codes()
            await planner.warm_up()
            warm = await codes()
            planner.begin_drain()
            draining = await codes()
            await planner.close()
            return cold, warm, draining

    assert asyncio.run(scenario()) == ([200, 503], [200, 200], [200, 503])


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("get", "/v1/sessions/{session_id}", {}, 404),
        ("get", "/v1/sessions/{session_id}/plan", {}, 404),
        ("get", "/v1/sessions/{session_id}/layers/{index}", {}, 404),
        ("post", "/v1/sessions/{session_id}/pause", {}, 403),
        ("post", "/v1/sessions/{session_id}/resume", {}, 403),
        ("post", "/login", {}, 403),
        ("post", "/logout", {}, 403),
        ("get", "/v1/access", {"host": "elsewhere.example"}, 421),
        ("get", "/v1/sessions", {"host": "elsewhere.example"}, 421),
    ],
)
def test_the_api_document_names_the_refusals_that_are_given(http, client, method, path, headers, status):
    session_id = client.open(make_spec()) if method == "post" else "nobody"
    answer = http.request(method, path.format(session_id=session_id, index=0), headers=headers)
    assert answer.status_code == status
    responses = http.get("/openapi.json").json()["paths"][path][method]["responses"]
    schema = responses[str(status)]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith("/Refusal")
    assert list(answer.json()) == ["detail"]
