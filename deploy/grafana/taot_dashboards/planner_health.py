"""Is the planner well?"""

from __future__ import annotations

from taot_dashboards.panel import PLANNER, Page, Panel, Query, Row, Variable


def _rate(metric: str, label: str) -> Query:
    return Query(expr=f"sum by ({label}) (rate({metric}{{{PLANNER}}}[$__rate_interval]))", legend="{{" + label + "}}")


def _rate_or_none(metric: str, label: str) -> Query:
    """For what a good planner never counts: 0 rather than nothing."""
    query = _rate(metric, label)
    return Query(expr=f"{query.expr} or vector(0)", legend=query.legend)


def _quantile(quantile: float, metric: str, labels: str = "") -> str:
    by = f"le, {labels}" if labels else "le"
    return f"histogram_quantile({quantile}, sum by ({by}) (rate({metric}_bucket{{{PLANNER}}}[$__rate_interval])))"


_NOW = (
    Panel(
        title="Planners up",
        meaning="How many of the planners that Prometheus knows answer it.",
        queries=(Query(expr=f"sum(up{{{PLANNER}}})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        title="Sessions",
        meaning="Open sessions: expert-parallel groups of running jobs.",
        queries=(Query(expr=f"sum(taot_sessions{{{PLANNER}}})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        title="Sessions of the limit",
        meaning="Of --max-sessions, in the fullest planner. At 100 % new groups are refused.",
        queries=(Query(expr=f"max(taot_sessions{{{PLANNER}}} / taot_sessions_limit{{{PLANNER}}})"),),
        kind="stat",
        unit="percentunit",
        width=4,
        height=4,
    ),
    Panel(
        title="Paused sessions",
        meaning="Sessions whose guests an operator has paused.",
        queries=(Query(expr=f"sum(taot_sessions_paused{{{PLANNER}}})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        title="Jobs without series",
        meaning="Training jobs beyond the limits of series: planned as all others, but not shown one by one.",
        queries=(Query(expr=f"sum(taot_jobs_without_series{{{PLANNER}}})"),),
        kind="stat",
        width=4,
        height=4,
    ),
    Panel(
        title="Release",
        meaning="How many planners run each release.",
        queries=(Query(expr=f"count by (release) (taot_build_info{{{PLANNER}}})", legend="{{release}}"),),
        kind="stat",
        width=4,
        height=4,
    ),
)

_PLANNING = (
    Panel(
        title="Queue",
        meaning="Reports that wait for planning or are in it. Always above the solver threads: too few of them.",
        queries=(Query(expr=f"taot_queue_length{{{PLANNER}}}", legend="{{instance}}"),),
    ),
    Panel(
        title="From report to plan",
        meaning="From the arrival of a report to its plan being in force.",
        queries=(
            Query(expr=_quantile(0.5, "taot_report_to_plan_seconds"), legend="p50"),
            Query(expr=_quantile(0.99, "taot_report_to_plan_seconds"), legend="p99"),
        ),
        unit="s",
    ),
    Panel(
        title="Planning by phase, p99",
        meaning="Where that time goes: waiting for a solver thread, solving, publishing.",
        queries=(Query(expr=_quantile(0.99, "taot_planning_seconds", "phase"), legend="{{phase}}"),),
        unit="s",
    ),
    Panel(
        title="Planning by phase, mean",
        meaning="The same as a mean. Long queue: more solver threads. Long solve: many layers, ranks or slots.",
        queries=(
            Query(
                expr=f"sum by (phase) (rate(taot_planning_seconds_sum{{{PLANNER}}}[$__rate_interval]))"
                f" / sum by (phase) (rate(taot_planning_seconds_count{{{PLANNER}}}[$__rate_interval]))",
                legend="{{phase}}",
            ),
        ),
        unit="s",
    ),
)

_OUTCOMES = (
    Panel(
        title="Reports by outcome",
        meaning="Reports a second. Many out of date or repeated: agents send late or twice.",
        queries=(_rate("taot_reports_total", "outcome"),),
    ),
    Panel(
        title="Plans by outcome",
        meaning="Plans a second. Superseded: reports come faster than plans; failed: a bug, see the log.",
        queries=(_rate("taot_plans_total", "outcome"),),
    ),
    Panel(
        title="Layers by outcome",
        meaning="Planned layers a second: with guests, balanced already, or kept without guests by a gate.",
        queries=(_rate("taot_layers_planned_total", "outcome"),),
    ),
    Panel(
        title="Gates",
        meaning="Layers a second whose plan a gate has changed, by gate. 0: none fires.",
        queries=(_rate_or_none("taot_plan_gates_total", "gate"),),
    ),
    Panel(
        title="Refusals",
        meaning="Calls a second that were refused, by reason. SESSION_NOT_FOUND is normal after a restart.",
        queries=(_rate_or_none("taot_refusals_total", "reason"),),
    ),
)

_PROCESS = (
    Panel(
        title="Memory",
        meaning="Resident memory of each planner.",
        queries=(Query(expr=f"process_resident_memory_bytes{{{PLANNER}}}", legend="{{instance}}"),),
        unit="bytes",
        width=8,
    ),
    Panel(
        title="Processor",
        meaning="Cores in use. About the solver threads when they are busy all the time.",
        queries=(Query(expr=f"rate(process_cpu_seconds_total{{{PLANNER}}}[$__rate_interval])", legend="{{instance}}"),),
        width=8,
    ),
    Panel(
        title="Open files of the limit",
        meaning="Each open watch takes one. At 100 % nobody can connect.",
        queries=(Query(expr=f"process_open_fds{{{PLANNER}}} / process_max_fds{{{PLANNER}}}", legend="{{instance}}"),),
        unit="percentunit",
        width=8,
    ),
)

PLANNER_HEALTH = Page(
    uid="taot-planner-health",
    title="TAOT: Planner health",
    question="Is the planner well?",
    variables=(Variable(name="instance", label="Planner", metric="taot_build_info"),),
    rows=(
        Row(title="Now", panels=_NOW),
        Row(title="Planning", panels=_PLANNING),
        Row(title="Outcomes", panels=_OUTCOMES),
        Row(title="Process", panels=_PROCESS),
    ),
)
