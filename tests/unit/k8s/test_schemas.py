"""Every manifest is valid for Kubernetes, KubeRay, Ray Serve and this project's schema."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.serve.ops.config_file import check_file
from tests.unit.k8s.kustomization import Manifest, render
from tests.unit.k8s.manifests import (
    K8S,
    NAMES,
    manifests_of_kind,
    needs_schemas,
    ray_service,
    render_manifests,
    replace_in_serve_config,
    worker_container,
    worker_group,
)
from tests.unit.k8s.schemas import manifest_errors

pytestmark = needs_schemas


def rename_key(node: dict[str, Any], old: str, new: str) -> None:
    node[new] = node.pop(old)


@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_valid_by_their_schemas(name: str) -> None:
    """An operator would notice an invalid manifest only because a pod never starts."""
    assert [] == manifest_errors(render_manifests(name))


WRONG: list[tuple[str, Callable[[list[Manifest]], None]]] = [
    (
        "RayService justitia: $.spec.rayClusterConfig: Additional properties are not allowed"
        " ('rayVersoin' was unexpected)",
        lambda m: rename_key(
            ray_service(m)["spec"]["rayClusterConfig"], "rayVersion", "rayVersoin"
        ),
    ),
    (
        "RayService justitia: $.spec.rayClusterConfig.workerGroupSpecs[1].replicas: 'two' is not"
        " of type 'integer'",
        lambda m: worker_group(m, "engines").update(replicas="two"),
    ),
    (
        "Additional properties are not allowed ('lables' was unexpected)",
        lambda m: rename_key(ray_service(m)["metadata"], "labels", "lables"),
    ),
    (
        "pod cpu: spec.containers.0: Additional properties are not allowed ('readynessProbe' was"
        " unexpected) (Kubernetes 1.31)",
        lambda m: rename_key(worker_container(m, "cpu"), "readinessProbe", "readynessProbe"),
    ),
    (
        "StatefulSet justitia-redis: spec: Additional properties are not allowed ('replica' was"
        " unexpected) (Kubernetes 1.37)",
        lambda m: rename_key(manifests_of_kind(m, "StatefulSet")[0]["spec"], "replicas", "replica"),
    ),
    (
        "serveConfigV2: applications[0].args.store.redis_ulr: unknown key",
        lambda m: replace_in_serve_config(m, "redis_url", "redis_ulr"),
    ),
    (
        "serveConfigV2: applications[0].deployments[0].num_replica: unknown key",
        lambda m: replace_in_serve_config(m, "num_replicas", "num_replica"),
    ),
]


@pytest.mark.parametrize(("line", "change"), WRONG, ids=[line[-50:] for line, _ in WRONG])
def test_manifest_with_an_invalid_field_is_found(
    line: str, change: Callable[[list[Manifest]], None]
) -> None:
    """Kubernetes silently drops unknown fields of a custom resource."""
    found = render_manifests("base")
    change(found)

    assert any(line in error for error in manifest_errors(found))


@pytest.mark.parametrize("file", sorted(K8S.glob("**/serve.yaml")), ids=lambda f: f.parent.name)
def test_serve_file_passes_check_config(file: Path) -> None:
    """The README tells users to run `check-config` on the edited file."""
    assert () == check_file(file).errors


def test_each_kustomization_is_tested() -> None:
    """An overlay that no test renders may be broken from the start."""
    directories = {f.parent for f in K8S.glob("**/kustomization.yaml")}
    components = {d for d in directories if d.parent.name == "components"}

    assert {K8S / name for name in NAMES} == directories - components
    for directory in components:
        assert render(directory)
