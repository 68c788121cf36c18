"""The files of deployments/monitoring beside the dashboard's generator."""

import re
from typing import Any

import yaml

from deployments.monitoring.dashboard import UID
from tests.dashboard_queries import DASHBOARD
from tests.pages import ROOT

MONITORING = ROOT / "deployments" / "monitoring"
PROVISIONING = MONITORING / "grafana" / "provisioning"
PAGE = (MONITORING / "README.md").read_text(encoding="utf-8")


def read(path: str) -> Any:
    """Return what a YAML file of the folder says."""
    return yaml.safe_load((MONITORING / path).read_text(encoding="utf-8"))


def test_dashboards_folder_is_the_one_that_is_provisioned() -> None:
    """Grafana says nothing about a folder in which it finds no dashboard."""
    (provider,) = read("grafana/provisioning/dashboards/justitia.yaml")["providers"]
    path = provider["options"]["path"].replace("${JUSTITIA_MONITORING}", str(MONITORING))

    assert path == str(MONITORING / "grafana")
    assert (MONITORING / "grafana" / f"{UID}.json").is_file()
    assert "export JUSTITIA_MONITORING=" in PAGE


def test_datasource_is_the_prometheus_beside_it() -> None:
    """Two files that disagree on the interval make rates of one sample: nothing is drawn."""
    (datasource,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    interval = read("prometheus.yml")["global"]["scrape_interval"]

    assert interval == datasource["jsonData"]["timeInterval"]
    assert f"--web.listen-address={datasource['url'].removeprefix('http://')}" in PAGE


def test_every_file_is_named_on_the_page() -> None:
    """A file that the page does not name is one that nobody starts with."""
    files = [
        path.relative_to(MONITORING)
        for path in MONITORING.rglob("*")
        if path.is_file() and path.name != "README.md" and path.suffix != ".pyc"
    ]
    unnamed = [str(path) for path in files if f"`{path}`" not in PAGE]

    assert [] == unnamed


def test_panels_that_the_page_names_are_there() -> None:
    """What to look at first is given by title."""
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    named = re.findall(r"\*\*(.+?)\*\*", PAGE.split("## What to look at\n")[1].split("\n## ")[0])

    assert named
    assert set() == set(named) - titles
