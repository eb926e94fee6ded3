"""Writes the dashboards and their README: `make dashboards`."""

from __future__ import annotations

from pathlib import Path

from taot_dashboards.build import render
from taot_dashboards.job import JOB
from taot_dashboards.overview import OVERVIEW
from taot_dashboards.planner_health import PLANNER_HEALTH
from taot_dashboards.readme import render_readme

PAGES = (OVERVIEW, JOB, PLANNER_HEALTH)


def generate() -> dict[str, str]:
    """All generated files, by their path below this folder."""
    files = {f"dashboards/{page.uid}.json": render(page) for page in PAGES}
    return {**files, "README.md": render_readme(PAGES)}


if __name__ == "__main__":
    for path, text in generate().items():
        (Path(__file__).parent / path).write_text(text, encoding="utf-8")
