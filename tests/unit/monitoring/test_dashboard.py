"""The Grafana dashboard: the committed file is generated and queries exported metrics only."""

import re
from typing import Any, TypeVar

import promql_parser as promql
import pytest

from deployments.monitoring.dashboard import dashboard_text
from deployments.monitoring.promql import CLUSTER_LABELS, VARIABLES
from justitia_ray.observability.metrics import TABLE
from tests.dashboard_queries import DASHBOARD, DASHBOARD_TEXT, DashboardQuery, panels, queries

METRICS = {name: metric for metric in TABLE for name in metric.exported}
Node = TypeVar("Node")
every_query = pytest.mark.parametrize(
    "asked", queries(), ids=lambda asked: f"{asked.panel}: {asked.legend}"
)


def nodes_of_type(expression: str, kind: type[Node]) -> list[Node]:
    """Return the parts of a PromQL expression that are of a given type."""
    found: list[Node] = []

    def collect_nodes(node: promql.Expr) -> None:
        if isinstance(node, kind):
            found.append(node)

    promql.walk(promql.parse(expression), collect_nodes)
    return found


def selectors_in(expression: str) -> list[promql.VectorSelector]:
    return nodes_of_type(expression, promql.VectorSelector)


def labels_of(node: Any) -> set[str]:
    """Return the labels that the result of a PromQL expression has."""
    if isinstance(node, promql.AggregateExpr):
        return set(node.modifier.labels) if node.modifier else set()
    if isinstance(node, promql.BinaryExpr):
        return labels_of(node.lhs) | labels_of(node.rhs)
    if isinstance(node, promql.ParenExpr):
        return labels_of(node.expr)
    if isinstance(node, promql.Call):
        return set().union(*map(labels_of, node.args)) - {"le"}
    if isinstance(node, promql.NumberLiteral):
        return set()
    raise AssertionError(f"{node} is not aggregated")


def test_committed_dashboard_equals_the_generated_dashboard() -> None:
    """Run `python -m deployments.monitoring.dashboard` after changing a metric."""
    assert dashboard_text() == DASHBOARD_TEXT


def test_every_metric_is_shown_in_a_dashboard_panel() -> None:
    shown = {
        METRICS[str(selector.name)].name
        for asked in queries()
        if asked.legend is not None
        for selector in selectors_in(asked.expression())
    }

    assert {metric.name for metric in TABLE} == shown


@every_query
def test_dashboard_query_names_only_exported_metrics_and_labels(asked: DashboardQuery) -> None:
    """A panel of an unknown metric stays empty."""
    expression = asked.expression()
    named = selectors_in(expression)

    assert named
    assert {str(selector.name) for selector in named} <= set(METRICS)
    for selector in named:
        own = {*METRICS[str(selector.name)].labels, *CLUSTER_LABELS, "le"}
        matched = [matcher.name for matcher in selector.matchers.matchers]
        groupings = [labels_of(node) for node in nodes_of_type(expression, promql.AggregateExpr)]
        assert set().union(matched, *groupings) <= own, selector.name


@every_query
def test_dashboard_query_filters_by_every_variable(asked: DashboardQuery) -> None:
    """Without the cluster variable a panel would add up two clusters of one Prometheus."""
    expected = {label: f"only-{name}" for label, name in VARIABLES.items()}
    narrowed = asked.expression(**{name: f"only-{name}" for name in VARIABLES.values()})

    for selector in selectors_in(narrowed):
        chosen = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert expected == {label: chosen.get(label) for label in expected}


@pytest.mark.parametrize(
    "asked", [asked for asked in queries() if asked.legend is not None], ids=lambda a: a.panel
)
def test_panel_legend_has_the_labels_that_distinguish_its_curves(asked: DashboardQuery) -> None:
    """Without these labels two curves of a panel have the same name."""
    named = set(re.findall(r"{{(\w+)}}", str(asked.legend)))

    assert named == labels_of(promql.parse(asked.expression()))


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_each_dashboard_panel_has_a_description(panel: dict[str, Any]) -> None:
    """Operators who did not build the dashboard read it in an emergency."""
    legends = [target["legendFormat"] for target in panel["targets"]]

    assert panel["description"].endswith(".")
    assert 40 < len(panel["description"])
    assert len(legends) == len(set(legends))


def test_dashboard_panels_have_unique_ids_and_do_not_overlap() -> None:
    """Links use the panel's id, and Grafana moves overlapping panels apart."""
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert sorted(set(numbers)) == sorted(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_dashboard_variables_have_the_names_in_dashboards_of_ray() -> None:
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]

    assert ["datasource", "Cluster", "SessionName", "application", "model", "window"] == names


@pytest.mark.parametrize("label", list(VARIABLES))
def test_dashboard_variable_reads_its_values_from_a_metric_with_the_label(label: str) -> None:
    variables = {v["name"]: v for v in DASHBOARD["templating"]["list"]}
    query = variables[VARIABLES[label]]["query"]["query"]
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert found is not None
    (selector,) = selectors_in(re.sub(r"\$\w+", ".*", found[1]))

    assert label == found[2]
    assert label in {*METRICS[str(selector.name)].labels, *CLUSTER_LABELS}


FIGURES = [panel for panel in panels() if panel["type"] == "stat"]


@pytest.mark.parametrize("panel", FIGURES, ids=lambda panel: panel["title"])
def test_single_value_panels_are_red_without_data(panel: dict[str, Any]) -> None:
    """A range query would show the last value of a dead service as if the service still ran."""
    asked = {(target["instant"], target["range"]) for target in panel["targets"]}
    mappings = panel["fieldConfig"]["defaults"]["mappings"]
    (special,) = [mapping["options"] for mapping in mappings if mapping["type"] == "special"]

    assert {(True, False)} == asked
    assert "none" == panel["options"]["graphMode"]
    assert "null" == special["match"]
    assert ("no data", "red") == (special["result"]["text"], special["result"]["color"])


def test_dashboard_curves_use_range_queries() -> None:
    curves = [panel for panel in panels() if panel["type"] == "timeseries"]

    assert curves
    assert all(target["range"] for panel in curves for target in panel["targets"])


@pytest.mark.parametrize("title", ["Backlog", "Backlog in time"])
def test_backlog_panel_shows_data_before_the_first_service(title: str) -> None:
    """Before the first service no rate exists, and the backlog must still be drawn."""
    (asked,) = [asked for asked in queries() if asked.panel == title]
    division = promql.parse(asked.expression())
    assert isinstance(division, promql.BinaryExpr)
    assert isinstance(division.rhs, promql.Call)
    served = division.rhs.args[0]

    assert isinstance(served, promql.BinaryExpr)
    assert "or" == str(served.op)
    assert {"ray_justitia_backlog_kv_token_time"} == {
        selector.name for selector in selectors_in(str(served.rhs))
    }
