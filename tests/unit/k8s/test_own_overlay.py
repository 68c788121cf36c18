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
    group,
    manifests,
    needs_schemas,
    of_kind,
    pod_templates,
    ray_service,
    serve_application,
)
from tests.unit.k8s.schemas import errors

README = (K8S / "README.md").read_text(encoding="utf-8")
OVERLAY, MONITOR = re.findall(r"<!-- own overlay -->\n```yaml\n(.*?)```", README, re.DOTALL)
MODEL = "example/other-model"


def rendered(directory: Path, text: str) -> list[Manifest]:
    """Return the manifests of an overlay with this kustomization beside a copy of k8s/."""
    shutil.copytree(K8S, directory / "k8s")
    mine = directory / "k8s" / "overlays" / "mine"
    mine.mkdir()
    theirs = (K8S / "overlays" / "gpu" / "serve.yaml").read_text(encoding="utf-8")
    (mine / "serve.yaml").write_text(theirs.replace("Qwen/Qwen3-4B-Instruct-2507", MODEL))
    (mine / "kustomization.yaml").write_text(text)
    return render(mine)


def model_of(found: list[Manifest]) -> str:
    return str(serve_application(found)["args"]["model"]["name"])


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return rendered(tmp_path_factory.mktemp("own"), OVERLAY)


def test_own_overlay_differs_in_what_the_readme_says(own: list[Manifest]) -> None:
    """Model, registry, storage and limit change for each Ray pod; Redis keeps its image."""
    ours = [template for template in pod_templates(own) if template.component != "redis"]
    (claim,) = of_kind(own, "PersistentVolumeClaim")

    assert MODEL == model_of(own)
    assert {"registry.example.com/justitia-ray:0.3.0.dev0-gpu"} == {
        t.container["image"] for t in ours
    }
    assert [[{"name": "justitia-registry"}]] * 3 == [t.spec["imagePullSecrets"] for t in ours]
    assert "create secret generic justitia-registry" in README
    assert "nfs-csi" == claim["spec"]["storageClassName"]
    assert 4 == group(own, "engines")["maxReplicas"]


@pytest.mark.parametrize("section", ["configMapGenerator", "replacements"])
def test_model_stays_without_both_sections(section: str, tmp_path: Path) -> None:
    """A copy of serve.yaml that no section references changes nothing, as the README says."""
    values = yaml.safe_load(OVERLAY)
    del values[section]

    assert "Qwen/Qwen3-4B-Instruct-2507" == model_of(rendered(tmp_path, yaml.safe_dump(values)))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_own_overlay_holds_to_every_rule(rule: rules.Rule, own: list[Manifest]) -> None:
    """Users copy the overlay, so it must satisfy the same rules."""
    assert [] == list(rule(own))


@needs_schemas
def test_own_overlay_fits_the_schemas(own: list[Manifest]) -> None:
    assert [] == errors(own)


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_monitoring_resources_get_the_operators_label(kind: str, tmp_path: Path) -> None:
    """Without the label the Prometheus of the usual chart silently ignores the resource."""
    found = rendered(tmp_path, f"resources: [../gpu]\n{MONITOR}")
    (manifest,) = of_kind(found, kind)

    assert "prometheus" == manifest["metadata"]["labels"]["release"]
    assert "justitia" == manifest["metadata"]["namespace"]


def patch_of_the_readme() -> list[dict[str, Any]]:
    """Return the patch that enlarges a group of a running cluster."""
    (text,) = re.findall(r"patch raycluster .*--patch '(\[.*?\])'", README, re.DOTALL)
    operations = json.loads(text)
    assert isinstance(operations, list)
    return operations


def test_group_that_runs_is_made_larger_and_no_other() -> None:
    """The RayCluster has the spec of `rayClusterConfig`, whose change KubeRay would not apply.

    Groups are addressed by position, so the patch first tests the name.
    """
    cluster = {"spec": ray_service(manifests("base"))["spec"]["rayClusterConfig"]}
    changed = jsonpatch.apply_patch(cluster, patch_of_the_readme())
    _, engines = changed["spec"]["workerGroupSpecs"]
    cluster["spec"]["workerGroupSpecs"].reverse()

    assert (3, 3) == (engines["replicas"], engines["maxReplicas"])
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(cluster, patch_of_the_readme())
