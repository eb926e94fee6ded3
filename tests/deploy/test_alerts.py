"""Rules and alerts as promtool sees them, and the runbook behind every alert."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from deploy_files import DEPLOY, DOCS, metric_names, recorded_names, registry_names
from prometheus_tools import find_tool

CASES = sorted((Path(__file__).parent / "alerts").glob("*.test.yml"))
ALERTS = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/rules/taot.alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/rules/taot.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]


def promtool(*arguments: str) -> None:
    command = [find_tool("promtool"), *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configuration_and_its_rules_are_valid():
    promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yml"))
    promtool("check", "rules", "--lint-fatal", *map(str, sorted((DEPLOY / "prometheus/rules").glob("*.yml"))))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_alerts_fire_and_stay_quiet_where_they_should(path):
    promtool("test", "rules", str(path))


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS])
def test_every_alert_has_a_case_that_fires_and_one_that_does_not(alert):
    cases = [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]
    fires = []
    for case in cases:
        (check,) = case["promql_expr_test"]
        if f'alertname="{alert}"' in check["expr"]:
            fires.append(bool(check["exp_samples"]))
            assert case["name"].startswith(f"{alert} {'fires' if check['exp_samples'] else 'quiet'}: ")
    assert set(fires) == {True, False}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_means_and_where_the_runbook_explains_it(rule):
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "description", "runbook_url"} <= set(rule["annotations"])
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    headings = re.findall(r"^## (\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert rule["alert"] in headings


def test_the_runbook_explains_no_alert_that_is_gone():
    headings = re.findall(r"^## (Taot\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in ALERTS]


@pytest.mark.parametrize("rule", [*RECORDED, *ALERTS], ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_metrics_that_exist(rule):
    assert metric_names(rule["expr"]) <= registry_names() | recorded_names() | {"up"}
