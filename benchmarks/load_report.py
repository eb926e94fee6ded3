"""What the load benchmark has measured, for people: beside its targets, and all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

TARGETS = {
    "plan p50": ("<=", 0.025, "s"),
    "plan p99": ("<=", 0.075, "s"),
    "large reports": (">=", 60.0, "/s"),
    "small reports": (">=", 2500.0, "/s"),
    "livez p99": ("<=", 0.1, "s"),
    "idle memory": ("<=", 300e6, "B"),
    "session memory": ("<=", 4e6, "B"),
    "restart": ("<=", 2.0, "s"),
}
"""What is to be reached on a machine of two cores, generator included: bound and unit."""


def check_targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures that have a target, beside it."""
    default = results["latency"][0]
    flood, many, memory = results["large_flood"], results["many_jobs"], results["memory"]
    figures = {
        "plan p50": default["plan_p50_seconds"],
        "plan p99": default["plan_p99_seconds"],
        "large reports": flood["reports_per_second"],
        "small reports": results["small_flood"]["reports_per_second"],
        "livez p99": max(row["livez_p99_seconds"] or 0.0 for row in (flood, many, results["small_flood"])),
        "idle memory": memory["idle_bytes"],
        "session memory": memory["session_bytes"],
        "restart": results["restart"]["listening_to_plan_seconds"],
    }
    rows = []
    for name, (relation, bound, unit) in TARGETS.items():
        is_met = figures[name] <= bound if relation == "<=" else figures[name] >= bound
        rows.append(
            {"name": name, "figure": figures[name], "target": f"{relation} {show(bound, unit)}", "is_met": is_met}
        )
        rows[-1]["shown"] = show(figures[name], unit)
    return rows


def show(value: float | None, unit: str) -> str:
    """A figure for people."""
    if value is None:
        return "-"
    if unit == "B":
        return f"{value / 1e6:.1f} MB"
    return f"{value:.0f}/s" if unit == "/s" else f"{value * 1e3:.1f} ms"


def print_results(console: Console, results: dict[str, Any]) -> None:
    """One table of targets, one of what was measured."""
    table = Table(title="Figures with a target", title_justify="left")
    for heading in ("what", "figure", "target", ""):
        table.add_column(heading, justify="left" if heading in ("what", "") else "right")
    for row in results["targets"]:
        table.add_row(row["name"], row["shown"], row["target"], "met" if row["is_met"] else "MISSED")
    console.print(table)
    table = Table(title="Under load: plan is from sending a report to its plan at the watcher", title_justify="left")
    headings = ("load", "reports", "plans", "plan p50", "plan p99", "plans a job", "livez p99", "health p99")
    for heading in (*headings, "metrics p99", "planner CPU", "generator CPU"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for name, row in named_rows(results):
        table.add_row(
            name,
            show(row["reports_per_second"], "/s"),
            show(row["plans_per_second"], "/s"),
            *(show(row[f"plan_{each}_seconds"], "s") for each in ("p50", "p99")),
            f"{row['plans_of_job_min']}-{row['plans_of_job_max']}",
            *(show(row.get(f"{each}_p99_seconds"), "s") for each in ("livez", "health", "metrics")),
            *(f"{row[f'{each}_cpu_milliseconds_per_report']:.2f} ms" for each in ("planner", "generator")),
        )
    console.print(table)
    restart, memory = results["restart"], results["memory"]
    console.print(
        f"start: listening after {restart['start_to_listening_seconds']:.2f} s, ready"
        f" {restart['listening_to_serving_seconds']:.2f} s later; idle with libtorch mapped: {memory['has_torch']}",
        highlight=False,
    )


def named_rows(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was measured under load, with a name for people."""
    for row in results["latency"]:
        recent = "4 histories" if row["recent_reports"] is None else "no history"
        yield f"1 job, {row['way']}, {recent}", row
    for name in ("large_flood", "small_flood", "small_calls", "many_jobs"):
        row = results[name]
        yield f"{row['jobs']} jobs, {row['counts_bytes'] // 1024} KiB a report, {row['way']}", row
