"""What the panels of all boards share: the data source, colours, and builders that take queries.

One colour has one meaning, the same as on the sidecar's own page: a cause has the colour of the part of the step that
it inflates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, statetimeline, table, text
from grafana_foundation_sdk.builders import timeseries as series
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from boards.queries import Query

# Never a literal uid: whatever Prometheus the reader picks.
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
MIN_STEP = "$scrape_interval"  # Grafana makes $__rate_interval at least four of these

INK, BLUE, RED, GREEN, AMBER, GREY = "#D8D9DA", "#5B9DFF", "#E0475E", "#3A9D5D", "#E3A53C", "#8D96A0"
COMPONENT_COLOURS = {
    "overhead": "#8B949E",
    "weights": "#2A9D8F",
    "KV cache": "#E9A23B",
    "sequences": "#8C6BB1",
    "prefill": "#D45087",
}
CAUSE_COLOURS = {
    "none": GREEN,
    "context": "#E9A23B",
    "load": "#B8691B",
    "prefill": "#D45087",
    "objective_unreachable": "#2A9D8F",
    "unexplained": RED,
    "preemption": "#8C6BB1",
}
STATE_COLOURS = {
    "measuring": GREEN,
    "prefilling": "#D45087",
    "idle": "#4A90A4",
    "warming_up": GREY,
    "too_few_observations": GREY,
    "out_of_range": AMBER,
    "no_model": AMBER,
    "no_capacity": AMBER,
    "asleep": "#5C6670",
    "stale": RED,
}


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a panel stands on the grid of 24 columns."""

    x: int
    y: int
    w: int
    h: int

    @property
    def grid(self) -> model.GridPos:
        """For the builders."""
        return model.GridPos(x=self.x, y=self.y, w=self.w, h=self.h)


def prop(name: str, value: object) -> model.DynamicConfigValue:
    """One property of an override."""
    return model.DynamicConfigValue(id_val=name, value=value)


def colour(value: str) -> model.DynamicConfigValue:
    """A fixed colour, as a property of an override."""
    return prop("color", {"mode": "fixed", "fixedColor": value})


def target(query: Query, ref: str, *, instant: bool = False, as_table: bool = False) -> prometheus.Dataquery:
    """A query as the panel wants it."""
    made = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(SOURCE).interval(MIN_STEP)
    made = made.instant() if instant else made.range()
    if as_table:
        made = made.format(PromQueryFormat.TABLE)
    return made.legend_format(query.legend) if query.legend else made


def _refs(queries: Sequence[Query]) -> list[tuple[str, Query]]:
    return [(chr(ord("A") + at), query) for at, query in enumerate(queries)]


def _base(panel: Any, spot: Spot, title: str, description: str) -> Any:
    # The builders share no base class that types these methods.
    return panel.title(title).description(description).datasource(SOURCE).grid_pos(spot.grid)


def graph(
    spot: Spot,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    colours: Mapping[str, str] | None = None,
    axis: str = "",
) -> series.Panel:
    """Lines over time, with the last values in the legend. `colours` by legend text."""
    panel: series.Panel = _base(series.Panel(), spot, title, description)
    panel = panel.unit(unit).line_width(2).fill_opacity(0).show_points(kinds.VisibilityMode.NEVER).axis_soft_min(0)
    if axis:
        panel = panel.axis_label(axis)
    legend = common.VizLegendOptions().display_mode(kinds.LegendDisplayMode.LIST)
    panel = panel.legend(legend.placement(kinds.LegendPlacement.BOTTOM).show_legend(True).calcs(["lastNotNull"]))
    panel = panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.NONE))
    for ref, query in _refs(queries):
        panel = panel.with_target(target(query, ref))
    for name, value in (colours or {}).items():
        panel = panel.override_by_name(name, [colour(value)])
    return panel


