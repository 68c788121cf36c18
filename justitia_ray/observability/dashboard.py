"""The Grafana dashboard, from the table of metrics: `deployments/monitoring/grafana/justitia.json`.

Its variables are those of Ray's own dashboards, so that a link from one to the other keeps them:
`datasource`, `Cluster` (set on Kubernetes, where a PodMonitor adds `ray_io_cluster`) and
`SessionName`; `application`, `model` and `window` are its own.
"""

import json

from justitia_ray.observability.grafana import DATASOURCE, Json, laid_out
from justitia_ray.observability.metrics import EPOCH, EPOCH_CHANGES_TOTAL, EXPORTED_PREFIX
from justitia_ray.observability.promql import VARIABLES, rise
from justitia_ray.observability.rows import ROWS

UID = "justitia"
"""Part of the dashboard's address, and what Grafana knows it by at an update."""
SCHEMA_VERSION = 41
"""Of Grafana 11.6; later ones bring it up to theirs as they load it."""
_LISTED_FROM = EXPORTED_PREFIX + EPOCH.name
"""Exported by every scheduler from its start: one series for each model."""


def dashboard() -> Json:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": UID,
        "title": "Justitia",
        "description": "Fair sharing of LLM engines among applications: is it fair, is it"
        " saturated, do its predictions hold, and what went wrong.",
        "tags": ["justitia", "ray", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "fiscalYearStartMonth": 0,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "templating": {"list": _variables()},
        "annotations": {"list": [_TAKES_OFFICE]},
        "panels": laid_out(ROWS),
    }


def dashboard_text() -> str:
    """Return the file: JSON in which a change of one panel is a change of its lines."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def _variables() -> list[Json]:
    """Return the variables; the values of each are those that the ones before it leave."""
    found: list[Json] = [_DATASOURCE]
    filters: list[str] = []
    for label, name in VARIABLES.items():
        chosen = f"{{{', '.join(filters)}}}" if filters else ""
        found.append(_values_of(label, name, f"label_values({_LISTED_FROM}{chosen}, {label})"))
        filters.append(f'{label}=~"${name}"')
    return [*found, _WINDOW]


def _values_of(label: str, name: str, query: str) -> Json:
    return {
        "type": "query",
        "name": name,
        "label": _CAPTIONS[label],
        "hide": 0,
        "skipUrlSync": False,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "multi": True,
        "allowCustomValue": True,
        "includeAll": True,
        # Also a series that has no such label, which `.+` would leave out.
        "allValue": ".*",
        "options": [],
        "refresh": 2,
        "sort": 1,
    }


_CAPTIONS = {
    "ray_io_cluster": "Cluster",
    "SessionName": "Ray session",
    "application": "Application",
    "model": "Model",
}
_DATASOURCE: Json = {
    "type": "datasource",
    "name": "datasource",
    "label": "Prometheus",
    "hide": 0,
    "skipUrlSync": False,
    "query": "prometheus",
    "multi": False,
    "allowCustomValue": True,
    "includeAll": False,
    "options": [],
    "refresh": 1,
}
_WINDOWS = ("1m", "5m", "15m", "1h")
_WINDOW: Json = {
    "type": "custom",
    "name": "window",
    "label": "Quantiles over",
    "description": "Quantiles and counts are those of this much time before each instant.",
    "hide": 0,
    "skipUrlSync": False,
    "query": ",".join(_WINDOWS),
    "current": {"selected": True, "text": "5m", "value": "5m"},
    "multi": False,
    "allowCustomValue": True,
    "includeAll": False,
    "options": [
        {"selected": window == "5m", "text": window, "value": window} for window in _WINDOWS
    ],
}
_TAKES_OFFICE: Json = {
    "name": "A scheduler takes office",
    "datasource": DATASOURCE,
    "enable": True,
    "hide": False,
    "iconColor": "orange",
    # A fixed window: Grafana has no $__rate_interval in annotations.
    "expr": f"{rise(EPOCH_CHANGES_TOTAL, 'model', window='1m')} > 0",
    "builtIn": 0,
}
"""A line in every panel where a scheduler was started again."""
