"""The Grafana dashboard: it is the committed file, and asks only for what is exported."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from justitia_ray.observability.dashboard import dashboard, dashboard_text
from justitia_ray.observability.metrics import EXPORTED_PREFIX, TABLE
from justitia_ray.observability.promql import CLUSTER_LABELS, VARIABLES
from tests.dashboard_queries import Asked, panels, queries
from tests.readme import ROOT

COMMITTED = ROOT / "deployments" / "monitoring" / "grafana" / "justitia.json"
METRICS = {name: metric for metric in TABLE for name in metric.exported}
every_query = pytest.mark.parametrize(
    "asked", queries(), ids=lambda asked: f"{asked.panel}: {asked.legend}"
)


def selectors(expression: str) -> list[promql.VectorSelector]:
    """Return what an expression selects, anywhere in it."""
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(expression), visit)
    return found


def groupings(expression: str) -> Iterator[list[str]]:
    """Yield the labels of every `by`."""
    found: list[list[str]] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            found.append(node.modifier.labels)

    promql.walk(promql.parse(expression), visit)
    yield from found


def labels_of(node: Any) -> set[str]:
    """Return the labels that the series of an expression have."""
    if isinstance(node, promql.AggregateExpr):
        return set(node.modifier.labels) if node.modifier else set()
    if isinstance(node, promql.BinaryExpr):
        return labels_of(node.lhs) | labels_of(node.rhs)
    if isinstance(node, promql.Call):
        return set().union(*map(labels_of, node.args)) - {"le"}
    if isinstance(node, promql.NumberLiteral):
        return set()
    raise AssertionError(f"{node} is not aggregated")


def test_committed_file_is_the_generated_one() -> None:
    """Whoever adds a metric runs `justitia dashboard --out`; the file is never edited."""
    assert dashboard_text() == COMMITTED.read_text(encoding="utf-8")


def test_every_metric_is_in_some_panel() -> None:
    """A metric that nobody sees is only a cost."""
    shown = {
        METRICS[str(selector.name)].name
        for asked in queries()
        if asked.legend is not None
        for selector in selectors(asked.expression())
    }

    assert {metric.name for metric in TABLE} == shown


@every_query
def test_query_names_only_metrics_that_are_exported(asked: Asked) -> None:
    """A panel of a name that is not there stays empty, and nobody knows why."""
    named = [selector.name for selector in selectors(asked.expression())]

    assert named
    assert set(named) <= set(METRICS), named


@every_query
def test_query_names_only_labels_that_its_metrics_have(asked: Asked) -> None:
    """A label that is not there makes one curve of all, or none."""
    expression = asked.expression()
    for selector in selectors(expression):
        own = {*METRICS[str(selector.name)].labels, *CLUSTER_LABELS, "le"}
        for labels in (
            [matcher.name for matcher in selector.matchers.matchers],
            *groupings(expression),
        ):
            assert set(labels) <= own, selector.name


@every_query
def test_query_is_narrowed_by_every_variable(asked: Asked) -> None:
    """Two clusters in one Prometheus must not be added up when one is chosen."""
    expected = {label: f"only-{name}" for label, name in VARIABLES.items()}
    narrowed = asked.expression(**{name: f"only-{name}" for name in VARIABLES.values()})

    for selector in selectors(narrowed):
        chosen = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert expected == {label: chosen.get(label) for label in expected}


@pytest.mark.parametrize(
    "asked", [asked for asked in queries() if asked.legend is not None], ids=lambda a: a.panel
)
def test_legend_names_what_tells_its_curves_apart(asked: Asked) -> None:
    """Two curves of one name cannot be told apart; a label that is gone is shown as a hole."""
    named = set(re.findall(r"{{(\w+)}}", str(asked.legend)))

    assert named == labels_of(promql.parse(asked.expression()))


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """It is read at night by somebody who did not build it."""
    legends = [target["legendFormat"] for target in panel["targets"]]

    assert panel["description"].endswith(".")
    assert 40 < len(panel["description"])
    assert len(legends) == len(set(legends))


def test_numbers_of_panels_are_unique() -> None:
    """Links and embedded panels name a panel by its number."""
    numbers = [panel["id"] for panel in dashboard()["panels"]]

    assert sorted(set(numbers)) == sorted(numbers)


def test_panels_do_not_overlap() -> None:
    """Grafana would push them apart, each time in another way."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_rows_are_those_an_operator_asks_for() -> None:
    """Overview first: it says which of the others to look at."""
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]

    assert ["Overview", "Fairness", "Replicas", "Scheduler", "Predictor"] == rows


