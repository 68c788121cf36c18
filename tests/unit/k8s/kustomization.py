"""Renders the kustomizations of k8s/, without kustomize.

The subset that they use, and nothing else: an unknown field is an error, so that a kustomization
cannot grow beyond what is tested. A test holds it to the real program wherever that is installed.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

Manifest = dict[str, Any]

_CLUSTER_KINDS = {"Namespace"}
_FIELDS = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "components",
    "images",
    "configMapGenerator",
    "replacements",
    "patches",
}
_LOCAL = "config.kubernetes.io/local-config"


class NotUnderstood(Exception):
    """A kustomization uses what this renderer does not know, or names what is not there."""


def render(directory: Path) -> list[Manifest]:
    """Return what `kustomize build` of this directory prints.

    Raises:
        NotUnderstood: If it needs more than the subset.
    """
    manifests = _build(directory, [])
    return [m for m in manifests if _LOCAL not in m["metadata"].get("annotations", {})]


def _build(directory: Path, inherited: list[Manifest]) -> list[Manifest]:
    values = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    _only(values, _FIELDS, directory)
    manifests = [*inherited]
    for name in values.get("resources", []):
        path = directory / name
        manifests += _build(path, []) if path.is_dir() else _documents(path)
    for name in values.get("components", []):
        manifests = _build(directory / name, manifests)
    for generator in values.get("configMapGenerator", []):
        _generate(generator, directory, manifests)
    for patch in values.get("patches", []):
        manifests = _patched(patch, directory, manifests)
    namespace = values.get("namespace")
    for manifest in manifests:
        if namespace is not None and manifest["kind"] not in _CLUSTER_KINDS:
            manifest["metadata"]["namespace"] = namespace
        for image in values.get("images", []):
            _rename_image(manifest, image)
    for replacement in values.get("replacements", []):
        _replace(replacement, manifests)
    return manifests


def _documents(path: Path) -> list[Manifest]:
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    # Through text once more: places of one anchor share objects, and a patch is for one of them.
    return [json.loads(json.dumps(document)) for document in documents if document]


def _generate(generator: Mapping[str, Any], directory: Path, manifests: list[Manifest]) -> None:
    _only(generator, {"name", "namespace", "behavior", "files", "options"}, directory)
    options = generator["options"]
    _only(options, {"disableNameSuffixHash", "annotations"}, directory)
    if options.get("disableNameSuffixHash") is not True:
        raise NotUnderstood(f"{directory}: a suffix of {generator['name']}")
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"], "annotations": dict(options["annotations"])},
        "data": {
            name: (directory / name).read_text(encoding="utf-8") for name in generator["files"]
        },
    }
    there = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == _name_of(made)]
    if bool(there) != (generator.get("behavior") == "replace"):
        raise NotUnderstood(f"{directory}: behavior of {generator['name']}")
    for old in there:
        manifests.remove(old)
    manifests.append(made)


def _patched(
    patch: Mapping[str, Any], directory: Path, manifests: list[Manifest]
) -> list[Manifest]:
    _only(patch, {"path", "patch", "target"}, directory)
    inline = patch.get("patch")
    text = inline if inline is not None else (directory / patch["path"]).read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    if isinstance(content, dict):
        if content.pop("$patch", None) != "delete" or set(content) != {
            "apiVersion",
            "kind",
            "metadata",
        }:
            raise NotUnderstood(f"{directory}: a merge patch other than `$patch: delete`")
        return _without(_one(manifests, *_name_of(content)), manifests)
    target = patch["target"]
    _only(target, {"kind", "name"}, directory)
    old = _one(manifests, target["kind"], target["name"])
    new = jsonpatch.apply_patch(old, deepcopy(content))
    return [new if manifest is old else manifest for manifest in manifests]


def _without(gone: Manifest, manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest is not gone]


def _rename_image(node: Any, image: Mapping[str, str]) -> None:
    _only(image, {"name", "newName", "newTag"}, Path())
    for container in _containers(node):
        if container["image"].partition(":")[0] == image["name"]:
            name = image.get("newName", image["name"])
            container["image"] = f"{name}:{image['newTag']}"


def _containers(node: Any) -> Iterator[Manifest]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                yield from value
            else:
                yield from _containers(value)
    elif isinstance(node, list):
        for item in node:
            yield from _containers(item)


def _replace(replacement: Mapping[str, Any], manifests: list[Manifest]) -> None:
    _only(replacement, {"source", "targets"}, Path())
    source = replacement["source"]
    _only(source, {"kind", "name", "fieldPath"}, Path())
    section, _, rest = source["fieldPath"].partition(".[")
    value = _one(manifests, source["kind"], source["name"])[section][rest.removesuffix("]")]
    for target in replacement["targets"]:
        _only(target, {"select", "fieldPaths"}, Path())
        manifest = _one(manifests, target["select"]["kind"], target["select"]["name"])
        for path in target["fieldPaths"]:
            *parents, last = path.split(".")
            place: Any = manifest
            for part in parents:
                place = place[part]
            if last not in place:
                raise NotUnderstood(f"{path}: a field that is not there")
            place[last] = value


def _one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    found = [m for m in manifests if _name_of(m) == (kind, name)]
    if len(found) != 1:
        raise NotUnderstood(f"{kind} {name}: {len(found)} of them")
    return found[0]


def _name_of(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _only(values: Mapping[str, Any], known: set[str], where: Path) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise NotUnderstood(f"{where}: {', '.join(unknown)}")
