"""What k8s/ renders to, once for all tests, and the parts of it that they look at."""

import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s.kustomization import Manifest, render

K8S = Path(__file__).parents[3] / "k8s"
NAMES = ("base", "overlays/local", "overlays/gpu")

_BESIDE = Path(__file__).parents[4] / "shared" / "data"
SCHEMAS = Path(os.environ.get("JUSTITIA_DATA") or _BESIDE) / "kuberay"
needs_schemas = pytest.mark.skipif(
    not SCHEMAS.is_dir(), reason="needs KubeRay's schemas: set JUSTITIA_DATA"
)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod that a manifest makes."""

    name: str
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """Labels by which services, budgets and policies find it."""
        return dict(self.metadata["labels"])

    @property
    def component(self) -> str:
        """What it is for."""
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> dict[str, Any]:
        """The only container that the manifest names."""
        (container,) = self.spec["containers"]
        return dict(container)

    def as_pod(self) -> Manifest:
        """Return it as a pod of its own."""
        # KubeRay makes the name; no schema asks for one.
        return {"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata, "spec": self.spec}


def manifests(name: str) -> list[Manifest]:
    """Return a copy of what this directory of k8s/ renders to."""
    return deepcopy(_rendered(name))


@cache
def _rendered(name: str) -> list[Manifest]:
    return render(K8S / name)


def of_kind(found: list[Manifest], kind: str) -> list[Manifest]:
    """Return the manifests of a kind."""
    return [manifest for manifest in found if manifest["kind"] == kind]


def ray_service(found: list[Manifest]) -> Manifest:
    """Return the one RayService."""
    (service,) = of_kind(found, "RayService")
    return service


def serve_config(found: list[Manifest]) -> dict[str, Any]:
    """Return what Ray Serve is given."""
    values = yaml.safe_load(ray_service(found)["spec"]["serveConfigV2"])
    assert isinstance(values, dict)
    return values


def deployment(found: list[Manifest], name: str) -> dict[str, Any]:
    """Return what Serve is told of a deployment."""
    (application,) = serve_config(found)["applications"]
    (named,) = [d for d in application["deployments"] if d["name"] == name]
    assert isinstance(named, dict)
    return named


def group(found: list[Manifest], name: str) -> dict[str, Any]:
    """Return a group of Ray's workers."""
    groups = ray_service(found)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (named,) = [g for g in groups if g["groupName"] == name]
    assert isinstance(named, dict)
    return named


def pod_templates(found: list[Manifest]) -> list[PodTemplate]:
    """Return every pod that the manifests make."""
    templates = []
    for manifest in found:
        if manifest["kind"] == "StatefulSet":
            templates.append((manifest["metadata"]["name"], manifest["spec"]["template"]))
        if manifest["kind"] == "RayService":
            cluster = manifest["spec"]["rayClusterConfig"]
            templates.append(("head", cluster["headGroupSpec"]["template"]))
            templates += [(g["groupName"], g["template"]) for g in cluster["workerGroupSpecs"]]
    return [PodTemplate(name, t["metadata"], t["spec"]) for name, t in templates]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector means these labels."""
    wanted = selector.get("matchLabels", {})
    rules = selector.get("matchExpressions", [])
    assert {rule["operator"] for rule in rules} <= {"In"}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in rules
    )


def walk(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value below a node, with the path to it."""
    yield path, node
    if isinstance(node, dict):
        for key, value in node.items():
            yield from walk(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from walk(value, f"{path}[{index}]")