def test_variables_are_those_of_rays_own_dashboards() -> None:
    """A link from one dashboard to the other keeps what was chosen."""
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]

    assert ["datasource", "Cluster", "SessionName", "application", "model", "window"] == names


@pytest.mark.parametrize("label", list(VARIABLES))
def test_values_of_a_variable_come_from_a_metric_that_has_the_label(label: str) -> None:
    """A variable that finds no values hides everything."""
    variables = {v["name"]: v for v in dashboard()["templating"]["list"]}
    query = variables[VARIABLES[label]]["query"]["query"]
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert found is not None
    (selector,) = selectors(re.sub(r"\$\w+", ".*", found[1]))

    assert label == found[2]
    assert label in {*METRICS[str(selector.name)].labels, *CLUSTER_LABELS}


def lost(ours: Any, grafanas: Any, at: str = "") -> Iterator[str]:
    """Yield what is ours and did not come back from Grafana's types."""
    if isinstance(ours, dict) and isinstance(grafanas, dict):
        for key, value in ours.items():
            if key in grafanas:
                yield from lost(value, grafanas[key], f"{at}/{key}")
            else:
                yield f"{at}/{key}"
    elif isinstance(ours, list) and isinstance(grafanas, list) and len(ours) == len(grafanas):
        for number, (one, other) in enumerate(zip(ours, grafanas, strict=True)):
            yield from lost(one, other, f"{at}/{number}")
    elif ours != grafanas:
        yield at


def through_grafanas_types(written: dict[str, Any]) -> Any:
    """Return a dashboard as Grafana's own types understand it."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(written)))


def test_grafana_knows_every_field() -> None:
    """Grafana passes over a field that it does not know, and the panel looks otherwise."""
    written = dashboard()

    assert [] == list(lost(written, through_grafanas_types(written)))


def test_field_that_grafana_does_not_know_is_found() -> None:
    """The test above has to be able to fail."""
    written = dashboard()
    written["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"

    assert ["/panels/1/fieldConfig/defaults/units"] == list(
        lost(written, through_grafanas_types(written))
    )


FIGURES = [panel for panel in panels() if panel["type"] == "stat"]


@pytest.mark.parametrize("panel", FIGURES, ids=lambda panel: panel["title"])
def test_figure_is_of_this_moment(panel: dict[str, Any]) -> None:
    """Over a range, the last value of a service that is dead looks like that of one that runs."""
    asked = {(target["instant"], target["range"]) for target in panel["targets"]}

    assert {(True, False)} == asked
    assert "none" == panel["options"]["graphMode"]


@pytest.mark.parametrize("panel", FIGURES, ids=lambda panel: panel["title"])
def test_figure_without_data_is_red(panel: dict[str, Any]) -> None:
    """Nothing to show is no good news: green is what is seen from across the room."""
    (special,) = [
        mapping["options"]
        for mapping in panel["fieldConfig"]["defaults"]["mappings"]
        if mapping["type"] == "special"
    ]

    assert "null" == special["match"]
    assert ("no data", "red") == (special["result"]["text"], special["result"]["color"])


def test_curves_are_asked_over_the_range() -> None:
    """An instant query would draw one point."""
    curves = [panel for panel in panels() if panel["type"] == "timeseries"]

    assert curves
    assert all(target["range"] for panel in curves for target in panel["targets"])


@pytest.mark.parametrize("title", ["Backlog", "Backlog in time"])
def test_backlog_is_shown_before_the_first_service(title: str) -> None:
    """Engines that never served are when a backlog grows: the rate has no series until then."""
    (asked,) = [asked for asked in queries() if asked.panel == title]
    division = promql.parse(asked.expression())
    assert isinstance(division, promql.BinaryExpr)
    assert isinstance(division.rhs, promql.Call)
    served = division.rhs.args[0]

    assert isinstance(served, promql.BinaryExpr)
    assert "or" == str(served.op)
    assert {"ray_justitia_backlog_kv_token_time"} == {
        selector.name for selector in selectors(str(served.rhs))
    }


def test_names_are_exported_with_rays_prefix() -> None:
    """Prometheus knows them by that name only."""
    assert all(name.startswith(EXPORTED_PREFIX + "justitia_") for name in METRICS)
