"""From pages as data to the JSON that Grafana loads. Only this module knows the Grafana SDK."""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from taot_dashboards.panel import Kind, Page, Panel, Variable

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that people choose at the top; nothing is asked for when a dashboard is loaded."""

AnyPanel = stat.Panel | timeseries.Panel | heatmap.Panel


def render(page: Page) -> str:
    """The JSON of a dashboard, the same for the same page."""
    builder = (
        dashboards.Dashboard(page.title)
        .uid(page.uid)
        .description(page.question)
        .tags(["taot"])
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_other_dashboards())
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in page.variables:
        builder.with_variable(_variable(variable))
    number = 1
    for row in page.rows:
        builder.with_row(dashboards.Row(row.title).id(number))
        number += 1
        for panel in row.panels:
            builder.with_panel(_panel(panel).id(number))
            number += 1
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


def _other_dashboards() -> dashboards.DashboardLink:
    link = dashboards.DashboardLink("TAOT").type(models.DashboardLinkType.DASHBOARDS).tags(["taot"])
    return link.as_dropdown(True).include_vars(True).keep_time(True)


def _variable(variable: Variable) -> dashboards.QueryVariable:
    builder = (
        dashboards.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query(f"label_values({variable.metric}, {variable.name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )
    if variable.has_all:
        every = models.VariableOption(selected=True, text=["All"], value=["$__all"])
        builder.multi(True).include_all(True).all_value(".*").current(every)
    return builder


def _panel(panel: Panel) -> AnyPanel:
    builder = _BUILDERS[panel.kind]()
    builder.title(panel.title).description(panel.meaning).datasource(DATASOURCE)
    builder.unit(panel.unit).span(panel.width).height(panel.height)
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + index)).expr(query.expr).datasource(DATASOURCE)
        builder.with_target((target.instant() if panel.kind == "stat" else target.range()).legend_format(query.legend))
    return builder


def _stat() -> stat.Panel:
    newest = common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    builder = stat.Panel().graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.NONE)
    return builder.reduce_options(newest)


def _timeseries() -> timeseries.Panel:
    legend = (
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )
    return timeseries.Panel().legend(legend).fill_opacity(5).show_points(common.VisibilityMode.NEVER).axis_soft_min(0)


def _heatmap() -> heatmap.Panel:
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Inferno")
        .fill("dark-orange")
        .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
        .reverse(False)
        .min(0)
    )
    axis = heatmap.YAxisConfig().axis_label("layer").reverse(True)
    percent = heatmap.CellValues().unit("percentunit").decimals(1)
    # Grafana leaves cells of 0 empty by itself, and here 0 is the best of all.
    every = heatmap.FilterValueRange().le(-1)
    return heatmap.Panel().calculate(False).color(colours).y_axis(axis).cell_values(percent).filter_values(every)


_BUILDERS: dict[Kind, Callable[[], AnyPanel]] = {"stat": _stat, "timeseries": _timeseries, "heatmap": _heatmap}
