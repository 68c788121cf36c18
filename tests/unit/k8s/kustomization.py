"""Renderer of the kustomizations in k8s/ that needs no kustomize.

It supports only what they use and raises an error otherwise, so that a kustomization cannot grow
beyond the tests. A test compares it with the real program where that is installed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

Manifest = dict[str, Any]

_CARRIER = {
    "name": "serve-config",
    "files": ["serve.yaml"],
    "options": {
        "disableNameSuffixHash": True,
        "annotations": {"config.kubernetes.io/local-config": "true"},
    },
}
"""ConfigMap that carries Serve's configuration to the RayService and is not applied."""
_SOURCE = {"kind": "ConfigMap", "name": "serve-config", "fieldPath": "data.[serve.yaml]"}
_TARGET = {
    "select": {"kind": "RayService", "name": "justitia"},
    "fieldPaths": ["spec.serveConfigV2"],
}
_IN_BASE = {
    "configMapGenerator": [_CARRIER],
    "replacements": [{"source": _SOURCE, "targets": [_TARGET]}],
}
_IN_OVERLAYS = _IN_BASE | {
    "configMapGenerator": [_CARRIER | {"namespace": "justitia", "behavior": "replace"}]
}
"""Sections of a kustomization that are supported in overlays, and their allowed content."""
_FIELDS = {"apiVersion", "kind", "namespace", "resources", "components", "images", "patches"}


class UnsupportedKustomization(Exception):
    """A kustomization uses an unsupported field or names a missing file."""


def render(directory: Path, inherited: Iterable[Manifest] = ()) -> list[Manifest]:
    """Return the output of `kustomize build` for a directory; a component adds to `inherited`.

    It raises NotUnderstood if the kustomization needs more than the supported subset.
    """
    values = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    paths = [directory / name for name in values.get("resources", [])]
    sections = _IN_OVERLAYS if any(path.is_dir() for path in paths) else _IN_BASE
    for field, value in values.items():
        if field not in _FIELDS and value != sections.get(field):
            raise UnsupportedKustomization(f"{directory}: {field}")
    manifests = [*inherited]
    for path in paths:
        manifests += render(path) if path.is_dir() else _read_documents(path)
    for name in values.get("components", []):
        manifests = render(directory / name, manifests)
    if values.keys() >= sections.keys():
        service = _only_manifest(manifests, "RayService", "justitia")
        service["spec"]["serveConfigV2"] = (directory / "serve.yaml").read_text(encoding="utf-8")
    for patch in values.get("patches", []):
        _apply_patch(manifests, directory, **patch)
    for manifest in manifests:
        if "namespace" in values and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = values["namespace"]
        for image in values.get("images", []):
            _rename_image(manifest, image)
    return manifests


def walk_values(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value below a YAML node with its path."""
    yield path, node
    if isinstance(node, dict):
        for key, value in node.items():
            yield from walk_values(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from walk_values(value, f"{path}[{index}]")


def _read_documents(path: Path) -> list[Manifest]:
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return [_copy_without_anchors(document) for document in documents if document]


def _copy_without_anchors(value: Any) -> Any:
    """Return a copy without shared YAML anchors, because a patch applies to one place only."""
    return json.loads(json.dumps(value))


def _apply_patch(
    manifests: list[Manifest],
    directory: Path,
    path: str = "",
    patch: str = "",
    target: dict[str, str] | None = None,
) -> None:
    content = yaml.safe_load(patch or (directory / path).read_text(encoding="utf-8"))
    if target is not None:
        old = _only_manifest(manifests, **target)
        manifests[manifests.index(old)] = jsonpatch.apply_patch(old, _copy_without_anchors(content))
    elif content.pop("$patch", "") == "delete" and {*content} == {"apiVersion", "kind", "metadata"}:
        manifests.remove(_only_manifest(manifests, content["kind"], **content["metadata"]))
    else:
        raise UnsupportedKustomization(f"{directory}: a merge patch other than `$patch: delete`")


def _rename_image(manifest: Manifest, image: Mapping[str, str]) -> None:
    for path, node in walk_values(manifest):
        is_container = re.search(r"\.(c|initC)ontainers\[\d+\]$", path)
        if is_container and node["image"].partition(":")[0] == image["name"]:
            node["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"


def _only_manifest(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    found = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    if len(found) != 1:
        raise UnsupportedKustomization(f"{kind} {name}: {len(found)} of them")
    return found[0]
