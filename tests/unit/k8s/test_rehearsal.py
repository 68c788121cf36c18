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
from tests.unit.k8s.cluster import ClusterStandIn, indented_blocks, run_cluster, shell_blocks
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


def readme_values() -> str:
    """Return the example of values in the README of the Helm chart."""
    text = CHART_README.read_text(encoding="utf-8")
    return text.split("<!-- own values -->\n```yaml\n")[1].partition("```")[0]


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[ClusterStandIn]:
    with run_cluster(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def first_hour_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClusterStandIn]:
    """Yield a cluster on which every step of the page has been run, in order."""
    with run_cluster(tmp_path_factory.mktemp("first-hour")) as started:
        for step in shell_blocks(FIRST_HOUR, "cluster"):
            started.run_successfully(step)
        yield started


def test_every_shell_block_of_the_first_hour_page_is_run_or_excluded() -> None:
    text = FIRST_HOUR.read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- step: \w+ -->\n)?```sh\n(.*?)```", text, re.DOTALL)
    left_out = [block for mark, block in blocks if not mark]

    assert f"justitia-ray:{justitia_ray.__version__}-gpu" in left_out[1]
    assert 4 == len(left_out)
    for block, reason in zip(
        left_out, ("helm repo add", "docker build", "--watch", "port-forward"), strict=True
    ):
        assert reason in block


def test_first_hour_page_installs_a_release_with_its_values(
    first_hour_cluster: ClusterStandIn,
) -> None:
    service = first_hour_cluster.find_object("RayService", "justitia")
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    settings = {d["name"]: d.get("user_config") for d in application["deployments"]}["Ingress"]

    tag = f"{justitia_ray.__version__}-gpu"
    assert f"registry.example.com/justitia-ray:{tag}" == head["containers"][0]["image"]
    assert 2 == settings["tenants"]["team-a"]["weight"]
    assert (
        "justitia.json"
        in first_hour_cluster.find_object("ConfigMap", "justitia-dashboard", "monitoring")["data"]
    )
    rule = first_hour_cluster.find_object("PrometheusRule", "justitia")
    assert "prometheus" == rule["metadata"]["labels"]["release"]


def test_first_hour_page_creates_every_secret_that_pods_read(
    first_hour_cluster: ClusterStandIn,
) -> None:
    """A pod with a reference to a missing secret waits forever."""
    text = yaml.safe_dump([*first_hour_cluster.specs_by_name().values()])
    named = {*re.findall(r"secretKeyRef:\n +key: \w+\n +name: (\S+)", text)}
    named |= {*re.findall(r"secretName: (\S+)", text)} | {"justitia-registry"}

    assert {"justitia-redis", "justitia-keys", "justitia-hub", "justitia-registry"} == named
    assert all(first_hour_cluster.find_object("Secret", name) for name in named)


def test_documented_command_of_the_first_hour_prints_the_gpu_count(
    first_hour_cluster: ClusterStandIn,
) -> None:
    assert "gpu-1   8" in first_hour_cluster.run_successfully(
        shell_blocks(FIRST_HOUR, "cluster")[0]
    )


def test_documented_rollback_restores_the_named_revision(
    first_hour_cluster: ClusterStandIn,
) -> None:
    history = first_hour_cluster.run_successfully("helm history justitia --namespace justitia")

    assert "Rollback to 3" in history
    assert 5 == history.count("justitia-0.3.0")


def test_api_keys_of_the_first_hour_page_are_in_the_secret(
    first_hour_cluster: ClusterStandIn,
) -> None:
    for name in ("team-a.key", "team-b.key", "ops.key"):
        key = (first_hour_cluster.folder / name).read_text().strip()
        assert key.startswith("jk-")
        assert key not in str(first_hour_cluster.find_object("Secret", "justitia-keys"))


def test_documented_installation_ends_with_a_checked_configuration(
    empty_cluster: ClusterStandIn,
) -> None:
    (empty_cluster.folder / "mine.yaml").write_text(readme_values())
    namespace, install, check = indented_blocks(CHART_README, "## Install")
    empty_cluster.run_successfully(namespace)
    empty_cluster.run_successfully(install)
    checked = empty_cluster.run_successfully(
        check.replace("check-config", "check-config --without-vllm")
    )

    assert "is fine" in checked


def test_kustomize_objects_are_not_adopted_by_accident(empty_cluster: ClusterStandIn) -> None:
    empty_cluster.run_successfully(APPLY)

    assert "invalid ownership metadata" in empty_cluster.run_script(INSTALL).stderr


