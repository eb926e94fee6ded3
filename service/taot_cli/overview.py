"""The numbers that answer "does it help?", as PromQL. The overview dashboard and `taot observe` show the same ones."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class OverviewNumber:
    """One number of the overview."""

    title: str
    """What people call it."""

    query: str
    """PromQL for it: at most one sample."""

    unit: str
    """Grafana's name of the unit: percentunit (1 is 100 %), s or short."""

    meaning: str
    """How to read it."""


_NUMBERS = (
    OverviewNumber(
        title="Imbalance without guests",
        query="avg(taot_imbalance_static{$selector})",
        unit="percentunit",
        meaning="(max - mean) / mean of the ranks' load if every expert stayed at home. What there is to win.",
    ),
    OverviewNumber(
        title="Imbalance planned",
        query="avg(taot_imbalance_planned{$selector})",
        unit="percentunit",
        meaning="The same with the guests of the newest plan, on the counts it was made for.",
    ),
    OverviewNumber(
        title="Imbalance measured",
        query="avg(taot_imbalance_realised{$selector})",
        unit="percentunit",
        meaning="The same of the tokens that ranks really computed in the last reported micro-batch. What was won.",
    ),
    OverviewNumber(
        title="Imbalance removed",
        query="1 - avg(taot_imbalance_realised{$selector}) / avg(taot_imbalance_static{$selector})",
        unit="percentunit",
        meaning="Measured against without guests: 100 % is perfect balance, below 0 guests do harm.",
    ),
    OverviewNumber(
        title="Seconds saved a step",
        query="sum(taot_predicted_gain_seconds{$selector})",
        unit="s",
        meaning="Predicted time of all layers' experts without guests minus with. Absent until rates are known.",
    ),
    OverviewNumber(
        title="Guests",
        query="sum(taot_plan_guests{$selector})",
        unit="short",
        meaning="Guests of the newest plans, all layers together.",
    ),
    OverviewNumber(
        title="Weighted cost",
        query="sum(taot_plan_weighted_cost{$selector})",
        unit="short",
        meaning="What moving these guests costs: 1 within a node, more across nodes.",
    ),
    OverviewNumber(
        title="Transfers hidden",
        query="sum(taot_hidden_transfer_seconds_total{$selector})"
        " / (sum(taot_hidden_transfer_seconds_total{$selector})"
        " + sum(taot_exposed_transfer_seconds_total{$selector}))",
        unit="percentunit",
        meaning="Share of the time in flight, since the start, in which no rank stood still for guests.",
    ),
    OverviewNumber(
        title="Passes with their guests",
        query="sum(taot_applied_layers_total{$selector})"
        ' / (sum(taot_applied_layers_total{$selector}) + sum(taot_fallbacks_total{$selector, reason!="layer_off"}))',
        unit="percentunit",
        meaning="Share of the passes through layers, since the start, that got the guests they wanted."
        " What measured gates have switched off does not count.",
    ),
    OverviewNumber(
        title="Plan age",
        query="max(taot_plan_age_steps{$selector})",
        unit="short",
        meaning="Steps between the counts that the oldest plan was made from and the newest step.",
    ),
)


def overview_numbers(selector: str) -> tuple[OverviewNumber, ...]:
    """The overview of the sessions that `selector` picks, in the order in which they are shown.

    Args:
        selector: label matchers without braces, such as `training_job="demo"`.
    """
    return tuple(replace(number, query=number.query.replace("$selector", selector)) for number in _NUMBERS)
