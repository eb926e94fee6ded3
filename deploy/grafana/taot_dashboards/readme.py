"""The README of the dashboards: every panel with its queries and its meaning, made from the same data."""

from __future__ import annotations

from collections.abc import Sequence

from taot_dashboards.panel import Page

_HEAD = """\
# Dashboards

Written by `make dashboards` from `taot_dashboards/`; a test compares. How to read them: `docs/dashboards.md`.

| File | What it is |
|---|---|
| `generate.py`, `taot_dashboards/` | The dashboards as code |
| `dashboards/*.json` | What Grafana loads |
| `provisioning/` | Grafana's own configuration: the data source, and the dashboards in a folder `TAOT` |

Dashboards ask which Prometheus to use in a variable at their top, so that they can be imported by hand as well. Alerts
are Prometheus' (`../prometheus/rules/`), not Grafana's.
"""


def render_readme(pages: Sequence[Page]) -> str:
    """The page as Markdown."""
    lines = [_HEAD]
    for page in pages:
        lines += [f"## {page.title}", "", f"{page.question} (`dashboards/{page.uid}.json`)", ""]
        lines += ["| Panel | Query | Meaning |", "|---|---|---|"]
        for panel in page.panels:
            # A pipe would end a cell of the table, in code as well.
            queries = "<br>".join(f"`{query.expr}`".replace("|", "\\|") for query in panel.queries)
            lines.append(f"| {panel.title} | {queries} | {panel.meaning} |")
        lines.append("")
    return "\n".join(lines)
