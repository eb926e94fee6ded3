"""The link to planners that are locked: real TLS, tokens that are rotated, and what nobody gets to see."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import timedelta

import pytest
from access_samples import JOB_A, JOB_B, UNKNOWN, write_tokens
from certificates import Authority
from link_samples import WAIT, eventually, report, spec
from rank_threads import Rank, run_ranks
from running_planner import running_planner
from tiny_moe import TinyConfig, TinyMoE

from taot_client import Agent, AgentOptions, PlannerAccess
from taot_client.agent import _facts
from taot_client.planner.planner_channel import _stays_here
from taot_client.planner.planner_link import PlannerLink
from taot_service.config import ServiceConfig

NO_WAIT = timedelta(milliseconds=1)


@pytest.fixture
def folder(tmp_path):
    """Certificates of an authority, and tokens of two jobs."""
    authority = Authority()
    authority.write(tmp_path)
    authority.issue("planner").write(tmp_path, "server")
    authority.issue("agent").write(tmp_path, "agent")
    write_tokens(tmp_path / "tokens")
    return tmp_path


@pytest.fixture
def locked(folder):
    """A planner with everything that locks it."""
    config = ServiceConfig(
        tls_cert=folder / "server.crt",
        tls_key=folder / "server.key",
        tls_client_ca=folder / "ca.crt",
        tokens=folder / "tokens",
    )
    with running_planner(config, is_warm_awaited=False) as planner:
        yield planner


def key_of(folder, **changes) -> PlannerAccess:
    files = {"ca": folder / "ca.crt", "client_cert": folder / "agent.crt", "client_key": folder / "agent.key"}
    return PlannerAccess(**(files | {"token": JOB_A} | changes))


def test_a_job_with_token_and_certificate_gets_plans_also_where_proxies_are_set(locked, folder, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    link = PlannerLink(locked.address, spec(training_job="job-a"), key_of(folder))
    assert link.start(wait=WAIT) is None
    link.report(report())
    assert eventually(lambda: link.plan is not None, seconds=100)
    assert link.plan_now(report(1), layer=0, deadline=WAIT) is not None
    link.close()
    assert locked.planner.sessions == ()  # it has said goodbye


def test_the_environment_fills_in_what_is_left_out(locked, folder, monkeypatch):
    (folder / "token").write_text(JOB_A + "\n")
    monkeypatch.setenv("TAOT_PLANNER_CA", str(folder / "ca.crt"))
    monkeypatch.setenv("TAOT_PLANNER_CLIENT_CERT", str(folder / "agent.crt"))
    monkeypatch.setenv("TAOT_PLANNER_CLIENT_KEY", str(folder / "agent.key"))
    monkeypatch.setenv("TAOT_TOKEN_FILE", str(folder / "token"))
    link = PlannerLink(locked.address, spec(training_job="job-a"))
    assert link.start(wait=WAIT) is None
    assert link.is_connected
    link.close()


def test_what_is_given_comes_before_the_environment():
    variables = {"ca": "c", "token": "t", "client_cert": "cc", "client_key": "ck"}
    assert PlannerAccess().completed(variables) == PlannerAccess(**variables)
    assert PlannerAccess(token_file="f", ca="own").completed(variables) == PlannerAccess(
        token_file="f", ca="own", client_cert="cc", client_key="ck"
    )


@pytest.mark.parametrize(
    "changes",
    [{"token": UNKNOWN}, {"token": JOB_B}, {"token": None}, {"ca": "other"}, {"client_cert": None, "client_key": None}],
)
def test_a_planner_that_lets_the_job_not_in_never_stops_training(locked, folder, changes, caplog):
    if changes.get("ca") == "other":
        changes = {"ca": Authority("other").write(folder, "other")}
    link = PlannerLink(locked.address, spec(training_job="job-a"), key_of(folder, **changes))
    assert link.start(wait=timedelta(seconds=1)) is None
    assert not link.is_connected
    if "token" in changes:
        assert eventually(lambda: "does not let this job in" in caplog.text)
        eventually(lambda: False, seconds=0.5)  # it asks again, and says it once
        assert caplog.text.count("does not let this job in") == 1
    assert locked.planner.sessions == ()
    link.close()


def test_a_token_that_is_replaced_in_its_file_opens_the_session_again(locked, folder):
    token_file = folder / "token"
    token_file.write_text(JOB_A)
    access = key_of(folder, token=None, token_file=token_file)
    link = PlannerLink(locked.address, spec(training_job="job-a"), access)
    assert link.start(wait=WAIT) is None
    write_tokens(folder / "tokens", (("job=job-a", UNKNOWN),))
    locked.on_loop(locked.locks.refresh)
    link.report(report())
    assert eventually(lambda: not link.is_connected)
    token_file.write_text(UNKNOWN)
    assert eventually(lambda: link.is_connected)
    link.report(report(1))
    assert eventually(lambda: locked.planner.sessions[0].num_reports == 1)
    link.close()


def test_a_certificate_that_is_replaced_is_used_for_the_next_connection(folder):
    """The authority of agents changes, and an agent that runs follows."""
    other = Authority("other")
    other.write(folder, "agents")
    config = ServiceConfig(
        tls_cert=folder / "server.crt", tls_key=folder / "server.key", tls_client_ca=folder / "agents.crt"
    )
    with running_planner(config, is_warm_awaited=False) as planner:
        link = PlannerLink(planner.address, spec(training_job="job-a"), key_of(folder, token=None))
        assert link.start(wait=NO_WAIT) is None
        assert not eventually(lambda: link.is_connected, seconds=1)
        other.issue("agent").write(folder, "agent")
        assert eventually(lambda: link.is_connected)
        link.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ca": "absent"}, "PlannerAccess.ca"),
        ({"token": None, "token_file": "absent"}, "PlannerAccess.token_file"),
        ({"client_cert": "ca.crt"}, "client_cert"),
        ({"token": "two words"}, "the token for the planner must be"),
        ({"token": ""}, "the token for the planner must be"),
    ],
)
def test_files_that_cannot_be_used_end_the_start_on_every_rank(folder, changes, named):
    paths = {key: folder / value if key != "token" and value else value for key, value in changes.items()}
    access = key_of(folder, **paths)

    def body(rank: Rank) -> str:
        options = AgentOptions(planner_address="127.0.0.1:1", planner_access=access)
        with pytest.raises(ValueError, match="refuses") as caught:
            Agent(TinyMoE(TinyConfig(), rank.group), options, groups=rank.agent_groups)
        return str(caught.value)

    messages = run_ranks(2, body)
    assert all(named in message for message in messages)
    assert "two words" not in "".join(messages)


def test_a_token_is_in_no_text_and_ranks_may_differ_in_it(locked, folder, caplog):
    caplog.set_level(logging.DEBUG)
    options = AgentOptions(planner_address=locked.address, planner_access=key_of(folder), training_job="job-a")
    assert JOB_A not in repr(options)
    assert JOB_A not in repr(options.planner_access)
    facts = _facts((), options, disabled=False)
    assert JOB_A not in str(facts)
    assert not [name for name in facts if "access" in name]

    def body(rank: Rank) -> None:
        own = asdict(options) | {"planner_access": key_of(folder, token=JOB_A if rank.group.rank == 0 else JOB_B)}
        agent = Agent(TinyMoE(TinyConfig(), rank.group), AgentOptions(**own), groups=rank.agent_groups)
        assert agent.planner_stats.get("connected", True)
        agent.close()

    run_ranks(2, body)
    assert "job-a" in caplog.text
    assert JOB_A not in caplog.text


def test_a_token_in_plain_text_over_a_network_is_warned_of(caplog):
    for address, is_warned in (("127.0.0.1:1", False), ("[::1]:1", False), ("unix:/none", False), ("10.0.0.7:1", True)):
        caplog.clear()
        link = PlannerLink(address, spec(), PlannerAccess(token=JOB_A))
        link.start(wait=NO_WAIT)
        link.close()
        assert ("travels in plain text" in caplog.text) == is_warned, address
        assert JOB_A not in caplog.text


@pytest.mark.parametrize("address", ["planner:50051", "dns:///planner:50051", "0.0.0.0:1", "localhost.example:1"])
def test_other_addresses_lead_elsewhere(address):
    assert not _stays_here(address)


def test_half_a_pair_is_refused():
    for fields in ({"token": "a", "token_file": "b"}, {"client_cert": "a"}, {"client_key": "a"}):
        with pytest.raises(ValueError, match="token or token_file|go together"):
            PlannerAccess(**fields)


def test_a_wrong_environment_is_refused_at_start_where_all_ranks_hear_of_it(monkeypatch):
    monkeypatch.setenv("TAOT_TOKEN", JOB_A)
    monkeypatch.setenv("TAOT_TOKEN_FILE", "/none")
    refusal = PlannerLink("127.0.0.1:1", spec()).start(wait=NO_WAIT)
    assert refusal is not None
    assert "token or token_file" in refusal


def test_a_broken_file_and_a_lock_are_each_told_once(locked, folder, caplog):
    token_file = folder / "token"
    token_file.write_text(UNKNOWN)
    access = key_of(folder, token=None, token_file=token_file)
    link = PlannerLink(locked.address, spec(training_job="job-a"), access)
    link.start(wait=WAIT / 20)
    assert eventually(lambda: "does not let this job in" in caplog.text)
    for _ in range(2):
        told = caplog.text.count("the last one stays in use")
        token_file.write_text("two words")
        assert eventually(lambda told=told: caplog.text.count("the last one stays in use") == told + 1)
        refused = link._unsent._errors["call_failed"]
        assert eventually(lambda refused=refused: link._unsent._errors["call_failed"] > refused + 2)
        assert caplog.text.count("the last one stays in use") == told + 1
        token_file.write_text(UNKNOWN)
        assert eventually(lambda: link._channel._complaint == "")
    assert caplog.text.count("does not let this job in") == 1
    token_file.write_text(JOB_A)
    assert eventually(lambda: link.is_connected)
    link.close()


def test_authorities_may_have_names_in_any_language(locked, folder):
    bundle = folder / "bundle.crt"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + (folder / "ca.crt").read_bytes())
    link = PlannerLink(locked.address, spec(training_job="job-a"), key_of(folder, ca=bundle))
    assert link.start(wait=WAIT) is None
    assert link.is_connected
    link.close()
