"""Strict schemas: fields that Kubernetes would silently drop are errors."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from justitia_ray.serve.ops.config_file import check_values
from tests.unit.k8s.kustomization import Manifest
from tests.unit.k8s.manifests import SCHEMAS, pod_templates

KUBERNETES = ("1.31", "1.37")
"""Oldest and newest Kubernetes version that the manifests are checked against."""

_OF_OPERATORS = {"ray.io/v1"}


def manifest_errors(found: list[Manifest]) -> list[str]:
    """Return the errors of these manifests, one line each: kind, name, place, reason."""
    lines = []
    for manifest in found:
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["apiVersion"] in _OF_OPERATORS:
            lines += [f"{name}: {line}" for line in _kuberay_errors(manifest)]
            lines += [f"{name}: serveConfigV2: {line}" for line in _serve_config_errors(manifest)]
        else:
            lines += [f"{name}: {line}" for line in _kubernetes_errors(manifest)]
    for template in pod_templates(found):
        # KubeRay generates the name, and no schema requires one
        pod: Manifest = {"apiVersion": "v1", "kind": "Pod"}
        pod |= {"metadata": template.metadata, "spec": template.spec}
        lines += [f"pod {template.name}: {line}" for line in _kubernetes_errors(pod)]
    return lines


def closed_schema(schema: Any) -> Any:
    """Return a schema in which objects with listed properties allow no others."""
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: closed_schema(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        strict.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        strict["type"] = ["integer", "string"]
    return strict


def _kuberay_errors(manifest: Manifest) -> Iterator[str]:
    # a custom resource's schema leaves its metadata to Kubernetes, as for any object
    yield from _kubernetes_errors(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest["metadata"]}
    )
    for error in _kuberay_validator(manifest["kind"].lower()).iter_errors(manifest):
        yield f"{error.json_path}: {error.message}"


@cache
def _kuberay_validator(kind: str) -> jsonschema.Draft202012Validator:
    text = gzip.decompress((SCHEMAS / f"{kind}_v1.schema.json.gz").read_bytes())
    schema = closed_schema(json.loads(text))
    return jsonschema.Draft202012Validator(schema)


def _kubernetes_errors(manifest: Manifest) -> tuple[str, ...]:
    return _kubernetes_errors_cached(json.dumps(manifest))


@cache
def _kubernetes_errors_cached(manifest: str) -> tuple[str, ...]:
    """Results are cached, because a test changes one manifest of many."""
    lines = []
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(json.loads(manifest), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(part) for part in error.path)
            lines.append(f"{place}: {error.message} (Kubernetes {version})")
    return tuple(lines)


def _serve_config_errors(manifest: Manifest) -> tuple[str, ...]:
    return check_values(yaml.safe_load(manifest["spec"]["serveConfigV2"])).errors
