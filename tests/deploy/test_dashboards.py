"""The committed dashboards: generated, importable anywhere, and asking only for what the planner shows."""

from __future__ import annotations

import json
import sys

import pytest
from deploy_files import DEPLOY, QUERIES, metric_names, registry_names, with_values

pytest.importorskip("grafana_foundation_sdk", reason="the Grafana SDK needs Python 3.11")
from grafana_foundation_sdk.models.dashboard import Dashboard

sys.path.insert(0, str(DEPLOY / "grafana"))
from generate import PAGES, generate

DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
ALWAYS_THERE = {"up", "ALERTS"}
"""Prometheus' own metrics."""


@pytest.mark.parametrize(("path", "text"), generate().items())
def test_what_is_committed_is_what_make_dashboards_writes(path, text):
    assert (DEPLOY / "grafana" / path).read_text() == text, "run `make dashboards` and commit"


def test_every_dashboard_is_generated():
    assert [path.name for path in DASHBOARDS] == sorted(f"{page.uid}.json" for page in PAGES)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_loaded_without_being_asked_for_anything(path):
    text = path.read_text()
    dashboard = json.loads(text)
    assert "${DS_" not in text
    assert "__inputs" not in dashboard
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    for source in [*panels, *(target for panel in panels for target in panel["targets"])]:
        assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    # The SDK's own reading of its schema loses nothing.
    again = json.loads(json.dumps(Dashboard.from_json(dashboard), default=lambda part: part.to_json()))
    assert again == dashboard


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_identities_and_places_of_panels_are_their_own(path):
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    taken = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_identities_of_dashboards_are_their_own_and_never_change():
    assert [page.uid for page in PAGES] == ["taot-overview", "taot-job", "taot-planner-health"]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_queries_parse_and_ask_for_metrics_that_exist(query):
    names = metric_names(with_values(query.expr))
    assert names
    assert names <= registry_names() | ALWAYS_THERE


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_choices_offer_the_values_of_metrics_that_exist(path):
    for variable in json.loads(path.read_text())["templating"]["list"][1:]:
        metric, label = variable["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        assert label == variable["name"]
        assert metric_names(with_values(metric)) <= registry_names()


def test_the_readme_explains_every_panel_and_query():
    readme = (DEPLOY / "grafana/README.md").read_text()
    for query in QUERIES:
        assert f"| {query.panel} | " in readme
        assert query.expr.replace("|", "\\|") in readme
    for page in PAGES:
        assert all(panel.meaning in readme for panel in page.panels)