def number(
    spot: Spot,
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, INK),),
    decimals: int | None = None,
    empty: str = "no data",
) -> stat.Panel:
    """One value now; `steps` are (from this value on, colour). `empty` is what stands there without data."""
    panel: stat.Panel = _base(stat.Panel(), spot, title, description)
    panel = panel.unit(unit).no_value(empty).graph_mode(kinds.BigValueGraphMode.NONE)
    panel = panel.color_mode(kinds.BigValueColorMode.VALUE).text_mode(kinds.BigValueTextMode.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = (
        panel.thresholds(thresholds(steps)).color_scheme(by_threshold()).with_target(target(query, "A", instant=True))
    )
    return panel if decimals is None else panel.decimals(decimals)


def word(spot: Spot, title: str, description: str, query: Query, colours: Mapping[str, str], empty: str) -> stat.Panel:
    """The name of the series that is 1 now, in its colour."""
    panel: stat.Panel = _base(stat.Panel(), spot, title, description)
    panel = panel.unit("none").no_value(empty).graph_mode(kinds.BigValueGraphMode.NONE)
    panel = panel.color_mode(kinds.BigValueColorMode.BACKGROUND_SOLID).text_mode(kinds.BigValueTextMode.NAME)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.with_target(target(query, "A", instant=True))
    for name, value in colours.items():
        panel = panel.override_by_name(name, [colour(value)])
    return panel


def lane(spot: Spot, title: str, description: str, query: Query, colours: Mapping[str, str]) -> statetimeline.Panel:
    """One row per name, coloured while it was 1."""
    panel: statetimeline.Panel = _base(statetimeline.Panel(), spot, title, description)
    panel = panel.unit("none").show_value(kinds.VisibilityMode.NEVER).row_height(0.85).fill_opacity(90).line_width(0)
    panel = panel.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.HIDDEN)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(False)
    )
    panel = panel.with_target(target(query, "A"))
    for name, value in colours.items():
        panel = panel.override_by_name(name, [colour(value)])
    return panel


def bars(
    spot: Spot,
    title: str,
    description: str,
    unit: str,
    query: Query,
    steps: Sequence[tuple[float | None, str]],
    empty: str = "no data",
    decimals: int = 1,
) -> bargauge.Panel:
    """A list of bars, one per series."""
    panel: bargauge.Panel = _base(bargauge.Panel(), spot, title, description)
    panel = panel.unit(unit).min(0).decimals(decimals).no_value(empty).orientation(kinds.VizOrientation.HORIZONTAL)
    panel = panel.display_mode(kinds.BarGaugeDisplayMode.BASIC).reduce_options(
        common.ReduceDataOptions().calcs(["lastNotNull"])
    )
    panel = panel.text(common.VizTextDisplayOptions().title_size(14).value_size(16))
    panel = panel.thresholds(thresholds(steps)).color_scheme(by_threshold())
    return panel.with_target(target(query, "A", instant=True))


def rows(
    spot: Spot,
    title: str,
    description: str,
    queries: Sequence[Query],
    columns: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    widths: Mapping[str, int] | None = None,
) -> table.Panel:
    """A table of instant queries, joined on their labels. `columns`: field -> heading, in order; others are dropped.

    `units` by heading: labels that are numbers get one. `widths` by heading, in pixels.
    """
    panel: table.Panel = _base(table.Panel(), spot, title, description)
    panel = panel.unit("none")
    for ref, query in _refs(queries):
        panel = panel.with_target(target(query, ref, instant=True, as_table=True))
    if len(queries) > 1:
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    # By name, so that labels which a scrape configuration adds do not become columns.
    keep = {"include": {"names": list(columns)}}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=keep))
    labels = [field for field, heading in columns.items() if heading in (units or {})]
    if labels:
        numbers = {"conversions": [{"targetField": field, "destinationType": "number"} for field in labels]}
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="convertFieldType", options=numbers))
    for heading, unit in (units or {}).items():
        panel = panel.override_by_name(heading, [prop("unit", unit)])
    for heading, width in (widths or {}).items():
        panel = panel.override_by_name(heading, [prop("custom.width", width)])
    order = {"indexByName": {name: at for at, name in enumerate(columns)}, "renameByName": dict(columns)}
    return panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=order))


def prose(spot: Spot, title: str, description: str, markdown: str) -> text.Panel:
    """Words."""
    panel: text.Panel = _base(text.Panel(), spot, title, description)
    return panel.content(markdown)


def thresholds(steps: Sequence[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    """Absolute thresholds."""
    made = [model.Threshold(value=value, color=shade) for value, shade in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def by_threshold() -> dashboard.FieldColor:
    """Colour by threshold."""
    return dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)