def test_helm_release_adopts_kustomize_objects_unchanged(empty_cluster: ClusterStandIn) -> None:
    """A changed object would make KubeRay deploy again, or stop the release."""
    empty_cluster.run_successfully(APPLY)
    before = empty_cluster.specs_by_name()
    empty_cluster.run_successfully(f"{INSTALL} {OF_KUSTOMIZE} --take-ownership")

    assert before == empty_cluster.specs_by_name()
    labels = empty_cluster.find_object("StatefulSet", "justitia-redis")["metadata"]["labels"]
    assert "Helm" == labels["app.kubernetes.io/managed-by"]


@pytest.mark.long
def test_documented_annotations_let_a_helm_release_adopt_objects(
    empty_cluster: ClusterStandIn,
) -> None:
    empty_cluster.run_successfully(APPLY)
    before = empty_cluster.specs_by_name()
    (marks,) = [
        b for b in indented_blocks(CHART_README, "## From kustomize to the chart") if "for o" in b
    ]
    empty_cluster.run_successfully(marks)
    empty_cluster.run_successfully(f"{INSTALL} {OF_KUSTOMIZE}")

    assert before == empty_cluster.specs_by_name()


@pytest.mark.long
def test_documented_helm_commands_adopt_a_kustomize_overlay(empty_cluster: ClusterStandIn) -> None:
    """The page's file names are those of the overlay that k8s/README.md shows."""
    (empty_cluster.folder / "k8s").unlink()
    empty_cluster.run_successfully(f"cp -r {CHART.parent} k8s && mkdir k8s/overlays/mine")
    (empty_cluster.folder / "k8s/overlays/mine/kustomization.yaml").write_text(OVERLAY)
    empty_cluster.run_successfully("cp k8s/overlays/gpu/serve.yaml k8s/overlays/mine")
    empty_cluster.run_successfully(f"{SECRETS}kubectl apply --server-side -k k8s/overlays/mine")
    before = empty_cluster.specs_by_name()
    (empty_cluster.folder / "mine.yaml").write_text(readme_values())
    commands = indented_blocks(CHART_README, "## From kustomize to the chart")[0]
    render, rest = commands.split("kubectl diff -f chart.yaml", 1)
    empty_cluster.run_successfully(render)
    difference = empty_cluster.run_script("kubectl diff -f chart.yaml").stdout
    empty_cluster.run_successfully(rest.partition("\n")[2])

    assert before == empty_cluster.specs_by_name()
    changed = [line for line in difference.splitlines() if re.match(r"[+-] ", line)]
    assert changed
    assert {"+"} == {line[0] for line in changed}


@pytest.mark.long
def test_helm_values_change_only_the_text_of_the_serve_configuration(
    empty_cluster: ClusterStandIn,
) -> None:
    empty_cluster.run_successfully(APPLY)
    empty_cluster.run_successfully(f"{INSTALL} {OF_KUSTOMIZE} --take-ownership")
    before = empty_cluster.specs_by_name()
    # an upgrade without values keeps those of the previous revision
    empty_cluster.run_successfully(
        "helm upgrade justitia k8s/chart --namespace justitia --reset-values"
    )
    after = empty_cluster.specs_by_name()
    texts = [
        specs["RayService", "justitia"]["spec"].pop("serveConfigV2") for specs in (before, after)
    ]

    assert before == after
    assert texts[0] != texts[1]
    assert yaml.safe_load(texts[0]) == yaml.safe_load(texts[1])


@pytest.mark.long
def test_return_from_helm_to_kustomize_leaves_the_objects(empty_cluster: ClusterStandIn) -> None:
    empty_cluster.run_successfully(f"{SECRETS}{INSTALL}")
    before = empty_cluster.specs_by_name()
    text = CHART_README.read_text(encoding="utf-8")
    (command,) = re.findall(r"`(kubectl -n justitia delete secret -l owner=helm\S*)`", text)
    empty_cluster.run_successfully(command)

    assert before == empty_cluster.specs_by_name()
    assert (
        "not found" in empty_cluster.run_script("helm status justitia --namespace justitia").stderr
    )


def test_uninstallation_leaves_the_volume_of_the_models(empty_cluster: ClusterStandIn) -> None:
    empty_cluster.run_successfully(f"{SECRETS}{INSTALL}")
    for block in indented_blocks(CHART_README, "## Uninstall"):
        empty_cluster.run_successfully(block)

    assert {("PersistentVolumeClaim", "justitia-models")} == {*empty_cluster.specs_by_name()}


def test_change_of_an_immutable_field_stops_a_helm_upgrade(empty_cluster: ClusterStandIn) -> None:
    """A stand-in that never refuses would make the adoption tests meaningless."""
    empty_cluster.run_successfully(f"{SECRETS}{INSTALL}")
    upgrade = "helm upgrade justitia k8s/chart --namespace justitia"
    done = empty_cluster.run_script(f"{upgrade} --set redis.persistence.size=9Gi")

    assert 0 != done.returncode
    assert "volumeClaimTemplates: field is immutable" in done.stderr
