"""Who may ask what over HTTP, with a real planner: roles, logins, headers, and what stays out of the log."""

from __future__ import annotations

import logging
import socket
import ssl

import grpc
import httpx
import pytest
from access_samples import ADMIN, ANY_JOB, GRANTS, JOB_A, READ, UNKNOWN, bearer, write_tokens
from certificates import Authority
from planner_client import CALL_SECONDS, planner_client
from routing_samples import make_spec
from running_planner import planner_process, running_planner
from scraped import samples_of

from taot_api.v1 import planner_pb2 as pb
from taot_service.config import ServiceConfig
from taot_service.failure_bound import BURST
from taot_service.http_gate import PROBES
from taot_service.locks import exposure_warnings

CHANGES = {"x-taot-request": "1"}
READS = ("/v1/sessions", "/v1/sessions/none", "/v1/events", "/v1/access", "/metrics", "/metrics/", "/openapi.json")


@pytest.fixture
def token_file(tmp_path):
    return write_tokens(tmp_path / "tokens")


@pytest.fixture
def planner(token_file):
    with running_planner(ServiceConfig(tokens=token_file), is_warm_awaited=False) as started:
        yield started


@pytest.fixture
def http(planner):
    with browser_of(planner.http_port) as client:
        yield client


def browser_of(port: int, **options) -> httpx.Client:
    """A client that keeps cookies."""
    scheme = "https" if "verify" in options else "http"
    return httpx.Client(base_url=f"{scheme}://127.0.0.1:{port}", timeout=CALL_SECONDS, trust_env=False, **options)


def status_of(http, path: str, headers) -> int:
    with http.stream("GET", path, headers=headers) as response:  # events have no end
        return response.status_code


def test_the_api_document_names_what_the_gate_refuses(http):
    paths = http.get("/openapi.json", headers=bearer(READ)).json()["paths"]
    told = {path: operation["responses"].keys() for path, by in paths.items() for operation in by.values()}
    assert told.keys() > {"/login", "/metrics", "/v1/events", *PROBES}
    assert [path for path in told if path not in PROBES and not told[path] >= {"401", "403", "421", "429"}] == []


@pytest.mark.parametrize("path", READS)
def test_reading_needs_a_token_for_it(http, path):
    for headers in ({}, bearer(UNKNOWN), {"authorization": READ}, {"cookie": f"taot={READ}"}):
        assert status_of(http, path, headers) == 401
    for token in (JOB_A, ANY_JOB):
        assert status_of(http, path, bearer(token)) == 403
    for token in (READ, ADMIN):
        assert status_of(http, path, bearer(token)) == (404 if "none" in path else 200)


@pytest.fixture
def session_id(planner):
    return planner.on_loop(lambda: planner.planner.open_session(make_spec()).session_id)


@pytest.mark.parametrize("change", ["pause", "resume"])
def test_changes_need_an_admin(http, session_id, change):
    path = f"/v1/sessions/{session_id}/{change}"
    expected = {UNKNOWN: 401, JOB_A: 403, READ: 403, ADMIN: 200}
    for token, status in expected.items():
        response = http.post(path, headers=CHANGES | bearer(token))
        assert response.status_code == status, response.text
    assert http.post(path, headers=CHANGES).status_code == 401
    # A page of another site that somehow had the token would still be one of another site.
    assert http.post(path, headers=bearer(ADMIN)).status_code == 403
    assert http.post(path, headers=CHANGES | bearer(ADMIN) | {"origin": "http://other.example"}).status_code == 403


def test_whoever_asks_for_anything_unsafe_needs_an_admin_token(http):
    for method in ("PUT", "DELETE", "PATCH"):
        for path in ("/v1/sessions", "/", "/pages/main.js", "/login"):
            assert http.request(method, path).status_code == 401
            if path != "/login":
                assert http.request(method, path, headers=bearer(READ)).status_code == 403


def test_probes_and_the_files_of_the_login_need_none(http):
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").status_code in (200, 503)
    for path in ("/login", "/pages/login.js", "/pages/page.css"):
        assert http.get(path).status_code == 200
    for path in ("/", "/docs"):
        response = http.get(path)
        assert (response.status_code, response.headers["location"]) == (303, "/login")


