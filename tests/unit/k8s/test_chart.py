"""The Helm chart renders the objects of each kustomization, and adopts what kustomize applied."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import justitia_ray
from scripts.chart_values import files
from tests.dashboard_queries import DASHBOARD
from tests.unit.k8s import rules
from tests.unit.k8s.chart import (
    CHART,
    PRESETS,
    by_kind_and_name,
    needs_helm,
    preset_arguments,
    refusal_of_values,
    render_chart,
    render_release,
    run_helm,
    with_parsed_configuration,
    without_release_labels,
)
from tests.unit.k8s.kustomization import Manifest, render
from tests.unit.k8s.manifests import (
    K8S,
    NAMES,
    manifests_of_kind,
    needs_schemas,
    ray_service,
    render_manifests,
)
from tests.unit.k8s.schemas import manifest_errors
from tests.unit.k8s.test_own_overlay import MODEL, OVERLAY
from tests.unit.k8s.test_own_overlay import render_overlay as rendered_overlay

README = (CHART / "README.md").read_text(encoding="utf-8")
OBJECTS = [(name, *key) for name in NAMES for key in by_kind_and_name(render_manifests(name))]


def comparable_objects(found: list[Manifest]) -> dict[tuple[str, str], Any]:
    return by_kind_and_name([with_parsed_configuration(without_release_labels(m)) for m in found])


def test_every_kustomization_has_a_preset() -> None:
    assert {*NAMES} == {*PRESETS}


@needs_helm
@pytest.mark.parametrize(("name", "kind", "named"), OBJECTS, ids="-".join)
def test_each_chart_object_equals_the_kustomization_object(
    name: str, kind: str, named: str
) -> None:
    wanted = comparable_objects(render_manifests(name))[kind, named]

    assert wanted == comparable_objects(render_chart(*preset_arguments(name)))[kind, named]


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_chart_has_no_object_beyond_the_kustomization(name: str) -> None:
    assert (
        by_kind_and_name(render_manifests(name)).keys()
        == by_kind_and_name(render_chart(*preset_arguments(name))).keys()
    )


@needs_helm
@pytest.mark.parametrize(
    ("component", "key"), [("pod-monitor", "podMonitor"), ("alerts", "prometheusRule")]
)
def test_each_component_is_enabled_by_a_value(component: str, key: str) -> None:
    (wanted,) = render(K8S / "components" / component)
    found = by_kind_and_name(render_chart("--set", f"monitoring.{key}.enabled=true"))

    assert wanted == without_release_labels(found[wanted["kind"], "justitia"])


@needs_helm
def test_dashboard_is_enabled_by_a_value() -> None:
    found = by_kind_and_name(render_chart("--set", "monitoring.dashboard.enabled=true"))
    carrier = found["ConfigMap", "justitia-dashboard"]

    assert "1" == carrier["metadata"]["labels"]["grafana_dashboard"]
    assert DASHBOARD == json.loads(carrier["data"]["justitia.json"])


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.name))
def test_generated_file_of_the_chart_is_up_to_date(file: Path) -> None:
    assert files()[file] == file.read_text(encoding="utf-8"), "run scripts/write_tables"


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_adopting_a_kustomize_installation_changes_only_labels(name: str) -> None:
    """Adopting a kustomize installation must change no spec.

    So no pod restarts, KubeRay deploys nothing, and no immutable field stops the installation.
    """
    found = render_chart(
        *preset_arguments(name), "--set-file", f"serve.config={K8S / name / 'serve.yaml'}"
    )

    assert by_kind_and_name(render_manifests(name)) == by_kind_and_name(
        [without_release_labels(m) for m in found]
    )


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_helm_lint_has_no_findings(name: str) -> None:
    done = run_helm("lint", ".", "--strict", *preset_arguments(name))

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


def test_chart_has_the_version_of_the_package() -> None:
    """Helm requires SemVer, in which the package's `1.2.3.dev0` is `1.2.3-dev.0`."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert justitia_ray.__version__ == chart["appVersion"]
    assert justitia_ray.__version__.replace(".dev", "-dev.") == chart["version"]


@needs_helm
def test_kubernetes_1_30_is_refused() -> None:
    """The manifests are checked against 1.31 and later."""
    assert "incompatible with Kubernetes v1.30.9" in refusal_of_values("--kube-version", "1.30.9")


def write_readme_values(folder: Path) -> Path:
    (text,) = README.split("<!-- own values -->\n```yaml\n")[1:]
    file = folder / "mine.yaml"
    file.write_text(text.partition("```")[0], encoding="utf-8")
    return file


@needs_helm
def test_readme_values_render_the_documented_overlay(tmp_path: Path) -> None:
    """The pages show the same changes for both tools, so both must give the same objects."""
    model = [f"--set=serve.args.model.{key}={MODEL}" for key in ("name", "path")]
    found = render_chart("--values", str(write_readme_values(tmp_path)), *model)
    theirs = comparable_objects(rendered_overlay(tmp_path, OVERLAY))
    del theirs["Namespace", "justitia"]

    assert theirs == comparable_objects(found)


@pytest.fixture(scope="module")
def second_release() -> list[Manifest]:
    """Return the objects of another release, whose name is in every other name."""
    return render_release("prod", "--set", "commonLabels.a=b")


@needs_helm
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_second_helm_release_satisfies_every_manifest_rule(
    rule: rules.Rule, second_release: list[Manifest]
) -> None:
    """Selectors, addresses and accounts must follow the release's name."""
    assert [] == list(rule(second_release))


@needs_helm
@needs_schemas
def test_second_helm_release_is_valid_by_the_schemas(second_release: list[Manifest]) -> None:
    assert [] == manifest_errors(second_release)


@needs_helm
def test_second_helm_release_shares_no_object_name_with_the_first(
    second_release: list[Manifest],
) -> None:
    assert (
        set() == by_kind_and_name(render_chart()).keys() & by_kind_and_name(second_release).keys()
    )
    assert "prod-justitia" == ray_service(second_release)["metadata"]["name"]


@needs_helm
def test_downloaded_models_outlive_the_helm_release() -> None:
    """`helm uninstall` would delete a volume of downloaded models."""
    (claim,) = manifests_of_kind(render_chart(), "PersistentVolumeClaim")

    assert "keep" == claim["metadata"]["annotations"]["helm.sh/resource-policy"]


@needs_helm
def test_pods_have_no_label_with_the_helm_release() -> None:
    """A label with the chart's version would change every pod with each release."""
    labels = [
        group["template"]["metadata"]["labels"]
        for group in (
            ray_service(render_chart())["spec"]["rayClusterConfig"]["headGroupSpec"],
            *ray_service(render_chart())["spec"]["rayClusterConfig"]["workerGroupSpecs"],
        )
    ]

    assert {"app.kubernetes.io/part-of", "app.kubernetes.io/component"} == set().union(*labels)
