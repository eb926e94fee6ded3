"""Does it help?"""

from __future__ import annotations

from taot_cli.overview import overview_numbers
from taot_dashboards.panel import SELECTOR, Page, Panel, Query, Row, Variable

SESSION_VARIABLES = (
    Variable(name="training_job", label="Training job", metric="taot_step"),
    Variable(name="group", label="Group", metric='taot_step{training_job=~"$training_job"}'),
)

_NUMBERS = tuple(
    Panel(
        title=number.title,
        meaning=number.meaning,
        queries=(Query(expr=number.query),),
        kind="stat",
        unit=number.unit,
        # Five a row do not fill 24 columns: the first of each row is wider.
        width=8 if index % 5 == 0 else 4,
        height=4,
    )
    for index, number in enumerate(overview_numbers(SELECTOR))
)

_TIME = (
    Panel(
        title="Imbalance",
        meaning="Without guests, planned and measured, mean over layers and groups. It helps where the lower two"
        " lines are far below the first. Measured far above planned: plans come too late or are not applied.",
        queries=(
            Query(expr=f"avg(taot_imbalance_static{{{SELECTOR}}})", legend="without guests"),
            Query(expr=f"avg(taot_imbalance_planned{{{SELECTOR}}})", legend="planned"),
            Query(expr=f"avg(taot_imbalance_realised{{{SELECTOR}}})", legend="measured"),
        ),
        unit="percentunit",
    ),
    Panel(
        title="Imbalance measured, by job",
        meaning="The same of every job, mean over its groups: which job to look at.",
        queries=(
            Query(expr=f"avg by (training_job) (taot_imbalance_realised{{{SELECTOR}}})", legend="{{training_job}}"),
        ),
        unit="percentunit",
    ),
    Panel(
        title="Seconds saved, each second of training",
        meaning="Predicted gain of a step times steps a second, for every job: 0.1 means that a tenth of the time is"
        " saved. Absent until rates are known.",
        queries=(
            Query(
                expr=f"sum by (training_job) (taot_predicted_gain_seconds{{{SELECTOR}}}"
                f" * clamp_min(deriv(taot_step{{{SELECTOR}}}[$__rate_interval]), 0))",
                legend="{{training_job}}",
            ),
        ),
        unit="percentunit",
    ),
    Panel(
        title="Weighted cost of the newest plans",
        meaning="What moving the guests of all layers costs, for every job: 1 within a node, more across nodes.",
        queries=(
            Query(expr=f"sum by (training_job) (taot_plan_weighted_cost{{{SELECTOR}}})", legend="{{training_job}}"),
        ),
    ),
    Panel(
        title="Guest weights and gradients sent",
        meaning="Bytes a second by the links they cross. Traffic across nodes is what guests really cost.",
        queries=(
            Query(
                expr=f"sum by (reach) (rate(taot_sent_bytes_total{{{SELECTOR}}}[$__rate_interval]))", legend="{{reach}}"
            ),
        ),
        unit="Bps",
    ),
    Panel(
        title="Transfers, hidden and exposed",
        meaning="Seconds in flight a second, summed over ranks. Exposed time is time in which ranks stood still.",
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
        title="Alerts that fire",
        meaning="Of TAOT's own rules, with docs/runbook.md for each. 0 is good; it is 0 as well without the rules.",
        queries=(Query(expr='count(ALERTS{alertname=~"Taot.*", alertstate="firing"}) or vector(0)', legend="firing"),),
        width=24,
        height=4,
    ),
)

OVERVIEW = Page(
    uid="taot-overview",
    title="TAOT: Overview",
    question="Does it help?",
    variables=SESSION_VARIABLES,
    rows=(Row(title="Now", panels=_NUMBERS), Row(title="Over time", panels=_TIME)),
)
