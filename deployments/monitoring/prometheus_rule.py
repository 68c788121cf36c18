"""Write the alerts for the Prometheus operator: `python -m deployments.monitoring.prometheus_rule`.

`k8s/components/alerts/prometheus-rule.yaml` contains `alerts.yml` as a PrometheusRule, and
`k8s/chart/files/alerts.yaml` its groups, because neither kustomize nor Helm reads a file outside
its folder. Run the program at the repository's root after a change of the alerts; a test fails
while a file is outdated.
"""

from pathlib import Path
from textwrap import indent

ALERTS = Path(__file__).with_name("alerts.yml")
FILE = Path(__file__).parents[2] / "k8s/components/alerts/prometheus-rule.yaml"
CHART_FILE = Path(__file__).parents[2] / "k8s/chart/files/alerts.yaml"
_HEAD = """\
# Written by deployments/monitoring/prometheus_rule.py from alerts.yml there: edit that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: justitia
  namespace: justitia
  labels: {app.kubernetes.io/part-of: justitia}
spec:
"""


def rule_text() -> str:
    """Return the PrometheusRule without the alerts' leading comment."""
    return _HEAD + indent(chart_text(), "  ")


def chart_text() -> str:
    """Return the groups of alerts, which the chart's template puts into a PrometheusRule."""
    alerts = ALERTS.read_text(encoding="utf-8")
    return alerts[alerts.index("groups:\n") :]


if __name__ == "__main__":
    FILE.write_text(rule_text(), encoding="utf-8")
    CHART_FILE.write_text(chart_text(), encoding="utf-8")