def test_a_browser_logs_in_and_out(http, session_id):
    for token, status in ((UNKNOWN, 401), (JOB_A, 403), (READ, 204)):
        response = http.post("/login", headers=CHANGES | bearer(token))
        assert (response.status_code, "set-cookie" in response.headers) == (status, status == 204)
    cookie = response.headers["set-cookie"]
    assert READ not in cookie
    parts = {part.strip().split("=")[0].lower() for part in cookie.split(";")}
    assert {"httponly", "path", "max-age"} <= parts
    assert "secure" not in parts  # there is no TLS, and a browser would drop it
    assert "samesite=strict" in cookie.lower()
    assert http.get("/").status_code == 200
    assert http.get("/v1/access").json() == {"needs_token": True, "role": "read"}
    with http.stream("GET", "/v1/events") as stream:
        assert next(stream.iter_lines()) == "event: sessions"
    assert http.post(f"/v1/sessions/{session_id}/pause", headers=CHANGES).status_code == 403
    kept = dict(http.cookies)
    assert http.post("/logout", headers=CHANGES).status_code == 204
    assert dict(http.cookies) == {}
    http.cookies.update(kept)
    assert http.get("/v1/sessions").status_code == 401  # not only forgotten by the browser


def test_an_admin_pauses_with_a_login_and_no_other_site_can(http, session_id):
    http.post("/login", headers=CHANGES | bearer(ADMIN)).raise_for_status()
    path = f"/v1/sessions/{session_id}/pause"
    assert http.post(path, headers=CHANGES).status_code == 200
    for other in ({"origin": "http://other.example"}, {"sec-fetch-site": "cross-site"}):
        assert http.post(path, headers=CHANGES | other).status_code == 403
    assert http.post(path).status_code == 403
    # A wrong token that is shown counts, whoever is logged in.
    assert http.get("/v1/sessions", headers=bearer(UNKNOWN)).status_code == 401


