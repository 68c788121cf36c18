"""The README's examples for users: an own overlay, and a patch of a running cluster."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.unit.k8s import rules
from tests.unit.k8s.kustomization import Manifest, render
from tests.unit.k8s.manifests import (
    K8S,
    manifests_of_kind,
    needs_schemas,
    pod_templates,
    ray_service,
    render_manifests,
    serve_application,
    worker_group,
)
from tests.unit.k8s.schemas import manifest_errors

README = (K8S / "README.md").read_text(encoding="utf-8")
OVERLAY, MONITOR = re.findall(r"<!-- own overlay -->\n```yaml\n(.*?)```", README, re.DOTALL)
MODEL = "example/other-model"


def render_overlay(directory: Path, text: str) -> list[Manifest]:
    """Return the manifests of an overlay with this kustomization beside a copy of k8s/."""
    shutil.copytree(K8S, directory / "k8s")
    mine = directory / "k8s" / "overlays" / "mine"
    mine.mkdir()
    theirs = (K8S / "overlays" / "gpu" / "serve.yaml").read_text(encoding="utf-8")
    (mine / "serve.yaml").write_text(theirs.replace("Qwen/Qwen3-4B-Instruct-2507", MODEL))
    (mine / "kustomization.yaml").write_text(text)
    return render(mine)


def model_name(found: list[Manifest]) -> str:
    return str(serve_application(found)["args"]["model"]["name"])


@pytest.fixture(scope="module")
def documented_overlay(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return render_overlay(tmp_path_factory.mktemp("own"), OVERLAY)


def test_documented_overlay_makes_the_changes_listed_in_the_readme(
    documented_overlay: list[Manifest],
) -> None:
    ours = [
        template for template in pod_templates(documented_overlay) if template.component != "redis"
    ]
    (claim,) = manifests_of_kind(documented_overlay, "PersistentVolumeClaim")

    assert MODEL == model_name(documented_overlay)
    assert {"registry.example.com/justitia-ray:0.3.0.dev0-gpu"} == {
        t.container["image"] for t in ours
    }
    assert [[{"name": "justitia-registry"}]] * 3 == [t.spec["imagePullSecrets"] for t in ours]
    assert "create secret generic justitia-registry" in README
    assert "nfs-csi" == claim["spec"]["storageClassName"]
    assert 4 == worker_group(documented_overlay, "engines")["maxReplicas"]


@pytest.mark.parametrize("section", ["configMapGenerator", "replacements"])
def test_overlay_without_one_of_its_sections_keeps_the_model(section: str, tmp_path: Path) -> None:
    """A copy of serve.yaml that no section references changes nothing, as the README says."""
    values = yaml.safe_load(OVERLAY)
    del values[section]

    assert "Qwen/Qwen3-4B-Instruct-2507" == model_name(
        render_overlay(tmp_path, yaml.safe_dump(values))
    )


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_documented_overlay_satisfies_every_rule(
    rule: rules.Rule, documented_overlay: list[Manifest]
) -> None:
    """Users copy the overlay, so it must satisfy the same rules."""
    assert [] == list(rule(documented_overlay))


@needs_schemas
def test_documented_overlay_is_valid_by_the_schemas(documented_overlay: list[Manifest]) -> None:
    assert [] == manifest_errors(documented_overlay)


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_monitoring_resources_get_the_operators_label(kind: str, tmp_path: Path) -> None:
    """Without the label the Prometheus of the usual chart silently ignores the resource."""
    found = render_overlay(tmp_path, f"resources: [../gpu]\n{MONITOR}")
    (manifest,) = manifests_of_kind(found, kind)

    assert "prometheus" == manifest["metadata"]["labels"]["release"]
    assert "justitia" == manifest["metadata"]["namespace"]


def patch_of_the_readme() -> list[dict[str, Any]]:
    """Return the patch that enlarges a group of a running cluster."""
    (text,) = re.findall(r"patch raycluster .*--patch '(\[.*?\])'", README, re.DOTALL)
    operations = json.loads(text)
    assert isinstance(operations, list)
    return operations


def test_documented_patch_enlarges_one_worker_group_of_a_running_cluster() -> None:
    cluster = {"spec": ray_service(render_manifests("base"))["spec"]["rayClusterConfig"]}
    changed = jsonpatch.apply_patch(cluster, patch_of_the_readme())
    _, engines = changed["spec"]["workerGroupSpecs"]
    cluster["spec"]["workerGroupSpecs"].reverse()

    assert (3, 3) == (engines["replicas"], engines["maxReplicas"])
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(cluster, patch_of_the_readme())
