"""The commands of the pages are run on a stand-in for a cluster, with the real kubectl and Helm.

The stand-in stores and checks objects and runs no pod: the tests show that the commands are valid,
in this order, and which objects they leave, but not that anything starts.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import justitia_ray
from tests.pages import ROOT
from tests.unit.k8s.chart import CHART, needs_helm, needs_kubectl
from tests.unit.k8s.cluster import Cluster, cluster, indented, steps
from tests.unit.k8s.test_own_overlay import OVERLAY

FIRST_HOUR = ROOT / "deployments" / "first-hour.md"
CHART_README = CHART / "README.md"
pytestmark = [needs_helm, needs_kubectl]

SECRETS = """
kubectl create namespace justitia
kubectl -n justitia create secret generic justitia-redis --from-literal=password=abc
"""
APPLY = f"{SECRETS}kubectl kustomize k8s/overlays/gpu | kubectl apply --server-side -f -\n"
OF_KUSTOMIZE = "--set-file serve.config=k8s/overlays/gpu/serve.yaml"
INSTALL = "helm install justitia k8s/chart --namespace justitia"


def own_values() -> str:
    """Return the values that the chart's page shows."""
    text = CHART_README.read_text(encoding="utf-8")
    return text.split("<!-- own values -->\n```yaml\n")[1].partition("```")[0]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def after_the_first_hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster on which every step of the page has been run, in order."""
    with cluster(tmp_path_factory.mktemp("first-hour")) as started:
        for step in steps(FIRST_HOUR, "cluster"):
            started.done(step)
        yield started


def test_every_shell_block_of_the_first_hour_is_run_or_cannot_be() -> None:
    text = FIRST_HOUR.read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- step: \w+ -->\n)?```sh\n(.*?)```", text, re.DOTALL)
    left_out = [block for mark, block in blocks if not mark]

    assert f"justitia-ray:{justitia_ray.__version__}-gpu" in left_out[1]
    assert 4 == len(left_out)
    for block, reason in zip(
        left_out, ("helm repo add", "docker build", "--watch", "port-forward"), strict=True
    ):
        assert reason in block


def test_first_hour_leaves_a_release_with_what_the_page_set(after_the_first_hour: Cluster) -> None:
    service = after_the_first_hour.found("RayService", "justitia")
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    settings = {d["name"]: d.get("user_config") for d in application["deployments"]}["Ingress"]

    tag = f"{justitia_ray.__version__}-gpu"
    assert f"registry.example.com/justitia-ray:{tag}" == head["containers"][0]["image"]
    assert 2 == settings["tenants"]["team-a"]["weight"]
    assert (
        "justitia.json"
        in after_the_first_hour.found("ConfigMap", "justitia-dashboard", "monitoring")["data"]
    )
    rule = after_the_first_hour.found("PrometheusRule", "justitia")
    assert "prometheus" == rule["metadata"]["labels"]["release"]


def test_first_hour_creates_every_secret_that_pods_read(after_the_first_hour: Cluster) -> None:
    """A pod with a reference to a missing secret waits for ever."""
    text = yaml.safe_dump([*after_the_first_hour.specs().values()])
    named = {*re.findall(r"secretKeyRef:\n +key: \w+\n +name: (\S+)", text)}
    named |= {*re.findall(r"secretName: (\S+)", text)} | {"justitia-registry"}

    assert {"justitia-redis", "justitia-keys", "justitia-hub", "justitia-registry"} == named
    assert all(after_the_first_hour.found("Secret", name) for name in named)


def test_first_hour_counts_the_gpus(after_the_first_hour: Cluster) -> None:
    assert "gpu-1   8" in after_the_first_hour.done(steps(FIRST_HOUR, "cluster")[0])


def test_rollback_of_the_page_restores_the_revision_that_it_names(
    after_the_first_hour: Cluster,
) -> None:
    history = after_the_first_hour.done("helm history justitia --namespace justitia")

    assert "Rollback to 3" in history
    assert 5 == history.count("justitia-0.3.0")


def test_keys_of_the_page_are_in_the_secret(after_the_first_hour: Cluster) -> None:
    """The second key was added after the installation."""
    for name in ("team-a.key", "team-b.key", "ops.key"):
        key = (after_the_first_hour.folder / name).read_text().strip()
        assert key.startswith("jk-")
        assert key not in str(after_the_first_hour.found("Secret", "justitia-keys"))


def test_installation_of_the_charts_page_ends_with_a_checked_configuration(there: Cluster) -> None:
    (there.folder / "mine.yaml").write_text(own_values())
    namespace, install, check = indented(CHART_README, "## Install")
    there.done(namespace)
    there.done(install)
    checked = there.done(check.replace("check-config", "check-config --without-vllm"))

    assert "is fine" in checked


def test_objects_of_kustomize_are_not_taken_over_by_mistake(there: Cluster) -> None:
    there.done(APPLY)

    assert "invalid ownership metadata" in there.run(INSTALL).stderr


def test_release_takes_over_the_objects_of_kustomize_unchanged(there: Cluster) -> None:
    """Otherwise KubeRay would deploy, or a field that cannot change would stop the release."""
    there.done(APPLY)
    before = there.specs()
    there.done(f"{INSTALL} {OF_KUSTOMIZE} --take-ownership")

    assert before == there.specs()
    labels = there.found("StatefulSet", "justitia-redis")["metadata"]["labels"]
    assert "Helm" == labels["app.kubernetes.io/managed-by"]


@pytest.mark.long
def test_marks_of_the_page_let_a_release_adopt_without_the_option(there: Cluster) -> None:
    there.done(APPLY)
    before = there.specs()
    (marks,) = [b for b in indented(CHART_README, "## From kustomize to the chart") if "for o" in b]
    there.done(marks)
    there.done(f"{INSTALL} {OF_KUSTOMIZE}")

    assert before == there.specs()


@pytest.mark.long
def test_commands_of_the_page_take_over_an_own_overlay(there: Cluster) -> None:
    """The page's file names are those of the overlay that k8s/README.md shows."""
    (there.folder / "k8s").unlink()
    there.done(f"cp -r {CHART.parent} k8s && mkdir k8s/overlays/mine")
    (there.folder / "k8s/overlays/mine/kustomization.yaml").write_text(OVERLAY)
    there.done("cp k8s/overlays/gpu/serve.yaml k8s/overlays/mine")
    there.done(f"{SECRETS}kubectl apply --server-side -k k8s/overlays/mine")
    before = there.specs()
    (there.folder / "mine.yaml").write_text(own_values())
    commands = indented(CHART_README, "## From kustomize to the chart")[0]
    render, rest = commands.split("kubectl diff -f chart.yaml", 1)
    there.done(render)
    difference = there.run("kubectl diff -f chart.yaml").stdout
    there.done(rest.partition("\n")[2])

    assert before == there.specs()
    changed = [line for line in difference.splitlines() if re.match(r"[+-] ", line)]
    assert changed
    assert {"+"} == {line[0] for line in changed}


