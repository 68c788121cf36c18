"""Make the Grafana dashboard: `python -m deployments.monitoring.dashboard`.

The program writes `justitia_ray/observability/dashboard.json`, which is part of the wheel and
printed by `justitia dashboard`. Run it at the repository's root, with the extra `dev`, after a
change of metrics or panels; a test fails while the file is outdated. `scripts/write_tables` copies
the file for the Helm chart, which reads no file outside its folder.

The variables have the names of Ray's own dashboards, so that links between them keep the values:
`datasource`, `Cluster` (set on Kubernetes, where a PodMonitor adds `ray_io_cluster`) and
`SessionName`; `application`, `model` and `window` exist only here.
"""

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deployments.monitoring.panel_kinds import DATASOURCE
from deployments.monitoring.panels import ROWS
from deployments.monitoring.promql import VARIABLES, rise
from justitia_ray.observability.metrics import EPOCH, EPOCH_CHANGES_TOTAL, EXPORTED_PREFIX

FILE = Path(__file__).parents[2] / "justitia_ray/observability/dashboard.json"
UID = "justitia"
"""Id of the Grafana dashboard, which is part of its address."""
_LISTED_FROM = EXPORTED_PREFIX + EPOCH.name
"""Metric whose labels fill the dashboard's drop-down lists."""
_CAPTIONS = {
    "ray_io_cluster": "Cluster",
    "SessionName": "Ray session",
    "application": "Application",
    "model": "Model",
}
_WINDOWS = ("1m", "5m", "15m", "1h")
_DEFAULT_WINDOW = "5m"


def build_dashboard() -> models.Dashboard:
    """Return the Grafana dashboard, built with the types of Grafana's SDK."""
    board = (
        builders.Dashboard("Justitia")
        .uid(UID)
        .description(
            "Fair sharing of LLM engines among applications: is it fair, is it saturated, do its"
            " predictions hold, and what went wrong."
        )
        .tags(["justitia", "ray", "llm"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        .fiscal_year_start_month(0)
        .time("now-30m", "now")
        .refresh("10s")
        .variables([_datasource_variable(), *_label_variables(), _window_variable()])
        .annotation(_leadership_changes())
    )
    for row, panels in ROWS:
        board.with_row(row)
        for panel in panels:
            board.with_panel(panel)
    return board.build()


def dashboard_text() -> str:
    """Return the dashboard's JSON, formatted so that a changed panel gives a small diff."""
    text = json.dumps(build_dashboard(), cls=JSONEncoder, indent=2, ensure_ascii=False)
    return text + "\n"


def _datasource_variable() -> builders.DatasourceVariable:
    return (
        builders.DatasourceVariable("datasource")
        .label("Prometheus")
        .hide(models.VariableHide.DONT_HIDE)
        .type("prometheus")
        .multi(False)
        .include_all(False)
    )


def _label_variables() -> list[builders.QueryVariable]:
    """Return a drop-down list for each label; a choice in one list restricts the later lists."""
    variables: list[builders.QueryVariable] = []
    filters: list[str] = []
    for label, name in VARIABLES.items():
        chosen = f"{{{', '.join(filters)}}}" if filters else ""
        query: dict[str, Any] = {
            "query": f"label_values({_LISTED_FROM}{chosen}, {label})",
            "refId": "StandardVariableQuery",
        }
        variables.append(
            builders.QueryVariable(name)
            .label(_CAPTIONS[label])
            .hide(models.VariableHide.DONT_HIDE)
            .datasource(DATASOURCE)
            .query(query)
            .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
            .multi(True)
            .include_all(True)
            # An empty label also matches: `.*` includes series without it, `.+` would not.
            .all_value(".*")
            .options([])
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
        )
        filters.append(f'{label}=~"${name}"')
    return variables


def _window_variable() -> builders.CustomVariable:
    options = [
        models.VariableOption(selected=window == _DEFAULT_WINDOW, text=window, value=window)
        for window in _WINDOWS
    ]
    return (
        builders.CustomVariable("window")
        .label("Quantiles over")
        .description("Quantiles and counts are those of this much time before each instant.")
        .hide(models.VariableHide.DONT_HIDE)
        .values(",".join(_WINDOWS))
        .current(options[_WINDOWS.index(_DEFAULT_WINDOW)])
        .multi(False)
        .include_all(False)
        .options(options)
    )


def _leadership_changes() -> builders.AnnotationQuery:
    """Return annotations that mark the restart of a scheduler in every panel."""
    return (
        builders.AnnotationQuery()
        .name("A scheduler takes office")
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color("orange")
        # The window is fixed because Grafana has no $__rate_interval in annotations.
        .expr(f"{rise(EPOCH_CHANGES_TOTAL, 'model', window='1m')} > 0")
        .built_in(0)
    )


if __name__ == "__main__":
    FILE.write_text(dashboard_text(), encoding="utf-8")
