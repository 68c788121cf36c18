"""Write the alerts for the Prometheus operator: `python -m deployments.monitoring.prometheus_rule`.

`k8s/components/alerts/prometheus-rule.yaml` contains `alerts.yml` as a PrometheusRule, because
kustomize reads no file outside its folder. Run the program at the repository's root after a change
of the alerts; a test fails while the file is outdated. `scripts/write_tables` copies the groups of
alerts for the Helm chart.
"""

from pathlib import Path
from textwrap import indent

ALERTS = Path(__file__).with_name("alerts.yml")
FILE = Path(__file__).parents[2] / "k8s/components/alerts/prometheus-rule.yaml"
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
    """Return the PrometheusRule without the leading comment of the file of alerts."""
    alerts = ALERTS.read_text(encoding="utf-8")
    return _HEAD + indent(alerts[alerts.index("groups:\n") :], "  ")


if __name__ == "__main__":
    FILE.write_text(rule_text(), encoding="utf-8")