@pytest.mark.long
def test_values_in_place_of_the_file_change_the_text_and_nothing_else(there: Cluster) -> None:
    there.done(APPLY)
    there.done(f"{INSTALL} {OF_KUSTOMIZE} --take-ownership")
    before = there.specs()
    # Without values of its own an upgrade takes those of the revision before.
    there.done("helm upgrade justitia k8s/chart --namespace justitia --reset-values")
    after = there.specs()
    texts = [
        specs["RayService", "justitia"]["spec"].pop("serveConfigV2") for specs in (before, after)
    ]

    assert before == after
    assert texts[0] != texts[1]
    assert yaml.safe_load(texts[0]) == yaml.safe_load(texts[1])


@pytest.mark.long
def test_way_back_to_kustomize_leaves_the_objects(there: Cluster) -> None:
    there.done(f"{SECRETS}{INSTALL}")
    before = there.specs()
    text = CHART_README.read_text(encoding="utf-8")
    (command,) = re.findall(r"`(kubectl -n justitia delete secret -l owner=helm\S*)`", text)
    there.done(command)

    assert before == there.specs()
    assert "not found" in there.run("helm status justitia --namespace justitia").stderr


def test_uninstallation_leaves_the_volume_of_the_models(there: Cluster) -> None:
    there.done(f"{SECRETS}{INSTALL}")
    for block in indented(CHART_README, "## Uninstall"):
        there.done(block)

    assert {("PersistentVolumeClaim", "justitia-models")} == {*there.specs()}


def test_field_that_cannot_change_stops_an_upgrade(there: Cluster) -> None:
    """The stand-in must be able to refuse, or the takeovers above would show nothing."""
    there.done(f"{SECRETS}{INSTALL}")
    upgrade = "helm upgrade justitia k8s/chart --namespace justitia"
    done = there.run(f"{upgrade} --set redis.persistence.size=9Gi")

    assert 0 != done.returncode
    assert "volumeClaimTemplates: field is immutable" in done.stderr
