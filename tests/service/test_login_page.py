"""Logging in with a real browser, over TLS."""

from __future__ import annotations

import re

import pytest
from access_samples import ADMIN, JOB_A, READ, UNKNOWN, write_tokens
from browser import WAIT_MS, chromium
from certificates import Authority
from routing_samples import make_spec
from running_planner import running_planner

from taot_service.config import ServiceConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def planner(tmp_path):
    certificate, key = Authority().issue().write(tmp_path)
    config = ServiceConfig(tokens=write_tokens(tmp_path / "tokens"), tls_cert=certificate, tls_key=key)
    with running_planner(config, is_warm_awaited=False) as started:
        started.on_loop(lambda: started.planner.open_session(make_spec(training_job="shown")))
        yield started


@pytest.fixture
def page(browser, planner):
    context = browser.new_context(ignore_https_errors=True)  # the authority of the test is nobody's
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    opened.goto(f"https://127.0.0.1:{planner.http_port}/")
    yield opened
    context.close()


def log_in(page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_who_has_no_token_sees_the_login_and_who_has_one_the_page(page):
    page.wait_for_url(re.compile("/login$"))
    assert page.get_by_label("Token").get_attribute("type") == "password"
    log_in(page, UNKNOWN)
    page.get_by_text("The planner does not know this token.").wait_for()
    log_in(page, JOB_A)
    page.get_by_text("This token is not for looking at the planner.").wait_for()
    log_in(page, READ)
    page.get_by_role("heading", name=re.compile("^shown")).wait_for()  # told by events, which take the cookie too
    assert page.get_by_role("button", name="Pause").count() == 0
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    page.goto(page.url.split("#")[0] + "docs")
    page.get_by_role("heading", name="/v1/sessions/{session_id}/pause").wait_for()


def test_an_admin_pauses_and_leaves(page, planner):
    log_in(page, ADMIN)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    assert planner.planner.sessions[0].is_paused
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(re.compile("/login$"))
    assert page.context.cookies() == []


def test_a_page_whose_login_has_ended_goes_to_the_login(page, planner, tmp_path):
    log_in(page, READ)
    page.get_by_role("heading", name=re.compile("^shown")).wait_for()
    write_tokens(tmp_path / "tokens", (("admin", ADMIN),))
    planner.on_loop(planner.locks.refresh)
    planner.on_loop(planner.planner.changes.note_sessions)  # the page loads again
    page.wait_for_url(re.compile("/login$"))
    assert page.get_by_role("heading", name=re.compile("^shown")).count() == 0
