"""The shipped dashboard, and its queries as Grafana sends them."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

CHOSEN = {
    "$__rate_interval": "1m",
    "$__range": "30m",
    "$window": "5m",
    "$Cluster": ".*",
    "$SessionName": ".*",
    "$application": ".*",
    "$model": ".*",
}
"""Values of Grafana's dashboard variables, with all options selected."""


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    panel: str
    template: str
    """Query text in the dashboard, with Grafana variables."""
    legend: str | None
    """Legend of the query's time series; None for an annotation."""

    def expression(self, **chosen: str) -> str:
        """Return the query with all variables replaced; `chosen` overrides their default values."""
        values = CHOSEN | {f"${name}": value for name, value in chosen.items()}
        expression = self.template
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, expression
        return expression


DASHBOARD_TEXT = files("justitia_ray.observability").joinpath("dashboard.json").read_text("utf-8")
DASHBOARD: dict[str, Any] = json.loads(DASHBOARD_TEXT)


def panels() -> list[dict[str, Any]]:
    """Return a dashboard's panels without row headings."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[DashboardQuery]:
    """Return all queries of a dashboard: first those of panels, then those of annotations."""
    asked = [
        DashboardQuery(panel["title"], target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]
    annotations = DASHBOARD["annotations"]["list"]
    return asked + [DashboardQuery(note["name"], note["expr"], None) for note in annotations]
