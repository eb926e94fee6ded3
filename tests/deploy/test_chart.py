from __future__ import annotations

import re

import pytest
import yaml
from deploy_tools import CHART, ROOT, of_kind, render, run_tool

from taot_planning import __version__
from taot_service.config import ServiceConfig
from taot_service.server import END_SECONDS
from taot_service.settings import settings_of

pytestmark = pytest.mark.deploy

EVERYTHING = (
    *("--set", "metrics.rules=true,dashboards.enabled=true,metrics.labels.release=prometheus"),
    *("--set", "podLabels.team=a,podAnnotations.note=b,priorityClassName=high,nodeSelector.disk=ssd"),
    *("--set", "image.digest=sha256:" + 64 * "0" + ",image.pullSecrets={mine},service.annotations.note=c"),
    *("--set-json", 'tolerations=[{"key":"gpu","operator":"Exists"}]'),
)
"""Every value that adds something."""


def test_lint_finds_nothing():
    run_tool("helm", "lint", "--strict", str(CHART))
    run_tool("helm", "lint", "--strict", str(CHART), *EVERYTHING)


def test_versions_are_those_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert f"ARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()
    for path in [*(ROOT / "deploy/kubernetes").glob("*.yaml"), ROOT / "deploy/compose.yaml"]:
        assert re.findall(r"image: taot-planner:(\S+)", path.read_text()) == [__version__], path


def test_schema_knows_the_flags_of_the_planner():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    flags = {setting.name for setting in settings_of(ServiceConfig)}
    names = schema["properties"]["planner"]["properties"]
    known = {re.sub("[A-Z]", lambda upper: "_" + upper[0].lower(), name) for name in names}
    # Addresses and ports are the image's own in a pod, and a Deployment starts again what ends by itself.
    assert known == flags - {"host", "grpc_port", "http_port", "ports_file", "exit_when_idle", "exit_when_unused"}


def test_schema_lists_every_value():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


@pytest.mark.parametrize(
    "wrong",
    ["replicas=2", "planner.maxRank=8", "planner.maxRanks=0", "planner.drainSeconds=0", "service.grpcPort=70000"]
    + ["metrics.monitor=Both", "image.repository=", "image.digest=latest", "resources.limits.cpu=lots"]
    + ["networkPolicy.trainers[0].pods=all", "tls.existingSecret=mine"],
)
def test_a_wrong_value_is_refused_by_name(wrong):
    said = run_tool("helm", "template", "x", str(CHART), "--set", wrong, is_failure_expected=True)
    assert "don't meet the specifications of the schema" in said
    assert re.split(r"[.=\[]", wrong)[0] in said


def test_flags_reach_the_planner_as_it_reads_them(tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text("planner: {maxPlanEntries: 67108864, drainSeconds: 2.5, maxRanks: 2048}")
    spec = of_kind(render("--values", str(values)), "Deployment")["spec"]["template"]["spec"]
    environment = {each["name"]: each["value"] for each in spec["containers"][0]["env"]}
    assert environment == {
        "TAOT_DRAIN_SECONDS": "2.5",
        "TAOT_MAX_PLAN_ENTRIES": "67108864",
        "TAOT_MAX_RANKS": "2048",
        "TAOT_SOLVER_THREADS": "1",
    }
    assert spec["terminationGracePeriodSeconds"] == 3 + 15
    assert END_SECONDS < 15


def test_dashboards_and_rules_are_those_of_the_files():
    documents = render(*EVERYTHING)
    dashboards = {
        name: text.strip()
        for document in documents
        if document["kind"] == "ConfigMap"
        for name, text in document["data"].items()
    }
    assert dashboards == {
        path.name: path.read_text().strip() for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")
    }
    assert dashboards
    rules = [document["spec"] for document in documents if document["kind"] == "PrometheusRule"]
    files = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
    assert rules == [yaml.safe_load(path.read_text()) for path in files]
    assert rules


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_a_monitor_scrapes_the_port_that_the_pod_and_the_service_name(kind):
    documents = render("--set", f"metrics.monitor={kind}")
    spec = of_kind(documents, kind)["spec"]
    (endpoint,) = spec["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    pod = of_kind(documents, "Deployment")["spec"]["template"]
    service = of_kind(documents, "Service")
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    for labels in (pod["metadata"]["labels"], service["metadata"]["labels"]):
        assert labels.items() >= spec["selector"]["matchLabels"].items()
        # Alerts know a planner by its job.
        assert labels[spec["jobLabel"]] == "taot-planner"


def test_names_of_another_release_are_its_own():
    names = {document["metadata"]["name"] for document in render("--set", "networkPolicy.enabled=false")}
    assert names == {"taot-planner"}
    other = run_tool("helm", "template", "blue", str(CHART), *EVERYTHING)
    assert all(document["metadata"]["name"].startswith("blue-taot-planner") for document in yaml.safe_load_all(other))
