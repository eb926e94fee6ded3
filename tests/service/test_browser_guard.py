from __future__ import annotations

from pathlib import Path

import pytest

from taot_service.browser_guard import BrowserGuard
from taot_service.config import ServiceConfig

OPEN = ServiceConfig(host="0.0.0.0")
NAMED = ServiceConfig(host="0.0.0.0", allowed_hosts="taot.example.com, Other.example")
LOCKED = ServiceConfig(host="0.0.0.0", tokens=Path("tokens"))


@pytest.mark.parametrize(
    ("host_header", "config", "is_refused"),
    [
        ("127.0.0.1:8080", ServiceConfig(), False),
        ("localhost:9000", ServiceConfig(), False),
        ("[::1]:8080", ServiceConfig(host="::1"), False),
        ("taot.localhost", ServiceConfig(), False),
        ("stranger.example", ServiceConfig(), True),
        ("127.0.0.1.stranger.example", ServiceConfig(), True),
        ("localhost.stranger.example", ServiceConfig(host="localhost"), True),
        ("planner", ServiceConfig(), True),
        ("", ServiceConfig(), True),
        ("[broken", ServiceConfig(), True),
        ("stranger.example", ServiceConfig(allowed_hosts="stranger.example"), False),
        ("stranger.example", ServiceConfig(tokens=Path("tokens")), False),
        # Elsewhere: names that strangers can own may be made to lead here.
        ("stranger.example:8080", OPEN, True),
        ("taot-planner.training", OPEN, True),  # `training` is a domain of the internet
        ("planner.local.stranger.example", OPEN, True),
        ("", OPEN, True),
        ("10.0.0.7:8080", OPEN, False),
        ("[fd00::7]:8080", OPEN, False),
        ("planner:8080", OPEN, False),
        ("taot-planner.training.svc:8080", OPEN, False),
        ("planner.cluster.local", OPEN, False),
        ("taot.example.com:8080", NAMED, False),
        ("other.example", NAMED, False),
        ("sub.taot.example.com", NAMED, True),
        ("stranger.example", LOCKED, False),
    ],
)
def test_names_that_the_planner_answers_to(host_header, config, is_refused):
    assert (BrowserGuard.of(config).why_host_refused(host_header) is not None) == is_refused


@pytest.mark.parametrize(
    ("origin", "fetch_site", "has_header", "is_refused"),
    [
        (None, None, True, False),  # curl
        ("http://127.0.0.1:8080", "same-origin", True, False),
        ("https://127.0.0.1:8080", None, True, False),  # behind a proxy with TLS
        ("http://127.0.0.1:8081", None, True, True),
        ("http://127.0.0.1:8080", "same-site", True, True),
        ("null", None, True, True),
        ("http://127.0.0.1:8080", "same-origin", False, True),
    ],
)
@pytest.mark.parametrize("config", [OPEN, LOCKED])
def test_changes_that_are_let_through(config, origin, fetch_site, has_header, is_refused):
    why = BrowserGuard.of(config).why_change_refused(
        origin=origin, fetch_site=fetch_site, host_header="127.0.0.1:8080", has_request_header=has_header
    )
    assert (why is not None) == is_refused


@pytest.mark.parametrize(
    ("host", "config", "is_refused"),
    [
        ("stranger.example:8080", OPEN, True),  # made to lead here, so that its page counts as ours
        ("planner:8080", OPEN, True),
        ("10.0.0.7:8080", OPEN, False),
        ("[fd00::7]:8080", OPEN, False),
        ("localhost:8080", OPEN, False),
        ("taot.example.com:8080", NAMED, False),
        ("taot.example.com:8080", LOCKED, False),  # a login belongs to the name under which it was made
    ],
)
def test_a_browser_changes_nothing_under_a_name_that_strangers_could_have_made(host, config, is_refused):
    guard = BrowserGuard.of(config)
    from_page = {"origin": f"http://{host}", "fetch_site": "same-origin", "has_request_header": True}
    assert (guard.why_change_refused(host_header=host, **from_page) is not None) == is_refused
    assert guard.why_change_refused(origin=None, fetch_site=None, host_header=host, has_request_header=True) is None
