"""What happens in one job, and why it is not better?"""

from __future__ import annotations

from taot_dashboards.panel import SELECTOR, Page, Panel, Query, Row, Variable

_PADDED_LAYER = (
    f"label_replace(label_replace(max by (layer) (taot_layer_imbalance{{{SELECTOR}}}),"
    ' "layer", "0$1", "layer", "([0-9])"), "layer", "0$1", "layer", "([0-9]{2})")'
)
"""Layers with three digits, so that they are in order where names are sorted."""


def _by_reach(metric: str) -> Query:
    return Query(expr=f"sum by (reach) ({metric})", legend="{{reach}}")


_BALANCE = (
    Panel(
        title="Imbalance of each layer",
        meaning="A row for each layer: dark is balanced, bright is not. The worst of the chosen groups; planned where"
        " nothing was measured. Jobs beyond the planner's limit of layer series have no rows.",
        queries=(Query(expr=_PADDED_LAYER, legend="{{layer}}"),),
        kind="heatmap",
        unit="percentunit",
        width=24,
        height=12,
    ),
    Panel(
        title="Imbalance",
        meaning="Without guests, planned and measured, mean over layers, of every group.",
        queries=(
            Query(expr=f"taot_imbalance_static{{{SELECTOR}}}", legend="{{group}} without guests"),
            Query(expr=f"taot_imbalance_planned{{{SELECTOR}}}", legend="{{group}} planned"),
            Query(expr=f"taot_imbalance_realised{{{SELECTOR}}}", legend="{{group}} measured"),
        ),
        unit="percentunit",
    ),
    Panel(
        title="Imbalance of the worst layer",
        meaning="The highest measured imbalance of any layer; the step waits for it.",
        queries=(Query(expr=f"taot_worst_layer_imbalance{{{SELECTOR}}}", legend="{{group}}"),),
        unit="percentunit",
    ),
    Panel(
        title="Worst layer",
        meaning="Its index. One that stays is a layer whose experts are very unequal; one that jumps is noise.",
        queries=(Query(expr=f"taot_worst_layer{{{SELECTOR}}}", legend="{{group}}"),),
    ),
    Panel(
        title="Predicted gain of a step",
        meaning="Seconds that the newest plan should save. Absent until rates are known.",
        queries=(Query(expr=f"taot_predicted_gain_seconds{{{SELECTOR}}}", legend="{{group}}"),),
        unit="s",
    ),
)

_GUESTS = (
    Panel(
        title="Guests of the newest plan",
        meaning="All layers together, by the links that they cross.",
        queries=(_by_reach(f"taot_plan_guests{{{SELECTOR}}}"),),
    ),
    Panel(
        title="Weighted cost of the newest plan",
        meaning="What moving them costs: 1 within a node, more across nodes.",
        queries=(Query(expr=f"taot_plan_weighted_cost{{{SELECTOR}}}", legend="{{group}}"),),
    ),
    Panel(
        title="Sent",
        meaning="Bytes of guest weights and gradients a second, by the links that they cross.",
        queries=(_by_reach(f"rate(taot_sent_bytes_total{{{SELECTOR}}}[$__rate_interval])"),),
        unit="Bps",
    ),
    Panel(
        title="Transfers, hidden and exposed",
        meaning="Seconds in flight a second, summed over ranks. Exposed: ranks stood still.",
        queries=(
            Query(
                expr=f"sum(rate(taot_hidden_transfer_seconds_total{{{SELECTOR}}}[$__rate_interval]))", legend="hidden"
            ),
            Query(
                expr=f"sum(rate(taot_exposed_transfer_seconds_total{{{SELECTOR}}}[$__rate_interval]))", legend="exposed"
            ),
        ),
        unit="s",
    ),
    Panel(
        title="Passes with their guests",
        meaning="Passes through layers a second in which guests computed tokens. 0 while steps go on: nothing is"
        " applied (observe mode, or see the fallbacks).",
        queries=(Query(expr=f"rate(taot_applied_layers_total{{{SELECTOR}}}[$__rate_interval])", legend="{{group}}"),),
    ),
    Panel(
        title="Fallbacks",
        meaning="Passes a second that ran without guests that were wanted, by reason. A job's first steps have some.",
        queries=(
            Query(
                expr=f"sum by (reason) (rate(taot_fallbacks_total{{{SELECTOR}}}[$__rate_interval]))",
                legend="{{reason}}",
            ),
        ),
    ),
)

_LAG = (
    Panel(
        title="Plan age",
        meaning="Steps between the counts that the plan was made from and the newest step. 1 or 2 is normal; agents"
        " stop using plans of more than 16.",
        queries=(Query(expr=f"taot_plan_age_steps{{{SELECTOR}}}", legend="{{group}}"),),
    ),
    Panel(
        title="Steps a second",
        meaning="From the steps that the group reports.",
        queries=(Query(expr=f"clamp_min(deriv(taot_step{{{SELECTOR}}}[$__rate_interval]), 0)", legend="{{group}}"),),
    ),
    Panel(
        title="Since the last report and plan",
        meaning="Seconds. Reports that stop: training stands still or has lost the planner. Plans alone that stop: the"
        " planner has trouble.",
        queries=(
            Query(expr=f"time() - taot_last_report_timestamp_seconds{{{SELECTOR}}}", legend="{{group}} report"),
            Query(expr=f"time() - taot_last_plan_timestamp_seconds{{{SELECTOR}}}", legend="{{group}} plan"),
        ),
        unit="s",
    ),
    Panel(
        title="Agent errors",
        meaning="Errors a second that training has survived, by reason. 0 is good.",
        queries=(
            Query(
                expr=f"sum by (reason) (rate(taot_agent_errors_total{{{SELECTOR}}}[$__rate_interval])) or vector(0)",
                legend="{{reason}}",
            ),
        ),
    ),
)

JOB = Page(
    uid="taot-job",
    title="TAOT: Job",
    question="What happens in one job, and why is it not better?",
    variables=(
        Variable(name="training_job", label="Training job", metric="taot_step", has_all=False),
        Variable(name="group", label="Group", metric='taot_step{training_job=~"$training_job"}'),
    ),
    rows=(
        Row(title="Balance", panels=_BALANCE),
        Row(title="Guests", panels=_GUESTS),
        Row(title="Lag", panels=_LAG),
    ),
)
