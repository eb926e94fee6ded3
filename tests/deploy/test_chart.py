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
    *("--set", "tls.secret=crt,tls.clientCaSecret=agents,tls.monitorCaSecret=ca,tls.serverName=planner"),
    *("--set", "extraEnv[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,extraEnv[0].value=http://collector.tracing:4318"),
    *("--set", "networkPolicy.collectors[0].podSelector.matchLabels.app=collector"),
    *("--set", "auth.tokensSecret=grants,auth.monitorTokenSecret=reader,planner.allowedHosts=planner.example"),
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
    # Addresses and ports are the image's own in a pod, files those of Secrets, and a Deployment starts again what ends
    # by itself.
    files = {"ports_file", "tls_cert", "tls_key", "tls_client_ca", "tokens"}
    assert known == flags - {"host", "grpc_port", "http_port", "exit_when_idle", "exit_when_unused"} - files


def test_schema_lists_every_value():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


@pytest.mark.parametrize(
    "wrong",
    ["replicas=2", "planner.maxRank=8", "planner.maxRanks=0", "planner.drainSeconds=0", "service.grpcPort=70000"]
    + ["metrics.monitor=Both", "image.repository=", "image.digest=latest", "resources.limits.cpu=lots"]
    + ["networkPolicy.trainers[0].pods=all", "tls.existingSecret=mine", "auth.tokensSecret=No_Name"]
    + ["extraEnv[0].name=TAOT_TOKENS", "extraEnv[0].nam=a", "networkPolicy.collectorPort=0"],
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
        "TAOT_ALLOWED_HOSTS": "taot-planner.training",
        "TAOT_DRAIN_SECONDS": "2.5",
        "TAOT_MAX_HELD_BYTES": "1073741824",
        "TAOT_MAX_HELD_BYTES_PER_JOB": "536870912",
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


def test_secrets_reach_the_planner_as_files_that_it_can_follow():
    pod = of_kind(render(*EVERYTHING), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    environment = {each["name"]: each["value"] for each in container["env"]}
    keys = {
        "TAOT_TLS_CERT": ("crt", "tls.crt"),
        "TAOT_TLS_KEY": ("crt", "tls.key"),
        "TAOT_TLS_CLIENT_CA": ("agents", "ca.crt"),
        "TAOT_TOKENS": ("grants", "tokens"),
    }
    for variable, (secret, key) in keys.items():
        folder, name = environment[variable].rsplit("/", 1)
        assert (secrets[folders[folder]], name) == (secret, key)
    # A mounted file would stay what it was when the pod started.
    assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]
    assert environment["TAOT_ALLOWED_HOSTS"] == "planner.example"


@pytest.mark.parametrize("flags", [(), EVERYTHING])
def test_probes_and_monitor_speak_as_the_planner_does(flags):
    documents = render("--set", "metrics.monitor=ServiceMonitor", *flags)
    scheme = "https" if flags else "http"
    container = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"].get("scheme", "HTTP") == scheme.upper()
    (endpoint,) = of_kind(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == scheme
    if flags:
        assert endpoint["authorization"] == {"credentials": {"name": "reader", "key": "token"}}
        assert endpoint["tlsConfig"] == {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}, "serverName": "planner"}
    ports = {port["name"]: port for port in of_kind(documents, "Service")["spec"]["ports"]}
    assert ("appProtocol" in ports["grpc"]) == (not flags)


def test_what_traces_need_reaches_the_planner_and_lets_it_call_its_collector(tmp_path):
    (example,) = re.findall(r"^```yaml\n(# traces.yaml.*?)^```", (ROOT / "docs/deploy.md").read_text(), re.S | re.M)
    values = tmp_path / "traces.yaml"
    values.write_text(example)
    documents = render("--values", str(values))
    container = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    for variable in yaml.safe_load(example)["extraEnv"]:
        assert variable in container["env"]
    collector, names = of_kind(documents, "NetworkPolicy")["spec"]["egress"]
    assert collector["to"] == yaml.safe_load(example)["networkPolicy"]["collectors"]
    assert collector["ports"] == [{"protocol": "TCP", "port": 4318}]
    assert {(each["protocol"], each["port"]) for each in names["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert re.search(r"^ARG EXTRAS=.*\btracing\b", (ROOT / "Dockerfile").read_text(), re.M), "the image makes no traces"


def test_a_planner_without_traces_calls_nobody():
    assert of_kind(render(), "NetworkPolicy")["spec"]["egress"] == []


def test_client_certificates_without_tls_are_refused():
    said = run_tool("helm", "template", "x", str(CHART), "--set", "tls.clientCaSecret=a", is_failure_expected=True)
    assert "tls.clientCaSecret needs tls.secret" in said
