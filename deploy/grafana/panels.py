# SPDX-License-Identifier: Apache-2.0
"""How the dashboards look: numbers, graphs and tables over Prometheus, in rows; and the variables that choose what they
show. fleet.py and node.py say what is in them."""

import dataclasses
import string

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (BigValueColorMode, BigValueGraphMode, LegendDisplayMode,
                                                  LegendPlacement, StackingMode)
from grafana_foundation_sdk.models.dashboard import (DashboardCursorSync, DashboardLinkType, DataSourceRef,
                                                     DataTransformerConfig, Threshold, ThresholdsMode,
                                                     VariableOption, VariableRefresh, VariableSort)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GRID_COLUMNS = 24  # Grafana's
NUMBER_HEIGHT, GRAPH_HEIGHT = 4, 8  # in Grafana's units of 30 pixels
FILL_PERCENT = 10
ABOVE_ZERO = 0.001  # Prometheus extrapolates how much a counter grew, so that one may be a little less
ANY = ".+"  # what "All" stands for: shorter than the names of a thousand nodes
NODE_UID = "terrace-node"


@dataclasses.dataclass(frozen=True)
class Query:
    """An expression of PromQL, and what its series are called in the legend."""
    expression: str
    legend: str = ""


@dataclasses.dataclass(frozen=True)
class Number:
    """One number; `bad`: red if it is above zero."""
    title: str
    description: str
    unit: str
    query: str
    bad: bool = False


@dataclasses.dataclass(frozen=True)
class Graph:
    """Series over time; `stacked` where they add up to something; `of_nodes`: a click on one leads to its node."""
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    of_nodes: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """The series of now, a line each: their labels and their value, by its name."""
    title: str
    description: str
    unit: str
    query: str
    value: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A heading, and panels below it, `across` of them beside each other."""
    title: str
    across: int
    panels: tuple[Number | Graph | Table, ...]


def target(letter: str, query: Query, now: bool):
    """A panel's query: as of now, or over the dashboard's time."""
    made = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(query.expression)
    if query.legend:
        made = made.legend_format(query.legend)
    return made.instant() if now else made.range()


def number(panel: Number):
    steps = [Threshold(color="green")]
    if panel.bad:
        steps.append(Threshold(value=ABOVE_ZERO, color="red"))
    limits = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    return (stat.Panel().thresholds(limits).graph_mode(BigValueGraphMode.NONE).decimals(0)
            .color_mode(BigValueColorMode.BACKGROUND if panel.bad else BigValueColorMode.VALUE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            .with_target(target("A", Query(panel.query), now=True)))


def graph(panel: Graph):
    legend = (common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
              .placement(LegendPlacement.BOTTOM))
    made = timeseries.Panel().legend(legend).fill_opacity(FILL_PERCENT).axis_soft_min(0)
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if panel.of_nodes:
        made = made.data_links([dashboard.DashboardLink("This node").type(DashboardLinkType.LINK)
                                .url(f"/d/{NODE_UID}?var-instance=${{__field.labels.instance}}")])
    for letter, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        made = made.with_target(target(letter, query, now=False))
    return made


def lines(panel: Table):
    """Without the columns that say nothing here."""
    tidy = DataTransformerConfig(id_val="organize", options={
        "excludeByName": {"Time": True, "__name__": True, "job": True}, "renameByName": {"Value": panel.value}})
    return (table.Panel().show_header(True).with_transformation(tidy)
            .with_target(target("A", Query(panel.query), now=True).format(PromQueryFormat.TABLE)))


MADE_BY = {Number: number, Graph: graph, Table: lines}


def panel_of(panel: Number | Graph | Table, at: int, width: int):
    made = MADE_BY[type(panel)](panel)
    return (made.id(at).title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
            .span(width).height(NUMBER_HEIGHT if isinstance(panel, Number) else GRAPH_HEIGHT))


def choice(name: str, label: str, query: str, several: bool):
    """A variable with the values of a label: `label_values(METRIC, LABEL)`."""
    made = (dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC))
    if not several:
        return made.multi(False).include_all(False)
    everything = VariableOption(selected=True, text=["All"], value=["$__all"])
    return made.multi(True).include_all(True).all_value(ANY).current(everything)


def page(title: str, uid: str, description: str, choices: tuple, rows: tuple[Row, ...]):
    """A dashboard. Its panels are numbered in their order, so that the same rows make the same dashboard."""
    made = (dashboard.Dashboard(title).uid(uid).description(description).tags(["terrace"]).time("now-3h", "now")
            .refresh("30s").tooltip(DashboardCursorSync.CROSSHAIR).timezone("browser")
            .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .link(dashboard.DashboardLink("Terrace").type(DashboardLinkType.DASHBOARDS).tags(["terrace"])
                  .as_dropdown(True).keep_time(True)))
    for one in choices:
        made = made.with_variable(one)
    at = 1
    for row in rows:
        made = made.with_row(dashboard.Row(row.title).id(at))
        for panel in row.panels:
            at += 1
            made = made.with_panel(panel_of(panel, at, GRID_COLUMNS // row.across))
        at += 1
    return made.build()