def test_logging_in_from_another_site_is_refused(http):
    assert http.post("/login", headers=bearer(READ)).status_code == 403
    assert http.post("/login", headers=CHANGES | bearer(READ) | {"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_login_does_not_renew_itself(http):
    http.post("/login", headers=CHANGES | bearer(READ)).raise_for_status()
    response = http.post("/login", headers=CHANGES)
    assert (response.status_code, "set-cookie" in response.headers) == (401, False)
    assert http.get("/v1/sessions").status_code == 200


@pytest.mark.parametrize("other", ['session={"a":"b"}', "a b=c", "x=\u00fc", "=;;", 'y="', "a:b[0]=1"])
def test_a_login_holds_beside_cookies_of_other_programs(http, other):
    http.post("/login", headers=CHANGES | bearer(READ)).raise_for_status()
    ours = f"taot={http.cookies['taot']}"
    http.cookies.clear()
    for cookies in (f"{other}; {ours}", f"{ours}; {other}"):
        assert http.get("/v1/sessions", headers={"cookie": cookies.encode()}).status_code == 200


def test_a_login_ends_with_its_token(planner, http, token_file):
    http.post("/login", headers=CHANGES | bearer(READ)).raise_for_status()
    write_tokens(token_file, tuple(grant for grant in GRANTS if grant[1] != READ))
    planner.on_loop(planner.locks.refresh)
    assert http.get("/v1/sessions").status_code == 401
    write_tokens(token_file, (("admin", READ),))
    planner.on_loop(planner.locks.refresh)
    assert http.get("/v1/access").json()["role"] == "admin"


def test_refusals_are_counted_and_bounded_and_never_hold_up_a_good_token(http):
    codes = [http.get("/v1/sessions", headers=bearer(UNKNOWN)).status_code for _ in range(BURST + 30)]
    assert set(codes) == {401, 429}
    assert codes[0] == 401
    assert http.get("/v1/sessions", headers=bearer(READ)).status_code == 200
    http.headers.update(bearer(READ))
    counted = samples_of(http)
    name = "taot_http_refusals_total"
    assert counted[name, (("reason", "UNAUTHENTICATED"),)] == codes.count(401)
    assert counted[name, (("reason", "TOO_MANY_FAILURES"),)] == codes.count(429)
    assert counted[name, (("reason", "WRONG_HOST"),)] == 0


@pytest.mark.parametrize("path", ["/", "/login", "/docs", "/livez", "/metrics", "/v1/sessions", "/v1/none", "/none"])
def test_every_answer_carries_the_headers(http, path):
    for headers in ({}, bearer(READ), bearer(JOB_A)):
        answer = http.get(path, headers=headers).headers
        assert "frame-ancestors 'none'" in answer["content-security-policy"]
        assert "default-src 'none'" in answer["content-security-policy"]
        assert answer["x-content-type-options"] == "nosniff"
        assert answer["referrer-policy"] == "no-referrer"
        assert answer["cache-control"] in ("no-store", "no-cache")
        assert "strict-transport-security" not in answer
        assert "server" not in answer


def test_under_tls_cookies_are_secure_and_browsers_stay_with_tls(tmp_path, token_file):
    authority = Authority()
    certificate, key = authority.issue().write(tmp_path)
    config = ServiceConfig(tokens=token_file, tls_cert=certificate, tls_key=key)
    verify = ssl.create_default_context(cadata=authority.certificate.decode())
    with (
        running_planner(config, is_warm_awaited=False) as planner,
        browser_of(planner.http_port, verify=verify) as http,
    ):
        cookie = http.post("/login", headers=CHANGES | bearer(READ)).headers["set-cookie"]
        assert cookie.startswith("__Host-taot=")
        assert "secure" in cookie.lower()
        assert http.get("/v1/access").json()["role"] == "read"
        assert http.get("/livez", headers={"host": "planner.example"}).headers["strict-transport-security"]
        # Other programs of this machine share the name of the loopback.
        assert "strict-transport-security" not in http.get("/livez", headers={"host": "localhost"}).headers


def test_without_tokens_everybody_may_do_everything(http):
    with (
        running_planner(ServiceConfig(), is_warm_awaited=False) as planner,
        browser_of(planner.http_port) as open_http,
    ):
        assert open_http.get("/v1/access").json() == {"needs_token": False, "role": "admin"}
        response = open_http.post("/login", headers=CHANGES)
        assert (response.status_code, response.headers.get("set-cookie")) == (204, None)
        assert open_http.get("/v1/sessions", headers=bearer(UNKNOWN)).status_code == 200


def test_metrics_too_answer_to_names_of_the_planner_only():
    with running_planner(ServiceConfig(), is_warm_awaited=False) as planner, browser_of(planner.http_port) as http:
        for path in ("/metrics", "/", "/openapi.json"):
            assert http.get(path, headers={"host": "stranger.example"}).status_code == 421
        assert http.get("/livez", headers={"host": "stranger.example"}).status_code == 200
        assert samples_of(http)["taot_http_refusals_total", (("reason", "WRONG_HOST"),)] == 3


def test_no_token_is_ever_logged(token_file):
    """Everything that a planner process says, with the log of every library turned up."""
    flags = ("--tokens", str(token_file))
    with planner_process(flags=flags, is_warm_awaited=False, environment={"GRPC_VERBOSITY": "DEBUG"}) as planner:
        with browser_of(planner.http_port) as http:
            for token in (UNKNOWN, JOB_A, READ, ADMIN):
                http.get("/v1/sessions", headers=bearer(token))
                http.get(f"/v1/sessions/{token}")
                http.post("/login", headers=CHANGES | bearer(token))
                token_file.write_text(f"read {token}\n")
        metadata = [("authorization", f"Bearer {UNKNOWN}")]
        with planner_client(planner.address) as client, pytest.raises(grpc.RpcError):
            client.stub.GetPlan(pb.GetPlanRequest(), metadata=metadata, timeout=CALL_SECONDS)
        assert planner.terminate() == 0
        said = planner.stderr + planner.process.stdout.read()
    assert "refused GET '/v1/sessions' from 127.0.0.1" in said
    for token in (UNKNOWN, JOB_A, READ, ADMIN):
        assert token not in said
        assert token[-12:] not in said


def test_whoever_opens_the_planner_to_a_network_is_warned(tmp_path):
    tokens, certificate = tmp_path / "tokens", tmp_path / "server.crt"
    locked = {"tokens": tokens, "tls_cert": certificate, "tls_key": certificate}
    for host in ("127.0.0.1", "::1", "localhost"):
        assert exposure_warnings(ServiceConfig(host=host)) == []
    for host in ("0.0.0.0", "::", "10.0.0.7", "planner.example"):
        assert exposure_warnings(ServiceConfig(host=host, **locked)) == []
        assert len(exposure_warnings(ServiceConfig(host=host))) == 2
        (told,) = exposure_warnings(ServiceConfig(host=host, tokens=tokens))
        assert "plain text, tokens too" in told
        (told,) = exposure_warnings(ServiceConfig(host=host, **(locked | {"tokens": None})))
        assert "--tokens" in told


def test_the_log_names_a_refused_peer_once_in_a_row(http, caplog):
    caplog.set_level(logging.WARNING, logger="taot_service")
    for _ in range(5):
        http.get("/v1/sessions", headers=bearer(UNKNOWN))
    assert len([record for record in caplog.records if "refused" in record.message]) == 1


def test_nobody_says_from_where_they_come(http, caplog):
    caplog.set_level(logging.WARNING, logger="taot_service")
    codes = [
        http.get("/v1/sessions", headers=bearer(UNKNOWN) | {"x-forwarded-for": f"10.0.0.{number}"}).status_code
        for number in range(BURST + 30)
    ]
    assert 429 in codes
    (told,) = [record.message for record in caplog.records if "refused" in record.message]
    assert "from 127.0.0.1;" in told


def test_by_default_only_the_loopback_reaches_the_ports():
    with running_planner(ServiceConfig(), is_warm_awaited=False) as planner:
        for port in (planner.grpc_port, planner.http_port):
            socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS).close()
            # This machine under another address, which would do if the planner listened on all of them.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=CALL_SECONDS)
