"""The live page in a real browser, against a real planner with a job that reports.

TAOT_SCREENSHOTS=FOLDER keeps pictures of it; those in docs/images are made so.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from browser import WAIT_MS, WatchedPage, chromium
from live_job import LiveJob, live_spec
from planner_client import CALL_SECONDS

from taot_api.v1 import planner_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def open_page(browser, planner):
    opened = []

    def open_one(path="/", *, width=1440, height=1000, scheme="light") -> WatchedPage:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        base_url = f"http://127.0.0.1:{planner.http_port}"
        watched = WatchedPage(context.new_page(), base_url)
        opened.append((context, watched))
        watched.page.goto(base_url + path)
        return watched

    yield open_one
    for context, watched in opened:
        context.close()
        watched.check()


@pytest.fixture
def job(client):
    started = []

    def start(**fields) -> LiveJob:
        started.append(LiveJob(client, live_spec(**fields)))
        return started[-1]

    yield start
    for each in started:
        client.stub.CloseSession(pb.CloseSessionRequest(session_id=each.session_id), timeout=CALL_SECONDS)


def keep_picture(page, name: str) -> None:
    folder = os.environ.get("TAOT_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def drawn(page, job: LiveJob) -> None:
    """Waits until the page shows the last report and its plan."""
    page.wait_for_function(
        "([id, reports, version]) => document.body.dataset.drawn?.startsWith(id)"
        " && document.body.dataset.drawn.endsWith(` ${reports}`)"
        " && document.querySelector('#figures').textContent.includes(`Plan${version}`)",
        arg=[job.session_id, job.step_number, f"{job.plan.identity.version:,}"],
    )


def drawn_at_ms(page) -> float:
    return page.evaluate("performance.getEntriesByName('drawn')[0].startTime")


def test_without_a_job_the_page_says_how_to_connect_one_and_then_shows_it(open_page, job):
    watched = open_page()
    page = watched.page
    page.get_by_role("heading", name="No job has connected yet").wait_for()
    assert "AgentOptions(planner_address=" in page.locator("pre").inner_text()
    keep_picture(page, "live-page-empty")
    started = job(num_ranks=4, num_layers=2, num_experts=16, training_job="first")
    page.get_by_role("heading", name="first / ep0").wait_for()  # without a reload
    page.get_by_text("Waiting for the first report.").wait_for()
    started.step()
    drawn(page, started)
    assert page.get_by_role("option").count() == 2


def test_a_job_of_32_ranks_and_48_layers(open_page, job):
    started = job(num_ranks=32, num_layers=48, num_experts=128, training_job="pretrain-moe-a")
    for _ in range(12):
        started.step()
    watched = open_page()
    page = watched.page
    drawn(page, started)
    print(f"32 ranks x 48 layers: drawn {drawn_at_ms(page):.0f} ms after the page was asked for")
    strip = page.get_by_role("listbox", name="Layers")
    assert strip.get_by_role("option").count() == 48
    # At first the layer that is worst without guests.
    worst = max(range(48), key=lambda index: started.plan.layer_stats_L[index].imbalance_before)
    chosen = strip.get_by_role("option", selected=True)
    assert chosen.get_attribute("aria-label").startswith(f"layers.{worst}.mlp: static ")
    assert len(page.locator("#plan-table tbody tr").all()) == int((started.plan.guests_L[worst] != -1).sum())
    for width in (1440, 900):
        for scheme in ("light", "dark"):
            other = open_page(width=width, scheme=scheme).page
            drawn(other, started)
            keep_picture(other, f"live-page-{width}-{scheme}")
            assert other.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


def test_a_layer_is_chosen_by_mouse_and_keyboard_and_kept_in_the_address(open_page, job):
    started = job(num_ranks=8, num_layers=6, num_experts=32, training_job="layers")
    started.step()
    page = open_page("/#job=layers&group=ep0&layer=2").page
    page.get_by_role("heading", name="Plan of layers.2.mlp").wait_for()
    page.get_by_role("option", name=re.compile("layers.4.mlp")).click()
    page.get_by_role("heading", name="Plan of layers.4.mlp").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Plan of layers.5.mlp").wait_for()
    page.keyboard.press("Home")
    page.get_by_role("heading", name="Plan of layers.0.mlp").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("layers.0.mlp")
    assert "layer=0" in page.url
    # The strip is one stop of the tab key.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") != "option"
    started.step()
    drawn(page, started)
    page.get_by_role("heading", name="Plan of layers.0.mlp").wait_for()  # what is chosen stays
    page.get_by_text("Loads as a table").click()
    assert page.locator("#map-table tbody tr").count() == 8
    page.get_by_text("Time line as a table").click()
    assert page.locator("#time-table tbody tr").count() == 2


def test_the_plan_is_downloaded_as_json(open_page, job):
    started = job(num_ranks=8, num_layers=2, num_experts=32, training_job="download")
    started.step()
    page = open_page().page
    drawn(page, started)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download JSON").click()
    document = json.loads(Path(download.value.path()).read_text())
    assert document["version"] == started.plan.identity.version
    assert document["digest"] == started.plan.digest().hex()
    assert [layer["guest_experts"] for layer in document["layers"]] == [g.tolist() for g in started.plan.guests_L]


def test_an_operator_pauses_and_resumes_a_session(open_page, job):
    started = job(num_ranks=4, num_layers=2, num_experts=16, training_job="held")
    assert not started.step().is_paused
    page = open_page().page
    drawn(page, started)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    page.get_by_text("Paused by an operator").wait_for()
    assert page.get_by_role("status").inner_text() == "Paused."
    assert started.step().is_paused
    drawn(page, started)
    keep_picture(page, "live-page-paused")
    page.get_by_role("button", name="Resume").press("Enter")
    page.get_by_role("button", name="Pause").wait_for()
    assert not started.step().is_paused


def test_the_page_of_a_session_that_ends_moves_on(open_page, job, client):
    first = job(num_ranks=4, num_layers=1, num_experts=16, training_job="goes")
    second = job(num_ranks=4, num_layers=1, num_experts=16, training_job="stays")
    first.step(), second.step()
    page = open_page("/#job=goes&group=ep0").page
    page.get_by_role("heading", name="goes / ep0").wait_for()
    assert page.get_by_role("navigation", name="Jobs").get_by_role("button").count() == 2
    client.stub.CloseSession(pb.CloseSessionRequest(session_id=first.session_id), timeout=CALL_SECONDS)
    page.get_by_role("heading", name="stays / ep0").wait_for()
    assert page.get_by_role("navigation", name="Jobs").get_by_role("button").count() == 1


def test_above_128_ranks_the_map_shows_nodes(open_page, job):
    started = job(num_ranks=1024, num_layers=2, num_experts=1024, training_job="wide", ranks_per_node=8)
    started.step()
    page = open_page().page
    drawn(page, started)
    print(f"1,024 ranks: drawn {drawn_at_ms(page):.0f} ms after the page was asked for")
    assert page.locator("#map .hit").count() == 128
    start = page.evaluate("performance.now()")
    page.get_by_role("option", name=re.compile("layers.1.mlp")).click()
    page.get_by_role("heading", name="Plan of layers.1.mlp").wait_for()
    print(f"1,024 ranks: another layer shown after {page.evaluate('performance.now()') - start:.0f} ms")
    keep_picture(page, "live-page-1024")


def test_what_a_screen_reader_finds(open_page, job):
    started = job(num_ranks=4, num_layers=2, num_experts=16, training_job="spoken")
    started.step()
    page = open_page().page
    drawn(page, started)
    for role in ("banner", "main", "status"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("navigation").count() == 2
    assert page.locator("html").get_attribute("lang") == "en"
    for region in ("Layers", "Cluster, ", "Plan of ", "Imbalance over steps"):
        assert page.get_by_role("region", name=re.compile(region)).count() == 1, region
    for drawing in page.get_by_role("img").all():
        assert "The table below has the numbers." in drawing.get_attribute("aria-label")
    assert page.get_by_role("img").count() == 2
    for control in page.locator("button, a, [tabindex='0']").all():
        if control.is_visible():
            name = control.get_attribute("aria-label") or control.get_attribute("aria-labelledby")
            assert name or control.inner_text().strip(), control.evaluate("node => node.outerHTML")


def test_the_page_of_the_http_api_needs_no_internet(open_page):
    page = open_page("/docs").page
    page.get_by_role("heading", name="/v1/sessions/{session_id}/pause").wait_for(timeout=WAIT_MS)
    page.get_by_role("heading", name="SessionDetail").wait_for()
