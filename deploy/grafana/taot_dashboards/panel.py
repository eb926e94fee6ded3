"""What a dashboard shows, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SELECTOR = 'training_job=~"$training_job", group=~"$group"'
"""Picks the sessions that people have chosen at the top of a dashboard."""

PLANNER = 'job=~".*taot.*", instance=~"$instance"'
"""Picks the planners likewise, also among the metrics that every process has."""

Kind = Literal["stat", "timeseries", "heatmap"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a panel."""

    expr: str
    """PromQL, with the dashboard's variables."""

    legend: str = ""
    """What its series are called."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    """Its heading; one of a kind within its dashboard."""

    meaning: str
    """One or two sentences on how to read it; the tooltip in Grafana."""

    queries: tuple[Query, ...]
    """What it shows."""

    kind: Kind = "timeseries"
    """stat: the newest value as a number; timeseries: lines; heatmap: a row for each series."""

    unit: str = "short"
    """Grafana's name of the unit."""

    width: int = 12
    """Columns of 24."""

    height: int = 8
    """Rows of about 30 pixels."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under a common heading."""

    title: str
    """The heading."""

    panels: tuple[Panel, ...]
    """From left to right, then down."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard; its values are those of a label."""

    name: str
    """The label and the variable."""

    label: str
    """What people call it."""

    metric: str
    """The metric, with matchers, whose label values are offered."""

    has_all: bool = True
    """Whether several values, or all of them, can be chosen; otherwise it is one at a time."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One dashboard."""

    uid: str
    """Its address in Grafana; never changes, so that links stay good."""

    title: str
    """Its name."""

    question: str
    """The question it answers."""

    variables: tuple[Variable, ...]
    """Choices at its top, besides the data source."""

    rows: tuple[Row, ...]
    """What it shows."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels."""
        return tuple(panel for row in self.rows for panel in row.panels)
