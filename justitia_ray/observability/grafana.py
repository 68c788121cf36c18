"""Rows and panels of a Grafana dashboard, and the JSON that Grafana 11 and later read.

Knows Grafana's schema and nothing of what is shown; not for whole dashboards (`dashboard`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

Json = dict[str, Any]

GRID_COLUMNS = 24
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression of a panel."""

    expr: str
    legend: str
    """Name of each series, with labels as `{{label}}`."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From which value on something has which colour."""

    above: float
    color: Literal["yellow", "red"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a figure of this moment (`stat`) or curves over time (`timeseries`)."""

    number: int
    """Its id: links and embedded panels name it, so that it is never given to another panel."""
    title: str
    description: str
    """What it shows, and what to look for."""
    queries: tuple[Query, ...]
    unit: str = "short"
    """Grafana's name of the unit: `s`, `percentunit`, `ops`, `short`."""
    axis: str = ""
    """A unit that Grafana has no name for, written beside the axis."""
    kind: Literal["stat", "timeseries"] = "timeseries"
    width: int = 8
    """Of 24 columns."""
    height: int = 8
    thresholds: tuple[Threshold, ...] = ()
    stacked: bool = False
    """Areas on top of each other, for shares of a whole."""
    most: float | None = None
    """Upper end of the axis; None: what the data need."""
    decimals: int | None = None
    names: tuple[tuple[str, str, str], ...] = ()
    """(value, what is written in its place, colour)."""

    def json(self, x: int, y: int) -> Json:
        """Return it as Grafana has it, at this place of the grid."""
        return {
            "id": self.number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                _target(name, query, instant=self.kind == "stat")
                for name, query in zip(ascii_uppercase, self.queries, strict=False)
            ],
            "fieldConfig": {"defaults": self._field(), "overrides": []},
            "options": _STAT_OPTIONS if self.kind == "stat" else _CURVE_OPTIONS,
        }

    def _field(self) -> Json:
        steps: list[Json] = [{"value": None, "color": "green"}]
        steps += [{"value": step.above, "color": step.color} for step in self.thresholds]
        field: Json = {
            "unit": self.unit,
            "min": 0,
            "thresholds": {"mode": "absolute", "steps": steps},
            "color": {"mode": "thresholds" if self.kind == "stat" else "palette-classic"},
        }
        if self.most is not None:
            field["max"] = self.most
        if self.decimals is not None:
            field["decimals"] = self.decimals
        mappings = self._mappings()
        if mappings:
            field["mappings"] = mappings
        if self.kind == "timeseries":
            field["custom"] = self._curves()
        return field

    def _mappings(self) -> list[Json]:
        found: list[Json] = []
        if self.names:
            texts = {
                value: {"text": text, "color": color, "index": index}
                for index, (value, text, color) in enumerate(self.names)
            }
            found.append({"type": "value", "options": texts})
        if self.kind == "stat":
            nothing = {"text": "no data", "color": "red", "index": len(self.names)}
            found.append({"type": "special", "options": {"match": "null", "result": nothing}})
        return found

    def _curves(self) -> Json:
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "axisLabel": self.axis,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if self.thresholds else "off"},
        }


_STAT_OPTIONS: Json = {
    "graphMode": "none",
    "colorMode": "value",
    "justifyMode": "auto",
    "textMode": "auto",
    "wideLayout": True,
    "showPercentChange": False,
    "percentChangeColorMode": "standard",
    "orientation": "auto",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}
_CURVE_OPTIONS: Json = {
    "legend": {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["lastNotNull", "max"],
    },
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def _target(name: str, query: Query, *, instant: bool) -> Json:
    """Return a query; over a range, the last value of what is dead would be taken for today's."""
    return {
        "refId": name,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "range": not instant,
        "instant": instant,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels below it, from left to right and line by line."""

    number: int
    title: str
    panels: tuple[Panel, ...]


def laid_out(rows: Sequence[Row]) -> list[Json]:
    """Return rows and panels as Grafana has them, each at its place of the grid."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            {
                "id": row.number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": GRID_COLUMNS, "h": 1},
                "panels": [],
            }
        )
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append(panel.json(x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed
