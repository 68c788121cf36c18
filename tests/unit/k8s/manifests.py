"""Rendered manifests of k8s/, shared by the tests, and access to their parts."""

import os
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s.kustomization import Manifest, render

K8S = Path(__file__).parents[3] / "k8s"
NAMES = ("base", "overlays/local", "overlays/gpu", "overlays/gpu-tp")

_BESIDE = Path(__file__).parents[4] / "shared" / "data"
SCHEMAS = Path(os.environ.get("JUSTITIA_DATA") or _BESIDE) / "kuberay"
needs_schemas = pytest.mark.skipif(
    not SCHEMAS.is_dir(), reason="needs KubeRay's schemas: set JUSTITIA_DATA"
)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Pod template of a manifest."""

    name: str
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """Labels by which services, budgets and policies select the pod."""
        return dict(self.metadata["labels"])

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return dict(container)


def render_manifests(name: str) -> list[Manifest]:
    """Return a copy of the manifests rendered from a directory of k8s/."""
    return deepcopy(_render_cached(name))


@cache
def _render_cached(name: str) -> list[Manifest]:
    return render(K8S / name)


def manifests_of_kind(found: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in found if manifest["kind"] == kind]


def ray_service(found: list[Manifest]) -> Manifest:
    (service,) = manifests_of_kind(found, "RayService")
    return service


def ray_cluster(found: list[Manifest]) -> Any:
    return ray_service(found)["spec"]["rayClusterConfig"]


def serve_application(found: list[Manifest]) -> Any:
    (application,) = yaml.safe_load(ray_service(found)["spec"]["serveConfigV2"])["applications"]
    return application


def serve_deployment(found: list[Manifest], name: str) -> Any:
    (named,) = [d for d in serve_application(found)["deployments"] if d["name"] == name]
    return named


def worker_group(found: list[Manifest], name: str) -> Any:
    (named,) = [g for g in ray_cluster(found)["workerGroupSpecs"] if g["groupName"] == name]
    return named


def worker_pod_spec(found: list[Manifest], name: str) -> Any:
    return worker_group(found, name)["template"]["spec"]


def worker_container(found: list[Manifest], name: str) -> Any:
    (only,) = worker_pod_spec(found, name)["containers"]
    return only


def replace_in_serve_config(found: list[Manifest], old: str, new: str) -> None:
    spec = ray_service(found)["spec"]
    assert old in spec["serveConfigV2"]
    spec["serveConfigV2"] = spec["serveConfigV2"].replace(old, new, 1)


def pod_templates(found: list[Manifest]) -> list[PodTemplate]:
    """Return every pod template of the manifests."""
    templates = []
    for manifest in found:
        if manifest["kind"] == "StatefulSet":
            templates.append((manifest["metadata"]["name"], manifest["spec"]["template"]))
        if manifest["kind"] == "RayService":
            cluster = manifest["spec"]["rayClusterConfig"]
            templates.append(("head", cluster["headGroupSpec"]["template"]))
            templates += [(g["groupName"], g["template"]) for g in cluster["workerGroupSpecs"]]
    return [PodTemplate(name, t["metadata"], t["spec"]) for name, t in templates]


def selector_matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector matches these labels."""
    wanted = selector.get("matchLabels", {})
    rules = selector.get("matchExpressions", [])
    assert {rule["operator"] for rule in rules} <= {"In"}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in rules
    )
