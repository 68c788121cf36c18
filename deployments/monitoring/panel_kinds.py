"""The two kinds of dashboard panels, as builders of Grafana's SDK: figures and curves."""

from collections.abc import Mapping
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import QueryEditorMode

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


class Query(NamedTuple):
    expr: str
    legend: str
    """Name of each curve in the panel's legend, with labels as `{{label}}`."""


def figure(
    number: int,
    title: str,
    description: str,
    queries: tuple[Query, ...],
    *,
    unit: str = "short",
    decimals: int | None = None,
    highest: float | None = None,
    thresholds: Mapping[float, str] | None = None,
    names: tuple[tuple[str, str, str], ...] = (),
) -> stat.Panel:
    """Return a panel that shows one number, or "no data" in red.

    Args:
        number: The panel's id.
        title: Its heading.
        description: The meaning of the figure, and what to look for.
        queries: Asked at this instant: over a range, the last value of a dead process would count.
        unit: Grafana's name of the unit: `s`, `percentunit`, `short`.
        decimals: Shown behind the point; None: Grafana's choice.
        highest: The greatest possible value.
        thresholds: The colour from a value on; green below.
        names: (value, text in its place, colour).
    """
    panel = (
        stat.Panel()
        .id(number)
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(3)
        .height(4)
        .targets([target.instant() for target in _targets(queries)])
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(thresholds))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .mappings(_mappings(names))
        .graph_mode(options.BigValueGraphMode.NONE)
        .color_mode(options.BigValueColorMode.VALUE)
        .justify_mode(options.BigValueJustifyMode.AUTO)
        .text_mode(options.BigValueTextMode.AUTO)
        .wide_layout(True)
        .show_percent_change(False)
        .percent_change_color_mode(options.PercentChangeColorMode.STANDARD)
        .orientation(options.VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    )
    if decimals is not None:
        panel.decimals(decimals)
    if highest is not None:
        panel.max(highest)
    return panel


def curves(
    number: int,
    title: str,
    description: str,
    queries: tuple[Query, ...],
    *,
    unit: str = "short",
    axis: str = "",
    width: int = 8,
    thresholds: Mapping[float, str] | None = None,
    stacked: bool = False,
    highest: float | None = None,
) -> timeseries.Panel:
    """Return a panel that shows curves over time.

    Args:
        number: The panel's id.
        title: Its heading.
        description: The meaning of the curves, and what to look for.
        queries: Asked over the range on the screen.
        unit: Grafana's name of the unit: `s`, `percentunit`, `ops`, `short`.
        axis: A unit without a name in Grafana, written beside the axis.
        width: Of 24 columns.
        thresholds: The colour of the line at a value.
        stacked: Areas on top of each other, for shares of a whole.
        highest: Upper end of the axis; None: what the data need.
    """
    panel = (
        timeseries.Panel()
        .id(number)
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(8)
        .targets([target.range() for target in _targets(queries)])
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(thresholds))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
        .draw_style(options.GraphDrawStyle.LINE)
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .show_points(options.VisibilityMode.NEVER)
        .span_nulls(False)
        .axis_label(axis)
        .stacking(
            common.StackingConfig()
            .mode(options.StackingMode.NORMAL if stacked else options.StackingMode.NONE)
            .group("A")
        )
        .thresholds_style(
            common.GraphThresholdsStyleConfig().mode(
                options.GraphThresholdsStyleMode.LINE
                if thresholds
                else options.GraphThresholdsStyleMode.OFF
            )
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(options.LegendDisplayMode.TABLE)
            .placement(options.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(options.TooltipDisplayMode.MULTI)
            .sort(options.SortOrder.DESCENDING)
        )
    )
    if highest is not None:
        panel.max(highest)
    return panel


def _targets(queries: tuple[Query, ...]) -> list[Dataquery]:
    return [
        Dataquery()
        .ref_id(ref_id)
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .editor_mode(QueryEditorMode.CODE)
        for ref_id, query in zip(ascii_uppercase, queries, strict=False)
    ]


def _thresholds(colors: Mapping[float, str] | None) -> builders.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green")]
    steps += [models.Threshold(value=value, color=color) for value, color in (colors or {}).items()]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _mappings(names: tuple[tuple[str, str, str], ...]) -> list[models.ValueMapping]:
    mappings: list[models.ValueMapping] = []
    if names:
        texts = {
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, text, color) in enumerate(names)
        }
        mappings.append(models.ValueMap(options=texts))
    nothing = models.ValueMappingResult(text="no data", color="red", index=len(names))
    special = models.DashboardSpecialValueMapOptions(
        match=models.SpecialValueMatch.NULL, result=nothing
    )
    mappings.append(models.SpecialValueMap(options=special))
    return mappings
