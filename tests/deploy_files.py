"""The files of `deploy/`, what their queries ask for, and which metrics there are."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import promql_parser
import yaml
from certificates import Authority

from taot_service.config import ServiceConfig
from taot_service.locks import Locks
from taot_service.planner import Planner

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCS = ROOT / "docs"


@dataclass(frozen=True, kw_only=True)
class PanelQuery:
    """A query of a committed dashboard."""

    dashboard: str
    panel: str
    ref: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}, {self.ref}"


QUERIES = tuple(
    PanelQuery(dashboard=path.stem, panel=panel["title"], ref=target["refId"], expr=target["expr"])
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel.get("targets", ())
)
"""Every query of every panel."""


def with_values(expr: str, **values: str) -> str:
    """A dashboard's expression as Grafana would send it, with everything chosen unless `values` say otherwise."""
    chosen = {"__rate_interval": "1m", "training_job": ".*", "group": ".*", "instance": ".*", **values}
    for name, value in chosen.items():
        expr = expr.replace(f'"${name}"', f'"{value}"').replace(f"[${name}]", f"[{value}]")
    return expr


def metric_names(expr: str) -> set[str]:
    """The metrics that a PromQL expression asks for; raises ValueError where it does not parse."""
    names: set[str] = set()

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            names.add(part.name)

    promql_parser.walk(promql_parser.parse(expr), pre_visit=visit)
    return names


@functools.cache
def registry_names() -> set[str]:
    """Every name under which the own registry of a planner with TLS can expose a sample."""
    names: set[str] = set()
    metrics = Planner(ServiceConfig()).metrics
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Authority().issue().write(Path(folder))
        Locks(ServiceConfig(tls_cert=certificate, tls_key=key)).show_in(metrics)
    for metric in metrics.registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
        names.update(metric.name + suffix for suffix in suffixes)
    return names


def recorded_names() -> set[str]:
    """The names of the recording rules."""
    rules = yaml.safe_load((DEPLOY / "prometheus/rules/taot.rules.yml").read_text())
    return {rule["record"] for group in rules["groups"] for rule in group["rules"]}
