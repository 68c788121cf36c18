"""Files of deployments/monitoring other than the dashboard's generator."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from deployments.monitoring.dashboard import UID
from tests.dashboard_queries import DASHBOARD
from tests.pages import ROOT

MONITORING = ROOT / "deployments" / "monitoring"
PROVISIONING = MONITORING / "grafana" / "provisioning"
PAGE = (MONITORING / "README.md").read_text(encoding="utf-8")


def read_yaml(path: str) -> Any:
    return yaml.safe_load((MONITORING / path).read_text(encoding="utf-8"))


def test_provisioned_folder_contains_the_dashboards() -> None:
    """Grafana reports no error for a folder without dashboards."""
    (provider,) = read_yaml("grafana/provisioning/dashboards/justitia.yaml")["providers"]
    path = Path(provider["options"]["path"].replace("${JUSTITIA_MONITORING}", str(MONITORING)))
    (file,) = path.glob("*.json")

    assert UID == json.loads(file.read_text(encoding="utf-8"))["uid"]
    assert "export JUSTITIA_MONITORING=" in PAGE


def test_datasource_has_the_scrape_interval_of_prometheus() -> None:
    """With a longer interval in Prometheus each rate has one sample, and Grafana draws nothing."""
    (datasource,) = read_yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    interval = read_yaml("prometheus.yml")["global"]["scrape_interval"]

    assert interval == datasource["jsonData"]["timeInterval"]
    assert f"--web.listen-address={datasource['url'].removeprefix('http://')}" in PAGE


def test_page_names_every_monitoring_file() -> None:
    files = [
        path.relative_to(MONITORING)
        for path in MONITORING.rglob("*")
        if path.is_file() and path.name != "README.md" and path.suffix != ".pyc"
    ]
    unnamed = [str(path) for path in files if f"`{path}`" not in PAGE]

    assert [] == unnamed


def test_dashboard_panels_named_on_the_page_exist() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    named = re.findall(r"\*\*(.+?)\*\*", PAGE.split("## What to look at\n")[1].split("\n## ")[0])

    assert named
    assert set() == set(named) - titles
