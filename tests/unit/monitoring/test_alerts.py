"""Prometheus alerts: cases that fire, cases that are silent, and metrics that are exported."""

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from deployments.monitoring.prometheus_rule import ALERTS, FILE, rule_text
from deployments.monitoring.promql import CLUSTER_LABELS
from justitia_ray.observability.metrics import TABLE
from tests.debian_programs import debian_program
from tests.pages import ROOT

TESTS = ALERTS.with_name("alerts_test.yml")
(GROUP,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = GROUP["rules"]
CASES: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
METRICS = {name: metric for metric in TABLE for name in metric.exported}
every_alert = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def run_promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = debian_program("promtool", "prometheus")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def selectors_in(expression: str) -> list[promql.VectorSelector]:
    """Return every PromQL selector in an expression."""
    found: list[promql.VectorSelector] = []

    def collect_selectors(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(expression), collect_selectors)
    return found


def expected_samples(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the firing alerts that a case expects at all of its times."""
    return [sample for asked in case["promql_expr_test"] for sample in asked["exp_samples"]]


def test_every_alert_case_passes_promtool() -> None:
    done = run_promtool("test", "rules", str(TESTS))

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("threshold", "other"), [("+ 600", "+ 60"), ("(5 * max", "(50 * max"), ("(5 * max", "(4 * max")]
)
def test_promtool_fails_a_case_whose_threshold_was_changed(
    tmp_path: Path, threshold: str, other: str
) -> None:
    """Alert tests that cannot fail would also pass without running their cases.

    Only the cases of this alert run: others last days of the simulated time.
    """
    alert = "JustitiaDrainTimeAboveTarget"
    text = ALERTS.read_text(encoding="utf-8").replace(threshold, other)
    tests = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    tests["tests"] = [case for case in CASES if case["name"].startswith(f"{alert} ")]
    (tmp_path / ALERTS.name).write_text(text)
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(tests))

    done = run_promtool("test", "rules", str(tmp_path / TESTS.name))

    assert 0 != done.returncode
    assert alert in done.stdout + done.stderr


@every_alert
def test_alert_has_a_firing_and_a_silent_case(rule: dict[str, Any]) -> None:
    cases = [case for case in CASES if case["name"].startswith(f"{rule['alert']} ")]
    fires = {case["name"].split()[1]: bool(expected_samples(case)) for case in cases}

    assert {"fires": True, "is": False} == fires
    for case in cases:
        asked = {one["expr"] for one in case["promql_expr_test"]}
        assert {f'ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}}'} == asked
        assert case["input_series"]


@every_alert
def test_alert_selects_only_exported_metrics_and_labels(rule: dict[str, Any]) -> None:
    named = selectors_in(rule["expr"])
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by\s*\(([^)]*)\)", rule["expr"]))))

    assert named
    for selector in named:
        labels = {*METRICS[str(selector.name)].labels, *CLUSTER_LABELS, "le"}
        assert grouped <= labels, selector.name


@every_alert
def test_alert_labels_distinguish_clusters_and_applications(rule: dict[str, Any]) -> None:
    """A healthy cluster must not hide a failing one in the same Prometheus."""
    groupings = re.findall(r"by\s*\(([^)]*)\)", rule["expr"])

    assert len(groupings) == len(selectors_in(rule["expr"]))
    for grouping in groupings:
        assert {*CLUSTER_LABELS, "application"} <= {*re.split(r",\s*", grouping)}


@every_alert
def test_alert_has_a_severity_and_a_runbook(rule: dict[str, Any]) -> None:
    """The operator who is woken did not write the alert, so its runbook section must exist."""
    annotations = rule["annotations"]
    page, _, section = annotations["runbook_url"].partition("#")
    titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert annotations["summary"]
    assert 100 < len(annotations["description"])
    assert section in anchors
    assert f"`{rule['alert']}`" in (ROOT / page).read_text(encoding="utf-8")


def test_committed_prometheus_rule_equals_the_generated_rule() -> None:
    """Run `python -m deployments.monitoring.prometheus_rule` after changing an alert."""
    written = FILE.read_text(encoding="utf-8")

    assert rule_text() == written
    assert {"groups": [GROUP]} == yaml.safe_load(written)["spec"]
