"""The dashboard that ships, and its queries as Grafana would send them."""

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
"""What Grafana puts in place of the variables when it is just opened: everything is chosen."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a panel, or of the annotations."""

    panel: str
    template: str
    """As it stands in the dashboard."""
    legend: str | None
    """None: of an annotation."""

    def expression(self, **chosen: str) -> str:
        """Return PromQL; `chosen` are other values of variables, by name."""
        values = CHOSEN | {f"${name}": value for name, value in chosen.items()}
        expression = self.template
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, expression
        return expression


DASHBOARD_TEXT = files("justitia_ray.observability").joinpath("dashboard.json").read_text("utf-8")
DASHBOARD: dict[str, Any] = json.loads(DASHBOARD_TEXT)


def panels() -> list[dict[str, Any]]:
    """Return the panels, without the headings of rows."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[Asked]:
    """Return every query, those of annotations last."""
    asked = [
        Asked(panel["title"], target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]
    annotations = DASHBOARD["annotations"]["list"]
    return asked + [Asked(note["name"], note["expr"], None) for note in annotations]
